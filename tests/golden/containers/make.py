"""Make the golden containers beside this file: `python tests/golden/containers/make.py`.

A second writer of the .pltz container, written from FORMAT.md alone, with struct and zlib and none of pltz's code.
Every file is named after what it exercises: `good-*` must be read as it was meant, `bad-*` has exactly one defect,
named by the file, and sums that hold in spite of it. Files that exist are never rewritten: a changed byte is a new
format version, and then new files.
"""

import hashlib
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BUNDLE = bytes(range(16))
TOKENIZER = bytes(range(16, 32))
TARGET = bytes(range(32, 48))


class Entry(NamedTuple):
    """A session: its coding, count of tokens or bytes, bitstring, content as the check takes it, copies, step."""

    coding: bytes
    units: int
    data: bytes
    content: bytes = b""
    copied: int = 0
    step: int = 0


def header(version: int = 1, flags: int = 0, magic: bytes = b"PLTZ") -> bytes:
    body = magic + struct.pack("<BB", version, flags) + BUNDLE
    return body + (TOKENIZER if flags & 1 else b"") + (TARGET if flags & 2 else b"")


def check(coding: bytes, count: int, content: bytes) -> int:
    return zlib.crc32(struct.pack("<BI", coding[0] & 15, count) + content)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def in_bytes(bits: list[int]) -> bytes:
    return sum(bit << place for place, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")


def bits(number: int, width: int) -> list[int]:
    return [number >> place & 1 for place in range(width)]


def columns(found: dict[int, list[int]]) -> bytes:
    """Return which columns are there, and the columns."""
    there, out = 0, b""
    for number, values in found.items():
        if any(values):
            there, least = there | 1 << number, min(values)
            width = (max(values) - least).bit_length()
            packed = in_bytes([bit for value in values for bit in bits(value - least, width)])
            out += varint(least) + (bytes([width]) + packed if len(values) > 1 else b"")
    return struct.pack("<H", there) + out


def codings_of(entries: list[Entry]) -> list[bytes]:
    """Return the codings of sessions in the order of their first use."""
    return list(dict.fromkeys(entry.coding for entry in entries))


def block(
    entries: list[Entry], codings: list[bytes], offset: int, salt: bytes, own: dict[int, list[int]] | None = None,
    body: bytes | None = None, tail: bytes = b"", count: int | None = None, present: bytes = b"",
) -> tuple[bytes, bytes]:
    """Return head and body of a block; parts can be replaced by wrong ones, the sums are made to hold."""
    found = {
        1: [codings.index(entry.coding) for entry in entries], 4: [entry.units for entry in entries],
        5: [len(entry.data) for entry in entries], 12: [entry.copied for entry in entries],
        13: [entry.step for entry in entries],
    }
    pieces = [b""]
    for entry in entries:
        if len(pieces[-1]) >= 4096:
            pieces.append(b"")
        pieces[-1] += entry.data
    checks = b"".join(u32(zlib.crc32(piece)) for piece in pieces if piece)
    contents = bytes(check(entry.coding, entry.units, entry.content) & 255 for entry in entries)
    written = columns(found | (own or {}))
    rest = bytes([len(entries) if count is None else count]) + (present + written[len(present) :])
    rest += contents + checks + tail
    size = sum(len(piece) for piece in pieces)
    head = salt[:2] + varint(len(rest)) + varint(size) + rest
    head += u32(zlib.crc32(salt + struct.pack("<Q", offset) + head))
    return head, b"".join(pieces) if body is None else body


def index(entries: list[Entry], blocks: list[tuple[int, int, int]], codings: bytes | None = None) -> bytes:
    """Return the index: check of all contents, codings, and sessions, head and body of each block."""
    if not entries:
        return b""
    contents = zlib.crc32(b"".join(u32(check(e.coding, e.units, e.content)) for e in entries))
    if codings is None:
        listed = codings_of(entries)
        codings = varint(len(listed)) + b"".join(bytes([len(one)]) + one for one in listed)
    return u32(contents) + codings + b"".join(bytes([n]) + varint(head) + varint(body) for n, head, body in blocks)


def footed(head: bytes, blocks: bytes, listed: bytes, size: int | None = None) -> bytes:
    footer = u32(len(listed) if size is None else size)
    return head + blocks + listed + footer + u32(zlib.crc32(head + listed + footer))


def build(
    entries: list[Entry], head: bytes | None = None, listed: bytes | None = None, index_size: int | None = None,
    codings: bytes | None = None, **wrong: object,
) -> bytes:
    """A file; every part can be replaced by a wrong one, the sums are made to hold."""
    head = header() if head is None else head
    out, places = b"", []
    for begin in range(0, len(entries), 128):
        part = entries[begin : begin + 128]
        first, body = block(part, codings_of(entries), len(head) + len(out), head, **wrong)  # type: ignore[arg-type]
        out += first + body
        places.append((len(part), len(first), len(body)))
    listed = index(entries, places, codings) if listed is None else listed
    return footed(head, out, listed, index_size)


def ids(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def texts(many: int) -> list[Entry]:
    contents = [bytes([i % 251]) * (1 + i % 7) for i in range(many)]
    return [Entry(b"\x09", len(content), content, content) for content in contents]


CHAT = Entry(b"\0", 3, b"\x81\x42", ids(2, 300, 301))
TEXT = Entry(b"\1", 2, b"\x99", ids(400, 401))
IDS = Entry(b"\2", 1, b"", ids(7))
CHAT_STORED = Entry(b"\x08", 2, b"[]", b"[]")
TEXT_STORED = Entry(b"\x09", 5, b"h\xc3\xa9\xff!", b"h\xc3\xa9\xff!")
TEXT_PACKED = Entry(b"\x09", 300, bytes.fromhex("55000018616261010026a96e08"), b"ab" * 150)  # by zstd 1.5.7
IDS_STORED = Entry(b"\x0a", 8, ids(1, 70000), ids(1, 70000))
LAYOUT = CHAT._replace(coding=b"\x10")  # the fast one
PATCHED = Entry(b"\x22", 1, b"\x02\xaa\xbb\x10", ids(9))
BOTH = Entry(b"\x32", 1, b"\x01\xcc\x10", ids(9))
LOGGED = b"{}\n{}\n"
LOG_HEAD = b"\0" + hashlib.blake2b(LOGGED, digest_size=8, person=b"pltz log").digest()
LOG = Entry(b"\4", len(LOGGED), LOG_HEAD + bytes.fromhex("09000001002e87e6f701b462"), LOGGED)
LOG_AFTER = LOG._replace(data=LOG_HEAD + bytes.fromhex("0400000105b3f5"), step=2)  # the same after it
NEWER = Entry(b"\3", 1, b"z")
HUNDRED = texts(100)
MANY = texts(300)
LONG = [Entry(b"\x09", size, bytes([size % 256]) * size, bytes([size % 256]) * size) for size in (4095, 1, 5000, 0, 9)]
# sessions 1 and 5 after 0, 3 after 1, 4 after 3
FOLLOWERS = [
    entry._replace(step=step)
    for entry, step in zip([CHAT, TEXT, TEXT_STORED, IDS, CHAT, LAYOUT], [0, 1, 0, 2, 1, 5], strict=True)
]
ROWS_OF_FOUR = [e._replace(step=step) for e, step in zip([CHAT, TEXT, IDS, LAYOUT], [0, 1, 1, 1], strict=True)] * 40
ONE_COPY = b"\x01\x02\x00\x02"  # 2 literals, then 32 tokens from 2 before
NINE_COLUMNS = bytes([2, *[1] * 8]) + bytes([0, *[2] * 8]) + bytes([2, *[0] * 8])  # first 32 tokens, then 34 each
NINE_COPIES = b"\x09\x1b\x1b" + NINE_COLUMNS  # as they are: packed, they would take more
NINE = Entry(b"\0", 316, NINE_COPIES + b"\x81\x42", ids(*range(316)), 1)
COPIED = Entry(b"\0", 35, ONE_COPY + b"\x81\x42", ids(*[400, 401] * 17, 2), 1)
ALL_THREE = Entry(b"\x32", 35, b"\x01\xcc" + ONE_COPY + b"\x10", ids(*[8, 9] * 17, 1), 1)
PAST_COPY = b"\x01\x02\x00\x06"  # 2 literals, then 32 tokens from 6 before: a context of 3 tokens begins there
FAR_COPY = b"\x01\x02\x00\x83\x08"  # from 1027 before, 1025 before the first token
TOLD = Entry(b"\0", 35, PAST_COPY + b"\x81\x42", ids(8, 9, *[2, 300, 301, 0, 8, 9] * 5, 2, 300, 4), copied=1, step=1)
ALL_TOLD = Entry(b"\0", 32, b"\x01\x00\x00\x02", ids(*[301, 0] * 16), copied=1, step=1)  # and no literals

GOOD = {
    "good-no-sessions": build([]), "good-one-text": build([TEXT_STORED]),
    "good-every-kind": build([CHAT, TEXT, IDS, CHAT_STORED, TEXT_STORED, IDS_STORED]),
    "good-extended": build([LAYOUT, PATCHED, BOTH]), "good-logs": build([LOG, CHAT, LOG_AFTER]),
    "good-copies": build([COPIED, ALL_THREE]), "good-copies-of-a-context": build([CHAT, TOLD]),
    "good-nine-copies": build([NINE]), "good-copies-alone": build([CHAT, ALL_TOLD]),
    "good-fingerprints": build([IDS], head=header(flags=3)), "good-exact": build([IDS], head=header(flags=128)),
    "good-target-alone": build([IDS], head=header(flags=2)), "good-packed-text": build([TEXT_PACKED, TEXT]),
    "good-hundred": build(HUNDRED), "good-three-blocks": build(MANY), "good-pieces": build(LONG),
    "good-contexts": build(FOLLOWERS),
    "good-contexts-of-another-block": build(ROWS_OF_FOUR),
    "good-writings": build([CHAT._replace(coding=b"\x80\x0a"), CHAT_STORED._replace(coding=b"\x88\x01"), CHAT]),
    "good-newer-coding-beside-others": build([TEXT, NEWER, TEXT_STORED]),
}

ONE = build([TEXT_STORED])
TWO = [TEXT, TEXT_STORED]
TWO_TEXTS = [TEXT, TEXT]
TWO_PLACES = [(2, len(block(TWO, codings_of(TWO), 24, header())[0]), 6)]


def of_codings(*codings: bytes) -> bytes:
    """A file of two texts whose first coding is replaced."""
    return build(TWO_TEXTS, codings=varint(len(codings)) + b"".join(bytes([len(one)]) + one for one in codings))


def places(*blocks: tuple[int, int, int]) -> bytes:
    """A file of two sessions with another list of blocks."""
    return build(TWO, listed=index(TWO, list(blocks)))


SESSIONS, HEAD, BODY = TWO_PLACES[0]
BAD = {
    "bad-empty-file": b"", "bad-magic": build(TWO, head=header(magic=b"PLTX")),
    "bad-zip-file": b"PK\x03\x04" + bytes(60), "bad-newer-version": build(TWO, head=header(version=2)),
    "bad-reserved-header-flag": build(TWO, head=header(flags=4)),
    "bad-header-byte": ONE[:8] + bytes([ONE[8] ^ 1]) + ONE[9:], "bad-header-alone": header(),
    "bad-cut-in-header": ONE[:20], "bad-cut-in-fingerprint": header(flags=3)[:50], "bad-cut-in-footer": ONE[:-1],
    "bad-byte-appended": ONE + b"\0", "bad-file-appended": ONE + ONE, "bad-footer-crc": ONE[:-1] + bytes([ONE[-1] ^ 1]),
    "bad-index-byte": ONE[:-10] + bytes([ONE[-10] ^ 1]) + ONE[-9:],
    "bad-index-beyond-file": build(TWO, index_size=1 << 31),
    "bad-index-over-header": build([TEXT_STORED], index_size=40),
    "bad-index-of-three-bytes": build([], listed=bytes(3)),
    "bad-index-without-blocks": footed(header(), b"", index(TWO, [])),
    "bad-index-without-codings": build(TWO, codings=b"\0"),
    "bad-index-cut-in-codings": footed(header(), b"", index(TWO, [], codings=b"\2\1\1\1")),
    "bad-codings-by-the-million": build(TWO, codings=varint(1 << 20)),
    "bad-codings-endless-varint": build(TWO, codings=b"\xff" * 6), "bad-coding-missing": build(TWO, codings=b"\1\1\1"),
    "bad-coding-empty": of_codings(b""), "bad-coding-with-a-byte-more": of_codings(b"\1\0"),
    "bad-coding-reserved-bit": of_codings(b"\x41"), "bad-coding-reserved-content": of_codings(b"\3"),
    "bad-coding-reserved-method": of_codings(b"\x0c"), "bad-log-of-ids": of_codings(b"\6"),
    "bad-log-with-layout": of_codings(b"\x14"), "bad-layout-of-fallback": of_codings(b"\x18"),
    "bad-patch-of-chat": of_codings(b"\x20"), "bad-patch-of-fallback": of_codings(b"\x2a"),
    "bad-block-of-no-sessions": places((0, HEAD, BODY)), "bad-block-of-129-sessions": places((129, HEAD, BODY)),
    "bad-block-of-more-sessions": places((3, HEAD, BODY)), "bad-block-of-fewer-sessions": places((1, HEAD, BODY)),
    "bad-block-with-a-longer-head": places((2, HEAD + 1, BODY - 1)),
    "bad-block-with-a-short-head": places((2, 12, HEAD + BODY - 12)),
    "bad-block-of-four-gigabytes": places((2, HEAD, 2**32 - 1)),
    "bad-block-endless-varint": build(TWO, listed=index(TWO, []) + b"\2" + b"\xff" * 6),
    "bad-blocks-less-than-file": places((2, HEAD, BODY - 1)),
    "bad-blocks-more-than-file": places((2, HEAD, BODY), (1, 13, 0)),
    "bad-head-byte": ONE[:30] + bytes([ONE[30] ^ 1]) + ONE[31:], "bad-head-of-129": build(TWO, count=129),
    "bad-head-of-none": build(TWO, count=0), "bad-head-with-a-byte-more": build(TWO, tail=b"\0"),
    "bad-head-with-a-check-more": build(TWO, tail=bytes(4)), "bad-head-newer-column": build(TWO, present=b"\x32\x40"),
    "bad-frame-of-hundred": build(HUNDRED, body=b"".join(e.data for e in HUNDRED)[:-1] + b"X"),
    "bad-frame-of-one": build([TEXT_STORED], body=TEXT_STORED.data[:-1] + b"X"),
    "bad-gap-before-index": build(TWO, body=TEXT.data + TEXT_STORED.data + b"\0"),
    "bad-frames-overlap-index": build(TWO, body=TEXT.data + TEXT_STORED.data[:-1]),
    "bad-size-of-four-gigabytes": build(TWO, own={5: [1, 2**32]}),
    "bad-column-of-33-bits": build(TWO, own={5: [1, 2**32 + 2]}),
    "bad-size-beyond-body": build(TWO, own={5: [1, 6]}), "bad-count-over-frame": build([Entry(b"\1", 514, b"\x99")]),
    "bad-count-over-limit": build(TWO, own={4: [2, 2**26 + 2**12 + 1]}),
    "bad-fallback-longer-than-count": build([Entry(b"\x09", 1, b"ab", b"a")]),
    "bad-count-over-frame-in-lanes": build([LAYOUT._replace(units=3000)]),
    "bad-log-count-over-frame": build([LOG._replace(units=256 * 22 + 1)]),
    "bad-context-before-first": build([TEXT, TEXT._replace(step=2)]),
    "bad-contexts-of-four": build([TEXT, *[TEXT._replace(step=1)] * 4]),
    "bad-context-of-fallback": build([TEXT, TEXT_STORED._replace(step=1)]),
    "bad-context-without-tokens": build([TEXT_STORED, TEXT._replace(step=1)]),
    "bad-patch-beyond-frame": build([Entry(b"\x22", 1, b"\x09\xaa")]),
    "bad-patch-empty": build([Entry(b"\x22", 1, b"\x00\xaa")]),
    "bad-copies-beyond-frame": build([Entry(b"\0", 35, b"\x01\x02\x00", copied=1)]),
    "bad-copies-empty": build([Entry(b"\0", 35, b"\x00\x81\x42", copied=1)]),
    "bad-copies-newer": build([COPIED._replace(copied=2)]),
    "bad-nine-copies-beyond-frame": build([NINE._replace(data=NINE.data[:-3])]),
    "bad-nine-copies-of-another-size": build([NINE._replace(data=b"\x09\x1c" + NINE.data[2:])]),
    "bad-nine-copies-of-four-gigabytes": build([NINE._replace(data=b"\x09\xff\xff\xff\xff\x0f" + NINE.data[2:])]),
    "bad-copies-of-fallback": build([Entry(b"\x08", 35, ONE_COPY + b"[]", copied=1)]),
    "bad-copies-of-log": build([LOG._replace(copied=1)]), "bad-copies-beyond-count": build([COPIED._replace(units=33)]),
    "bad-copies-from-nothing": build([Entry(b"\0", 35, b"\x01\x02\x00\x03\x81\x42", copied=1)]),
    "bad-copies-of-no-context": build([CHAT, TOLD._replace(step=0)]),
    "bad-writing-of-text": build([TEXT._replace(coding=b"\x81\x0a")]),
    "bad-writing-of-none": build([CHAT._replace(coding=b"\x80\x00")]),
    "bad-writing-cut": build([CHAT._replace(coding=b"\x80")]),
    "bad-copies-beyond-any-context": build([CHAT, TOLD._replace(data=FAR_COPY + b"\x81\x42")]),
}


def main() -> None:
    for name, data in (GOOD | BAD).items():
        path = HERE / f"{name}.pltz"
        if path.exists() and path.read_bytes() != data:
            raise SystemExit(f"{path.name} exists with other bytes: a changed byte is a new format version")
        path.write_bytes(data)


if __name__ == "__main__":
    main()
