"""Read sessions from the inputs that a user names: files, folders, stdin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from pltz.cli.ui import options
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.datasets.loaders import Format
    from pltz.models.session.session import Session

INPUT_FORMAT = options.form(("auto", "openai", "sharegpt", "jsonl", "text", "ids"), "Format of the inputs.")


def read_sessions(inputs: Sequence[str], form: str) -> Iterator[Session]:
    """Yield the sessions of all inputs, in order. Raises UsageError where stdin is named twice."""
    from pltz.datasets.loaders import load

    if inputs.count("-") > 1:
        raise UsageError("stdin (-) can be read only once")
    for path in inputs:
        yield from load(path, cast("Format", form))
