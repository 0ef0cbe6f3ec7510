"""``pltz doctor``: what pltz finds on this machine, and a self-test that decoding gives back what was coded."""

import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.cli.ui.groups import Command
from pltz.cli.ui.options import JSON
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.table import pairs
from pltz.plt_codec.errors import PltzError

if TYPE_CHECKING:
    from pltz.coding.parts import Coder
    from pltz.models.bundle.locations import BundleLocation
    from pltz.plt_codec.weights import Weights

PARTS = ("numpy", "tokenizers", "zstandard", "safetensors", "click")
EXTRAS = ("torch", "transformers", "pyarrow", "obstore", "ray", "psycopg", "vllm", "llama-cpp-python", "cuda-bindings")
TESTED = 3  # texts of the self-test
LENGTH = 300  # characters of each
MEASURED = 40  # texts of which rates are measured
SEQUENCE = 256  # tokens of each sequence of which the rate is measured
SECONDS = 0.25  # time of coding from which a rate counts
BUDGET = 4.0  # seconds in which the rates of all bundles are measured
FAILED = 6  # the exit code where the self-test fails


@click.command(
    cls=Command,
    short_help="Show what pltz finds here, and test that it is exact.",
    examples=["pltz doctor", "pltz doctor --json"],
)
@JSON
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show engines, threads, GPU, bundles and versions, and test each engine on sample sessions.

    Each bundle at hand encodes sample texts for a moment on the CPU, which gives its tokens per second. No bundle is
    begun after four seconds: it then has no figure.

    The test freezes and decodes three sample texts with every engine that runs here. All engines must give the same
    bytes and the same texts. The exit code is 6 where one does not.
    """
    found: dict[str, Any] = {
        "pltz": metadata.version("pltz"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu(),
        "versions": versions(PARTS),
        "extras": versions(EXTRAS),
        "bundles": bundles(),
        "self_test": self_test(),
    }
    write_text(json.dumps(found) if as_json else as_text(found))
    if not all(test["exact"] for test in found["self_test"]):
        ctx.exit(FAILED)


def versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Return the versions of packages, None for those that are not installed."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def gpu() -> str | None:
    """Return the name of the GPU that torch would use, or None."""
    try:
        import torch

        return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    except (ImportError, OSError, RuntimeError):
        return None


def bundles() -> list[dict[str, Any]]:
    """Return the bundles at hand, each with its id and tokens per second, or the problem that it has."""
    from pltz.models.bundle.locations import locations

    found = [(location, _bundle(location)) for location in locations()]
    end = time.perf_counter() + BUDGET
    usable = [(location, known) for location, known in found if known["problem"] is None]
    for location, known in sorted(usable, key=lambda each: each[0].open().size()):  # the fastest first
        try:
            known["tokens_per_second"] = tokens_per_second(location.name, end)
        except PltzError as error:
            known["problem"] = str(error)
    return [known for _, known in found]


def tokens_per_second(name: str, end: float) -> int | None:
    """Return how many tokens per second a bundle encodes on all CPU cores, None where no time is left.

    Twice as many sequences are encoded each time, until that takes `SECONDS` or twice as many would end too late.

    Args:
        end: time of `time.perf_counter` until which it may be measured.

    Raises:
        ModelError, UsageError, VersionError: the bundle cannot be loaded.
    """
    import numpy as np

    from pltz.models.bundle.bundle import Bundle

    if time.perf_counter() >= end:
        return None
    bundle = Bundle.load(name)
    ids = np.concatenate(bundle.tokenizer.encode_many([text.encode() for text in _texts(MEASURED)]))
    coder, count = bundle.coder(), 1
    coder.encode([ids[:8]])  # the first call prepares what later ones use
    while True:
        batch = [np.roll(ids, -SEQUENCE * number)[:SEQUENCE] for number in range(count)]
        start = time.perf_counter()
        coder.encode(batch)
        now = time.perf_counter()
        if now - start >= SECONDS or now + 2 * (now - start) >= end:
            return round(sum(map(len, batch)) / (now - start))
        count *= 2


def _bundle(location: "BundleLocation") -> dict[str, Any]:
    known: dict[str, Any] = {"name": location.name, "source": location.source, "path": str(location.folder)}
    known["tokens_per_second"] = None
    try:
        return known | {"id": location.open().id, "problem": None}
    except PltzError as error:
        return known | {"id": None, "problem": str(error)}


def self_test() -> list[dict[str, Any]]:
    """Return for each engine that runs here whether it gave the sessions back, in the bytes of the first one."""
    from pltz.coding.codec import Codec
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.session.session import Session

    texts = [text[:LENGTH].encode() for text in _texts(TESTED)]
    sessions = [Session("text", text) for text in texts]
    try:
        bundle = Bundle.load()
    except PltzError as error:
        return [{"engine": "none", "exact": False, "problem": str(error)}]
    tests: list[dict[str, Any]] = []
    first = b""
    for name, make in engines(bundle.weights).items():
        start = time.perf_counter()
        try:
            codec = Codec(bundle, make())
            data = codec.compress(sessions, verify=False)
            first = first or data
            exact = codec.decompress(data) == sessions and data == first
            problem = None if exact else "other bytes or sessions"
        except PltzError as error:
            exact, problem = False, str(error)
        seconds = round(time.perf_counter() - start, 2)
        tests.append({"engine": name, "exact": exact, "problem": problem, "seconds": seconds})
    return tests


def _texts(count: int) -> list[str]:
    from pltz.datasets.loaders import sample_sessions

    return [session.value["messages"][-1]["content"] for session in sample_sessions()[:count]]


def engines(weights: "Weights") -> "dict[str, Callable[[], Coder]]":
    """Return the engines that run here, by name: a function that makes the coder of these weights."""
    from pltz.plt_codec.engines.cuda import device
    from pltz.plt_codec.engines.native import coder as native

    made: dict[str, Callable[[], Coder]] = {}
    if native.available():
        made["compiled"] = lambda: native.NativeCoder(weights)
    if importlib.util.find_spec("torch"):
        from pltz.plt_codec.engines.token_coder import TokenCoder
        from pltz.plt_codec.engines.torch import TorchEngine

        made["torch"] = lambda: TokenCoder(TorchEngine(weights))
    if device.count():
        from pltz.plt_codec.engines.cuda.coder import CudaCoder

        made["cuda"] = lambda: CudaCoder(weights, "cuda")
    return made


def as_text(found: dict[str, Any]) -> str:
    """Return the findings as text."""
    rows = [
        ("pltz", f"{found['pltz']}, Python {found['python']} at {sys.executable}, {found['machine']}"),
        ("CPU", counted(found["cores"], "core")),
        ("GPU", found["gpu"] or "none that torch can use"),
        ("versions", _joined(found["versions"])),
        ("extras", _joined({k: v for k, v in found["extras"].items() if v}) or "none"),
    ]
    rows += [("bundle", f"{b['name']} ({b['source']}): {b['problem'] or b['id']}{_rate(b)}") for b in found["bundles"]]
    for test in found["self_test"]:
        state = f"exact, {test['seconds']} s" if test["exact"] else f"NOT EXACT: {test['problem']}"
        rows.append(("self-test", f"engine {test['engine']}: {state}"))
    return pairs([(name, printable(text)) for name, text in rows], indent="")


def _rate(bundle: dict[str, Any]) -> str:
    rate = bundle["tokens_per_second"]
    return "" if bundle["problem"] else ", rate not measured" if rate is None else f", {rate:,} tokens/s on the CPU"


def _joined(known: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in known.items())
