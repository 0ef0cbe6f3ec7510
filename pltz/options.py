"""The options that `pltz.compress` and its kin share: as keywords for callers, and as a frozen object.

def compress(sessions, **options: Unpack[CompressKeywords]):
    chosen = CompressOptions(**options)        # with the defaults; TypeError for a keyword that is none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pltz.models.partners import Partners
from pltz.plt_codec.limits import ZSTD_ABOVE

if TYPE_CHECKING:
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.partners import Path_
    from pltz.models.session.codec import Codec
    from pltz.models.session.parts import Progress
    from pltz.models.target.target import Target
    from pltz.plt_codec.lanes import LayoutName


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


class CompressKeywords(DecompressKeywords, total=False):
    """The keywords of `compress`, which explains each of them."""

    format: str
    lanes: int | None
    steps: int | None
    layout: LayoutName
    verify: bool
    keep_opaque: bool
    zstd_above: int | None
    progress: Progress | None


class Coding(TypedDict):
    """The options of `Codec.compress` that a caller chooses."""

    lanes: int | None
    steps: int | None
    layout: LayoutName
    verify: bool
    keep_opaque: bool
    zstd_above: int | None
    progress: Progress | None


@dataclass(frozen=True)
class CompressOptions(Partners):
    """The options of `compress`, with their defaults. Those of the codec are explained at `Codec.compress_into`.

    ``format``: of a path or of bytes, as `pltz.datasets.load` takes it.
    """

    format: str = "auto"
    lanes: int | None = None
    steps: int | None = None
    layout: LayoutName = "default"
    verify: bool = True
    keep_opaque: bool = False
    zstd_above: int | None = ZSTD_ABOVE
    progress: Progress | None = None

    @property
    def coding(self) -> Coding:
        """The options that go to the codec."""
        return {
            "lanes": self.lanes,
            "steps": self.steps,
            "layout": self.layout,
            "verify": self.verify,
            "keep_opaque": self.keep_opaque,
            "zstd_above": self.zstd_above,
            "progress": self.progress,
        }
