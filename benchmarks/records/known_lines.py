"""Known lines: make the lines of known agents that every table of a log starts from (coding/log/known.table).

    python -m pltz.benchmarks.records.known_lines agents_train.jsonl.zst benchmarks/records/known_lines.jsonl
    python -m pltz.benchmarks.records.known_lines benchmarks/records/known_lines.jsonl coding/log/known.table

The second makes the table anew for a new version of the format. The input of the first has a record with ``id``
(kind/repository/name), ``kind`` and ``text`` per log. From the logs of each kind come lines that show its shapes, in
order and about 10 kB. Keys stay, and short names that at least two repositories have: roles, types, tools. Ids are
drawn anew, the same one for the same one. All other strings become stand-ins.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import zstandard

from pltz.coding.log import opaque, protobuf, table, times
from pltz.models.session import spelling

KINDS: Final = ("pi", "other", "gemini-cli", "opencode", "copilot", "codex", "claude-code")  # the last is at hand first
PER_SHAPE: Final = 2  # lines of one shape
PER_KIND: Final = 10_000  # characters
PER_REPOSITORY: Final = 4  # logs that are looked at
ELEMENTS: Final = 3  # of a list that stay
LONGEST_LOG: Final = 3_000_000  # characters
LONGEST_NAME: Final = 40
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:<>-]*(?: [a-z_-]+){0,3}")
LONGEST_BYTES: Final = 64  # of a message
LETTERS: Final = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMN23456789"
Json = Any


class Log:
    """A log of a kind and of a repository, as its values and whether it is one document."""

    def __init__(self, record: dict[str, str]) -> None:
        self.id, self.kind = record["id"], record["kind"]
        self.repository = record["id"].split("/")[1]
        self.document, self.values = False, []
        text = record["text"]
        try:
            self.values = [spelling.parse(text.rstrip("\n"))]
            self.document = "\n" in text.strip()
        except ValueError:
            for line in text.split("\n"):
                if line.startswith("{"):
                    self.values.append(spelling.parse(line))


def read(path: Path) -> Iterator[Log]:
    """Yield some logs of each repository."""
    seen: Counter[tuple[str, str]] = Counter()
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            record = json.loads(line)
            who = record["id"].split("/")[1], record["kind"]
            if len(record["text"]) <= LONGEST_LOG and seen[who] < PER_REPOSITORY:
                seen[who] += 1
                yield Log(record)


def names(value: Json) -> Iterator[str]:
    """Yield the keys and short strings of a value."""
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner)
    elif type(value) is str and len(value) <= LONGEST_NAME and NAME.fullmatch(value):
        yield value


def shape(value: Json, common: set[str]) -> str:
    """Return what lines of a kind differ in: keys, types and common names."""
    if isinstance(value, dict):
        return "{" + ",".join(key + shape(inner, common) for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(inner, common) for inner in value})) + "]"
    if type(value) is str:
        return f"s:{value}" if value in common and len(value) < 24 else "s"
    return str(value) if value is None or isinstance(value, bool) else "n"


class Scrubber:
    """Replaces what a log says. The same string becomes the same stand-in, so references stay references."""

    def __init__(self, common: set[str], draw: random.Random) -> None:
        self._common, self._draw = common, draw
        self._known: dict[str, str] = {"": ""}

    def value(self, value: Json) -> Json:
        """Return a value with stand-ins."""
        if isinstance(value, dict):
            return {self._key(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value[:ELEMENTS]]
        if type(value) is spelling.Number:
            return spelling.number_of(f"0.{self._draw.randrange(1, 999)}")
        return self._string(value) if type(value) is str else value

    def _key(self, key: str) -> str:
        return key if key in self._common or (key.isidentifier() and len(key) < 30) else self._string(key)

    def _string(self, text: str) -> str:
        if text not in self._known:
            self._known[text] = self._new(text)
        return self._known[text]

    def _new(self, text: str) -> str:
        if times.read_time(text):
            return text
        if opaque.UUID.fullmatch(text):
            begin = 14 if text[14] == "7" else 0  # a UUID of version 7 starts with its time
            fixed = {*range(begin), 8, 13, 14, 18, 19, 23}
            return "".join(c if i in fixed else self._hex() for i, c in enumerate(text))
        head = opaque.split_id(text)
        if head is not None or opaque.STAMPED.fullmatch(text):
            keep = 16 if opaque.STAMPED.fullmatch(text) else len(head or "") + 4
            digits = "0123456789abcdef" if opaque.SETS[0].issuperset(text[keep:]) else LETTERS
            return text[:keep] + "".join(self._draw.choice(digits) if c.isalnum() else c for c in text[keep:])
        if text in self._common and not re.search(r"\d{3}", text):
            return text
        if len(text) > LONGEST_NAME and opaque.BASE64.fullmatch(text):
            found = opaque.base64_bytes(text)
            message = protobuf.read_message(found[1]) if found else None
            made = self._draw.randbytes(60) if message is None else protobuf.write_message(self._message(message))
            return base64.b64encode(made).decode()
        if text[0] in "{[" and text[-1] in "}]":
            try:
                value = spelling.parse(text)
                style = spelling.spelling_of(text, value, spelling.LINES, 0)
                if style is not None:
                    return spelling.spell(self.value(value), style)
            except ValueError:
                pass
        number = len(self._known)
        return f"some text {number}\nof two lines" if "\n" in text or len(text) >= 64 else f"w{number}"

    def _message(self, message: protobuf.Message) -> protobuf.Message:
        """Return a message of the same frame, with other bytes in it."""
        made: protobuf.Message = {}
        for key, value in message.items():
            if isinstance(value, bytes):
                made[key] = self._draw.randbytes(min(LONGEST_BYTES, len(value)))
            elif isinstance(value, str):
                made[key] = self._string(value)
            else:
                made[key] = value if isinstance(value, int) else self._message(value)
        return made

    def _hex(self) -> str:
        return self._draw.choice("0123456789abcdef")


def lines_of(logs: list[Log], common: set[str], draw: random.Random) -> Iterator[str]:
    """Yield the lines of one kind, the first log of each repository first."""
    order = sorted(logs, key=lambda log: hashlib.md5(log.id.encode()).hexdigest())
    met: Counter[str] = Counter()
    order.sort(key=lambda log: met.update([log.repository]) or met[log.repository] > 1)
    shapes: Counter[str] = Counter()
    size = 0

    def fresh(value: Json) -> bool:
        found = shape(value, common)
        shapes[found] += 1
        return shapes[found] <= PER_SHAPE

    for log in order:
        scrubber = Scrubber(common, draw)
        for value in log.values:
            if size > PER_KIND:
                return
            clean = scrubber.value(value)
            if log.document and isinstance(value, dict):
                for key, inner in value.items():
                    if isinstance(inner, list):
                        chosen = [one for one in inner[:40] if fresh(one)][:8]
                        clean[scrubber.value(key)] = [scrubber.value(one) for one in chosen]
            elif not fresh(value):
                continue
            line = spelling.spell(clean, 7 if log.document else 0)
            size += len(line)
            yield line


def main(arguments: Iterable[str]) -> None:
    """See the head of this file."""
    source, target = map(Path, arguments)
    if target.suffix == ".table":
        target.write_bytes(table.teach(source.read_bytes()))
        return
    logs = list(read(source))
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for log in logs:
        for value in log.values:
            for name in names(value):
                owners[name].add(log.repository)
    common = {name for name, found in owners.items() if len(found) > 1}
    draw = random.Random(1)
    lines = [line for kind in KINDS for line in lines_of([log for log in logs if log.kind == kind], common, draw)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(json.dumps({"logs": len(logs), "lines": len(lines), "bytes": target.stat().st_size}))


if __name__ == "__main__":
    main(sys.argv[1:])
