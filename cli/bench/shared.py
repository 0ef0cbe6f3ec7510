"""The options that several benchmarks share."""

import click

from pltz.cli.ui.options import Decorator
from pltz.coding.partners import DEFAULT_TARGET

DATA: Decorator = click.option(
    "--data", metavar="FILE|DIR", help="Sessions, as `pltz compress` reads them.  [default: the sample sessions]"
)
TARGET: Decorator = click.option(
    "--target", "model", default=DEFAULT_TARGET, show_default=True, metavar="MODEL", help="The served model."
)
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
