"""Make the golden containers beside this file: `python tests/golden/containers/make.py`.

A second writer of the .pltz container, written from FORMAT.md alone, with struct and zlib and none of pltz's code.
Every file is named after what it exercises: `good-*` must be read as it was meant, `bad-*` has exactly one defect,
named by the file, and sums that hold in spite of it. Files that exist are never rewritten: a changed byte is a new
format version, and then new files.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent
BUNDLE = bytes(range(16))
TOKENIZER = bytes(range(16, 32))
TARGET = bytes(range(32, 48))
Entry = tuple[int, int, bytes, bytes]  # kind in the index, count, frame, content as the check takes it


def header(version: int = 7, flags: int = 0, contract: int = 1, magic: bytes = b"PLTZ") -> bytes:
    body = magic + struct.pack("<BBH", version, flags, contract) + BUNDLE
    return body + (TOKENIZER if flags & 1 else b"") + (TARGET if flags & 2 else b"")


def check(kind: int, count: int, content: bytes) -> int:
    return zlib.crc32(struct.pack("<BI", kind, count) + content)


class RangeCoder:
    """The recurrence of FORMAT.md, with ``lower`` as one long number."""

    def __init__(self) -> None:
        self.lower, self.range, self.words = 0, 2**64 - 1, 0

    def encode(self, cumulative: int, frequency: int) -> None:
        scale = self.range >> 24
        self.lower += scale * cumulative
        self.range = scale * frequency
        while self.range < 2**32:
            self.lower, self.range, self.words = self.lower << 32, self.range << 32, self.words + 1

    def finish(self) -> bytes:
        total = 4 * self.words + 8
        for size in range(max(0, 4 * self.words - 1), total + 1):
            shift = 8 * (total - size)
            value = -(-self.lower >> shift)
            if value << shift < self.lower + self.range:
                return value.to_bytes(size, "big")
        raise AssertionError


class Table:
    """Symbol counts that start from a prior."""

    def __init__(self, prior: list[int], beside: int) -> None:
        self.prior, self.counts, self.beside = prior, list(prior), beside

    def encode(self, coder: RangeCoder, symbol: int) -> None:
        spread, total = 2**24 - len(self.counts), sum(self.counts)
        frequencies = [1 + count * spread // total for count in self.counts]
        frequencies[self.counts.index(max(self.counts))] += 2**24 - sum(frequencies)
        coder.encode(sum(frequencies[:symbol]), frequencies[symbol])

    def forget(self) -> None:
        self.counts = [count - (count - start >> 3) for count, start in zip(self.counts, self.prior, strict=True)]

    def learn(self, symbol: int) -> None:
        self.counts[symbol] += 512
        for neighbour in (symbol - 1, symbol + 1):
            if 0 <= neighbour < len(self.counts):
                self.counts[neighbour] += self.beside


def bucket(value: int, precision: int) -> tuple[int, int]:
    low = max(0, value.bit_length() - precision - 1)
    return (low << precision) + (value >> low), low


def low_bits(coder: RangeCoder, numbers: list[tuple[int, int]]) -> None:
    """Code the low bits of numbers, each a value and how many bits of it."""
    while numbers := [(value, bits) for value, bits in numbers if bits]:
        for value, bits in numbers:
            piece = min(bits, 16)
            coder.encode(value % 2**piece << 24 - piece, 1 << 24 - piece)
        numbers = [(value >> 16, max(0, bits - 16)) for value, bits in numbers]


def columns(entries: list[tuple[int, int, int]], steps: list[int] | None = None) -> bytes:
    """The columns of sessions: kind, count and length of each, and how far back its context is, or 0."""
    coder = RangeCoder()
    steps = [0] * len(entries) if steps is None else steps
    follows, distances = Table([1024, 128], 0), Table([64] * 54, 256)
    kinds = Table([256, 128, 128, 64, 64, 64, 16, 128], 0)
    counts = Table([16 + 12800 // (25 + (s - 14) ** 2) for s in range(54)], 256)
    deviations = Table([2 + 9216 // (36 + (2 * s - 247) ** 2) for s in range(248)], 256)
    totals = [[448, 1024] for _ in range(4)]
    start = 0
    while start < len(entries):
        chunk = entries[start : start + max(1, min(start // 2, 16), min(start // 64, 4096))]
        told = steps[start : start + len(chunk)]
        able = [step for (kind, _, _), step in zip(chunk, told, strict=True) if kind in (0, 1, 2, 7)]
        able = able if start else []
        tables = kinds, follows, distances, counts, deviations
        start += len(chunk)
        for kind, _, _ in chunk:
            kinds.encode(coder, kind)
        for step in able:
            follows.encode(coder, int(step > 0))
        for step in filter(None, able):
            distances.encode(coder, bucket(step, 1)[0])
        low_bits(coder, [(step, bucket(step, 1)[1]) for step in able])
        for _, count, _ in chunk:
            counts.encode(coder, bucket(count, 1)[0])
        low_bits(coder, [(count, bucket(count, 1)[1]) for _, count, _ in chunk])
        symbols, low = [], []
        classes = [3 if step else min(kind // 3, 2) for (kind, _, _), step in zip(chunk, told, strict=True)]
        for (_, count, length), own in zip(chunk, classes, strict=True):
            size, many = totals[own]
            predicted = count * min((size << 12) // max(many, 1), 2**14) >> 12
            k = max(0, predicted.bit_length() - 3)
            d = (length - predicted) >> k
            b, bits = bucket(d if d >= 0 else -1 - d, 2)
            symbols.append(124 + b if d >= 0 else 123 - b)
            value = (d if d >= 0 else -1 - d) % 2**bits
            low.append((value << k | (length - predicted) % 2**k, bits + k))
        for symbol in symbols:
            deviations.encode(coder, symbol)
        low_bits(coder, low)
        if len(chunk) >= 16:
            for table in tables:
                table.forget()
            for own in set(classes):
                totals[own] = [total // 2 for total in totals[own]]
        for step in able:
            follows.learn(int(step > 0))
        for step in filter(None, able):
            distances.learn(bucket(step, 1)[0])
        for (kind, count, length), own, symbol in zip(chunk, classes, symbols, strict=True):
            kinds.learn(kind)
            counts.learn(bucket(count, 1)[0])
            deviations.learn(symbol)
            totals[own][0] += length
            totals[own][1] += count
    return coder.finish()


def lines(frames: list[bytes]) -> list[int]:
    """The checks of the rows, then of the columns."""
    n = len(frames)
    w = min(16, math.isqrt(n)) if n >= 9 else 1
    rows = -(-n // w)
    crcs = [zlib.crc32(frame) for frame in frames]
    found = [crcs[i : i + w] for i in range(0, n, w)]
    if w > 1:
        found += [crcs[i::rows] for i in range(rows)]
    return [sum((2 * p + 1) * crc for p, crc in enumerate(line)) % 2**32 for line in found]


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def index(
    entries: list[Entry],
    sessions: bytes | None = None,
    checks: list[int] | None = None,
    coded: bytes | None = None,
    tail: bytes = b"",
) -> bytes:
    if not entries:
        return tail
    contents = [
        check(frame[0] & 7 if kind == 7 and frame else kind, count, content)
        for kind, count, frame, content in entries
    ]
    checks = lines([frame for _, _, frame, _ in entries]) if checks is None else checks
    whole = zlib.crc32(b"".join(struct.pack("<I", value) for value in contents))
    if coded is None:
        coded = columns([(kind, count, len(frame)) for kind, count, frame, _ in entries])
    return (
        (varint(len(entries)) if sessions is None else sessions)
        + b"".join(struct.pack("<I", value) for value in checks)
        + bytes(value & 255 for value in contents)
        + struct.pack("<I", whole)
        + coded
        + tail
    )


def build(
    entries: list[Entry],
    head: bytes | None = None,
    body: bytes | None = None,
    listed: bytes | None = None,
    index_size: int | None = None,
) -> bytes:
    """A file; every part can be replaced by a wrong one, the sum is made to hold."""
    head = header() if head is None else head
    body = b"".join(frame for _, _, frame, _ in entries) if body is None else body
    listed = index(entries) if listed is None else listed
    footer = struct.pack("<I", len(listed) if index_size is None else index_size)
    return head + body + listed + footer + struct.pack("<I", zlib.crc32(head + listed + footer))


def ids(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


CHAT = (0, 3, b"\x81\x42", ids(2, 300, 301))
TEXT = (1, 2, b"\x99", ids(400, 401))
IDS = (2, 1, b"", ids(7))
CHAT_STORED = (3, 2, b"[]", b"[]")
TEXT_STORED = (4, 5, b"h\xc3\xa9\xff!", b"h\xc3\xa9\xff!")
TEXT_PACKED = (4, 300, bytes.fromhex("55000018616261010026a96e08"), b"ab" * 150)  # by zstd 1.5.7
IDS_STORED = (5, 8, ids(1, 70000), ids(1, 70000))
LAYOUT = (7, 3, b"\x08\x04\x80\x01\x81\x42", ids(2, 300, 301))
PATCHED = (7, 1, b"\x12\x02\xaa\xbb\x10", ids(9))
HUNDRED: list[Entry] = [(4, 1 + i % 7, bytes([i]) * (1 + i % 7), bytes([i]) * (1 + i % 7)) for i in range(100)]
HUNDRED_LINES = lines([frame for _, _, frame, _ in HUNDRED])  # 10 rows, 10 columns
FOLLOWERS: list[Entry] = [CHAT, TEXT, TEXT_STORED, IDS, CHAT, LAYOUT]  # 1 after 0; 3 after 1; 4 after 3; 5 after 0
LINES_OF_FOUR: list[Entry] = [CHAT, TEXT, IDS, LAYOUT] * 20  # each of the last three after the one before
LOGGED = b"{}\n{}\n"  # in a log frame as it is
LOG_CHECK = hashlib.blake2b(LOGGED, digest_size=8, person=b"pltz log").digest()
LOG = (7, len(LOGGED), b"\x23\x00" + LOG_CHECK + LOGGED, LOGGED)
BOTH = (7, 1, b"\x1a\x04\x05\x01\xcc\x10", ids(9))
ONE_COPY = b"\x01\x02\x00\x02"  # 2 literals, then 32 tokens from 2 before
NINE_COLUMNS = (
    bytes([2, *[1] * 8]) + bytes([0, *[2] * 8]) + bytes([2, *[0] * 8])
)  # first 32 tokens, then 34 each
NINE_COPIES = b"\x09\x1b\x1b" + NINE_COLUMNS  # as they are: packed, they would take more
NINE = (7, 316, b"\x40" + NINE_COPIES + b"\x81\x42", ids(*range(316)))
COPIED = (7, 35, b"\x40" + ONE_COPY + b"\x81\x42", ids(*[400, 401] * 17, 2))
ALL_THREE = (7, 35, b"\x5a\x04\x05\x01\xcc" + ONE_COPY + b"\x10", ids(*[8, 9] * 17, 1))
PAST_COPY = (
    b"\x01\x02\x00\x06"  # 2 literals, then 32 tokens from 6 before: a context of 3 tokens begins there
)
FAR_COPY = b"\x01\x02\x00\x83\x08"  # from 1027 before, 1025 before the first token
TOLD: list[Entry] = [
    CHAT,
    (7, 35, b"\x40" + PAST_COPY + b"\x81\x42", ids(8, 9, *[2, 300, 301, 0, 8, 9] * 5, 2, 300, 4)),
]
ALL_TOLD: list[Entry] = [CHAT, (7, 32, b"\x40\x01\x00\x00\x02", ids(*[301, 0] * 16))]  # and no literals


def after(entries: list[Entry], steps: list[int]) -> bytes:
    coded = columns([(kind, count, len(frame)) for kind, count, frame, _ in entries], steps)
    return build(entries, listed=index(entries, coded=coded))


GOOD = {
    "good-no-sessions": build([]),
    "good-one-text": build([TEXT_STORED]),
    "good-every-kind": build([CHAT, TEXT, IDS, CHAT_STORED, TEXT_STORED, IDS_STORED]),
    "good-extended": build([LAYOUT, PATCHED, BOTH]),
    "good-logs": after([LOG, CHAT, LOG], [0, 0, 2]),
    "good-copies": build([COPIED, ALL_THREE]),
    "good-copies-of-a-context": after(TOLD, [0, 1]),
    "good-nine-copies": build([NINE]),
    "good-copies-alone": after(ALL_TOLD, [0, 1]),
    "good-fingerprints": build([IDS], head=header(flags=3)),
    "good-exact": build([IDS], head=header(flags=128)),
    "good-target-alone": build([IDS], head=header(flags=2)),
    "good-packed-text": build([TEXT_PACKED, TEXT]),
    "good-hundred": build(HUNDRED),
    "good-two-wrong-rows": build(HUNDRED, listed=index(HUNDRED, checks=[0, 0, *HUNDRED_LINES[2:]])),
    "good-two-wrong-columns": build(HUNDRED, listed=index(HUNDRED, checks=[*HUNDRED_LINES[:-2], 0, 0])),
    "good-contexts": after(FOLLOWERS, [0, 1, 0, 1, 1, 4]),
    "good-eighty-contexts": after(LINES_OF_FOUR, [0, 1, 1, 1] * 20),
    "good-long-and-short": build([(4, 9000, b"y" * 9000, b"y" * 9000), TEXT_STORED, (2, 0, b"", b"")]),
    "good-reserved-kind-beside-others": build([TEXT, (6, 1, b"z", b""), TEXT_STORED]),
}

ONE = build([TEXT_STORED])
TWO = [TEXT, TEXT_STORED]
TWO_TEXTS = [TEXT, TEXT]

BAD = {
    "bad-empty-file": b"",
    "bad-magic": build(TWO, head=header(magic=b"PLTX")),
    "bad-zip-file": b"PK\x03\x04" + bytes(60),
    "bad-version-1": build(TWO, head=header(version=1)),
    "bad-version-2": build(TWO, head=header(version=2)),
    "bad-version-3": build(TWO, head=header(version=3)),
    "bad-version-4": build(TWO, head=header(version=4)),
    "bad-version-5": build(TWO, head=header(version=5)),
    "bad-version-6": build(TWO, head=header(version=6)),
    "bad-newer-version": build(TWO, head=header(version=8)),
    "bad-reserved-header-flag": build(TWO, head=header(flags=4)),
    "bad-header-byte": ONE[:8] + bytes([ONE[8] ^ 1]) + ONE[9:],
    "bad-header-alone": header(),
    "bad-cut-in-header": ONE[:20],
    "bad-cut-in-fingerprint": header(flags=3)[:50],
    "bad-cut-in-footer": ONE[:-1],
    "bad-byte-appended": ONE + b"\0",
    "bad-file-appended": ONE + ONE,
    "bad-footer-crc": ONE[:-1] + bytes([ONE[-1] ^ 1]),
    "bad-index-byte": ONE[:-10] + bytes([ONE[-10] ^ 1]) + ONE[-9:],
    "bad-index-beyond-file": build(TWO, index_size=1 << 31),
    "bad-index-over-header": build([TEXT_STORED], index_size=40),
    "bad-more-sessions-than-index": build(TWO, listed=index(TWO, sessions=b"\x09")),
    "bad-sessions-by-the-billion": build(TWO, listed=index(TWO, sessions=varint(2**32 - 1))),
    "bad-fewer-sessions-than-index": build(TWO, listed=index(TWO, sessions=b"\x01")),
    "bad-sessions-zero": build([], listed=b"\0"),
    "bad-sessions-long-varint": build(TWO, listed=index(TWO, sessions=b"\x82\x00")),
    "bad-sessions-endless-varint": build(TWO, listed=index(TWO, sessions=b"\xff\xff\xff\xff\xff\xff")),
    "bad-index-cut-in-checks": build(TWO, listed=index(TWO)[:11]),
    "bad-context-before-first": build(TWO_TEXTS, listed=index(TWO_TEXTS, coded=columns([(1, 2, 1)] * 2, [0, 2]))),
    "bad-contexts-of-four": build(
        TWO_TEXTS * 3, listed=index(TWO_TEXTS * 3, coded=columns([(1, 2, 1)] * 6, [0, 0, 1, 1, 1, 1]))
    ),
    "bad-lengths-cut": build(HUNDRED, listed=index(HUNDRED)[:-20]),
    "bad-lengths-all-ones": build(TWO, listed=index(TWO, coded=b"\xff" * 40)),
    "bad-lengths-all-zeros": build(TWO, listed=index(TWO, coded=bytes(40))),
    "bad-length-of-four-gigabytes": build(
        TWO, listed=index(TWO, coded=columns([(1, 2, 1), (4, 2**27 - 1, 2**32 - 1)]))
    ),
    "bad-length-over-32-bits": build(TWO, listed=index(TWO, coded=columns([(1, 2, 1), (7, 4, 2**32)]))),
    "bad-length-below-zero": build(TWO, listed=index(TWO, coded=columns([(1, 2, 1), (7, 100, -1)]))),
    "bad-frame-of-hundred": build(HUNDRED, body=b"".join(frame for _, _, frame, _ in HUNDRED)[:-1] + b"X"),
    "bad-frame-of-one": build([TEXT_STORED], body=TEXT_STORED[2][:-1] + b"X"),
    "bad-row-and-column-of-one": build(
        HUNDRED, listed=index(HUNDRED, checks=[0, *HUNDRED_LINES[1:10], 0, *HUNDRED_LINES[11:]])
    ),
    "bad-gap-before-index": build(TWO, body=TEXT[2] + TEXT_STORED[2] + b"\0"),
    "bad-frames-overlap-index": build(TWO, body=TEXT[2] + TEXT_STORED[2][:-1]),
    "bad-count-over-frame": build([(1, 514, b"\x99", b"")]),
    "bad-count-over-limit": build(TWO, listed=index(TWO, coded=columns([(1, 2, 1), (4, 2**26 + 2**12 + 1, 5)]))),
    "bad-fallback-longer-than-count": build([(4, 1, b"ab", b"a")]),
    "bad-extended-count-over-frame": build([(7, 3000, LAYOUT[2], b"")]),
    "bad-extended-empty": build([(7, 1, b"", b"")]),
    "bad-extended-without-extension": build([(7, 3, b"\x00\x81\x42", b"")]),
    "bad-extended-reserved-bit": build([(7, 3, b"\x88\x04\x05\x81\x42", b"")]),
    "bad-log-of-tokens": build([(7, 3, b"\x20" + LOG[2][1:], b"")]),
    "bad-log-of-ids": build([(7, 4, b"\x25" + LOG[2][1:], b"")]),
    "bad-log-with-layout": build([(7, 3, b"\x2b\x04\x05" + LOG[2][1:], b"")]),
    "bad-log-count-over-frame": build([(7, 256 * 17 + 1, LOG[2], b"")]),
    "bad-extended-reserved-kind": build([(7, 3, b"\x0e\x04\x05\x81\x42", b"")]),
    "bad-extended-in-extended": build([(7, 3, b"\x0f\x04\x05\x81\x42", b"")]),
    "bad-extended-layout-of-fallback": build([(7, 2, b"\x0b\x04\x05[]", b"")]),
    "bad-extended-patch-of-chat": build([(7, 3, b"\x10\x01\xaa\x81\x42", b"")]),
    "bad-extended-no-lanes": build([(7, 3, b"\x08\x00\x05\x81\x42", b"")]),
    "bad-extended-too-many-lanes": build([(7, 3, b"\x08\x41\x05\x81\x42", b"")]),
    "bad-extended-block-too-large": build([(7, 3, b"\x08\x40\x81\x02\x81\x42", b"")]),
    "bad-extended-long-varint": build([(7, 3, b"\x08\x84\x00\x05\x81\x42", b"")]),
    "bad-extended-endless-varint": build([(7, 3, b"\x08\xff\xff\xff\xff\xff\x01", b"")]),
    "bad-extended-varint-over-32-bits": build([(7, 3, b"\x08\x04\xff\xff\xff\xff\x7f", b"")]),
    "bad-extended-cut-varint": build([(7, 3, b"\x08\x04\x80", b"")]),
    "bad-patch-beyond-frame": build([(7, 1, b"\x12\x09\xaa", b"")]),
    "bad-patch-empty": build([(7, 1, b"\x12\x00\xaa", b"")]),
    "bad-copies-beyond-frame": build([(7, 35, b"\x40\x01\x02\x00", b"")]),
    "bad-copies-empty": build([(7, 35, b"\x40\x00\x81\x42", b"")]),
    "bad-nine-copies-beyond-frame": build([(7, 316, NINE[2][:-3], b"")]),
    "bad-nine-copies-of-another-size": build([(7, 316, b"\x40\x09\x1c" + NINE[2][3:], b"")]),
    "bad-nine-copies-of-four-gigabytes": build(
        [(7, 316, b"\x40\x09\xff\xff\xff\xff\x0f" + NINE[2][3:], b"")]
    ),
    "bad-copies-of-fallback": build([(7, 35, b"\x43" + ONE_COPY + b"[]", b"")]),
    "bad-copies-beyond-count": build([(7, 33, b"\x40" + ONE_COPY + b"\x81\x42", b"")]),
    "bad-copies-from-nothing": build([(7, 35, b"\x40\x01\x02\x00\x03\x81\x42", b"")]),
    "bad-copies-of-no-context": build([CHAT, (7, 35, b"\x40" + PAST_COPY + b"\x81\x42", b"")]),
    "bad-copies-beyond-any-context": after([CHAT, (7, 35, b"\x40" + FAR_COPY + b"\x81\x42", b"")], [0, 1]),
    "bad-reserved-kind": build([(6, 1, b"z", b"")]),
}


def main() -> None:
    for name, data in (GOOD | BAD).items():
        path = HERE / f"{name}.pltz"
        if path.exists() and path.read_bytes() != data:
            raise SystemExit(f"{path.name} exists with other bytes: a changed byte is a new format version")
        path.write_bytes(data)


if __name__ == "__main__":
    main()
