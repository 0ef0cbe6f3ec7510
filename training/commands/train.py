"""``pltz bundle train``: train a bundle on your own sessions, from one configuration file.

``pltz.training.pipeline`` does the work. This file has the command, reads the files and measures the result.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.cli import Command, options, wanted, write_text
from pltz.plt_codec import UsageError, need

if TYPE_CHECKING:
    from pltz.coding import Codec
    from pltz.models import Session
    from pltz.training.data.records import LabelledSession
    from pltz.training.settings import TrainSettings

OUTPUT = click.option("-o", "--output", metavar="DIR", help="Folder for the bundle.")
WORK = click.option(
    "--work",
    metavar="DIR",
    help="Folder for the results of the stages, from which a run resumes.  [default: OUTPUT.work]",
)
DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to train: on every visible GPU, or on the CPU. auto takes GPUs where there are any.",
)
THREADS = click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of training.  [default: torch's]"
)
STOP_AFTER = click.option(
    "--stop-after",
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="Stop training that late with a snapshot; the same command goes on from it.  [default: never]",
)
FORCE = click.option("--force", is_flag=True, help="Replace the bundle in the output folder.")


@click.command(
    cls=Command,
    short_help="Train a bundle on your own sessions.",
    examples=[
        "pltz bundle train --example > mine.toml",
        "pltz bundle train --config mine.toml --output my-bundle",
        "pltz bundle train --config mine.toml --output my-bundle --device cpu --work scratch --json",
    ],
)
@click.option("--config", metavar="FILE", help="The configuration, in TOML.")
@click.option("--example", is_flag=True, help="Print a configuration that explains every key, and stop.")
@OUTPUT
@WORK
@DEVICE
@THREADS
@STOP_AFTER
@FORCE
@options.PROGRESS
@options.JSON
def train(
    config: str | None,
    example: bool,
    output: str | None,
    work: str | None,
    device: str,
    threads: int | None,
    stop_after: float | None,
    force: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Train a bundle: tokenizer, teacher, student, rounding, calibration, export, held-out figures, card.

    Training starts from random weights or from any bundle ([student] start in the configuration). --config and --output
    are needed. Begin with --example.

    The stages leave their results in the work folder, named by their inputs. So a run that was killed resumes where it
    was. With --stop-after it ends in time, and resumes on another machine too, once the work folder is copied there.
    After a change of the configuration only the stages that depend on it run again. The file log.txt there holds all
    lines that --progress shows. The work folder may be removed when the bundle is finished.
    """
    from pltz.training import settings

    if example:
        write_text(settings.EXAMPLE.read_text("utf8"))
        return
    if config is None or output is None:
        raise UsageError("expected --config FILE and --output DIR (--example prints a configuration)")
    found = settings.load(Path(config))
    run(found, output, work, device, threads, stop_after, force, progress, as_json)


def run(
    found: "TrainSettings",
    output: str,
    work: str | None,
    device: str,
    threads: int | None,
    stop_after: float | None,
    force: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Run the pipeline and report its result. Raises what `pipeline.train` raises, UsageError without torch."""
    began = time.monotonic()
    need("train", "training", "torch", "transformers")
    import torch

    from pltz.training import pipeline

    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("expected a GPU that torch can use, found none: use --device cpu")
    shown = wanted(progress)

    # The trainer is below the CLI, so what reads sessions and measures a bundle is handed to it.
    def measure(bundle: Path, records: "list[LabelledSession]", limit: int) -> dict[str, Any]:
        from pltz.cli import machine

        codec = options.load_codec(str(bundle), "cpu", threads)
        figures = measured(codec, records, limit, shown=shown)
        return {**figures, "machine": machine.describe(codec.coder, "cpu", threads)}

    target = Path(output)
    the_run = pipeline.TrainingRun(
        output=target,
        work=Path(work) if work else target.with_name(target.name + ".work"),
        read=read,
        measure=measure,
        device=device,
        processes=torch.cuda.device_count() if device == "cuda" else 1,
        force=force,
        tell=(lambda line: click.echo(line, err=True)) if shown else (lambda line: None),
        deadline=began + stop_after if stop_after else math.inf,
    )
    try:
        card = pipeline.train(found, the_run)
    except pipeline.Stopped as exc:
        line = f"{exc}: run the same command again to go on"
        write_text(json.dumps({"output": output, "stopped": str(exc)}) if as_json else line)
        return
    report(card, output, as_json)


def measured(loaded: "Codec", found: "Iterable[LabelledSession]", limit: int, *, shown: bool) -> dict[str, Any]:
    """Return the figures of a codec on records, at most ``limit`` content bytes per source. See `codec.figures`.

    Raises:
        UsageError: every session is longer than that.
    """
    from pltz.cli import compressors as peers, corpus, figures
    from pltz.models import content_bytes

    records = corpus.select((corpus.SampleSession(r.source, r.session, content_bytes(r.session)) for r in found), limit)
    if not records:
        raise UsageError(f"no session of at most {limit} content bytes: give more data, or a higher limit")
    others = [peers.zstd_peer(one) for one in [loaded.bundle.zstd_dict] if one]
    return {"limit_bytes": limit, **figures(loaded, records, others, shown=shown)}


def read(name: str) -> "Iterator[Session]":
    """Yield the sessions of a file or folder. Raises UsageError where it cannot be read."""
    from pltz.training.data import records

    return records.load(name)


def report(card: dict[str, Any], output: str, as_json: bool) -> None:
    """Print the result on stdout."""
    total = card["test"]["total"]
    if as_json:
        keys = ("content_bytes", "bits_per_byte", "bits_per_token", "peer_bytes", "pltz_bytes")
        test = {key: total[key] for key in keys}
        write_text(json.dumps({"output": output, "name": card["name"], "id": card["id"], "test": test}))
        return
    peer = total["peer_bytes"].get("zstd+dict")
    beside = f" (zstd with its dictionary: {8 * peer / total['content_bytes']:.3f})" if peer else ""
    write_text(
        f"{output}: bundle {card['name']} {card['id']}\n"
        f"held-out sessions, {total['content_bytes']:,} bytes: {total['bits_per_byte']:.3f} bits per byte{beside}"
    )
