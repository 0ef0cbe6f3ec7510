"""Search: how large an index of words is, how long it takes to make, and how soon it answers.

    python -m pltz.benchmarks.archive.measure_search TEXT --sessions 100000

Sessions are synthetic: ten turns each, of words that follow each other in the file TEXT, 50 on average. They are stored
under zstd, so that the index and not the decoder is measured. Each search is of a fresh `Archive`, in this process.
Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.encryption.keys import Secret
from pltz.archive.search import SearchQuery
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec

TURNS, WORDS = 10, 50
COMMIT = 10_000  # sessions
KEY = "a passphrase of the benchmark"


def sessions(words: Sequence[str], first: int, count: int) -> Iterator[tuple[NewSession, int]]:
    """Yield synthetic chats, with the bytes of what is said in them."""
    rng = random.Random(first)
    for n in range(first, first + count):
        said = []
        for turn in range(TURNS):
            size = 1 + min(int(rng.expovariate(1 / WORDS)), 20 * WORDS)
            begin = rng.randrange(len(words) - size)
            said.append({"role": ("user", "assistant")[turn % 2], "content": " ".join(words[begin : begin + size])})
        data = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
        content = [np.frombuffer(data, np.uint8)]
        size = sum(len(turn["content"].encode()) for turn in said)
        yield NewSession(f"p{n % 50}/s{n}", content, kind="chat", time=1_700_000_000 + n), size


def measured(text: Path, count: int, folder: Path, *, sealed: bool) -> dict[str, float]:
    """Make an archive and its index, and return their sizes and seconds."""
    words = text.read_text("utf8").split()
    opened = opener.create(folder, [BytesCodec()], key=Secret.passphrase(KEY) if sealed else None)
    said = 0
    for first in range(0, count, COMMIT):
        some, sizes = zip(*sessions(words, first, min(COMMIT, count - first)), strict=True)
        opened.writer.put(some)
        said += sum(sizes)
    opened.indexes.write()
    row: dict[str, float] = {"sessions": count, "turns": count * TURNS, "said_mb": said / 1e6}

    @contextmanager
    def timed(name: str) -> Iterator[Archive]:
        with Archive.open(folder, passphrase=KEY if sealed else None) as cold:
            assert cold.sessions  # the bundle is loaded once per process
            begin = time.process_time()
            yield cold
            row[name] = round(time.process_time() - begin, 3)

    with timed("index_s") as cold:
        index = cold.word_index()
        index.catch_up()
        row["share"] = round(index.size / said, 4)
    seen = Counter(word for word in words if word.isalpha() and len(word) > 7)
    rare = min(seen, key=lambda word: abs(seen[word] - 5))
    for name, asked in (("rare", rare), ("two", "the file"), ("common", "the")):
        with timed(f"{name}_found_s") as cold:
            index = cold.word_index()
            index.catch_up()
            row[f"{name}_parts"] = sum(1 for _ in itertools.islice(index.find(SearchQuery(asked)), 20))
        with timed(f"{name}_20_lines_s") as cold:
            list(cold.search(asked, limit=20))
    with timed("list_s") as cold:
        row["listed"] = sum(1 for _ in cold.directory.ls())
    opened.writer.put([session for session, _ in sessions(words, count, 1)])
    with timed("after_a_put_s") as cold:
        list(cold.search("the", limit=20))
    return row


def main() -> None:
    """Print a row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--sealed", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(given.text, given.sessions, Path(folder) / "cold", sealed=given.sealed)))


if __name__ == "__main__":
    main()
