"""Primer: choose the lines of text that PPMd knows before each log (plt_codec/primer.ppmd).

    python -m pltz.benchmarks.records.primer agents_train.jsonl.zst plt_codec/primer.ppmd

The input has a record with ``id`` (kind/owner+repository/name), ``kind`` and ``text`` per log, all under permissive
licences. A line is known if the logs of two owners or more have it. Prompts of closed agents are their vendors': of
lines that no open agent's log has, only short ones are known, ordered by how many owners have them.
Nothing is taken that looks like a mail address, a home, an id, a key or a date, or names an owner or a repository.

Those come first that save most: the longer, up to `LONG` bytes, and the more owners, the better.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import zstandard

from pltz.coding.log import table
from pltz.plt_codec import ppmd

OPEN: Final = {"codex", "gemini-cli", "opencode", "pi"}  # agents whose source, prompts included, is open
SIZE: Final = 196608  # bytes of the primer: 0.7446 of zstd -19 on validation, 131 kB 0.7463, 229 kB 0.7445
SHORT: Final = 120  # bytes of a line that only closed agents' logs have
LEAST, MOST, LONG = 8, 4000, 60  # bytes of a line; beyond LONG it is worth no more
PRIVATE: Final = re.compile(
    rb"@[\w-]+\.[a-z]|/home/|/Users/|/root/|[A-Z]:[\\/]|[0-9a-fA-F]{16,}|[A-Za-z0-9+/_-]{40,}|[Aa]uthor|session_id"
    rb"|sk-[a-z]|ghp_|AKIA|\d{4}-\d\d-\d\d|[0-9a-f]{8}-[0-9a-f]{4}"
)


class Line(NamedTuple):
    """A line of text: its owners, whether an open agent's log has it, and where it stands first."""

    owners: set[str]
    is_open: list[bool]
    at: tuple[int, int]

    def worth(self, line: bytes) -> int:
        """Return what the line is worth in a primer."""
        return (len(self.owners) - 1) * min(LONG, len(line))


def read(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the id and the kind of each log, and the text that its table leaves."""
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            record = json.loads(line)
            pieces = table.split(record["text"].encode("utf-8", "surrogatepass")).pieces
            yield record["id"], record["kind"], "\n".join(p.text for p in pieces).encode("utf-8", "surrogatepass")


def chosen(logs: Iterable[tuple[str, str, bytes]]) -> list[bytes]:
    """Return the lines of the primer in their order."""
    lines, names = dict[bytes, Line](), set[bytes]()
    for number, (name, kind, text) in enumerate(logs):
        owner, _, repository = name.split("/")[1].partition("+")
        names |= {word.encode() for word in (owner, repository) if len(word) > 4}
        for place, line in enumerate(text.split(b"\n")):
            if LEAST <= len(line) <= MOST:
                found = lines.setdefault(line, Line(set(), [False], (number, place)))
                found.owners.add(owner)
                found.is_open[0] |= kind in OPEN
    named = re.compile(b"|".join(map(re.escape, sorted(names))) or b"$^", re.IGNORECASE)
    fit = [
        (line, found)
        for line, found in lines.items()
        if len(found.owners) > 1
        and (found.is_open[0] or len(line) <= SHORT)
        and not PRIVATE.search(line)
        and not named.search(line)
    ]
    best, left = list[tuple[bytes, Line]](), SIZE
    for line, found in sorted(fit, key=lambda one: (-one[1].worth(one[0]), one[1].at)):
        if len(line) < left:
            best.append((line, found))
            left -= len(line) + 1
    best.sort(key=lambda one: one[1].at)
    return [line for line, _ in best]


def main(arguments: Iterable[str]) -> None:
    """Write the primer to the file of the second argument, from the logs of the first."""
    source, target = map(Path, arguments)
    lines = chosen(read(source))
    primer = b"".join(line + b"\n" for line in lines)
    target.write_bytes(len(primer).to_bytes(4, "little") + ppmd.encode(primer, primer=ppmd.NO_PRIMER))
    print(json.dumps({"lines": len(lines), "bytes": len(primer), "packed": target.stat().st_size}))


if __name__ == "__main__":
    main(sys.argv[1:])
