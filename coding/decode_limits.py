"""Limits of decoding a .pltz file that may be hostile: tokens, bytes and seconds, checked before the work.

A byte of a frame may stand for 256 tokens, and each of them costs a step of the model. So a file of a few hundred
bytes could keep a machine busy for minutes. By default a file may ask for `FREE` tokens and `PER_BYTE` more per byte
of its frames. Sessions take 2 to 4 tokens per byte. Tokens of copies cost no step and do not count.

    DecodeLimits().check(frames)                     # LimitError where a small file asks for much work
    DecodeLimits(max_tokens=None)                    # the file is trusted
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from pltz.coding.log import log_coder
from pltz.plt_codec.errors import LimitError, UsageError

if TYPE_CHECKING:
    from pltz.coding.parts import Progress
    from pltz.models.session.session import Session
    from pltz.plt_codec.container.frame import Frame

FREE = 1 << 14  # tokens that any file may ask for
PER_BYTE = 32  # more tokens per byte of its frames


class LimitKeywords(TypedDict, total=False):
    """The keywords of `DecodeLimits`, which explains them."""

    max_tokens: int | Literal["auto"] | None
    max_bytes: int | None
    max_seconds: float | None


@dataclass(frozen=True)
class DecodeLimits:
    """Limits of one call that decodes sessions of a file.

    Attributes:
        max_tokens: most tokens that the model decodes, those of contexts included; None: any number. "auto": `FREE`
            and `PER_BYTE` per byte of the frames.
        max_bytes: most bytes of content; None: any number. Sessions coded by zstd say theirs before they are decoded.
            Those coded by the model are counted as they come.
        max_seconds: longest time; None: any. It is looked at after each block that was decoded.

    Raises UsageError for a limit that is no number from 0 up.
    """

    max_tokens: int | Literal["auto"] | None = "auto"
    max_bytes: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_bytes", "max_seconds"):
            value = getattr(self, name)
            if value is None or (value == "auto" and name == "max_tokens"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise UsageError(f"expected {name} as a number from 0 up, or None, got {value!r}")

    def check(self, frames: Iterable[Frame]) -> None:
        """Refuse frames that ask for more than the limits, from what they say. Nothing is decoded.

        Raises LimitError; CorruptError where copies of a frame are damaged.
        """
        tokens = stored = plain = 0
        for frame in frames:
            stored += len(frame.data)
            if frame.by_model:
                tokens += frame.coded
            else:
                plain += frame.count
                tokens += log_coder.parse(frame.data).coded_tokens if frame.log and frame.count else 0
        most = FREE + PER_BYTE * stored if self.max_tokens == "auto" else self.max_tokens
        if most is not None and tokens > most:
            raise LimitError(
                f"expected at most {most:,} tokens to decode, the {stored:,} bytes of the sessions claim {tokens:,}: "
                f"where you trust the file, raise max_tokens (--max-tokens {tokens}, or none)"
            )
        self._check_bytes(plain)

    def count(self, session: Session, before: int) -> int:
        """Return the bytes of content so far, with those of one more session. Raises LimitError past the limit."""
        if self.max_bytes is None:
            return 0
        found = before + len(session.to_bytes())
        self._check_bytes(found)
        return found

    def timed(self, progress: Progress | None) -> Progress | None:
        """Return a progress that raises LimitError when the time is over, counted from now."""
        if self.max_seconds is None:
            return progress
        limit = self.max_seconds
        end = time.monotonic() + limit

        def seen(amount: int) -> None:
            if progress is not None:
                progress(amount)
            if time.monotonic() > end:
                raise LimitError(f"decoding takes longer than {limit:g} s: raise max_seconds (--max-seconds)")

        return seen

    def _check_bytes(self, found: int) -> None:
        if self.max_bytes is not None and found > self.max_bytes:
            raise LimitError(
                f"expected at most {self.max_bytes:,} bytes of content, found {found:,}: raise max_bytes (--max-bytes)"
            )
