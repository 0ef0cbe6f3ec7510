"""Runs: their bitstrings give back what they were made from, in few bytes, and damaged ones are refused."""

import pytest
from hypothesis import given, strategies as st

from pltz.archive.format.record import Record
from pltz.archive.format.run import OlderVersion, Run, pack_run, unpack_run
from pltz.plt_codec.errors import CorruptError

MOMENTS = st.integers(0, (1 << 62) - 1)
TIMES = st.integers(0, (1 << 62) - 1)


def record(run: Run, moment: int = 9, time: int = 0, *, bits: bytes | None = None) -> Record:
    packed = pack_run(run, moment, time) if bits is None else bits
    return Record(0, tokens=sum(run.lengths), moment=moment, time=time, name="a", bitstring=packed)


@given(
    st.lists(st.integers(0, 1 << 20), min_size=2, max_size=50),
    st.lists(st.tuples(st.integers(0, 1), MOMENTS, TIMES, st.binary(min_size=4, max_size=4)), max_size=50), MOMENTS,
    TIMES, st.binary(max_size=9),
)
def test_a_run_comes_back(
    lengths: list[int], rows: list[tuple[int, int, int, bytes]], moment: int, time: int, data: bytes
) -> None:
    run = Run(lengths, [OlderVersion(*row) for row in rows], data)
    assert unpack_run(record(run, moment, time)) == run


def test_forty_versions_of_forty_turns_take_few_bytes() -> None:
    moments = [10**15 - (300 * n + n * n % 97 << 20) - n**5 for n in range(40)]
    versions = [OlderVersion(n, moments[n], moments[n] >> 20, bytes([n] * 4)) for n in range(1, 40)]
    run = Run([100 + 7 * n % 31 for n in range(40)], versions, b"")
    assert len(pack_run(run, moments[0], moments[0] >> 20)) < 370


RUN = Run([5, 6], [OlderVersion(1, 8, 0, b"leaf")], b"data")


@pytest.mark.parametrize("run", [
    Run([5, 6], [OlderVersion(2, 8, 0, b"leaf")], b""),
    Run([5, 6], [OlderVersion(1, -1, 0, b"leaf")], b""),
    Run([5, 6], [OlderVersion(1, 8, -1, b"leaf")], b""),
])  # fmt: skip
def test_versions_that_cannot_be_are_refused(run: Run) -> None:
    with pytest.raises(CorruptError):
        unpack_run(record(run))


def test_every_cut_and_wrong_sums_are_refused() -> None:
    bits = pack_run(RUN, 9, 0)[: -len(RUN.data)]
    for size in range(len(bits)):
        with pytest.raises(CorruptError):
            unpack_run(record(RUN, bits=bits[:size]))
    with pytest.raises(CorruptError, match="tokens"):
        unpack_run(record(RUN)._replace(tokens=12))
    with pytest.raises(CorruptError, match="versions"):
        unpack_run(record(RUN)._replace(name=None))


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_read(bits: bytes) -> None:
    try:
        found = unpack_run(record(RUN, bits=bits))
    except CorruptError:
        return
    assert sum(found.lengths) == 11
