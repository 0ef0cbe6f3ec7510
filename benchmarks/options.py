"""The options that several benchmarks and experiments share beside those of `pltz bench`, and the tokens they code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.cli.ui.options import Decorator
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from pltz.coding.codec import Codec

NEW: Decorator = click.option(
    "--new", type=click.IntRange(min=8), default=64, show_default=True, metavar="N", help="Tokens scored after them."
)
WHERE: Decorator = click.option(
    "--where", metavar="DIR", help="Disk to measure, by a folder on it.  [default: the folder for temporary files]"
)


def check_where(where: str | None) -> None:
    """Check that ``--where`` names a folder. Raises UsageError where it does not."""
    if where is not None and not Path(where).is_dir():
        raise UsageError(f"folder {where} does not exist: name one on the disk to be measured")


def numbers(text: str) -> list[int]:
    """Parse ``1,4`` as [1, 4]. Raises UsageError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"--together: expected whole numbers from 1 up like 1,4, found {text!r}")
    return found


def sample_tokens(codec: Codec) -> tuple[np.ndarray[Any, Any], float]:
    """Return the bundle tokens (n,) of the sample sessions, concatenated, and the content bytes per token."""
    import numpy as np

    from pltz.datasets import sample_sessions
    from pltz.models.session.session import content_bytes
    from pltz.models.session.transcript import to_tokens_many

    sessions = list(sample_sessions())
    stream = np.concatenate(to_tokens_many(sessions, codec.bundle.tokenizer)).astype(np.int64)
    return stream, sum(map(content_bytes, sessions)) / len(stream)


def cut(stream: np.ndarray[Any, Any], count: int, tokens: int) -> list[np.ndarray[Any, Any]]:
    """Cut ``count`` sessions (tokens,) from different places of the stream (n,), wrapping around its end."""
    import numpy as np

    return [np.take(stream, np.arange(i * tokens, (i + 1) * tokens), mode="wrap") for i in range(count)]
