"""The options that several benchmarks share."""

from pathlib import Path

import click

from pltz.cli.ui.options import Decorator
from pltz.plt_codec.errors import UsageError

DATA: Decorator = click.option(
    "--data", metavar="FILE|DIR", help="JSONL records, plain or zstd.  [default: the sample sessions]"
)
WHERE: Decorator = click.option(
    "--where",
    metavar="DIR",
    help="Disk to measure, by a folder on it.  [default: the folder for temporary files]",
)
FORCE: Decorator = click.option("--force", is_flag=True, help="Replace the plot if it exists.")
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print the line of JSON only.")


def limit_bytes(default: int, note: str = "") -> Decorator:
    """Return the option ``--limit-bytes``. ``note`` ends its help."""
    return click.option(
        "--limit-bytes",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        metavar="N",
        help=f"Content bytes per source, at most{note}.",
    )


def peers(names: tuple[str, ...]) -> Decorator:
    """Return the option ``--peers``, by default all of them. The command takes it as ``names``."""
    return click.option(
        "--peers",
        "names",
        default=",".join(names),
        show_default=True,
        metavar="NAME,...",
        help="Compressors to compare with.",
    )


def plot(what: str) -> Decorator:
    """Return the option ``--plot``. ``what`` names what is plotted."""
    return click.option(
        "--plot", metavar="FILE", help=f"Draw {what} as a PNG or SVG (needs the extra plots)."
    )


def check_where(where: str | None) -> None:
    """Check that ``--where`` names a folder. Raises UsageError where it does not."""
    if where is not None and not Path(where).is_dir():
        raise UsageError(f"folder {where} does not exist: name one on the disk to be measured")
