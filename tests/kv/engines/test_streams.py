"""The entropy coder: C against numpy, round trips, and streams that are damaged."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.kv.calibrate.fitting import laplace
from pltz.kv.engines import streams
from pltz.kv.engines.streams import Streams, Tables, decode, encode
from pltz.plt_codec.errors import CorruptError, ModelError
from tests.examples import examples
from tests.kv.engines import streams_oracle

FREQ, MEAN = laplace()


def drawn(tokens: int, layers: int, width: int, spread: int = 40, seed: int = 0) -> tuple[Any, Any, Tables]:
    """Return integers, classes and tables: Laplace, of levels from very rare to very large."""
    rng = np.random.default_rng(seed)
    tables = Tables(FREQ, MEAN, rng.integers(-60, spread, (layers, width)).astype(np.int16))
    classes = rng.integers(0, 16, tokens).astype(np.uint8)
    step = 2.0 ** ((12 - 4 * classes.astype(int)) / 8)[:, None, None]
    q = rng.laplace(size=(tokens, layers, width)) * 2.0 ** (tables.level / 8) / step
    return np.clip(np.rint(q), -(1 << 15), (1 << 15) - 1).astype(np.int16), classes, tables


def same(streams_: Streams, other: Streams) -> bool:
    fields = ("words", "states", "ends", "sum")
    return all(getattr(streams_, f).tobytes() == getattr(other, f).tobytes() for f in fields)


@pytest.mark.parametrize(
    ("tokens", "layers", "width"),
    [(0, 2, 32), (1, 1, 32), (33, 2, 40), (70, 3, 64), (513, 4, 256), (35, 9, 928), (2, 8, 2080), (33, 10, 2080)],
)
@pytest.mark.parametrize("wide", [True, False])
def test_every_coder_reads_and_writes_the_same(tokens: int, layers: int, width: int, wide: bool) -> None:
    q, classes, tables = drawn(tokens, layers, width)
    coded = encode(q, classes, tables, 0)
    again, kinds = decode(coded, tokens, tables, 0, wide=wide)
    assert (again == q).all() and (kinds == classes).all()
    if wide and tokens * layers * width < 1 << 19:  # numpy's coder is the same for both widths
        again, kinds = streams_oracle.decode(coded, tokens, tables, 0)
        assert (again == q).all() and (kinds == classes).all()


@given(st.integers(0, 80), st.integers(1, 3), st.integers(1, 70), st.integers(-64, 32), st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_any_integers_come_back(tokens: int, layers: int, width: int, point: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = Tables(FREQ, MEAN, rng.integers(-(1 << 15), 1 << 15, (layers, width)).astype(np.int16))
    q = rng.integers(-(1 << 15), 1 << 15, (tokens, layers, width)).astype(np.int16)
    q[rng.random(q.shape) < rng.random()] //= 4096
    classes = rng.integers(0, 16, tokens).astype(np.uint8)
    again, kinds = decode(encode(q, classes, tables, point), tokens, tables, point)
    assert (again == q).all() and (kinds == classes).all()


@pytest.mark.parametrize(
    ("shape", "name"),
    [((70, 2, 96), "d2270abd7dc1172a"), ((40, 9, 1024), "978aba253c2523fa"), ((33, 10, 2080), "b931a770b5658a96")],
)
def test_the_words_of_version_3_never_change(shape: tuple[int, int, int], name: str) -> None:
    q, classes, tables = drawn(*shape, seed=3)
    coded = encode(q, classes, tables, -4)
    data = b"".join(getattr(coded, part).tobytes() for part in ("words", "states", "ends", "sum"))
    assert hashlib.sha256(data).hexdigest()[:16] == name


def test_a_beginning_of_the_words_decodes_to_the_first_layers() -> None:
    ans = pytest.importorskip("pltz.kv.engines._ans", reason="no C compiler at the installation")
    tokens, layers, width = 40, 9, 1024
    q, classes, tables = drawn(tokens, layers, width)
    coded = encode(q, classes, tables, 0)
    assert coded.ends.shape == (3, 2) and (np.diff(coded.ends.ravel()) > 0).all()
    words = coded.words.copy()
    words[coded.ends[1, -1] :] = 0  # the last section is not there
    again, kinds, sums = np.zeros_like(q), np.zeros_like(classes), np.zeros((tokens, 2), np.uint32)
    ends = np.concatenate([[0], coded.ends.ravel()])
    shape = (FREQ, MEAN, tables.level, layers, width, 0, tokens, 1)
    for group in (0, 1):
        assert not ans.decode(words, coded.states, ends, *shape, again, kinds, sums, group, group + 1, True)
    assert (again[:, :8] == q[:, :8]).all() and (again[:, 8] != q[:, 8]).any()


def test_without_the_compiled_part_the_form_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    q, classes, tables = drawn(3, 1, 32)
    coded = encode(q, classes, tables, 0)
    monkeypatch.setattr(streams, "_ans", None)
    for work in (lambda: encode(q, classes, tables, 0), lambda: decode(coded, 3, tables, 0)):
        with pytest.raises(ModelError, match="C compiler"):
            work()


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_stream_is_an_error(seed: int) -> None:
    q, classes, tables = drawn(64, *((2, 64), (9, 928))[seed % 2])
    coded, rng = encode(q, classes, tables, 0), np.random.default_rng(seed)
    words, states, ends = coded.words.copy(), coded.states.copy(), coded.ends.copy()
    match seed % 5:
        case 0:
            words[rng.integers(len(words))] ^= 1 << rng.integers(16)
        case 1:
            states[0, 0, rng.integers(32)] ^= 1 << rng.integers(32)
        case 2:
            words = words[: rng.integers(len(words))]
        case 3:
            words = rng.integers(0, 1 << 16, len(words)).astype(np.uint16)
        case _:
            ends[0, 0] += rng.choice([-1, 1])
    with pytest.raises(CorruptError):
        decode(Streams(words, states, ends, coded.sum), 64, tables, 0)


def test_a_wide_model_has_several_streams_whose_states_are_checked() -> None:
    q, classes, tables = drawn(33, 10, 2080)
    coded = encode(q, classes, tables, 0)
    assert coded.states.shape == (3, 2, 32) and streams.stream_layers(10, 2080) == [0, 4, 8]
    assert streams.stream_count(30, 384) == 1 and streams.stream_count(32, 2048) == 8
    for stream in range(3):
        states = coded.states.copy()
        states[stream, 0, 5] ^= 1 << 20
        with pytest.raises(CorruptError):
            decode(Streams(coded.words, states, coded.ends, coded.sum), 33, tables, 0)


def test_tables_that_cannot_be_are_refused() -> None:
    level, wrong = np.zeros((1, 32), np.int16), FREQ.copy()
    wrong[3, 4] += 1
    for freq, mean, levels in [
        (wrong, MEAN, level), (FREQ[:-1], MEAN, level), (FREQ, MEAN + 500, level), (FREQ, MEAN, level[:0]),
        (FREQ.astype(np.int16), MEAN, level),
    ]:
        with pytest.raises(CorruptError):
            Tables(freq, mean.astype(np.uint16), levels)  # type: ignore[arg-type]
