"""measure_slots: slots are saved and restored by the calls that llama-server takes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from pltz.experiments.slots.measure_slots import act


def test_a_slot_is_saved_and_restored_by_name() -> None:
    calls = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for action in ("restore", "save"):
            act(f"http://127.0.0.1:{server.server_port}", action, "bot.bin")
        server.shutdown()
        thread.join()
    assert calls == [
        (f"/slots/0?action={action}", "application/json", {"filename": "bot.bin"}) for action in ("restore", "save")
    ]
