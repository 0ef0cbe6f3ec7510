"""bench archive: the figures of a small run are right, and the codec of ready bitstrings is exact."""

from pathlib import Path

import numpy as np
import pytest

from pltz.coding.codecs.codec import Coded, Plain
from pltz.experiments.archive import command as bench_archive
from pltz.experiments.archive.measure import ReadyCodec
from pltz.plt_codec.errors import CorruptError
from tests.cli.commands import Run, told


def test_a_small_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_archive, "QUICK", {"sessions": 1500, "entries": 20_000, "sharing": 500})
    monkeypatch.setattr("pltz.experiments.archive.measure.LOOKUPS", 1000)
    result = told(run("archive", "--writers", "1", "--where", str(tmp_path)))
    assert result["put"]["bitstring_bytes"] == 750 * 1700 + 50 * 375 and result["put"]["per_s"] > 0
    assert result["reading"]["verify_sound"] and result["index"]["found_hits"] == 1000
    over = result["overhead"]
    assert 20 < over["bytes_per_session"] < 40 and 20 < over["collected"]["bytes_per_session"] < 40
    flat, *shared = result["sharing"]
    assert flat["bytes_per_session"] > 950 and all(200 < row["bytes_per_session"] < 800 for row in shared)
    assert not list(tmp_path.iterdir())


def test_ready_bitstrings_are_exact() -> None:
    codec = ReadyCodec()
    kept = codec.make(10, 8)
    codec.keep()
    tokens = codec.make(20, 12)
    data = codec.encode([Plain(kept, kept[:0]), Plain(tokens, kept)])
    assert [len(d) for d in data] == [8, 12]
    found = codec.decode([Coded(d, 0, kept) for d in data])
    assert all(np.array_equal(a, b) for a, b in zip(found, [kept, tokens], strict=True))
    with pytest.raises(CorruptError):
        codec.decode([Coded(data[1][:-1] + b"\0" if data[1][-1] else data[1][:-1] + b"\1", 20, kept)])
    codec.drop()
    with pytest.raises(CorruptError):
        codec.decode([Coded(data[1], 20, kept)])
