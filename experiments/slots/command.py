"""``pltz.experiments slot``: keep slot files of llama-server as base plus delta, and splice them back.

See experiments/slots/slot_delta.py.
"""

import json
from pathlib import Path

import click

from pltz.archive.humanize import size
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command, OrderedGroup
from pltz.cli.ui.output import Output, write_text
from pltz.plt_codec.errors import UsageError

TO = click.option("-o", "--output", required=True, metavar="OUT", help="File to write.")


@click.group(cls=OrderedGroup, short_help="Slot files of llama-server as base plus delta.")
def slot() -> None:
    """Keep the slot files of a hierarchy (platform, community, bot) as one base and small deltas.

    A slot that was restored from another one's file and extended shares its KV. A delta holds the rest. Base and delta
    give the slot file back byte for byte. Files of another version or layout are refused: see llama-slots.md.
    """


@slot.command(
    cls=Command, short_help="Write what a slot file has beyond its base.",
    examples=["python -m pltz.experiments slot delta platform.bin community.bin -o community.delta"],
)  # fmt: skip
@click.argument("base", metavar="BASE")
@click.argument("file", metavar="FILE")
@TO
@options.FORCE
@options.JSON
def delta(base: str, file: str, output: str, force: bool, as_json: bool) -> None:
    """Write what slot file FILE has beyond slot file BASE, after a trial that both give FILE back."""
    from pltz.experiments.slots.slot_delta import delta as made

    out = Output(output, force=force, inputs=[base, file])
    whole = _read(file)
    found = made(_read(base), whole)
    out.write([found])
    if as_json and not out.to_stdout:
        write_text(json.dumps({"bytes": len(found), "slot_bytes": len(whole)}))
    elif not out.to_stdout:
        write_text(f"{output}: {size(len(found))} of {size(len(whole))}, spliced back and compared")


@slot.command(
    cls=Command, short_help="Write the slot file of a base and deltas.",
    examples=["python -m pltz.experiments slot splice platform.bin community.delta bot.delta -o bot.bin"],
)  # fmt: skip
@click.argument("base", metavar="BASE")
@click.argument("deltas", metavar="DELTA...", nargs=-1, required=True)
@TO
@options.FORCE
@options.JSON
def splice(base: str, deltas: tuple[str, ...], output: str, force: bool, as_json: bool) -> None:
    """Write the slot file that the last DELTA was made of. Each DELTA is of the one before it, the first of BASE."""
    from pltz.experiments.slots.slot_delta import splice as joined

    out = Output(output, force=force, inputs=[base, *deltas])
    found = _read(base)
    for one in deltas:
        found = joined(found, _read(one))
    out.write([found])
    if as_json and not out.to_stdout:
        write_text(json.dumps({"bytes": len(found)}))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror or exc}") from exc
