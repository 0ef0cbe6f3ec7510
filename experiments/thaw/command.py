"""``pltz.experiments thaw``: measure the time until a session's KV is back, from tokens, from memory and from disk.

The ways take turns in one process. The best round of each counts, since other work can only slow it down:

    prefill            the target over given ids: the lower bound of every thaw
    thaw               all of it: catalogue, records, decoding, prefill, insertion into the hot store
    thaw, fast layout  the same for a session that was frozen in the fast layout
    thaw, ... hot      the same call with half or all of the session in the store: on the device, in files
    safetensors        the KV as one file, by its own library, into fresh tensors on the device
    host memory        the KV in page-locked memory, copied to the device

Two more measurements follow: sessions thawed together in one call, and sessions that grew. The latter archive the same
tokens in several turns, one segment each, in either layout, and count decoding and prefill apart: with turns that puts
join, and with turns that stay apart. Then the latter are joined, as `pltz archive collect` does, and measured again.
Every thaw is checked: ids exactly, KV and logits against the prefill's within float noise. The run ends with one line
of JSON.
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import size
from pltz.benchmarks import options as bench_options
from pltz.benchmarks.turns import Way, nothing, take_turns
from pltz.cli.bench import machine, shared
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.coding.partners import DEFAULT_TARGET
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.plt_codec.lanes import LAYOUTS, LayoutName

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import DynamicCache

    from pltz.kv.store.store import KVStore
    from pltz.kv.thaw.thawed import Thawed
    from pltz.kv.thaw.thawer import Thawer
    from pltz.models.target.target import Target

Expected = tuple["DynamicCache", "torch.Tensor"]  # from a prefill: KV, logits of the last id
EMBEDDED = "embedded"
WHOLE, FAST, GROWN = "whole", "fast", "grown"
APART, JOINED, COPIED = "apart", "joined", "copied"  # how turns lie: one record each, as puts or a collector join them
TIMED = "thaw", "thaw, fast layout"  # the ways whose stages are reported


@click.command(
    cls=Command,
    short_help="A thaw, next to the bare prefill.",
    examples=[
        "python -m pltz.experiments thaw",
        "python -m pltz.experiments thaw --device cuda --shape llama-8b --together 4,16",
        "python -m pltz.experiments thaw --tokens 1000 --rounds 2 --turns 1,8 --json",
    ],
)
@click.option(
    "--shape",
    default=EMBEDDED,
    show_default=True,
    metavar="SHAPE",
    help="Target: the one that ships with pltz, or random weights in bf16 in the shape of llama-8b or llama-1b.",
)
@click.option(
    "--tokens", type=click.IntRange(min=2), default=4000, show_default=True, metavar="N", help="Tokens per session."
)
@options.count("--rounds", 3, "Rounds. The best counts.")
@click.option(
    "--together",
    default="4",
    show_default=True,
    metavar="N,...",
    help="Sessions thawed in one call, one row per number.",
)
@click.option(
    "--turns",
    default="1,4,8,40",
    show_default=True,
    metavar="N,...",
    help="Turns in which a session was archived, six rows per number: apart, joined by puts, by collect, per layout.",
)
@bench_options.WHERE
@options.coder_options
@shared.JSON
def thaw(
    shape: str,
    tokens: int,
    rounds: int,
    together: str,
    turns: str,
    where: str | None,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure a thaw against the bare prefill of the same tokens, and against loading their KV from memory and disk.

    The session is cut from the sample sessions that ship with pltz. With --device cuda the bundle decodes and the
    target runs on the GPU.
    """
    bench_options.check_where(where)
    counts, grown, load = bench_options.numbers(together), bench_options.numbers(turns), round(os.getloadavg()[0], 2)
    if max(grown) > tokens:
        raise UsageError(f"--turns: {tokens} tokens cannot come in {max(grown)} turns")
    with tempfile.TemporaryDirectory(dir=where) as folder:
        bench = ThawBench(Path(folder), shape, tokens, max(counts), grown, bundle, device, threads)
        # A session of one turn has nothing to join.
        ways = (APART, JOINED, COPIED)
        plans = [(way, layout, n) for way in ways for layout in LAYOUTS for n in grown if n > (way != APART)]
        total = rounds + len(counts) + len(plans)
        with Progress("measured", unit="rounds", total=total, shown=wanted(progress)) as bar:
            rows, stages = measure(bench, rounds, bar)
            many = []
            for count in counts:
                many.append(measure_many(bench, count, rounds))
                bar.add(1)
            by_turns, left = [], []
            for lying, layout, count in plans:
                # A collector keeps a session as it is where one segment would take more bytes.
                if lying != COPIED or bench.join(count, layout):
                    by_turns.append(measure_turns(bench, count, layout, rounds, lying))
                else:
                    left.append({"turns": count, "layout": layout})
                bar.add(1)
        result = {
            "benchmark": "thaw",
            "bundle": bench.bundle_id,
            "bundle_name": bench.bundle_name,
            "shape": shape,
            "dtype": str(bench.target.model.dtype).removeprefix("torch."),
            "tokens": tokens,
            "rounds": rounds,
            "thaw_over_prefill": rows[1]["over_prefill"],
            "fast_over_prefill": rows[2]["over_prefill"],
            "stages_ms": stages[TIMED[0]],
            "fast_stages_ms": stages[TIMED[1]],
            "rows": rows,
            "together": many,
            "turns": by_turns,
            "not_joined": left,
            "checked": asdict(bench.checked),
            "page_cache_dropped": bench.can_drop,
            "load_at_start": load,
            "machine": machine.describe(bench.coder, device, threads),
        }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))
    bench.checked.refuse()


@dataclass
class Checked:
    """The result of comparing thaws with prefills.

    ``kv``, ``logits``: largest differences, relative to the largest number. ``same_next``: thaws after which the
    likeliest next id was the same (random weights have many ids of about the same likelihood).
    """

    bound: float
    thaws: int = 0
    kv: float = 0.0
    logits: float = 0.0
    same_next: int = 0

    def add(self, kv: float, logits: float, same: bool) -> None:
        """Add one thaw. NaN counts as an infinite difference."""
        self.thaws += 1
        self.kv = max(self.kv, math.inf if math.isnan(kv) else kv)
        self.logits = max(self.logits, math.inf if math.isnan(logits) else logits)
        self.same_next += same

    def refuse(self) -> None:
        """Check that all differences are float noise. Raises ModelError where one is not."""
        if max(self.kv, self.logits) > self.bound:
            raise ModelError(
                f"thaws differ from prefills by {self.kv:.2g} in KV and {self.logits:.2g} in logits, "
                f"more than float noise ({self.bound})"
            )


class ThawBench:
    """A target, an archive with sessions for it, and stores of every tier.

    ``kv_bytes``: KV of one session. ``stored``: bytes of its records by name, put in one piece or in turns, in either
    layout.
    """

    def __init__(
        self,
        folder: Path,
        shape: str,
        tokens: int,
        many: int,
        turns: list[int],
        bundle: str | None,
        device: str,
        threads: int | None,
    ) -> None:
        import numpy as np

        from pltz.archive.archive import Archive
        from pltz.archive.writing.put_request import PutRequest
        from pltz.kv.thaw.thawed import KV_NOISE
        from pltz.models.session.session import Session

        # One bundle and target for all archives, so that ways differ in what they read alone.
        codec = options.load_codec(bundle, device, threads)
        loaded: Any = codec.bundle
        self.coder, self.bundle_id, self.bundle_name = codec.coder, loaded.id.hex(), loaded.name
        self.target = target_of(shape, folder, loaded.tokenizer.json, device)
        self.folder, self.device, self.tokens = folder, self.target.device, tokens
        self.can_drop = True
        self.checked = Checked(KV_NOISE[str(self.target.model.dtype).removeprefix("torch.")])
        if not 0 < tokens <= (self.target.max_positions or tokens):
            raise UsageError(f"--tokens: this target has only {self.target.max_positions} positions")
        stream, _ = bench_options.sample_tokens(codec)
        self.ids = bench_options.cut(stream, many + 1, tokens)
        place = folder / "cold"
        how: dict[str, Any] = {"bundle": loaded, "device": device, "threads": threads, "model_ids": True}
        self.cold = Archive.open(place, create=True, merge_turns=False, **how)
        whole = np.asarray(self.ids[0])
        items = [PutRequest(GROWN, Session("ids", whole[: tokens // 2])), PutRequest(GROWN, Session("ids", whole))]
        items += [PutRequest(f"many/{n}", Session("ids", ids)) for n, ids in enumerate(self.ids[1:])]
        fast = Archive.open(place, layout="fast", merge_turns=False, **how)
        self.stored: dict[str, int] = {}
        self.layouts = dict(zip(LAYOUTS, (self.cold, fast), strict=True))
        for cold, some in (
            (self.cold, [PutRequest(WHOLE, Session("ids", whole)), *items]),
            (fast, [PutRequest(FAST, Session("ids", whole), tenant=FAST)]),
        ):
            self.stored |= {stored.name: stored.size for stored in cold.put_many(some)}
        for layout, apart in self.layouts.items():
            for lying, cold in ((APART, apart), (JOINED, Archive.open(place, layout=layout, **how))):
                for count in turns:
                    ends = [tokens * n // count for n in range(1, count + 1)]
                    name = in_turns(count, layout, lying)
                    list(cold.put_many(PutRequest(name, Session("ids", whole[:end]), tenant=name) for end in ends))
        self.cold.parts.catalog.refresh()
        self.expected: Expected = self.target.prefill(whole)
        self.kv_bytes = tokens * self.target.token_bytes
        room = 2 * self.kv_bytes + (1 << 24)
        self.hot = self.thawer(tokens=2 * tokens + 1024)
        self.files = self.thawer(disk_bytes=room, folder=folder / "warm")

    def join(self, count: int, layout: LayoutName) -> bool:
        """Join the turns of a session as a collector does; return False where they would take more bytes joined."""
        name = in_turns(count, layout)
        done = self.layouts[layout].joiner().sessions([(name, name, "")])
        self.cold.parts.catalog.refresh()
        return bool(done)

    def bitstrings(self, name: str) -> list[int]:
        """Return the bytes of the bitstrings that a session in turns is read from, from the root."""
        from pltz.archive.format.ids import NO_SEGMENT

        parts, found = self.cold.parts, list[int]()
        at = parts.directory.version(name, name).leaf
        while at != NO_SEGMENT:
            record = parts.reader.records(at)[0].record
            found.append(len(record.bitstring))
            at = record.parent
        return found[::-1]

    def thawer(self, **budgets: Any) -> "tuple[KVStore, Thawer]":
        """Return a store and a thawer over it."""
        from pltz.kv.store.store import KVStore

        return self.over(KVStore.open(self.target, **budgets))

    def over(self, store: "KVStore") -> "tuple[KVStore, Thawer]":
        """Return a store and a new thawer over it."""
        from pltz.kv.thaw.thawer import Thawer

        return store, Thawer(self.cold, self.target, store)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def check(self, thawed: "Thawed", ids: "np.ndarray[Any, Any]", expected: "Expected") -> None:
        """Compare a thaw with a prefill of ids (T,), and note the differences in `Checked`.

        Raises:
            ModelError: the thaw gave other ids.
        """
        import numpy as np

        from pltz.kv.thaw.thawed import kv_difference

        if not np.array_equal(thawed.token_ids, ids):
            raise ModelError("a thaw gave other ids than the prefill: no time of this run is valid")
        cache, logits = expected
        far = float((logits.float() - thawed.logits.float()).abs().max() / logits.float().abs().max())
        same = int(logits.argmax()) == int(thawed.logits.argmax())
        self.checked.add(kv_difference(cache, thawed.cache), far, same)

    def drop(self, path: Path) -> None:
        """Write a file to the disk, drop it from the page cache, and check that its middle is out."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.preadv(handle, [bytearray(1)], os.fstat(handle).st_size // 2, os.RWF_NOWAIT)
            self.can_drop = False  # it is still cached
        except BlockingIOError:
            pass
        except (OSError, AttributeError):
            self.can_drop = False  # unknown
        finally:
            os.close(handle)


def target_of(shape: str, folder: Path, tokenizer_json: bytes, device: str) -> "Target":
    """Return the embedded target, or a random one. Raises UsageError, ModelError."""
    from pltz.benchmarks.kv.random_target import RandomTarget
    from pltz.models.target.target import Target

    if shape == EMBEDDED:
        return Target.load(DEFAULT_TARGET, device)
    place = folder / "target"
    place.mkdir()
    return RandomTarget.make(shape, tokenizer_json, place, device)


def ways(bench: ThawBench) -> Iterator[Way]:
    """Yield each way to the KV of one session. A timed call returns a Thawed to check, or None."""
    from safetensors.torch import load_file, save_file

    from pltz.models.target.cache import pairs_of

    tensors = {
        f"{n}.{kind}": t
        for n, pair in enumerate(pairs_of(bench.expected[0]))
        for kind, t in zip("kv", pair, strict=True)
    }
    plain = bench.folder / "kv.safetensors"
    save_file({name: t.contiguous() for name, t in tensors.items()}, plain)
    pinned = {name: _pinned(t) for name, t in tensors.items()}

    # Peers: the same KV as plain tensors, in pinned memory and in a file.
    def load() -> list[Any]:
        """Load the file. On a CPU safetensors only maps it, so each tensor is copied to make it read."""
        found = load_file(plain, device=str(bench.device)).values()
        return [t.clone() if bench.device.type == "cpu" else t for t in found]

    # Each way says what it reads, what to do before a round, and the call that is timed.
    def way(
        name: str,
        stored: int,
        before: Callable[[], object],
        tier: "Callable[[], tuple[KVStore, Thawer]]",
        session: str,
        tenant: str = "default",
    ) -> Way:
        return Way(name, stored, before, lambda: tier()[1].thaw(session, tenant))

    def only(session: str | None, number: int | None = None) -> Callable[[], None]:
        def before() -> None:
            bench.hot[0].clear()
            bench.hot = bench.over(bench.hot[0])  # one that remembers no ids
            if session:
                bench.hot[1].thaw(session, version=number)

        return before

    def warm() -> None:
        bench.files[1].thaw(WHOLE)
        bench.files[0].drain()

    def dropped() -> None:
        for path in (bench.folder / "warm").glob("*/*.safetensors"):
            bench.drop(path)

    kv = bench.kv_bytes
    yield Way("prefill", 0, nothing, lambda: bench.target.prefill(bench.ids[0]))
    yield way("thaw", bench.stored[WHOLE], only(None), lambda: bench.hot, WHOLE)
    yield way("thaw, fast layout", bench.stored[FAST], only(None), lambda: bench.hot, FAST, FAST)
    yield way("thaw, half of it hot", bench.stored[WHOLE], only(GROWN, 1), lambda: bench.hot, GROWN)
    yield way("thaw, hot on the device", kv, only(WHOLE), lambda: bench.hot, WHOLE)
    yield way("thaw, warm files in the page cache", kv, warm, lambda: bench.files, WHOLE)
    yield way("thaw, warm files on the disk", kv, dropped, lambda: bench.files, WHOLE)
    copied = lambda: [t.to(bench.device, copy=True, non_blocking=True) for t in pinned.values()]
    yield Way("host memory", kv, nothing, copied)
    yield Way("safetensors in the page cache", kv, nothing, load)
    yield Way("safetensors on the disk", kv, lambda: bench.drop(plain), load)


def _pinned(tensor: Any) -> Any:
    host = tensor.cpu()
    with suppress(RuntimeError):  # no GPU
        return host.pin_memory()
    return host


def measure(
    bench: ThawBench, rounds: int, bar: Progress
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Return a row for each way, and the stages of the best thaw in either layout, in milliseconds."""
    from pltz.kv.thaw.thawed import Thawed

    best: dict[str, float] = {}
    stages: dict[str, dict[str, float]] = {}
    everything = list(ways(bench))

    def look(name: str, result: Any, seconds: float | None) -> None:
        if isinstance(result, Thawed):
            bench.check(result, bench.ids[0], bench.expected)
        if seconds is None:
            return
        if name in TIMED and seconds < best.get(name, seconds + 1):
            best[name] = seconds
            stages[name] = {stage: round(value, 3) for stage, value in result.timings.items()}
        if name == everything[-1].name:
            bar.add(1)

    times = take_turns(everything, rounds, look, wait=bench.synchronize)
    all_ms = {name: [round(1e3 * seconds, 3) for seconds in spent] for name, spent in times.items()}
    prefill = min(all_ms[everything[0].name])
    rows = [
        {
            "way": way.name, "stored_bytes": way.stored, "ms": min(all_ms[way.name]), "all_ms": all_ms[way.name],
            "over_prefill": round(min(all_ms[way.name]) / prefill, 4),
        }
        for way in everything
    ]  # fmt: skip
    return rows, stages


def measure_many(bench: ThawBench, count: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds per session for thawing several in one call, and for prefilling them one by one.

    Raises:
        PltzError: a thaw failed.
    """
    from pltz.kv.thaw.thawed import Thawed
    from pltz.kv.thaw.thawer import Thawer, Wanted

    wanted = [Wanted(f"many/{n}") for n in range(count)]
    rows = bench.ids[1 : count + 1]
    best = {"prefill": float("inf"), "thaw": float("inf")}
    stages: dict[str, float] = {}
    thawer = Thawer(bench.cold, bench.target)
    for number in range(rounds + 1):
        caches, seconds = _timed(bench, lambda: [bench.target.prefill(ids) for ids in rows])
        found, thaw_seconds = _timed(bench, lambda: thawer.thaw_many(wanted))
        for one, ids, expected in zip(found, rows, caches, strict=True):
            if not isinstance(one, Thawed):
                raise one
            bench.check(one, ids, expected)
        if number:
            if thaw_seconds < best["thaw"]:
                stages = {stage: round(ms, 3) for stage, ms in found[0].timings.items()}
            best = {"prefill": min(best["prefill"], seconds), "thaw": min(best["thaw"], thaw_seconds)}
        del caches, found
    return {
        "sessions": count,
        "prefill_ms": round(1e3 * best["prefill"] / count, 3),
        "thaw_ms": round(1e3 * best["thaw"] / count, 3),
        "over_prefill": round(best["thaw"] / best["prefill"], 4),
        "stages_ms": stages,
    }


def in_turns(count: int, layout: LayoutName, lying: str = APART) -> str:
    """Return the name of the session that was put in ``count`` turns. Its tenant has the same name."""
    return f"{layout}/{count}" + f"/{JOINED}" * (lying == JOINED)


def measure_turns(bench: ThawBench, count: int, layout: LayoutName, rounds: int, lying: str) -> dict[str, Any]:
    """Measure a thaw of the session that was put in ``count`` turns, next to the bare prefill. ``lying``: how they lie.

    The figures are milliseconds: total, decoding and prefill.
    """
    from pltz.kv.thaw.thawer import Thawer

    thawer = Thawer(bench.cold, bench.target)
    name = in_turns(count, layout, lying)
    bitstrings = bench.bitstrings(name)
    best: dict[str, float] = {}
    least = math.inf
    for number in range(rounds + 1):  # the first one warms up
        expected, seconds = _timed(bench, lambda: bench.target.prefill(bench.ids[0]))
        found, thaw_seconds = _timed(bench, lambda: thawer.thaw(name, name))
        bench.check(found, bench.ids[0], expected)
        least = min(least, seconds) if number else least
        if number and thaw_seconds < best.get("thaw", math.inf):
            best = {"thaw": thaw_seconds} | {stage: ms / 1e3 for stage, ms in found.timings.items()}
        del expected, found
    return {
        "turns": count,
        "turns_are": lying,
        "records": len(bitstrings),
        "layout": layout,
        "stored_bytes": sum(bitstrings),
        "bare_prefill_ms": round(1e3 * least, 3),
        "thaw_ms": round(1e3 * best["thaw"], 3),
        "decode_ms": round(1e3 * best["decode"], 3),
        "prefill_ms": round(1e3 * best["prefill"], 3),
        "over_prefill": round(best["thaw"] / least, 4),
    }


def _timed(bench: ThawBench, call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result and its seconds, the device's work included."""
    bench.synchronize()
    start = time.perf_counter()
    result = call()
    bench.synchronize()
    return result, time.perf_counter() - start


def as_text(result: dict[str, Any]) -> str:
    """Return the tables, and how to read them."""
    on, checked = result["machine"], result["checked"]
    rows = [
        [
            row["way"],
            size(row["stored_bytes"]) if row["stored_bytes"] else "-",
            f"{row['ms']:,.1f}",
            f"{row['over_prefill']:.2f}",
        ]
        for row in result["rows"]
    ]
    many = [
        [
            str(row["sessions"]),
            f"{row['prefill_ms']:,.1f}",
            f"{row['thaw_ms']:,.1f}",
            f"{row['over_prefill']:.2f}",
        ]
        for row in result["together"]
    ]
    grown = [
        [
            str(row["turns"]),
            row["layout"],
            row["turns_are"],
            str(row["records"]),
            size(row["stored_bytes"]),
            f"{row['decode_ms']:,.1f}",
            f"{row['prefill_ms']:,.1f}",
            f"{row['thaw_ms']:,.1f}",
            f"{row['over_prefill']:.2f}",
        ]
        for row in result["turns"]
    ]
    stages = ", ".join(f"{stage} {ms:,.2f}" for stage, ms in result["stages_ms"].items())
    dropped = "dropped from" if result["page_cache_dropped"] else "perhaps NOT dropped from"
    setting = (
        f"{result['shape']} in {result['dtype']}, a session of {result['tokens']:,} tokens; {on['device']}, "
        f"{on['cpu']}, engine: {on['engine']}"
    )
    notes = (
        f"Stages of the thaw, ms: {stages}.\nFiles on the disk were {dropped} the page cache before. Checked "
        f"{checked['thaws']} thaws: ids equal, KV within {checked['kv']:.1g} and logits within "
        f"{checked['logits']:.1g} of the prefill's (float noise: {checked['bound']}), "
        f"the same next id in {checked['same_next']}."
    )
    return "\n\n".join(
        [
            setting,
            render(["way to the KV", "stored", "ms", "over prefill"], rows),
            notes,
            render(["sessions at once", "prefill, ms each", "thaw, ms each", "over prefill"], many),
            render(
                [
                    "archived in turns",
                    "layout",
                    "turns are",
                    "records",
                    "stored",
                    "decode, ms",
                    "prefill, ms",
                    "thaw, ms",
                    "over prefill",
                ],
                grown,
            ),
        ]
    )
