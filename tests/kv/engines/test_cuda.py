"""The kernels of the forms against C and torch: on a GPU where there is one, and on a CPU by emulation.

On a GPU also under NVIDIA's sanitizers, each of memcheck, racecheck, initcheck and synccheck:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \\
        python -m pytest -q -p no:xdist tests/kv/engines/test_cuda.py -k gpu

Without torch's cache each tensor is an allocation of its own, so that memcheck sees its end.
"""

import functools
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.kv.engines import cuda, streams
from pltz.kv.engines.cuda import DeviceStreams, DeviceTables, Kernels
from pltz.kv.engines.streams import Streams
from pltz.kv.port.arriving import ArrivingParts
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive import predictive
from pltz.kv.predictive.calibration import Calibration, KVShape
from pltz.kv.predictive.cuda_engine import CudaEngine
from pltz.kv.predictive.host_engine import HostEngine
from pltz.kv.predictive.layer import Layer, layers_of
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.errors import CorruptError, UsageError
from tests.kv.engines.test_streams import drawn, same
from tests.kv.spans import flat
from tests.plt_codec.engines.cuda import emulate

ON_CPU = (
    pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux"),
    pytest.mark.seldom("kv/engines/*", "kv/forms/*", "kv/port/*", "plt_codec/engines/cuda/*"),
)
ON_GPU = pytest.mark.skipif(gpu.count() == 0, reason="no NVIDIA GPU, or pltz[cuda] is not installed")
FLAGS = "PLTZ_EMULATION_FLAGS"  # environment: options of the emulation's compiler, say of sanitizers
SHAPES = [(1, 1, 32), (33, 2, 40), (70, 3, 64), (35, 9, 928), (33, 10, 2080), (300, 13, 2048)]  # tokens, layers, width


@dataclass
class Where:
    """A device with kernels."""

    kernels: Kernels
    device: torch.device


PLACES = [pytest.param("cpu", marks=ON_CPU, id="emulated"), pytest.param("cuda", marks=ON_GPU, id="gpu")]


@pytest.fixture(params=PLACES, scope="module")
def where(request: pytest.FixtureRequest) -> Where:
    if request.param == "cuda":
        found = cuda.kernels_on(torch.device("cuda"))
        assert found is not None
        return Where(found, torch.device("cuda", torch.cuda.current_device()))
    emulation = emulate.Emulation({}, os.environ.get(FLAGS, "").split(), text=cuda.source())
    return Where(Kernels(emulate.EmulatedDevice(emulation)), torch.device("cpu"))


@pytest.fixture
def used(where: Where, monkeypatch: pytest.MonkeyPatch) -> Where:
    """Let the codecs find the kernels, also on a CPU."""
    monkeypatch.setattr(predictive, "kernels_on", lambda device: where.kernels)
    return where


def decoded(where: Where, coded: Streams, tables: Any, point: int, tokens: int) -> tuple[Any, Any, Any, bool]:
    """Return integers (T, layers, width), classes, sums, and whether the streams ended as they must."""
    parts = (coded.words.view(np.int16), coded.ends.astype(np.int32), coded.states.view(np.int32))
    words, ends, states = (torch.from_numpy(part.copy()).to(where.device) for part in parts)
    coded_there = DeviceStreams(words, ends, states, DeviceTables.of(tables, where.device), point, tokens)
    found = where.kernels.decoded(coded_there)
    found.decode_all()
    return found.q.permute(1, 0, 2).cpu().numpy(), found.classes.cpu().numpy(), found.sums(), not bool(found.bad)


@pytest.mark.parametrize(("tokens", "layers", "width"), [(0, 2, 32), *SHAPES])
def test_a_warp_reads_and_writes_what_c_writes(where: Where, tokens: int, layers: int, width: int) -> None:
    if where.device.type == "cpu" and tokens > 100:
        pytest.skip("too long for the emulation")
    q, classes, tables = drawn(tokens, layers, width)
    if tokens:
        coded = streams.encode(q, classes, tables, -3)
        again, kinds, sums, sound = decoded(where, coded, tables, -3, tokens)
        assert sound and (again == q).all() and (kinds == classes).all()
        assert streams.checksum(sums).tobytes() == coded.sum.tobytes()
    q.flat[::97] = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, len(q.flat[::97]))  # escapes, low bits
    assert same(*encoded(where, q, classes, tables, -3))


def encoded(where: Where, q: Any, classes: Any, tables: Any, point: int) -> tuple[Streams, Streams]:
    """Return the streams of integers (T, layers, width), by the kernels and by C."""
    there = torch.from_numpy(q.transpose(1, 0, 2).copy()).to(where.device), torch.from_numpy(classes).to(where.device)
    made, sums = where.kernels.encode(*there, DeviceTables.of(tables, where.device), point)
    words, states, ends = (part.cpu().numpy() for part in (made.words, made.states, made.ends))
    return Streams(
        words.view(np.uint16), states.view(np.uint32), ends.astype(np.int64), streams.checksum(sums)
    ), streams.encode(q, classes, tables, point)


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


@functools.cache
def random(layers: int, heads: int, dim: int, rank: int) -> tuple[Calibration, list[Layer]]:
    """Return a calibration and its matrices on the CPU, whose inverses take long."""
    shape = KVShape(layers, heads, dim, 12)
    found = random_calibration(bytes(16), shape, rank, drawn(1, layers, shape.width)[2])
    return found, layers_of(found)


def codecs(used: Where, shape: tuple[int, int, int], rank: int, point: float) -> tuple[PredictiveCodec, Any]:
    """Return codecs of one calibration: on the device, and on the CPU without kernels. Heads have ``shape[2]``."""
    calibration, layers = random(*shape, rank)
    rotary = Rotary(torch.linspace(1, 1e-4, shape[2] // 2, dtype=torch.float64))
    embedding = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 12), np.float32))
    moved = [
        Layer(tuple(m.to(used.device) for m in layer.predict), *(m.to(used.device) for m in layer[1:]))
        for layer in layers
    ]
    there = PredictiveCodec(calibration, rotary, embedding.to(used.device), point, moved)
    here = PredictiveCodec(calibration, rotary, embedding, point, layers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive, "kernels_on", lambda device: None)
        assert isinstance(here._engine, HostEngine)
    return there, here


ONE_STREAM = (17, 2, 124)  # a shape of several sections in one stream: layers, heads, size of a head
TWO_STREAMS = (64, 1, 128)


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "rank"),
    [(5, 1, 8, 0), (5, 1, 8, 6), (*ONE_STREAM, 0), (*ONE_STREAM, 6), (*TWO_STREAMS, 6)],
)
def test_predictive_decodes_to_the_same_kv(used: Where, rank: int, layers: int, heads: int, dim: int) -> None:
    there, here = codecs(used, (layers, heads, dim), rank, 0)
    torch.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 50, 37).astype(np.int32)
    kv, span = torch.randn(layers, 2, heads, 37, dim), flat(ids, 5)
    for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 5e-3), (torch.float16, 2e-3)):
        parts = here.encode(kv.to(dtype), span)
        expected = here.decode(parts, span)
        found = there.decode({name: part.to(used.device) for name, part in parts.items()}, span)
        assert (found.dtype, found.shape) == (dtype, kv.shape)
        assert float((found.cpu() - expected).float().norm() / expected.float().norm()) < most
    hurt = {name: part.clone().to(used.device) for name, part in parts.items()}
    hurt["kv.words"][len(hurt["kv.words"]) // 2] ^= 1
    with pytest.raises(CorruptError):
        there.decode(hurt, span)
    hurt["kv.ends"][0, 0] = 1 << 30
    with pytest.raises(CorruptError):
        there.decode(hurt, span)


@pytest.mark.parametrize(("shape", "expected"), [(ONE_STREAM, [0, 4, 8, 12, 16]), (TWO_STREAMS, [0] * 8 + [32] * 8)])
def test_layers_are_decoded_before_the_last_words_are_there(
    used: Where, shape: tuple[int, int, int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = codecs(used, shape, 6, 0)
    layers, heads, dim = shape
    span = flat(np.arange(33, dtype=np.int32), 5)
    parts = here.encode(torch.randn(layers, 2, heads, 33, dim), span)
    whole = there.decode({name: part.to(used.device) for name, part in parts.items()}, span)
    room = {name: part.clone() for name, part in sorted(parts.items(), key=lambda one: one[0] == "kv.words")}
    room["kv.words"].zero_()  # the last to arrive
    arriving = ArrivingParts(room)
    placed: list[int] = []
    place, wait = used.kernels.place_layer, arriving.wait

    def counted(*given: Any) -> None:
        placed.append(1)
        place(*given)

    def filled(name: str, elements: int | None = None) -> int:
        """Bring what is waited for, as a reader does meanwhile."""
        if name == "kv.words" and elements is not None:
            seen.append(len(placed))
            room[name][:elements] = parts[name][:elements]
            arriving.arrive(arriving.size - 2 * (len(room[name]) - elements))
        return wait(name, elements)

    seen: list[int] = []
    arriving.arrive(arriving.size - room["kv.words"].nbytes)
    monkeypatch.setattr(used.kernels, "place_layer", counted)
    monkeypatch.setattr(arriving, "wait", filled)
    found = there.decode(arriving, span)
    assert seen == expected  # layers whose products were launched before the words of each section were waited for
    assert torch.equal(found.to(used.device), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 6])
def test_predictive_encodes_as_well_as_on_a_cpu(used: Where, rank: int, dtype: torch.dtype) -> None:
    there, here = codecs(used, ONE_STREAM, rank, -8)
    layers, heads, dim = ONE_STREAM
    torch.manual_seed(0)
    span = flat(np.random.default_rng(0).integers(0, 50, 37).astype(np.int32), 5)
    kv = torch.randn(layers, 2, heads, 37, dim).to(dtype)
    parts = {name: part.cpu() for name, part in there.encode(kv.to(used.device), span).items()}
    own = here.encode(kv, span)
    here.check(parts, 37)
    assert {name: part.dtype for name, part in parts.items()} == {name: part.dtype for name, part in own.items()}
    errors = [(here.decode(made, span) - kv).float().norm() for made in (parts, own)]  # by C
    assert abs(float(errors[0] / errors[1]) - 1) < 0.01
    assert abs(len(parts["kv.words"]) / len(own["kv.words"]) - 1) < 0.01 and len(parts["kv.words"]) > 1000


def test_what_cannot_be_coded_is_refused(used: Where) -> None:
    shape = KVShape(2, 1, 8, 12)
    calibration = random_calibration(bytes(16), shape, 0, drawn(1, 2, 16)[2])
    embedding = torch.ones(3, 12, device=used.device)
    codec = PredictiveCodec(calibration, Rotary(torch.ones(4, dtype=torch.float64)), embedding, -64)
    for size, reason in ((float("nan"), "not finite"), (float("inf"), "not finite"), (1e6, "prediction")):
        with pytest.raises(UsageError, match=reason):
            codec.encode(torch.full((2, 2, 1, 3, 8), size, device=used.device), flat(np.arange(3, dtype=np.int32), 9))


def test_numbers_beyond_float16_are_multiplied_in_float32(used: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = KVShape(2, 1, 8, 12)
    calibration = random_calibration(bytes(16), shape, 0, drawn(1, 2, 16)[2])
    ids = np.arange(3, dtype=np.int32)
    torch.manual_seed(0)
    for size in (1e3, 7e4):  # of an embedding; the second is beyond
        embedding = size * torch.ones(3, 12, device=used.device)
        rotary = Rotary(torch.ones(4, dtype=torch.float64))
        codec, plain = (PredictiveCodec(calibration, rotary, embedding, 32) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(predictive, "kernels_on", lambda device: None)
            parts = plain.encode(torch.randn(2, 2, 1, 3, 8).bfloat16().to(used.device), flat(ids, 9))
            expected = plain.decode(parts, flat(ids, 9))
        found = codec.decode(parts, flat(ids, 9))
        assert isinstance(codec._engine, CudaEngine)
        assert set(codec._engine._operands) == ({True} if size == 1e3 else {True, False})
        assert float((found - expected).float().norm() / expected.float().norm()) < 0.05  # predictions are large


def test_kernels_that_do_not_compile_are_told_once_and_other_machines_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(number: int, text: str, options: object = ()) -> cuda.Launcher:
        tried.append(text)
        raise gpu.CompileError("the CUDA kernels do not compile for sm_120: no such instruction")

    monkeypatch.setattr(cuda, "Gpu", broken)
    monkeypatch.setattr(gpu, "count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (12, 0))
    with pytest.warns(RuntimeWarning, match=r"cuda:0, torch does their work slowly: .* sm_120: no such instruction"):
        assert cuda.compiled(0, "one") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # any further warning
        assert cuda.compiled(0, "one") is None and cuda.compiled(0, "two") is None
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (7, 5))
        assert cuda.compiled(0, "too old") is None
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (8, 0))
        monkeypatch.setattr(gpu, "count", lambda: 0)
        assert cuda.compiled(0, "no extra") is None
    assert tried == ["one", "two"]
