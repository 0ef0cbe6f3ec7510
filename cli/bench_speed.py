"""``pltz bench speed``: tokens a second, next to the rate that torch's int8 matrix product reaches on the same shapes.

What counts: the multiply-adds of the weight matrices, `Shape.macs` a token (layers and both levels of the head). Attention
is work on top that the product does not do; it is left out of our rate, so the ratio is lower than a ratio of all work.
How: coding and products take turns in one process, on the same threads, and the best of the rounds counts for each, since
what else runs on a machine only slows. Every decoded token is compared. Ends with one line of JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.cli import machine, options
from pltz.cli.groups import Command
from pltz.cli.output import write_text
from pltz.cli.progress import Progress, wanted
from pltz.cli.table import render, size
from pltz.plt_codec.errors import ModelError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from pltz.models.bundle import Bundle
    from pltz.models.codec import Codec, Coder
    from pltz.plt_codec.weights import Weights

LEAST_ROWS = 32  # torch._int_mm on a GPU wants more than 16
ENCODE_ROWS = 4096  # of the products that encoding is held against
LINEAR = tuple(1 << n for n in range(10, 21, 2))  # tokens, 1 k to 1 M
WINDOW = 0.4  # seconds of products between two rounds of coding
STARTS = 5  # processes started, the fastest counts
COMMAND = """import sys
from pltz.cli.main import cli
cli(sys.argv[1:], prog_name="pltz", standalone_mode=False)
print("torch" in sys.modules, file=sys.stderr)"""


@click.command(
    cls=Command,
    examples=[
        "pltz bench speed",
        "pltz bench speed --threads 1 --together 1,4,16 --json",
        "pltz bench speed --linear 1048576 --startup",
    ],
)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Tokens a session."
)
@click.option("--lanes", type=click.IntRange(min=1), default=16, show_default=True, help="Lanes a block.")
@click.option("--steps", type=click.IntRange(min=1), default=256, show_default=True, help="Steps a lane.")
@click.option("--together", default="1,4", show_default=True, help="Sessions coded side by side, a row each.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; the best counts."
)
@click.option(
    "--linear",
    type=click.IntRange(min=0),
    default=0,
    help="Time one session of 1 k, 4 k, ... up to N tokens.",
)
@click.option("--startup", is_flag=True, help="Time `pltz inspect` and `pltz decompress` as processes.")
@options.BUNDLE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@click.option("--json", "as_json", is_flag=True, help="Print the line of JSON only.")
def speed(
    tokens: int,
    lanes: int,
    steps: int,
    together: str,
    rounds: int,
    linear: int,
    startup: bool,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure how fast tokens are coded, against the int8 matrix product of torch on the same shapes.

    Sessions are cut from the sample sessions that ship with pltz. The ratio is our multiply-adds a second over
    those of torch._int_mm with the same rows and threads; attention does not count as work.
    """
    counts = numbers(together)
    codec = options.load_codec(bundle, device, threads)
    loaded: Bundle = codec.bundle  # type: ignore[assignment]  # Codec.load gives a Bundle, the type says less
    stream, text_bytes = sample_tokens(codec)
    used = getattr(codec.coder, "threads", threads)
    lengths = [
        length(codec.coder, cut(stream, 1, n)) for n in LINEAR if n <= linear
    ]  # before torch takes memory
    with Progress("measured", unit="tables", total=len(counts), shown=wanted(progress)) as bar:
        table = []
        for count in counts:
            sessions = cut(stream, count, tokens)
            table.append(
                {
                    "sessions": count,
                    **row(codec.coder, loaded.weights, sessions, lanes, steps, rounds, device, used),
                }
            )
            bar.add(1)
    for found in table:
        for way in ("encode", "decode"):
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
        "startup": start_times(loaded.path) if startup else None,
        "machine": machine.describe(codec.coder, device, used),
    }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def numbers(text: str) -> list[int]:
    """``1,4`` as [1, 4]. Raises UsageError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"--together: expected whole numbers from 1 up like 1,4, found {text!r}")
    return found


def sample_tokens(codec: "Codec") -> "tuple[np.ndarray[Any, Any], float]":
    """Bundle tokens of the sample sessions in a row, and the content bytes a token stands for."""
    import numpy as np

    from pltz.datasets import sample_sessions
    from pltz.models.codec import content_bytes
    from pltz.models.transcript import to_tokens_many

    sessions = list(sample_sessions())
    stream = np.concatenate(to_tokens_many(sessions, codec.bundle.tokenizer)).astype(np.int64)
    return stream, sum(map(content_bytes, sessions)) / len(stream)


def cut(stream: "np.ndarray[Any, Any]", count: int, tokens: int) -> "list[np.ndarray[Any, Any]]":
    """``count`` sessions of ``tokens`` each, from different places of the stream, around its end where need be."""
    import numpy as np

    return [np.take(stream, np.arange(i * tokens, (i + 1) * tokens), mode="wrap") for i in range(count)]


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
    """Rates of coding some sessions side by side, and of the products in between."""
    rows = lanes * len(sessions)
    tokens = sum(map(len, sessions))
    products = {"decode": Products(weights, rows, device), "encode": Products(weights, ENCODE_ROWS, device)}
    best: dict[str, float] = {}

    def keep(name: str, seconds: float) -> None:
        best[name] = min(seconds, best.get(name, seconds))

    for _ in range(rounds):
        seconds, encoded = timed(lambda: coder.encode(sessions, lanes=lanes, steps=steps))
        keep("encode", seconds)
        items = frame_items(encoded, sessions)
        seconds, decoded = timed(partial(coder.decode, items))
        keep("decode", seconds)
        check(sessions, decoded)
        with TorchThreads(threads):
            for way, product in products.items():
                keep(f"{way}_product", product.seconds())
    out: dict[str, Any] = {"decode_rows": rows, "encode_rows": ENCODE_ROWS}
    for way, product in products.items():
        ours = weights.shape.macs * tokens / best[way]
        theirs = product.macs / best[f"{way}_product"]
        out |= {
            f"{way}_tokens_per_s": round(tokens / best[way], 1),
            f"{way}_gmacs_per_s": round(ours / 1e9, 2),
            f"{way}_int_mm_gmacs_per_s": round(theirs / 1e9, 2),
            f"{way}_over_int_mm": round(ours / theirs, 3),
        }
    return out


class Products:
    """The weight matrices of a model as `torch._int_mm` takes them, times ``rows`` rows of random int8.

    The matrices are those of the model, each in memory of its own as in use; of two orders in memory (by rows, by
    columns) the faster counts. ``macs``: multiply-adds of one pass. On a GPU at least `LEAST_ROWS` rows.
    """

    def __init__(self, weights: "Weights", rows: int, device: str) -> None:
        import torch

        rows = rows if device == "cpu" else max(rows, LEAST_ROWS)
        shape, found = weights.shape, []
        for i in range(shape.layers):
            found += [weights[f"layer.{i}.{name}.w"] for name in ("qkv", "out", "up", "down")]
        found += [weights["class.w"], weights["embed.w"][:128]]  # the members of one class
        self.macs = rows * sum(w.size for w in found)
        by_columns = [torch.tensor(w, device=device).t() for w in found]  # (k, n) seen, (n, k) stored
        self._orders = [by_columns, [w.contiguous() for w in by_columns]]
        self._inputs = {
            k: torch.randint(-127, 128, (rows, k), dtype=torch.int8, device=device)
            for k in {w.shape[0] for w in by_columns}
        }
        self._device = device

    def seconds(self) -> float:
        """Seconds of one pass, in the better order."""
        return min(self._mean(order) for order in self._orders)

    def _mean(self, matrices: "Sequence[Any]") -> float:
        """Seconds of a pass over `WINDOW`: as long as coding takes, so that other work on the machine slows both."""
        import torch

        passes, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < WINDOW:
            for w in matrices:
                torch._int_mm(self._inputs[w.shape[0]], w)
            if self._device != "cpu":
                torch.cuda.synchronize()
            passes += 1
        return spent / passes


class TorchThreads:
    """Run torch on as many threads as the coder, then as before."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        torch.set_num_threads(self._threads or self._before)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_num_threads(self._before)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def frame_items(encoded: Sequence[Any], sessions: "Sequence[np.ndarray[Any, Any]]") -> list[Any]:
    """What the decoder takes."""
    from pltz.plt_codec.item import FrameItem

    return [FrameItem(e.data, len(s), e.lanes, e.steps) for e, s in zip(encoded, sessions, strict=True)]


def check(sessions: "Sequence[np.ndarray[Any, Any]]", decoded: Sequence[Any]) -> None:
    """Raises ModelError where a session did not come back."""
    import numpy as np

    if not all(np.array_equal(a, b) for a, b in zip(sessions, decoded, strict=True)):
        raise ModelError("a session does not come back from its frame: no speed counts")


def length(coder: "Coder", sessions: "Sequence[np.ndarray[Any, Any]]") -> dict[str, Any]:
    """Seconds for one session in the default layout, and the highest memory of the process up to now."""
    encode_s, encoded = timed(lambda: coder.encode(sessions))
    decode_s, decoded = timed(lambda: coder.decode(frame_items(encoded, sessions)))
    check(sessions, decoded)
    return {
        "tokens": len(sessions[0]),
        "encode_s": round(encode_s, 4),
        "decode_s": round(decode_s, 4),
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int | None:
    """Most memory this process has had resident; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found << 10  # bytes there, kibibytes elsewhere


def start_times(bundle: Path) -> dict[str, Any]:
    """Wall seconds of whole processes, the interpreter's start included, and whether they loaded torch."""
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, frozen, back = (Path(folder) / name for name in ("in.jsonl", "in.pltz", "out.jsonl"))
        source.write_text('{"messages": [{"role": "user", "content": "How long is a piece of string?"}]}\n')
        run_command("compress", source, "-o", frozen, "--bundle", bundle)
        for name, arguments in {
            "inspect": (frozen,),
            "decompress": (frozen, "-o", back, "--force", "--bundle", bundle),
        }.items():
            found = [run_command(name, *arguments) for _ in range(STARTS)]
            out[f"{name}_s"] = round(min(seconds for seconds, _ in found), 3)
            out[f"{name}_loads_torch"] = any(torch for _, torch in found)
    return out


def run_command(*arguments: object) -> tuple[float, bool]:
    """Wall seconds of ``pltz`` with these arguments, and whether torch was loaded in it."""
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    seconds, done = timed(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    if done.returncode:
        raise ModelError(f"pltz {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return seconds, done.stderr.split()[-1] == "True"


def as_text(result: dict[str, Any]) -> str:
    """The tables, and how to read them."""
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
        ]
        for found in result["rows"]
        for way in ("encode", "decode")
    ]
    on = result["machine"]
    setting = (
        f"{result['lanes']} lanes x {result['steps']} steps, sessions of {result['tokens_per_session']:,} tokens; "
        f"{on['device']}, {on['cpu']}, threads {on['threads']}, engine: {on['engine']}"
    )
    parts = [
        setting,
        render(["", "sessions", "rows", "tokens/s", "text", "Gmac/s", "_int_mm", "ratio"], lines),
        "rows: of the products the rate is held against. ratio: our multiply-adds over theirs, attention not counted.",
    ]
    if result["linear"]:
        head = ["tokens of one session", "encode us/token", "decode us/token", "peak memory"]
        parts.append(render(head, [length_cells(found) for found in result["linear"]]))
    if result["startup"]:
        found = result["startup"]
        parts += [
            f"pltz {name}: {found[f'{name}_s']:.2f} s of wall time in all, torch "
            f"{'loaded' if found[f'{name}_loads_torch'] else 'not loaded'}"
            for name in ("inspect", "decompress")
        ]
    return "\n\n".join(parts)


def length_cells(found: dict[str, Any]) -> list[str]:
    """One line of the table of lengths."""
    each = [f"{1e6 * found[f'{way}_s'] / found['tokens']:.1f}" for way in ("encode", "decode")]
    return [f"{found['tokens']:,}", *each, size(found["peak_bytes"]) if found["peak_bytes"] else "-"]
