"""Measure tokens per second, next to torch's int8 matrix product on the same shapes.

The rate counts the multiply-adds of the weight matrices, `Shape.macs` per token (layers and both levels of the head).
The product does no attention, so it is left out of the rate. A second ratio includes it (`attention_macs`). The coder
itself counts its time by stage; a coder that does not count shows none.

Coding and products take turns in one process, on the same threads. The best round of each counts, since other work on
the machine can only slow it down. Tokens/s are in wall time. The rates that are compared with each other use processor
time on the CPU, divided by the threads, so that other work disturbs them less. Every decoded token is compared. The run
ends with one line of JSON.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import size
from pltz.benchmarks import options as bench_options
from pltz.benchmarks.speed.products import Products, TorchThreads
from pltz.benchmarks.speed.timing import Time, check, frame_items, timed
from pltz.cli.bench import machine, shared
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.child_python import command, environment
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

    from pltz.coding.parts import Coder
    from pltz.models.bundle.bundle import Bundle
    from pltz.plt_codec.weights import Shape, Weights

WAYS = ("encode", "decode")
ENCODE_ROWS = 4096  # rows of the products that encoding is compared with
LINEAR = tuple(1 << n for n in range(10, 21, 2))  # tokens, 1 k to 1 M
STARTS = 5  # processes started, the fastest counts
COMMAND = """import sys
from pltz.cli.root import cli
cli(sys.argv[1:], prog_name="pltz", standalone_mode=False)
print("torch" in sys.modules, file=sys.stderr)"""


@click.command(
    cls=Command,
    short_help="Tokens per second, next to bare matrix products.",
    examples=[
        "python -m pltz.benchmarks speed",
        "python -m pltz.benchmarks speed --threads 1 --together 1,4,16 --json",
        "python -m pltz.benchmarks speed --linear 1048576 --startup",
        "python -m pltz.benchmarks speed --llama --threads 2",
        "python -m pltz.benchmarks speed --engines --threads 1 --rounds 1",
    ],
)
@options.count("--tokens", 4096, "Tokens per session.")
@options.count("--lanes", 16, "Lanes per block.")
@options.count("--steps", 256, "Steps per lane.")
@click.option(
    "--together",
    default="1,4",
    show_default=True,
    metavar="N,...",
    help="Sessions coded side by side, one row per number.",
)
@options.count("--rounds", 3, "Rounds. The best counts.")
@click.option(
    "--linear",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Time one session of 1 k, 4 k, ... up to N tokens.",
)
@click.option(
    "--llama", is_flag=True, help="Also time llama.cpp, token by token on a session of --tokens. Needs pltz[llama]."
)
@click.option(
    "--engines", is_flag=True, help="Time every CPU engine of this machine on one session. torch takes seconds."
)
@click.option("--startup", is_flag=True, help="Time `pltz inspect` and `pltz decompress` as processes.")
@options.coder_options
@shared.JSON
def speed(
    tokens: int,
    lanes: int,
    steps: int,
    together: str,
    rounds: int,
    linear: int,
    llama: bool,
    engines: bool,
    startup: bool,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure how fast tokens are coded, against the int8 matrix product of torch on the same shapes.

    Sessions are cut from the sample sessions that ship with pltz. The ratio is our multiply-adds per second over those
    of torch._int_mm with the same rows and threads, once without and once with those of attention. Where the engine
    counts its time, a second table shows it by stage, in microseconds per token.
    """
    counts = bench_options.numbers(together)
    codec = options.load_codec(bundle, device, threads)
    loaded: Bundle = codec.bundle  # type: ignore[assignment]  # Codec.load gives a Bundle, the type says less
    stream, text_bytes = bench_options.sample_tokens(codec)
    used = getattr(codec.coder, "threads", threads)
    lengths = [
        length(codec.coder, bench_options.cut(stream, 1, n)) for n in LINEAR if n <= linear
    ]  # before torch takes memory
    with Progress("measured", unit="tables", total=len(counts), shown=wanted(progress)) as bar:
        table = []
        for count in counts:
            sessions = bench_options.cut(stream, count, tokens)
            table.append(
                {"sessions": count, **row(codec.coder, loaded.weights, sessions, lanes, steps, rounds, device, used)}
            )
            bar.add(1)
    for found in table:
        for way in WAYS:
            found[f"{way}_text_bytes_per_s"] = round(found[f"{way}_tokens_per_s"] * text_bytes, 1)
    result: dict[str, Any] = {
        "benchmark": "speed",
        "bundle": loaded.id.hex(),
        "tokens_per_session": tokens,
        "lanes": lanes,
        "steps": steps,
        "rounds": rounds,
        "macs_per_token": loaded.weights.shape.macs,
        "text_bytes_per_token": round(text_bytes, 3),
        "rows": table,
        "linear": lengths,
        "llama": against_llama(codec.coder, loaded.weights, bench_options.cut(stream, 1, tokens), rounds, used, device)
        if llama
        else None,
        "engines": measure_engines(
            cpu_engines(loaded.weights, threads), bench_options.cut(stream, 1, tokens)[0], lanes, steps, rounds
        )
        if engines
        else None,
        "startup": start_times(loaded.path) if startup else None,
        "machine": machine.describe(codec.coder, device, used),
    }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def row(
    coder: "Coder",
    weights: "Weights",
    sessions: "Sequence[np.ndarray[Any, Any]]",
    lanes: int,
    steps: int,
    rounds: int,
    device: str,
    threads: int | None,
) -> dict[str, Any]:
    """Measure the rates of coding some sessions (T,) side by side, and of the products in between."""
    from pltz.plt_codec.lanes import Layout

    rows, layouts = lanes * len(sessions), Layout(lanes, steps)
    tokens = sum(map(len, sessions))
    products = {"decode": Products(weights, rows, device), "encode": Products(weights, ENCODE_ROWS, device)}
    attention = sum(attention_macs(weights.shape, len(s), lanes, steps) for s in sessions)
    best: dict[str, float] = {}  # seconds
    stages: dict[str, dict[str, float] | None] = {}

    def keep(name: str, seconds: float) -> bool:
        better = seconds < best.get(name, float("inf"))
        best[name] = seconds if better else best[name]
        return better

    def code(way: str, call: Callable[[], Any]) -> Any:
        time, result, spent = counted(coder, call)
        keep(f"{way}_busy", time.busy if device == "cpu" else time.wall)
        if keep(way, time.wall):
            stages[way] = spent
        return result

    for _ in range(rounds):
        encoded = code("encode", lambda: coder.encode(sessions, layouts=layouts))
        check(sessions, code("decode", partial(coder.decode, frame_items(encoded, sessions))))
        with TorchThreads(threads):
            for way, product in products.items():
                keep(f"{way}_product", product.seconds())
    each = (threads or 1) if device == "cpu" else 1
    out: dict[str, Any] = {}
    for way, product in products.items():
        ours = each * weights.shape.macs * tokens / best[f"{way}_busy"]
        theirs = each * product.macs / best[f"{way}_product"]
        spent = stages[way]
        out |= {
            f"{way}_rows": product.rows,
            f"{way}_tokens_per_s": round(tokens / best[way], 1),
            f"{way}_gmacs_per_s": round(ours / 1e9, 2),
            f"{way}_int_mm_gmacs_per_s": round(theirs / 1e9, 2),
            f"{way}_over_int_mm": round(ours / theirs, 3),
            f"{way}_with_attention_over_int_mm": round(
                ours / theirs * (1 + attention / (weights.shape.macs * tokens)), 3
            ),
            f"{way}_us_per_token": None
            if spent is None
            else {stage: round(1e6 * found / tokens, 3) for stage, found in spent.items()},
        }
    return out


def attention_macs(shape: "Shape", tokens: int, lanes: int, steps: int) -> int:
    """Return the multiply-adds of attention over a session: scores and values of the keys that each position sees.

    >>> from pltz.benchmarks.random_weights import random_weights
    >>> shape = random_weights(0).shape  # 2 layers, 4 heads of 16 dimensions
    >>> attention_macs(shape, 6, 2, 3) // (2 * 2 * 4 * 16)  # two lanes of three steps: 2 * (2 + 4 + 6) keys
    24
    """
    from pltz.plt_codec.lanes import Layout

    keys = old = 0
    for block in Layout(lanes, steps).blocks(tokens):
        seen = block.lanes * block.steps * (block.steps + 1) // 2
        keys += block.lanes * (old * block.steps + seen)
        old = min(shape.memory, block.tokens)
    return 2 * keys * shape.layers * shape.heads * shape.head_dim


def counted(coder: "Coder", call: Callable[[], Any]) -> "tuple[Time, Any, dict[str, float] | None]":
    """Return time and result of a call, and the seconds that the coder counts for each stage of it."""
    before = dict(getattr(coder, "spent", None) or {})
    time, result = timed(call)
    after = getattr(coder, "spent", None)
    return time, result, after and {stage: after[stage] - before[stage] for stage in after}


def length(coder: "Coder", sessions: "Sequence[np.ndarray[Any, Any]]") -> dict[str, Any]:
    """Return the seconds for one session (T,) in the default layout, and the process's peak memory so far."""
    encode, encoded = timed(lambda: coder.encode(sessions))
    decode, decoded = timed(lambda: coder.decode(frame_items(encoded, sessions)))
    check(sessions, decoded)
    return {
        "tokens": len(sessions[0]),
        "encode_s": round(encode.wall, 4),
        "decode_s": round(decode.wall, 4),
        "encode_processor_s": round(encode.busy, 4),
        "decode_processor_s": round(decode.busy, 4),
        "peak_bytes": peak_bytes(),
    }


def against_llama(
    coder: "Coder",
    weights: "Weights",
    sessions: "Sequence[np.ndarray[Any, Any]]",
    rounds: int,
    threads: int | None,
    device: str,
) -> dict[str, Any] | str:
    """Measure llama.cpp on one session, before and after our decoding of it in the default layout, or say why not.

    ``sessions``: token ids, (T,) each. On a CPU both are in processor time, divided by the threads.
    """
    from pltz.benchmarks.peers import llama_model

    if why := llama_model.unavailable(weights):
        return f"llama.cpp: not measured, {why}"
    found = llama_model.measure(weights, sessions[0], threads or 1)
    items = frame_items(coder.encode(sessions), sessions)
    seconds = []
    for _ in range(rounds):
        spent, decoded = timed(partial(coder.decode, items))
        check(sessions, decoded)
        seconds.append(spent.busy / (threads or 1) if device == "cpu" else spent.wall)
    again = llama_model.measure(weights, sessions[0], threads or 1)
    found = max(found, again, key=lambda one: one["tokens_per_s"])
    ours = len(sessions[0]) / min(seconds)
    return found | {"our_tokens_per_s": round(ours, 1), "ours_over_theirs": round(ours / found["tokens_per_s"], 1)}


def peak_bytes() -> int | None:
    """Return the peak resident memory of this process in bytes, or None where the system does not tell it."""
    try:
        import resource
    except ImportError:
        return None
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found << 10  # bytes on macOS, kibibytes elsewhere


def start_times(bundle: Path) -> dict[str, Any]:
    """Return the wall seconds of whole processes, interpreter start included, and whether they loaded torch."""
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, frozen, back = (Path(folder) / name for name in ("in.jsonl", "in.pltz", "out.jsonl"))
        source.write_text('{"messages": [{"role": "user", "content": "How long is a piece of string?"}]}\n')
        run_command("compress", source, "-o", frozen, "--bundle", bundle)
        for name, arguments in {"inspect": (frozen,), "decompress": (frozen, "-o", back, "--force")}.items():
            found = [run_command(name, *arguments) for _ in range(STARTS)]
            out[f"{name}_s"] = round(min(seconds for seconds, _ in found), 3)
            out[f"{name}_loads_torch"] = any(torch for _, torch in found)
    return out


def run_command(*arguments: object) -> tuple[float, bool]:
    """Return the wall seconds of ``pltz`` with these arguments, and whether it loaded torch.

    Raises:
        ModelError: the command failed.
    """
    words, variables = command(COMMAND, *arguments), environment()
    spent, done = timed(lambda: subprocess.run(words, env=variables, capture_output=True, text=True, check=False))
    if done.returncode:
        raise ModelError(f"pltz {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return spent.wall, done.stderr.split()[-1] == "True"


def as_text(result: dict[str, Any]) -> str:
    """Return the tables, and how to read them."""
    lines = [
        [
            way,
            str(found["sessions"]),
            str(found[f"{way}_rows"]),
            f"{found[f'{way}_tokens_per_s']:,.0f}",
            f"{size(found[f'{way}_text_bytes_per_s'])}/s",
            f"{found[f'{way}_gmacs_per_s']:,.1f}",
            f"{found[f'{way}_int_mm_gmacs_per_s']:,.1f}",
            f"{found[f'{way}_over_int_mm']:.2f}",
            f"{found[f'{way}_with_attention_over_int_mm']:.2f}",
        ]
        for found in result["rows"]
        for way in WAYS
    ]
    on = result["machine"]
    setting = (
        f"{result['lanes']} lanes x {result['steps']} steps, sessions of {result['tokens_per_session']:,} tokens; "
        f"{on['device']}, {on['cpu']}, threads {on['threads']}, engine: {on['engine']}"
    )
    parts = [
        setting,
        render(["", "sessions", "rows", "tokens/s", "text", "Gmac/s", "_int_mm", "ratio", "all"], lines),
        "rows: those of the products. ratio: our multiply-adds over those of the products. all: attention included.",
        *stage_table(result["rows"]),
    ]
    if result["linear"]:
        head = [
            "tokens of one session",
            "encode us/token",
            "decode us/token",
            *(f"{way} processor" for way in WAYS),
            "peak memory",
        ]
        parts.append(render(head, [length_cells(found) for found in result["linear"]]))
    if found := result["llama"]:
        parts.append(found if isinstance(found, str) else llama_line(found, result["tokens_per_session"]))
    if result["engines"]:
        parts.append(engine_table(result["engines"]))
    if result["startup"]:
        found = result["startup"]
        parts += [
            f"pltz {name}: {found[f'{name}_s']:.2f} s of wall time in all, torch "
            f"{'loaded' if found[f'{name}_loads_torch'] else 'not loaded'}"
            for name in ("inspect", "decompress")
        ]
    return "\n\n".join(parts)


def llama_line(found: dict[str, Any], tokens: int) -> str:
    """Return a line with the rates of llama.cpp and of pltz."""
    return (
        f"llama.cpp (llama-cpp-python {found['version']}, Q8_0, {found['threads']} threads) passes a session of "
        f"{tokens:,} tokens through the layers at {found['tokens_per_s']:,.0f} tokens/s one by one. "
        f"The codec of pltz decodes it in the default layout at {found['our_tokens_per_s']:,.0f}, "
        f"{found['ours_over_theirs']:.1f} times that"
    )


def stage_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of the time per stage, if the coder counts it."""
    counted = [(way, found) for found in rows for way in WAYS if found[f"{way}_us_per_token"]]
    if not counted:
        return []
    stages = list(counted[0][1][f"{counted[0][0]}_us_per_token"])
    lines = [
        [way, str(found["sessions"]), *(f"{found[f'{way}_us_per_token'][stage]:.2f}" for stage in stages)]
        for way, found in counted
    ]
    return [render(["us/token", "sessions", *stages], lines)]


def length_cells(found: dict[str, Any]) -> list[str]:
    """Return one line of the table of lengths."""
    each = [f"{1e6 * found[f'{way}{clock}_s'] / found['tokens']:.1f}" for clock in ("", "_processor") for way in WAYS]
    return [f"{found['tokens']:,}", *each, size(found["peak_bytes"]) if found["peak_bytes"] else "-"]


def cpu_engines(weights: "Weights", threads: int | None) -> "dict[str, Coder]":
    """Return name and coder of each engine that runs here, the compiled ones first, fastest first."""
    from pltz.plt_codec.engines.native.coder import NativeCoder, kernels
    from pltz.plt_codec.engines.token_coder import TokenCoder
    from pltz.plt_codec.engines.torch import TorchEngine

    compiled: dict[str, Coder] = {f"compiled, {k}": NativeCoder(weights, threads, k) for k in kernels()}
    return compiled | {"torch": TokenCoder(TorchEngine(weights, "cpu", threads))}


def measure_engines(
    coders: "dict[str, Coder]", session: "np.ndarray[Any, Any]", lanes: int, steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Return the seconds that each coder takes to encode and decode a session (T,), in wall and processor time.

    Raises:
        ModelError: two coders give different frames, or a session is decoded wrongly.
    """
    from pltz.plt_codec.lanes import Layout

    found: dict[tuple[str, str], list[Time]] = {}
    frames = set()
    for _ in range(rounds):
        for name, coder in coders.items():
            spent, encoded = timed(partial(coder.encode, [session], layouts=Layout(lanes, steps)))
            found.setdefault((name, "encode"), []).append(spent)
            spent, decoded = timed(partial(coder.decode, frame_items(encoded, [session])))
            found.setdefault((name, "decode"), []).append(spent)
            check([session], decoded)
            frames.add(encoded[0].data)
    if len(frames) != 1:
        raise ModelError(f"engines give {len(frames)} frames for one session: expected equal ones, no speed is valid")
    return [
        {"engine": name}
        | {
            f"{way}{clock}_s": round(min(getattr(t, kind) for t in found[name, way]), 4)
            for way in ("encode", "decode")
            for clock, kind in (("", "wall"), ("_processor", "busy"))
        }
        for name in coders
    ]


def engine_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as text: processor time, then wall time."""
    names = [f"{way}{clock}_s" for clock in ("_processor", "") for way in ("encode", "decode")]
    head = ["engine, seconds", "encode processor", "decode processor", "encode wall", "decode wall"]
    return render(head, [[row["engine"], *(f"{row[name]:.2f}" for name in names)] for row in rows])
