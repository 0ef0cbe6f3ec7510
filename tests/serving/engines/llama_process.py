"""A llama-server in a process of its own."""

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START = 60.0  # seconds


@contextmanager
def running(binary: str, model: Path, slots: Path, *more: str) -> Iterator[str]:
    """Start a server and yield its URL once it is ready. Two slots of 1024 tokens, one thread.

    ``slots``: the folder in which it saves them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "-c", "2048", "-np", "2", "-t", "1", "-tb", "1"]
    command = [binary, "-m", str(model), "--slot-save-path", f"{slots}/", "--jinja", *options, *more]
    with open(slots / f"server-{port}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, Path(log.name))
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"llama-server does not start: {log.read_text(errors='replace')[-2000:]}")
