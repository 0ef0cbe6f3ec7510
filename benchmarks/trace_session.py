"""Trace one chat through pltz: files entered, calls, and moves between files, for compress, decompress, put and get.

    python -m pltz.benchmarks.trace_session          # a line for each
    python -m pltz.benchmarks.trace_session put      # and of these the moves, with their functions, one by one

Each call is made once before it is traced, so that imports are left out. An archive has its bundle loaded then. The
two functions are traced twice: as a user calls them, which loads the bundle, and with a codec that is loaded. Only
code of pltz counts.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pltz

ROOMS = Path(__file__).resolve().parents[1]
CHAT = {
    "messages": [
        {"role": "user", "content": "What is a prefill?"},
        {"role": "assistant", "content": "One pass of the model over all tokens of the prompt."},
    ]
}


class Trace(NamedTuple):
    """Counts of one call: ``files`` entered, ``calls`` made in them, ``moves`` from a file to another.

    ``path``: file and function of each move.
    """

    files: int
    calls: int
    moves: int
    path: list[str]


def trace(work: Callable[[], object]) -> Trace:
    """Return the counts of one call of ``work``, its threads included."""
    homes: dict[str, str] = {}
    files: set[str] = set()
    path: list[str] = []
    calls, last = 0, ""

    def enter(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls, last
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name not in homes:
            place = Path(name).resolve()
            ours = place.is_file() and place.is_relative_to(ROOMS) and place.name != Path(__file__).name
            homes[name] = str(place) if ours and ".venv" not in place.parts else ""
        if home := homes[name]:
            calls += 1
            files.add(home)
            if home != last:
                path.append(f"{Path(home).relative_to(ROOMS)} {frame.f_code.co_qualname}")
            last = home

    sys.setprofile(enter)
    threading.setprofile(enter)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Trace(len(files), calls, len(path), path)


def traced() -> dict[str, Trace]:
    """Return the trace of each way of a session."""
    codec = pltz.Codec.load()
    data = pltz.compress(CHAT)
    for bundle in (None, codec):
        pltz.compress(CHAT, bundle=bundle)
        pltz.decompress(data, bundle=bundle)
    with tempfile.TemporaryDirectory() as folder:
        archive = pltz.Archive.open(f"{folder}/cold", create=True)
        archive.put("first", CHAT)
        archive.get("first")
        second = {"messages": [{"role": "user", "content": "And a prefix?"}, CHAT["messages"][1]]}
        ways: dict[str, Callable[[], object]] = {
            "compress": lambda: pltz.compress(CHAT),
            "compress, loaded": lambda: pltz.compress(CHAT, bundle=codec),
            "decompress": lambda: pltz.decompress(data),
            "decompress, loaded": lambda: pltz.decompress(data, bundle=codec),
            "put": lambda: archive.put("second", second),
            "get": lambda: archive.get("second"),
        }
        return {way: trace(work) for way, work in ways.items()}


def main() -> None:
    """Print a line for each way of a session."""
    for way, (files, calls, moves, path) in traced().items():
        print(f"{way:18}  {files:3} files  {calls:4} calls  {moves:3} moves")
        if way in sys.argv[1:]:
            print("\n".join(path))


if __name__ == "__main__":
    main()
