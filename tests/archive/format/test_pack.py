"""Pack: nothing that a pack holds can change unnoticed."""

from __future__ import annotations

from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE, digest
from pltz.archive.format.pack import Builder, Pack
from pltz.archive.format.record import Mark, Record
from pltz.plt_codec.errors import FormatError


def pack_of(sessions: int) -> bytes:
    """Return a pack of a tower of segments, each with a session, and a mark."""
    builder = Builder(0, 100, b"s" * 16)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1))
    parent = NONE
    for n in range(sessions):
        name = digest(b"test", bytes([n]))
        builder.add(Record(context, parent, name, 5, b"payload %d" % n, f"s{n}", 1, 100))
        parent = name
    return builder.add(Record(context, mark=Mark(parent, 1, 1))).finish()


def test_every_flipped_bit_is_detected() -> None:
    data = bytearray(pack_of(3))
    name = Pack.of(bytes(data)).verify()
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert Pack.of(bytes(data)).verify() != name, bit
        except FormatError:
            pass
        data[bit // 8] ^= 1 << bit % 8


def test_every_cut_length_is_refused() -> None:
    data = pack_of(3)
    for cut in range(len(data)):
        try:
            Pack.of(data[:cut]).verify()
        except FormatError:
            continue
        raise AssertionError(f"a pack cut to {cut} bytes is accepted")
