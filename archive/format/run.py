"""A run: consecutive segments of one tower in one bitstring, with older versions of its session. FORMAT.md, "Runs".

    varint k | column: tokens of each segment
    varint m | columns: segments that each version lacks, moments, times | 4 m: first bytes of their leaves
    data: the codec's encoding of all tokens; a box in a sealed archive

Versions stand newest first as differences, so a session of one version per turn spends a bit or none on most of them.
"""

from __future__ import annotations

from typing import NamedTuple

from pltz.archive.format.ids import LEAF
from pltz.archive.format.record import MAX_MOMENT, TICK_BITS, Record
from pltz.plt_codec.container.columns import read_column, write_column
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

MAX_RUN = 4096  # segments; also older versions


class OlderVersion(NamedTuple):
    """A version that ends within a run.

    Attributes:
        lacks: number of segments, the last ones of the run, that it does not have.
        moment, time: when it was put, in ticks since 1970, and its own time, in seconds.
        leaf: first 4 bytes of the id of its last segment.
    """

    lacks: int
    moment: int
    time: int
    leaf: bytes


class Run(NamedTuple):
    """The parts of a run's bitstring.

    Attributes:
        lengths: tokens of each segment.
        versions: older versions, newest first.
        data: the encoding of all tokens, or its box.
    """

    lengths: list[int]
    versions: list[OlderVersion]
    data: bytes


def pack_run(run: Run, moment: int, time: int) -> bytes:
    """Return the bitstring of a run. ``moment``, ``time``: those of the version in its record.

    >>> old = OlderVersion(1, 900 << 20, 900, b"leaf")
    >>> bits = pack_run(Run([3, 200], [old], b"bits"), 1000 << 20, 1000)
    >>> unpack_run(Record(0, tokens=203, moment=1000 << 20, time=1000, name="a", bitstring=bits))
    Run(lengths=[3, 200], versions=[OlderVersion(lacks=1, moment=943718400, time=900, leaf=b'leaf')], data=b'bits')
    """
    lacks, moments, apart = (
        [_signed(a - b) for a, b in zip(above, below, strict=True)]
        for above, below in (
            ([v.lacks for v in run.versions], [0, *(v.lacks for v in run.versions)][:-1]),
            ([moment, *(v.moment for v in run.versions)][:-1], [v.moment for v in run.versions]),
            ([(v.moment >> TICK_BITS) for v in run.versions], [v.time for v in run.versions]),
        )
    )
    parts = [write_varint(len(run.lengths)), write_column(run.lengths), write_varint(len(run.versions))]
    parts += map(write_column, (lacks, moments, apart) if run.versions else ())
    return b"".join([*parts, *(v.leaf for v in run.versions), run.data])


def unpack_run(record: Record) -> Run:
    """Return the parts of a run's record. Raises CorruptError where its numbers do not fit."""
    bits = record.bitstring
    count, at = read_varint(bits, 0)
    if not 0 < count <= MAX_RUN:
        raise CorruptError(f"a run of {count} segments, expected 1 to {MAX_RUN}: damaged")
    lengths, at = read_column(bits, at, count)
    if sum(lengths) != record.tokens:
        raise CorruptError(f"a run of {sum(lengths)} tokens, expected {record.tokens}: damaged")
    older, at = read_varint(bits, at)
    if older > (0 if record.name is None else MAX_RUN):
        raise CorruptError(f"a run with {older} older versions, which is too many: damaged")
    columns = [list[int]()] * 3
    for n in range(3 if older else 0):
        columns[n], at = read_column(bits, at, older)
    if at + LEAF * older > len(bits):
        raise CorruptError("a run ends before its versions do: damaged")
    versions, lacks, moment = [], 0, record.moment
    for row in zip(*columns, strict=True):
        lacks, moment = lacks + _value(row[0]), moment - _value(row[1])
        time = (moment >> TICK_BITS) - _value(row[2])
        if not (0 <= lacks < count and 0 <= moment < MAX_MOMENT and 0 <= time < MAX_MOMENT):
            raise CorruptError("a run with a version that cannot be: damaged")
        versions.append(OlderVersion(lacks, moment, time, bits[at : at + LEAF]))
        at += LEAF
    return Run(lengths, versions, bits[at:])


def _signed(value: int) -> int:
    """Return a signed number as an unsigned one.

    >>> [_value(_signed(n)) for n in (0, 1, -1, -300)]
    [0, 1, -1, -300]
    """
    return 2 * value if value >= 0 else -2 * value - 1


def _value(stored: int) -> int:
    return -(stored + 1 >> 1) if stored & 1 else stored >> 1
