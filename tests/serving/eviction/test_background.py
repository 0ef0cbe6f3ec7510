"""The worker's process ends with the hook, at any point of its work."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from pltz.serving.eviction import background
from pltz.serving.eviction.background import Process, Teller


def test_a_worker_that_is_started_again_while_the_hook_closes_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the worker's process in the listener, the thread that starts it, since that thread cannot wait for itself."""
    children: list[subprocess.Popen[bytes]] = []
    begun, closing = threading.Event(), threading.Event()

    def spawn(process: Process) -> subprocess.Popen[bytes]:
        if children:
            begun.set()
            closing.wait(10)
        program = "import sys; sys.stdin.read()" if children else ""
        children.append(
            subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        return children[-1]

    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(background, "RESTART", (0.01, 60.0))
    monkeypatch.setattr(Process, "_spawn", spawn)
    process = Process({}, Teller(lambda *told: None))
    assert begun.wait(10)
    done = threading.Thread(target=process.close, args=(5.0,))
    done.start()
    while not process._closing.is_set():
        pass
    closing.set()
    done.join(10)
    assert len(children) == 2 and all(child.poll() is not None for child in children)
    assert not process._listener.is_alive() and not failed
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
