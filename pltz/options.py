"""The options that `pltz.compress` and similar calls share: as keywords for callers, and as a frozen object.

def compress(sessions, **options: Unpack[CompressKeywords]):
    chosen = CompressOptions(**options)        # with the defaults; TypeError for a keyword that is none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pltz.coding.options import CodingKeywords, CodingOptions
from pltz.coding.partners import Partners
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.coding.codec import Codec
    from pltz.coding.partners import Path_
    from pltz.datasets.loaders import Format
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.target.target import Target


class BundleKeywords(TypedDict, total=False):
    """The bundle, and where it runs.

    ``bundle``: by name or folder, or loaded, or a `Codec`. None: the one that ships with pltz, or that a file names.
    ``device``: "cpu", "cuda" or "cuda:N", of the bundle; ``threads``: CPU cores at most, None for all.
    """

    bundle: Path_ | Bundle | Codec | None
    device: str
    threads: int | None


class DecompressKeywords(BundleKeywords, total=False):
    """The owner of the token ids, where they are not the bundle's: a target, or a tokenizer.json (path or bytes)."""

    target: Path_ | Target | None
    tokenizer: Path_ | bytes | None


class CompressKeywords(DecompressKeywords, CodingKeywords, total=False):
    """The keywords of `compress`, which explains each of them."""

    format: Format
    exact: bool
    dropped: bool


@dataclass(frozen=True)
class CompressOptions(Partners, CodingOptions):
    """The options of `compress`, with their defaults. Raises the errors of both parents.

    ``format``, ``exact``: of a path or of bytes, as `pltz.datasets.load` takes them. ``dropped``: as in `compress`.
    """

    format: Format = "auto"
    exact: bool = False
    dropped: bool = False

    def __post_init__(self) -> None:
        Partners.__post_init__(self)
        if self.exact and self.target is not None:
            raise UsageError("a target keeps token ids and not the bytes of inputs: leave exact or target out")
        CodingOptions.__post_init__(self)
