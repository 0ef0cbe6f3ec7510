"""Record the answers of a real llama-server to the calls of test_llama_server.py, for machines without one.

    python -m tests.serving.engines.record_llama_server LLAMA_SERVER_BINARY

It writes recorded/llama_server.jsonl (path, body, status, reply of each call) and recorded/slot.bin (a slot file as the
server wrote it).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from pltz.plt_codec.errors import PltzError
from pltz.serving.engines.llama_server import LlamaServer
from tests.serving.engines.llama_process import running
from tests.serving.engines.served_models import write_gguf, write_gguf_lora

RECORDED = Path(__file__).parent / "recorded"
MESSAGES = [{"role": "user", "content": "Hello, how are you?"}]
OPTIONS = {"n_predict": 8, "temperature": 0}
STYLED = {**OPTIONS, "lora": [{"id": 0, "scale": 0.5}]}


def main(binary: str) -> None:
    RECORDED.mkdir(exist_ok=True)
    calls: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, lora = write_gguf(folder / "mini.gguf"), write_gguf_lora(folder / "style.gguf")
        with running(binary, model, folder, "--lora-scaled", f"{lora}:0") as url:
            _play(LlamaServer(url), folder, calls)
    lines = [json.dumps(call, ensure_ascii=False).replace(f"{folder}/", "/models/") + "\n" for call in calls]
    (RECORDED / "llama_server.jsonl").write_text("".join(lines))


def _play(server: LlamaServer, folder: Path, calls: list[dict[str, object]]) -> None:
    real = server._call

    def call(path: str, body: object = None) -> object:
        try:
            status, reply = 200, real(path, body)
        except PltzError as exc:
            status, reply = 400, {"error": {"message": str(exc).partition(": ")[2]}}
            raise
        finally:
            calls.append({"path": path, "body": body, "status": status, "reply": reply})
            if "action=save" in path:
                shutil.copy(folder / str(body["filename"]), RECORDED / "slot.bin")  # type: ignore[index]
        return reply

    server._call = call  # type: ignore[method-assign]
    ids = server.render(MESSAGES)
    done = server.complete(ids, slot=0, **OPTIONS)
    server.slot_ids(0, folder)
    server.erase(0)
    server.thaw(done.ids, slot=0, any_target=True)
    server.complete(ids, slot=1, **STYLED)
    try:
        server.thaw([5] * 3000, any_target=True)
    except PltzError as exc:
        print(exc)


if __name__ == "__main__":
    main(sys.argv[1])
