"""Measure thaws of KV in each form and tier in the shape of an 8B model.

    python -m pltz.benchmarks.kv.measure_kv --help

    python -m pltz.benchmarks.kv.measure_kv --calibration smollm2.kv.safetensors --json > kv_device.json

Weights are random, and random weights have no statistics worth coding. So the integers of `predictive` are drawn: from
the tables and levels of a calibration of a real target, spread over the components of this shape, with the classes of
tokens that SmolLM2-135M had. The predictors and transforms are random matrices of the right sizes. Every row is a whole
`Thawer.thaw`; the rows take turns, and the median and the best of the rounds are kept. The bare prefill, and raw KV in
the same tiers, are rows of the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive.archive import Archive
from pltz.archive.writing.put_request import PutRequest
from pltz.benchmarks.kv.random_calibration import drawn, random_calibration, spread_levels
from pltz.benchmarks.kv.random_target import RandomTarget
from pltz.benchmarks.turns import Way, nothing, take_turns
from pltz.cli.bench import machine
from pltz.datasets import sample_sessions
from pltz.kv.engines import streams
from pltz.kv.engines.cuda import DecodedStreams, DeviceStreams, DeviceTables, kernels_on
from pltz.kv.kv_forms import row_forms
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import Calibration, KVShape
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.store import KVStore
from pltz.kv.store.trie import names_of, root_of
from pltz.kv.thaw.cache_kv import cut
from pltz.kv.thaw.thawer import Thawer
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens_many
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.kv.thaw.thawed import Thawed
    from pltz.models.target.target import Target
    from pltz.plt_codec.lanes import LayoutName

# Shares of the classes 0 to 8, measured on three chats of 1536 tokens with SmolLM2-135M
CLASSES = np.array([0.506, 0.259, 0.099, 0.039, 0.012, 0.015, 0.028, 0.038, 0.004])
RANK = 1024  # of the predictors: the calibration of an 8B target takes 3 % of the model then
NAME, TENANT = "session", "default"
BLOCK = 16  # ids
SEED = 11


class Bench:
    """A target, an archive of one session, and a store for each row.

    Args:
        target: with random weights, where ``calibration`` is given.
        ids: of the session, (T,), of the target's tokenizer.
        calibration: of this shape, with the statistics to draw integers from; None: no row is `predictive`.
        device: where the bundle decodes.
        layout: in which the session is put.
    """

    def __init__(
        self,
        folder: Path,
        target: Target,
        ids: np.ndarray[Any, Any],
        calibration: Calibration | None,
        device: str = "cpu",
        layout: LayoutName = "default",
    ) -> None:
        self.target, self.device, self.folder, self.tokens, self.ids = target, target.device, folder, len(ids), ids
        self.cold = Archive.open(folder / "cold", create=True, model_ids=True, device=device, layout=layout)
        list(self.cold.put_many([PutRequest(NAME, Session("ids", ids), tokenizer=target.tokenizer_json)]))
        cache, logits = target.prefill(ids)
        self.room = 2 * self.tokens * target.token_bytes + (1 << 26)
        self.full = (len(ids) - 1) // BLOCK * BLOCK  # ids in full blocks; a thaw runs the rest
        self.span = Span(ids[: self.full], 0, np.ones(self.full, np.float32))  # the weights are random
        self.raw, self.logits = cut(cache, 0, self.full), logits.clone()
        self.end = cut(cache, self.full, len(ids))
        self.rotary = Rotary.of(target)
        self.calibration = calibration

    def predictive(self, point: float) -> tuple[PredictiveCodec, dict[str, Any]]:
        """Return the form at a point, and parts of drawn integers."""
        import torch

        assert self.calibration is not None
        embedding = self.target.model.get_input_embeddings().weight.detach()
        codec = PredictiveCodec(self.calibration, self.rotary, embedding, point)
        classes = np.random.default_rng(SEED).choice(len(CLASSES), self.full, p=CLASSES / CLASSES.sum())
        kinds = classes.astype(np.uint8)
        q = drawn(kinds, codec.tables, math.floor(point), self.device)
        coded = streams.encode(q, kinds, codec.tables, math.floor(codec.point))
        return codec, {
            "kv.words": torch.from_numpy(coded.words.view(np.int16).copy()),
            "kv.states": torch.from_numpy(coded.states.view(np.int32).copy()),
            "kv.ends": torch.from_numpy(coded.ends.astype(np.int32)),
            "kv.sum": torch.from_numpy(coded.sum),
            "kv.type": torch.empty(0, dtype=self.raw.dtype),
        }

    def thawer(
        self, tier: str, coded: tuple[PredictiveCodec, dict[str, Any]] | None = None, kind: str = "raw"
    ) -> tuple[KVStore, Thawer]:
        """Return a store that holds the session in one tier, and a thawer over it that allows any loss."""
        import torch

        room: dict[str, Any] = {"tokens": self.tokens + BLOCK} if tier == "device" else {}
        if tier == "host":
            room = {"tokens": BLOCK, "host_tokens": self.tokens}
        if tier == "disk":
            room = {"disk_bytes": self.room, "folder": tempfile.mkdtemp(dir=self.folder)}
        form = None if coded is None else coded[0]
        store = KVStore.open(self.target, kind=kind, form=form, queue_bytes=self.room, **room)
        if coded is None:
            store.keep(TENANT, self.span.ids, lambda start, stop: self.raw[:, :, :, start:stop], self.span.mass)
        elif store.folder is not None:
            root, head = root_of(TENANT), {"ids": torch.from_numpy(self.span.ids.copy())}
            name = names_of(root, self.span.ids, BLOCK)[-1]
            store.folder.write(KVFile(coded[0].name, store.folder.space, name, head, coded[1], root, root))
        store.keep_end(TENANT, self.ids, lambda start, stop: self.end, self.logits)
        store.close()
        if not store.stats().tiers[tier].blocks:
            raise ModelError(f"no room for the session in {tier}")
        return store, Thawer(self.cold, self.target, store, max_kl=float("inf"))

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)


def random_target(folder: Path, shape: str, device: str) -> Target:
    """Return a target of random weights, with the bundle's tokenizer. Raises UsageError, ModelError."""
    (folder / "target").mkdir()
    return RandomTarget.make(shape, Bundle.load().tokenizer.json, folder / "target", device)


def drawn_calibration(file: str, target: Target, rank: int) -> Calibration:
    """Return a random calibration of a target's shape, with the statistics of the calibration in a file."""
    config = target.model.config
    heads = config.num_key_value_heads
    dim = config.hidden_size // config.num_attention_heads
    shape = KVShape(config.num_hidden_layers, heads, dim, config.hidden_size)
    spread = spread_levels(Calibration.load(file).tables, shape.layers, shape.width)
    return random_calibration(target.fingerprint, shape, rank, spread, target.device)


def sample_ids(target: Target, tokens: int) -> np.ndarray[Any, Any]:
    """Return ids (tokens,) of the sample sessions, of a target with the bundle's tokenizer."""
    stream = np.concatenate(to_tokens_many(list(sample_sessions()), Bundle.load().tokenizer))
    return np.resize(stream, tokens).astype(np.int32)


def drop(store: KVStore) -> bool:
    """Write the files of a store to the disk and drop them from the page cache. Returns whether they are out."""
    out = True
    for path in store.folder.folder.glob("*.safetensors") if store.folder is not None else ():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.preadv(handle, [bytearray(1)], os.fstat(handle).st_size // 2, os.RWF_NOWAIT)
            out = False
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
    return out


def main() -> None:
    """Measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--calibration", required=True, help="of the target whose statistics are drawn from")
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--points", default="-6,-22", help="operating points to draw at")
    parser.add_argument("--rank", type=int, default=RANK, help="of the predictors; 0 for full rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", help="of this code, where it runs from a copy without its history")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = random_target(Path(folder), given.shape, given.device)
        calibration = drawn_calibration(given.calibration, target, given.rank)
        bench = Bench(Path(folder), target, sample_ids(target, given.tokens), calibration)
        result = measure(bench, [float(p) for p in given.points.split(",")], given.rounds)
    result |= {"benchmark": "kv_device", "shape": given.shape, "tokens": given.tokens, "rank": given.rank}
    result |= {"rounds": given.rounds, "machine": machine.describe(None, given.device, None)}
    if given.commit:
        result["machine"]["commit"] = given.commit
    if not given.json:
        for row in result["rows"]:
            print(f"{row['way']:40}{row['bytes'] / 1e6:10.1f} MB{row['ms']:10.2f} ms{row['best']:10.2f} best")
    print(json.dumps(result))


def measure(bench: Bench, points: list[float], rounds: int) -> dict[str, Any]:
    """Return the rows of all ways, after rounds in which they take turns."""
    size = bench.raw.numel() * bench.raw.element_size()
    ways = [Way("prefill", 0, nothing, lambda: bench.target.prefill(bench.ids))]
    dropped: list[bool] = []

    def add(name: str, tier: str, coded: Any = None, kind: str = "raw") -> None:
        store, thawer = bench.thawer(tier, coded, kind)
        kept = store.stats().tiers[tier].used
        if tier != "disk":
            ways.append(Way(f"{name}, {tier}", kept, nothing, lambda: thawer.thaw(NAME)))
            return
        ways.append(Way(f"{name}, page cache", kept, nothing, lambda: thawer.thaw(NAME)))
        ways.append(Way(f"{name}, disk", kept, lambda: dropped.append(drop(store)), lambda: thawer.thaw(NAME)))

    for kind in ("raw", "q8", "q4"):
        add(kind, "device", kind=kind)
    coded = {}
    for point in points:
        codec, parts = bench.predictive(point)
        bits = 8 * sum(part.numel() * part.element_size() for part in parts.values()) / bench.raw.numel()
        coded[point] = {"bits": bits} | alone(bench, codec, parts)
        add(f"predictive at {bits:.2f} bits", "disk", (codec, parts))
    for tier in ("host", "disk"):
        add("raw", tier)

    def look(name: str, found: Any, seconds: float | None) -> None:
        if seconds is None and name != "prefill":
            check(bench, name, found)

    times = take_turns(ways, rounds, look, wait=bench.wait)
    rows = [
        {
            "way": way.name, "bytes": way.stored, "ms": 1e3 * statistics.median(times[way.name]),
            "best": 1e3 * min(times[way.name]),
        }
        for way in ways
    ]  # fmt: skip
    alone_ms = unpacking(bench)
    return {"kv_bytes": size, "rows": rows, "coded": coded, "alone_ms": alone_ms, "page_cache_dropped": all(dropped)}


def check(bench: Bench, way: str, thawed: Thawed) -> None:
    """Check ids, and KV of forms of the real KV. Raises ModelError where they are not those of the session."""
    if not np.array_equal(thawed.token_ids, bench.ids):
        raise ModelError(f"{way}: other ids")
    if way.startswith("predictive"):
        return  # drawn integers: no KV of the target; `alone` compares it with torch's
    found = cut(thawed.cache, 0, bench.full)
    far = float((found.float() - bench.raw.float()).norm() / bench.raw.float().norm())
    if far > {"raw": 0.0, "q8": 0.02}.get(way.partition(",")[0], 0.15):
        raise ModelError(f"{way}: KV is off by {far:.3g}")


def alone(bench: Bench, codec: PredictiveCodec, made: dict[str, Any]) -> dict[str, float]:
    """Return the milliseconds of decoding and encoding alone, and how far decoding is from float32 products, relative.

    Raises ModelError where the GPU does not encode the integers to the bytes of the CPU.
    """
    import torch

    parts = {name: part.to(bench.device) for name, part in made.items()}
    span = bench.span
    kernels = kernels_on(bench.device)
    if kernels is None:
        return {}
    found = codec.decode(parts, span)
    table, count, point = DeviceTables.of(codec.tables, bench.device), bench.full, math.floor(codec.point)
    there = DeviceStreams(parts["kv.words"], parts["kv.ends"], parts["kv.states"], table, point, count)

    def entropy() -> DecodedStreams:
        integers = kernels.decoded(there)
        integers.decode_all()
        return integers

    integers = entropy()
    again, _ = kernels.encode(integers.q, integers.classes, table, point)
    if not all(torch.equal(getattr(again, name), parts[f"kv.{name}"]) for name in ("words", "ends", "states")):
        raise ModelError("the GPU encodes integers to other bytes than the CPU")
    times = {"decode_ms": timed(bench, lambda: codec.decode(parts, span)), "entropy_ms": timed(bench, entropy)}
    times["entropy_encode_ms"] = timed(bench, lambda: kernels.encode(integers.q, integers.classes, table, point))
    times["encode_ms"] = timed(bench, lambda: codec.encode(bench.raw, span))  # of the random KV, of other bits
    exact = codec.decode(parts | {"kv.type": torch.empty(0, device=bench.device)}, span)
    times["float32_ms"] = timed(
        bench, lambda: codec.decode(parts | {"kv.type": torch.empty(0, device=bench.device)}, span)
    )
    times["off"] = float((found.float() - exact).norm() / exact.norm())
    return times


def unpacking(bench: Bench) -> dict[str, float]:
    """Return the milliseconds that `q8` and `q4` take to decode alone, and those of a copy of the raw KV."""
    times = {"copy": timed(bench, bench.raw.clone)}
    for kind, form in row_forms(bench.target).items():
        parts = form.encode(bench.raw, bench.span)
        times[kind] = timed(bench, partial(form.decode, parts, bench.span))
    return times


def timed(bench: Bench, work: Callable[[], object]) -> float:
    """Return the least milliseconds of five calls."""
    times = []
    for _ in range(5):
        bench.wait()
        start = time.perf_counter()
        work()
        bench.wait()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


if __name__ == "__main__":
    main()
