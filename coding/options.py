"""The options of coding sessions: as keywords for callers, and as a frozen object that is checked once.

def compress(sessions, **options: Unpack[CodingKeywords]):
    chosen = CodingOptions(**options)          # with the defaults; TypeError for a keyword that is none
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict, cast

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.lanes import LAYOUTS, LayoutName

if TYPE_CHECKING:
    from pltz.coding.parts import Progress


class CodingKeywords(TypedDict, total=False):
    """The keywords of `CodingOptions`, which explains them."""

    layout: LayoutName
    verify: bool
    keep_opaque: bool
    model_logs: bool
    independent: bool
    progress: Progress | None


@dataclass(frozen=True)
class CodingOptions:
    """The options of `Codec.compress`.

    Attributes:
        layout: "default", or "fast", whose sessions decode sooner alone and are a few per cent larger
            (plt_codec/NUMERICS.md, "Layouts").
        verify: decode every frame and compare before it is written.
        keep_opaque: keep sessions with images or audio as compressed JSON, instead of refusing them.
        model_logs: let the model code the text of logs; else PPMd does, at once, for some per cent more bytes.
        independent: code each session of a file alone, not after earlier ones that it has much in common with.
        progress: called with the number of tokens done since the last call.

    Raises:
        UsageError: the layout is unknown.
    """

    layout: LayoutName = "default"
    verify: bool = True
    keep_opaque: bool = False
    model_logs: bool = True
    independent: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"expected layout {' or '.join(LAYOUTS)}, got {self.layout!r}")

    @property
    def coding(self) -> CodingKeywords:
        """Return the options as keywords of a codec."""
        return cast(CodingKeywords, {field.name: getattr(self, field.name) for field in fields(CodingOptions)})
