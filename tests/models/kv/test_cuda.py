"""The kernels of the forms against C and torch: on a GPU where there is one, and on a CPU by emulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from pltz.benchmarks.random_calibration import random_calibration
from pltz.models.kv import cuda, predictive, q8, streams
from pltz.models.kv.calibration import KVShape
from pltz.models.kv.codec import Span
from pltz.models.kv.cuda import DeviceTables, Kernels
from pltz.models.kv.predictive import PredictiveCodec
from pltz.models.kv.q4 import Q4Codec
from pltz.models.kv.q8 import Q8Codec
from pltz.models.kv.rotary import Rotary
from pltz.models.kv.streams import Streams
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.errors import CorruptError
from tests.models.kv.test_streams import drawn
from tests.plt_codec.engines.cuda import emulate

ON_CPU = pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux")
ON_GPU = pytest.mark.skipif(gpu.count() == 0, reason="no NVIDIA GPU, or pltz[cuda] is not installed")
SHAPES = [  # of integers: tokens, layers, width
    (1, 1, 32), (33, 2, 40), (70, 3, 64), (35, 9, 928), (33, 10, 2080), (300, 13, 2048),
]  # fmt: skip


@dataclass
class Where:
    """A device with kernels."""

    kernels: Kernels
    device: torch.device


@pytest.fixture(params=[pytest.param("cpu", marks=ON_CPU), pytest.param("cuda", marks=ON_GPU)], scope="module")
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Where:
    if request.param == "cuda":
        found = cuda.kernels_on(torch.device("cuda"))
        assert found is not None
        return Where(found, torch.device("cuda", torch.cuda.current_device()))
    folder = tmp_path_factory.getbasetemp().parent / "emulated-kv"
    folder.mkdir(exist_ok=True)
    emulation = emulate.Emulation({}, folder, text=cuda.SOURCE.read_text("utf8"))
    return Where(Kernels(emulate.EmulatedDevice(emulation)), torch.device("cpu"))


@pytest.fixture
def used(where: Where, monkeypatch: pytest.MonkeyPatch) -> Where:
    """Let the codecs find the kernels, also on a CPU."""
    for module in (q8, predictive):
        monkeypatch.setattr(module, "kernels_on", lambda device: where.kernels)
    return where


def decoded(where: Where, coded: Streams, tables: Any, point: int, tokens: int) -> tuple[Any, Any, Any, bool]:
    """Return integers (T, layers, width), classes, sums, and whether the streams ended as they must."""
    parts = (coded.words.view(np.int16), coded.ends.astype(np.int32), coded.states.view(np.int32))
    words, ends, states = (torch.from_numpy(part.copy()).to(where.device) for part in parts)
    found = where.kernels.streams(words, ends, states, DeviceTables.of(tables, where.device), point, tokens)
    for first, last in found.sections():
        found.decode(first, last)
    q = found.q.permute(1, 0, 2).cpu().numpy()
    return q, found.classes.cpu().numpy(), found.sums(), not bool(found.bad)


@pytest.mark.parametrize(("tokens", "layers", "width"), SHAPES)
def test_a_warp_reads_what_c_wrote(where: Where, tokens: int, layers: int, width: int) -> None:
    if where.device.type == "cpu" and tokens > 100:
        pytest.skip("too long for the emulation")
    q, classes, tables = drawn(tokens, layers, width)
    coded = streams.encode(q, classes, tables, -3)
    again, kinds, sums, sound = decoded(where, coded, tables, -3, tokens)
    assert sound and (again == q).all() and (kinds == classes).all()
    assert streams.checksum(sums).tobytes() == coded.sum.tobytes()


@pytest.mark.parametrize("spread", [-40, 200])
def test_words_may_be_rare_or_many(where: Where, spread: int) -> None:
    q, classes, tables = drawn(32, 1, 96, spread=spread, seed=2)
    if spread > 0:
        q = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, q.shape).astype(np.int16)
    coded = streams.encode(q, classes, tables, 0)
    again, _, _, sound = decoded(where, coded, tables, 0, 32)
    assert sound and (again == q).all()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_stream_is_found_out(where: Where, seed: int) -> None:
    q, classes, tables = drawn(40, 2, 64)
    coded = streams.encode(q, classes, tables, 0)
    rng = np.random.default_rng(seed)
    words, states = coded.words.copy(), coded.states.copy()
    match seed % 3:
        case 0:
            words[rng.integers(len(words))] ^= 1 << rng.integers(16)
        case 1:
            states[0, 0, rng.integers(32)] ^= 1 << rng.integers(32)
        case _:
            words = rng.integers(0, 1 << 16, len(words)).astype(np.uint16)
    _, _, sums, sound = decoded(where, Streams(words, states, coded.ends, coded.sum), tables, 0, 40)
    assert not sound or streams.checksum(sums).tobytes() != coded.sum.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("dim", "half"), [(32, 16), (64, 32), (128, 64), (128, 20), (256, 128)])
def test_fixed_forms_decode_to_the_same_bits(used: Where, dtype: torch.dtype, dim: int, half: int) -> None:
    torch.manual_seed(dim)
    kv = torch.randn(2, 2, 2, 117, dim).to(dtype)
    rotary = Rotary(torch.linspace(1, 1e-4, half, dtype=torch.float64))
    for start, codec in ((0, Q4Codec(rotary)), (9, Q4Codec(rotary)), (0, Q8Codec(rotary)), (9, Q8Codec(rotary))):
        span = Span(np.zeros(117, np.int32), start, np.random.default_rng(0).random(117).astype(np.float32))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(q8, "kernels_on", lambda device: None)
            parts = codec.encode(kv, span)
            expected = codec.decode(parts, span)
        there = {name: part.to(used.device) for name, part in parts.items()}
        assert torch.equal(codec.decode(there, span).cpu(), expected), (codec.name, start)


@pytest.mark.parametrize("rank", [0, 6])
@pytest.mark.parametrize(("layers", "heads", "dim"), [(5, 1, 8), (9, 2, 232), (5, 1, 1032)])
def test_predictive_decodes_to_the_same_kv(used: Where, rank: int, layers: int, heads: int, dim: int) -> None:
    if used.device.type == "cpu" and dim > 1000:
        pytest.skip("the inverse of so wide a basis takes too long")
    shape = KVShape(layers, heads, dim, 12)
    _, _, tables = drawn(1, layers, shape.width)
    calibration = random_calibration(bytes(16), shape, rank, tables)
    rotary = Rotary(torch.linspace(1, 1e-4, dim // 2, dtype=torch.float64))
    torch.manual_seed(0)
    embedding = torch.randn(50, 12)
    ids = np.random.default_rng(0).integers(0, 50, 37).astype(np.int32)
    kv, span = torch.randn(layers, 2, heads, 37, dim), Span(ids, 5)
    there = PredictiveCodec(calibration, rotary, embedding.to(used.device), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive, "kernels_on", lambda device: None)
        here = PredictiveCodec(calibration, rotary, embedding, 0)
        for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 5e-3), (torch.float16, 2e-3)):
            parts = here.encode(kv.to(dtype), span)
            expected = here.decode(parts, span)
            patch.setattr(predictive, "kernels_on", lambda device: used.kernels)
            found = there.decode({name: part.to(used.device) for name, part in parts.items()}, span)
            patch.setattr(predictive, "kernels_on", lambda device: None)
            assert (found.dtype, found.shape) == (dtype, kv.shape)
            assert float((found.cpu() - expected).float().norm() / expected.float().norm()) < most
    hurt = {name: part.clone().to(used.device) for name, part in parts.items()}
    hurt["kv.words"][len(hurt["kv.words"]) // 2] ^= 1
    with pytest.raises(CorruptError):
        there.decode(hurt, span)
    hurt["kv.ends"][0, 0] = 1 << 30
    with pytest.raises(CorruptError):
        there.decode(hurt, span)


def test_numbers_beyond_float16_are_multiplied_in_float32(used: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = KVShape(2, 1, 8, 12)
    calibration = random_calibration(bytes(16), shape, 0, drawn(1, 2, 16)[2])
    ids = np.arange(3, dtype=np.int32)
    for size in (1e3, 7e4):  # of an embedding; the second is beyond
        embedding = size * torch.ones(3, 12, device=used.device)
        codec = PredictiveCodec(calibration, Rotary(torch.ones(4, dtype=torch.float64)), embedding, 32)
        parts = codec.encode(torch.randn(2, 2, 1, 3, 8).bfloat16().to(used.device), Span(ids, 9))
        found = codec.decode(parts, Span(ids, 9))
        with monkeypatch.context() as patch:
            patch.setattr(predictive, "kernels_on", lambda device: None)
            expected = codec.decode(parts, Span(ids, 9))
        assert set(codec._decoders) == ({True} if size == 1e3 else {True, False})
        assert float((found - expected).float().abs().max()) < 0.02 * float(expected.float().abs().max())


def test_no_ids_are_no_work(used: Where) -> None:
    shape = KVShape(2, 1, 8, 12)
    calibration = random_calibration(bytes(16), shape, 0, drawn(1, 2, 16)[2])
    codec = PredictiveCodec(calibration, Rotary(torch.ones(4, dtype=torch.float64)), torch.ones(3, 12), 0)
    span = Span(np.zeros(0, np.int32), 0)
    parts = codec.encode(torch.zeros(2, 2, 1, 0, 8), span)
    assert codec.decode(parts, span).shape == (2, 2, 1, 0, 8)


def test_a_cpu_has_no_kernels() -> None:
    assert cuda.kernels_on(torch.device("cpu")) is None
