"""Make the golden containers beside this file: `python tests/golden/containers/make.py`.

A second writer of the .pltz container, written from FORMAT.md alone, with struct and zlib and none of pltz's code.
Every file is named after what it exercises: `good-*` must be read as it was meant, `bad-*` has exactly one defect,
named by
the file, and sums that hold in spite of it. Files that exist are never rewritten: a changed byte is a new
format version, and then new files.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent
BUNDLE = bytes(range(16))
TOKENIZER = bytes(range(16, 32))
TARGET = bytes(range(32, 48))
Entry = tuple[int, int, bytes, bytes]  # kind in the index, count, frame, content as the check takes it


def header(version: int = 1, flags: int = 0, contract: int = 1, magic: bytes = b"PLTZ") -> bytes:
    body = magic + struct.pack("<BBH", version, flags, contract) + BUNDLE
    body += (TOKENIZER if flags & 1 else b"") + (TARGET if flags & 2 else b"")
    return body + struct.pack("<I", zlib.crc32(body))


def check(kind: int, count: int, content: bytes) -> int:
    return zlib.crc32(struct.pack("<BI", kind, count) + content)


def planes(column: list[int], extra: int = 0) -> list[bytes]:
    needed = max(1, (max(column).bit_length() + 7) // 8) + extra
    return [bytes(value >> 8 * plane & 255 for value in column) for plane in range(needed)]


def index(entries: list[Entry], extra: int = 0, mask: int = 0, tail: bytes = b"") -> bytes:
    if not entries:
        return tail
    sizes = planes([count << 3 | kind for kind, count, _, _ in entries], extra)
    lengths = planes([len(frame) for _, _, frame, _ in entries])
    checks = b"".join(
        struct.pack("<I", check(frame[0] & 7 if kind == 7 and frame else kind, count, content))
        for kind, count, frame, content in entries
    )
    return checks + bytes([len(sizes) | len(lengths) << 4, mask]) + b"".join(sizes + lengths) + tail


def build(
    entries: list[Entry],
    head: bytes | None = None,
    body: bytes | None = None,
    columns: bytes | None = None,
    sessions: int | None = None,
    index_size: int | None = None,
) -> bytes:
    """A file; every part can be replaced by a wrong one, the sums are made to hold."""
    head = header() if head is None else head
    body = b"".join(frame for _, _, frame, _ in entries) if body is None else body
    columns = index(entries) if columns is None else columns
    sessions = len(entries) if sessions is None else sessions
    before = head + body + columns
    digest = hashlib.blake2b(before, digest_size=16).digest()
    footer = struct.pack("<II", sessions, len(columns) if index_size is None else index_size) + digest
    return before + footer + struct.pack("<I", zlib.crc32(columns + footer)) + b"ZTLP"


def run_length(value: int, count: int) -> bytes:
    """A packed plane: varint length, then one Zstandard block (last, type 1) of one byte repeated."""
    return b"\x04" + (count << 3 | 3).to_bytes(3, "little") + bytes([value])


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
HUNDRED: list[Entry] = [(4, 1, bytes([i]), bytes([i])) for i in range(100)]
BOTH = (7, 1, b"\x1a\x04\x05\x01\xcc\x10", ids(9))
ONE_COPY = b"\x01\x03\x02\x00\x02"  # 2 literals, then 32 tokens from 2 before
COPIED = (7, 35, b"\x40\x05" + ONE_COPY + b"\x81\x42", ids(*[400, 401] * 17, 2))
ALL_THREE = (7, 35, b"\x5a\x04\x05\x01\xcc\x05" + ONE_COPY + b"\x10", ids(*[8, 9] * 17, 1))

GOOD = {
    "good-no-sessions": build([]),
    "good-one-text": build([TEXT_STORED]),
    "good-every-kind": build([CHAT, TEXT, IDS, CHAT_STORED, TEXT_STORED, IDS_STORED]),
    "good-extended": build([LAYOUT, PATCHED, BOTH]),
    "good-copies": build([COPIED, ALL_THREE]),
    "good-fingerprints": build([IDS], head=header(flags=3)),
    "good-target-alone": build([IDS], head=header(flags=2)),
    "good-packed-text": build([TEXT_PACKED, TEXT]),
    "good-packed-index": build(
        HUNDRED, columns=index(HUNDRED)[:400] + b"\x11\x03" + run_length(1 << 3 | 4, 100) + run_length(1, 100)
    ),
    "good-two-planes": build([(4, 40, b"x" * 40, b"x" * 40), (4, 9000, b"y" * 9000, b"y" * 9000)]),
    "good-reserved-kind-beside-others": build([TEXT, (6, 1, b"z", b""), TEXT_STORED]),
}

ONE = build([TEXT_STORED])
TWO = [TEXT, TEXT_STORED]

BAD = {
    "bad-empty-file": b"",
    "bad-magic": build(TWO, head=header(magic=b"PLTX")),
    "bad-zip-file": b"PK\x03\x04" + bytes(60),
    "bad-newer-version": build(TWO, head=header(version=2)),
    "bad-reserved-header-flag": build(TWO, head=header(flags=4)),
    "bad-header-crc": ONE[:8] + bytes([ONE[8] ^ 1]) + ONE[9:],
    "bad-header-alone": header(),
    "bad-cut-in-header": ONE[:20],
    "bad-cut-in-footer": ONE[:-1],
    "bad-byte-appended": ONE + b"\0",
    "bad-file-appended": ONE + ONE,
    "bad-footer-crc": ONE[:-5] + bytes([ONE[-5] ^ 1]) + ONE[-4:],
    "bad-index-crc": ONE[:-34] + bytes([ONE[-34] ^ 1]) + ONE[-33:],
    "bad-index-beyond-file": build(TWO, index_size=1 << 31),
    "bad-index-over-header": build([TEXT_STORED], index_size=40),
    "bad-more-sessions-than-index": build(TWO, sessions=3),
    "bad-sessions-by-the-billion": build(TWO, sessions=(1 << 32) - 1),
    "bad-fewer-sessions-than-index": build(TWO, sessions=1),
    "bad-index-without-sessions": build([], columns=b"\0"),
    "bad-index-trailing-byte": build(TWO, columns=index(TWO, tail=b"\0")),
    "bad-index-no-planes": build([TEXT_STORED], columns=index([TEXT_STORED])[:4] + b"\x10\x00\x05"),
    "bad-index-five-planes": build([TEXT_STORED], columns=index([TEXT_STORED], extra=4)),
    "bad-index-needless-plane": build(TWO, columns=index(TWO, extra=1)),
    "bad-index-mask-beyond-planes": build(TWO, columns=index(TWO, mask=1 << 7)),
    "bad-index-packed-plane-not-shorter": build(
        TWO, columns=index(TWO)[:8] + b"\x11\x01\x02" + index(TWO)[10:]
    ),
    "bad-index-broken-packed-plane": build(
        HUNDRED, columns=index(HUNDRED)[:400] + b"\x11\x03" + b"\x03\x23\x03\x00" + run_length(1, 100)
    ),
    "bad-index-packed-plane-of-99": build(
        HUNDRED, columns=index(HUNDRED)[:400] + b"\x11\x03" + run_length(1 << 3 | 4, 99) + run_length(1, 100)
    ),
    "bad-index-packed-plane-of-101": build(
        HUNDRED, columns=index(HUNDRED)[:400] + b"\x11\x03" + run_length(1 << 3 | 4, 101) + run_length(1, 100)
    ),
    "bad-gap-before-index": build(TWO, body=TEXT[2] + TEXT_STORED[2] + b"\0"),
    "bad-frames-overlap-index": build(TWO, body=TEXT[2] + TEXT_STORED[2][:-1]),
    "bad-count-over-frame": build([(1, 514, b"\x99", b"")]),
    "bad-fallback-longer-than-count": build([(4, 1, b"ab", b"a")]),
    "bad-extended-count-over-frame": build([(7, 3000, LAYOUT[2], b"")]),
    "bad-extended-empty": build([(7, 1, b"", b"")]),
    "bad-extended-without-extension": build([(7, 3, b"\x00\x81\x42", b"")]),
    "bad-extended-reserved-bit": build([(7, 3, b"\x28\x04\x05\x81\x42", b"")]),
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
    "bad-copies-beyond-frame": build([(7, 35, b"\x40\x08" + ONE_COPY + b"\x81\x42", b"")]),
    "bad-copies-empty": build([(7, 35, b"\x40\x00\x81\x42", b"")]),
    "bad-copies-of-fallback": build([(7, 35, b"\x43\x05" + ONE_COPY + b"[]", b"")]),
    "bad-copies-beyond-count": build([(7, 33, b"\x40\x05" + ONE_COPY + b"\x81\x42", b"")]),
    "bad-copies-from-nothing": build([(7, 35, b"\x40\x05\x01\x03\x02\x00\x03\x81\x42", b"")]),
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
