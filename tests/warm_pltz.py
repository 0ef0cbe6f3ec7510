"""A `pltz` that starts in milliseconds: a server that has imported everything, and forks for each command.

    with warm_pltz(folder) as path:                      # PATH with a `pltz` and a `python` in front
        subprocess.run("pltz --version", env={"PATH": path})

Every command is a process of its own with its own streams, folder and exit code, as a user would have it. Only its
imports were done before.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = 120  # seconds to import everything, on a busy machine
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = [{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    os._exit(int(server.recv(8) or b"70"))
"""


@contextlib.contextmanager
def warm_pltz(folder: Path) -> Iterator[str]:
    """Start a server, and yield a PATH with its commands `pltz` and `python` in front. Stop it at the end."""
    address = folder / "server"
    for name in ("pltz", "python"):
        client = folder / "bin" / name
        client.parent.mkdir(exist_ok=True)
        client.write_text(CLIENT.format(python=sys.executable, address=str(address), name=name))
        client.chmod(0o755)
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a fork has no threads of its parent
    process = subprocess.Popen([sys.executable, "-P", __file__, str(address)], cwd=folder, env=os.environ | alone)
    try:
        deadline = time.monotonic() + START
        while not address.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the warm pltz did not start: see its messages above")
            time.sleep(0.05)
        yield f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    finally:
        process.terminate()
        process.wait(30)


def _serve(address: str) -> None:
    """Import all that commands need (by loading a target, too), and fork for each that is asked for."""
    import pltz.cli.archive.group  # noqa: F401
    from pltz.archive.archive import Archive  # noqa: F401
    from pltz.coding.codec import Codec
    from pltz.kv.thaw.thawer import Thawer  # noqa: F401
    from pltz.models.target.target import Target
    from pltz.plt_codec.zstd import Fallback

    fallback = Fallback(Codec.load().bundle.zstd_dict)
    for log in range(10, 14):  # windows of short chats
        fallback.compress(bytes(1 << log))
    Target.load("mini-llama").generate  # noqa: B018

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address + ".new")
        listening.listen(8)
        os.rename(address + ".new", address)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        while True:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Run one command in this process, and end it."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    name, words, folder, environment = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        code = _run(name, words)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        connection.send(str(code).encode())
        os._exit(code)


def _run(name: str, words: list[str]) -> int:
    """Run `pltz WORDS` or `python FILE WORDS`, and return the exit code."""
    from pltz.cli.main import main

    try:
        if name == "pltz":
            sys.argv = [name, *words]
            main()
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  (as the interpreter would at its end)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
