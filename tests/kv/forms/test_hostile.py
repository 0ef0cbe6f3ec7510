"""Hostile parts and calibrations, whose author knew the format: a named error, or finite KV of the right shape."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.codec import KVCodec
from pltz.kv.predictive.calibration import FORMAT, PREDICTIVE, Calibration, KVShape
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.plt_codec.errors import CorruptError, PltzError, VersionError
from tests.kv.engines.test_streams import drawn
from tests.kv.pool.pages import HEADS, LAYERS, form as pages_of, random_kv, rotary
from tests.kv.port.test_bound import MEASURED
from tests.kv.spans import flat
from tests.test_damage import ODD, mutants

TOKENS = 64
IDS = np.random.default_rng(0).integers(0, 400, TOKENS).astype(np.int32)
SPAN, KV = flat(IDS), random_kv(TOKENS)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    made = random_calibration(bytes(16), KVShape(LAYERS, HEADS, 32, 12), 6, drawn(1, LAYERS, 128)[2])
    receipts = [replace(MEASURED, form=PREDICTIVE, point=point) for point in (-8, 0)]
    return replace(made, receipts=tuple(receipts))


def predictive(calibration: Calibration) -> PredictiveCodec:
    embedding = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 12), np.float32))
    return PredictiveCodec(calibration, rotary(16), embedding, -8)


def outcome(codec: KVCodec, parts: Any, shape: torch.Size) -> str:
    """Return "kv" or "error", after checking that KV is finite and of the right shape."""
    try:
        codec.check(parts, TOKENS)
        kv = codec.decode(parts, SPAN)
    except CorruptError:
        return "error"
    assert kv.shape == shape and bool(torch.isfinite(kv).all())
    return "kv"


@pytest.mark.parametrize("form", ["q8", "q4", "predictive"])
def test_parts_of_any_content_are_an_error_or_finite(form: str, calibration: Calibration) -> None:
    codec: KVCodec = predictive(calibration) if form == "predictive" else RowForm(pages_of(form))
    parts, rng = codec.encode(KV, SPAN), np.random.default_rng(1)
    found = set()
    for _ in range(120):
        name = str(rng.choice([n for n, part in parts.items() if part.numel()]))
        hurt = parts[name].clone()
        flat = (hurt.view(torch.uint8) if hurt.element_size() > 1 else hurt).reshape(-1)
        some = rng.integers(0, len(flat), int(rng.integers(1, len(flat) + 1)))
        flat[torch.from_numpy(some)] = torch.from_numpy(rng.integers(0, 256, len(some)).astype(np.uint8)).to(flat.dtype)
        found.add(outcome(codec, {**parts, name: hurt}, KV.shape))
    assert "error" in found


def test_calibrations_of_any_content_are_an_error_or_finite(calibration: Calibration) -> None:
    sound = predictive(calibration).encode(KV, SPAN)
    rng, refused = np.random.default_rng(2), 0
    for n in range(150):
        name = sorted(calibration.tensors)[n % len(calibration.tensors)]
        hurt = np.array(calibration.tensors[name])
        flat = hurt.reshape(-1)
        some = rng.integers(0, len(flat), 1 + n % 7)
        if hurt.dtype == np.float32:
            flat[some] = rng.choice([0, -1, 1e-38, 1e38, 3e38, np.inf, np.nan, rng.normal()], len(some))
        else:
            limits = np.iinfo(hurt.dtype)
            flat[some] = rng.integers(limits.min, limits.max, len(some), endpoint=True)
        if n % 10 == 9:
            flat[:] = 0
        try:
            other = replace(calibration, tensors={**calibration.tensors, name: hurt})
            other = Calibration.parse(_file(other))
            codec = predictive(other)
            outcome(codec, sound, KV.shape)
            outcome(codec, codec.encode(KV, SPAN), KV.shape)
        except PltzError:
            refused += 1
    assert 30 < refused < 150


def test_a_header_that_promises_much_takes_no_memory(calibration: Calibration) -> None:
    """Shapes, ranks and sizes as large as the format allows, over a body of nothing."""
    data = _file(calibration)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = json.loads(header["__metadata__"]["meta"])
    for change in ({"layers": 1024}, {"heads": 4096, "dim": 4096}, {"hidden": 1 << 17}, {"layers": -1}, {"dim": 1e9}):
        facts = json.dumps(meta | change)
        forged = header | {"__metadata__": header["__metadata__"] | {"meta": facts}}
        for shape in ([1 << 40, 1 << 20], [-1, 5], ["x"], None):
            for name in ("basis", "predict.0", "spread.0"):
                entry = dict(forged.get(name, {"dtype": "I8", "data_offsets": [0, 1 << 60]})) | {"shape": shape}
                text = json.dumps(forged | {name: entry}).encode()
                tracemalloc.start()
                with pytest.raises((CorruptError, VersionError)):
                    Calibration.parse(len(text).to_bytes(8, "little") + text + data[8 + size :])
                most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert most < 8 << 20


def test_a_header_of_any_values_is_refused(calibration: Calibration) -> None:
    """Each value in it, and in the facts and receipts in it, gives way to others: no other error escapes."""
    data = _file(replace(calibration, receipts=calibration.receipts[:1]))
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = header["__metadata__"]
    facts = json.loads(meta["meta"])
    others = [*mutants(header), header | {"spread.0": {"dtype": "I8", "shape": 5, "data_offsets": [0, 0]}}]
    for one in (*mutants(facts), facts | {"more": 1}, *ODD):
        others.append(header | {"__metadata__": meta | {"meta": json.dumps(one)}})
    tried = 0
    for other in others:
        text = json.dumps(other).encode()
        if text != json.dumps(header).encode():
            tried += 1
            with pytest.raises((CorruptError, VersionError)):
                Calibration.parse(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert tried > 1000


def test_tensors_that_overlap_are_refused(calibration: Calibration) -> None:
    """Refuse pieces of equal sizes with a gap where one of them was, though their sizes add up to that of the body."""
    data = _file(calibration)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["predict.1.out"]["data_offsets"] = header["predict.0.out"]["data_offsets"]
    text = json.dumps(header).encode()
    with pytest.raises(CorruptError, match="offset"):
        Calibration.parse(len(text).to_bytes(8, "little") + text + data[8 + size :])


def test_points_that_cannot_be_are_refused(calibration: Calibration) -> None:
    """With a point of 1e12 the choice of a bound would count sixteenths for ever."""
    first, *others = calibration.receipts
    for point in (1e12, -65.0, 0.03):
        with pytest.raises(CorruptError, match="points that cannot be"):
            Calibration.parse(_file(replace(calibration, receipts=(replace(first, point=point), *others))))
    with pytest.raises(CorruptError, match="two of one point"):
        Calibration.parse(_file(replace(calibration, receipts=(first, first, *others))))


def _file(calibration: Calibration) -> bytes:
    """Return the file of a calibration, its digest right."""
    facts = json.dumps(calibration._meta(), sort_keys=True)
    meta = {"format": FORMAT, "meta": facts, "digest": calibration.digest.hex()}
    return save({k: np.ascontiguousarray(v) for k, v in calibration.tensors.items()}, meta)
