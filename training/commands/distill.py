"""``pltz bundle distill``: train a bundle on a user's own sessions, and on a target where one is named.

It is `pltz bundle train` with the settings made from options.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.cli import Command, options, wanted
from pltz.plt_codec import UsageError, need
from pltz.training.commands import train

if TYPE_CHECKING:
    from pltz.training.settings import TrainSettings

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"d": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 32, "hidden": 256},
    "small": {"d": 256, "layers": 5, "heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 1024},
    "mini": {},  # the defaults of `Student`
}
DEFAULT_SIZE = "mini"
DECAY = 0.4  # share of the budget in which the learning rate falls


@click.command(
    cls=Command,
    short_help="Distil a bundle from your own sessions, and from a target.",
    examples=[
        "pltz bundle distill --bundle nano --data chats.jsonl --output my-bundle --seconds 1800",
        "pltz bundle distill --target ./my-model --data chats.jsonl --output my-bundle --seconds 1800",
        "pltz bundle distill --target ./my-model --data chats/ --output my-bundle --tokenizer bundle --write 500",
    ],
)
@click.option(
    "--target",
    metavar="MODEL",
    help="The model to learn from: a folder, or a hub name.  [default: none, only the sessions]",
)
@click.option(
    "--data",
    "files",
    required=True,
    multiple=True,
    metavar="SESSIONS",
    help="Your sessions: files or folders, in any form `pltz compress` reads (repeatable).",
)
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder for the bundle.")
@click.option(
    "--tokenizer",
    type=click.Choice(["target", "bundle"]),
    help="Vocabulary of the new bundle: the target's, or that of --bundle.  [default: target; bundle without --target]",
)
@click.option(
    "--bundle", metavar="NAME|DIR", help="Bundle to start from, where the student has its vocabulary.  [default: mini]"
)
@click.option(
    "--size",
    type=click.Choice(list(SIZES)),
    help="Shape of the student. One that starts from a bundle has the shape of that.  [default: mini]",
)
@click.option("--seconds", type=click.FloatRange(min=1), metavar="S", help="Training time.  [default: 1800]")
@click.option("--steps", type=click.IntRange(min=2), metavar="N", help="Training steps, instead of a time.")
@options.count("--rows", 16, "Rows per batch.")
@click.option(
    "--row", type=click.IntRange(min=64), default=8192, show_default=True, metavar="N", help="Tokens per row."
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Share of the target's probabilities in the loss. Your sessions have the rest.  [default: 0.5]",
)
@click.option(
    "--write",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Let the target write the next turn of N of your chats, as more training data.",
)
@click.option("--write-tokens", type=click.IntRange(min=1), metavar="N", help="Tokens per such turn.  [default: 256]")
@click.option("--name", default="distilled", show_default=True, metavar="NAME", help="Name of the bundle.")
@click.option(
    "--licence", default="not stated", show_default=True, metavar="NAME", help="Licence of the bundle, for its card."
)
@train.WORK
@train.DEVICE
@train.THREADS
@train.STOP_AFTER
@train.FORCE
@options.PROGRESS
@options.JSON
def distill(
    output: str,
    work: str | None,
    device: str,
    threads: int | None,
    stop_after: float | None,
    force: bool,
    progress: bool | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Distil a bundle from your own sessions, and from any Hugging Face causal LM.

    Without --target the student starts from --bundle and learns the sessions alone. With the target's tokenizer
    (byte-level BPE of at most 65,536 ids) it learns the sessions and the target's probabilities, token by token. With
    the bundle's tokenizer it starts from the bundle's weights and learns the sessions, and with --write also turns that
    the target wrote. Where both have one vocabulary, as with the target that ships with pltz, it starts from the
    weights and learns all of these.

    A tenth of the sessions is held out for temperatures and for the figures of the card. A run that was killed resumes
    where it was.
    """
    found = settings_of(**chosen)
    if wanted(progress):
        click.echo(method(found), err=True)
    train.run(found, output, work, device, threads, stop_after, force, progress, as_json)


def settings_of(
    target: str | None,
    files: tuple[str, ...],
    tokenizer: str | None,
    bundle: str | None,
    size: str | None,
    seconds: float | None,
    steps: int | None,
    rows: int,
    row: int,
    share: float | None,
    write: int,
    write_tokens: int | None,
    name: str,
    licence: str,
) -> "TrainSettings":
    """Return the settings of `pltz bundle train` that the options stand for.

    Raises:
        UsageError: options that do not go together.
        ModelError: the target does not exist.
    """
    need("train", "training", "torch", "transformers")
    from pltz.models import DEFAULT
    from pltz.training import pipeline, settings
    from pltz.training.nets.origin import Origin

    if steps and seconds:
        raise UsageError("--steps and --seconds exclude each other")
    if target is None:
        given = {"--tokenizer target": tokenizer == "target", "--share": share is not None, "--write": write}
        if unfit := [name for name, there in given.items() if there]:
            raise UsageError(f"{', '.join(unfit)}: only a target can teach that, and none is named with --target")
    if write_tokens is not None and not write:
        raise UsageError("--write-tokens says how long turns are that --write N asks for: name both")
    # The student starts from a bundle where vocabularies allow it, and else from random weights.
    base = bundle or DEFAULT
    teachable = target is not None and pipeline.can_teach(target, base)
    from_bundle = tokenizer == "bundle" or target is None or teachable
    if share and from_bundle and not teachable:
        raise UsageError(
            f"--share {share:g}: the target has another vocabulary than bundle {base}, so its probabilities do not "
            "fit: leave out --share or --tokenizer bundle"
        )
    shape: dict[str, Any] = dict(SIZES[size or DEFAULT_SIZE])
    if from_bundle and size:
        raise UsageError(
            f"the student starts from bundle {base} and has its shape: leave out --size {size}, or learn the target's "
            "tokenizer from a target with another vocabulary than the bundle's"
        )
    # A trained student is changed gently; a random one takes the trainer's own rates.
    if from_bundle:
        shape = Origin(base, "--bundle").shape()
    total: dict[str, Any] = {"steps": steps} if steps else {"seconds": seconds or 1800.0}
    gentle: dict[str, Any] = {"muon_rate": 0.004, "adam_rate": 0.001, "start": base} if from_bundle else {}
    return settings.TrainSettings(
        name=name,
        data=settings.Data(files=tuple(str(Path(file).resolve()) for file in files)),
        tokenizer=settings.TokenizerSettings(kind="bundle" if from_bundle else "target", bundle=base),
        teacher=None
        if target is None
        else settings.Teacher(
            target=target,
            share=(0.5 if share is None else share) if teachable or not from_bundle else 0.0,
            write=write,
            write_tokens=256 if write_tokens is None else write_tokens,
        ),
        student=settings.Student(rows=rows, row=row, decay=DECAY, **shape, **total, **gentle),
        card=settings.Card(licence=licence, about=f"Distilled from {Path(target or base).name}."),
    )


def method(found: "TrainSettings") -> str:
    """Return a sentence that says what the student learns from."""
    teacher = found.teacher
    parts = ["your sessions"]
    if teacher and teacher.share:
        parts.append(f"the target's probabilities ({teacher.share:g} of the loss)")
    if teacher and teacher.write:
        parts.append(f"{teacher.write} turns the target writes")
    own = (
        "the target's tokenizer"
        if found.tokenizer.kind == "target"
        else f"the tokenizer of bundle {found.tokenizer.bundle}"
    )
    begin = f", starting from {found.student.start}" if found.student.start else ""
    return f"learns from {', '.join(parts)}; with {own}{begin}"
