"""The coding partners of sessions: bundle, target and tokenizer, each by name or path, or already loaded.

Nothing is loaded before it is asked for. The tokenizer of a target needs no weights, and a file can be
inspected without a bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.named_files import MAX_TOKENIZER, named_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pltz.coding.codec import Codec
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.target.target import Target

Path_ = str | os.PathLike[str]
DEFAULT_TARGET = "mini-llama"  # the target that ships with pltz


@dataclass(frozen=True)
class Partners:
    """A bundle (None: the one that ships with pltz), and a target or tokenizer.

    The target or tokenizer is the one that the sessions' ids belong to, if that is not the bundle's.

    Raises:
        UsageError: both a target and a tokenizer are named.
    """

    bundle: Path_ | Bundle | Codec | None = None
    target: Path_ | Target | None = None
    tokenizer: Path_ | bytes | None = None
    device: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.target is not None and self.tokenizer is not None:
            raise UsageError("a target brings its own tokenizer: leave tokenizer out")

    def codec(self, bundle_id: bytes | None = None) -> Codec:
        """Return the codec of the bundle; if none is named, of the one with this id.

        Raises:
            UsageError: there is no such bundle.
            ModelError: the bundle cannot be used.
            BundleMismatch: no bundle here has the id.
        """
        from pltz.coding.codec import Codec
        from pltz.models.bundle.bundle import Bundle

        bundle = self.bundle
        if isinstance(bundle, Codec):
            return bundle
        if bundle is None and bundle_id is not None:
            bundle = Bundle.find(bundle_id)
        return Codec.load(bundle, device=self.device, threads=self.threads)

    def bridge(self, codec: Codec) -> Bridge | None:
        """Return the bridge from the codec's bundle to the tokenizer that is named, None where none is.

        Raises:
            UsageError: the tokenizer cannot be read.
            ModelError: it is no tokenizer, or the target has none.
        """
        if self.target is not None:
            return bridge_between(_tokenizer_of(self.target), codec)
        return None if self.tokenizer is None else bridge_between(tokenizer_json(self.tokenizer), codec)


def as_target(
    target: Path_ | Target | PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase | None = None
) -> Target:
    """Return a target by name or path, or loaded. None: the one that ships with pltz.

    ``target`` may be a model that transformers loaded, with its ``tokenizer``: see `Target.of`.

    Raises:
        UsageError: device or dtype cannot be used.
        ModelError: the target cannot be loaded.
    """
    from pltz.models.target.target import Target

    if target is None:
        target = DEFAULT_TARGET
    if not isinstance(target, str | os.PathLike) and not hasattr(target, "prefill"):
        return Target.of(cast("PreTrainedModel", target), tokenizer)
    if tokenizer is not None:
        raise UsageError("a tokenizer belongs to a loaded model of transformers: leave it out")
    return Target.load(target) if isinstance(target, str | os.PathLike) else cast("Target", target)


def tokenizer_json(tokenizer: Path_ | bytes) -> bytes:
    """Return the bytes of a tokenizer.json.

    Raises:
        UsageError: the file cannot be read.
    """
    if isinstance(tokenizer, bytes):
        return tokenizer
    try:
        return named_file(tokenizer, MAX_TOKENIZER)
    except OSError as exc:
        raise UsageError(f"cannot read {os.fspath(tokenizer)}: {exc.strerror or exc}") from exc


def bridge_between(tokenizer_json: bytes, codec: Codec) -> Bridge:
    """Return the bridge from the codec's bundle to a tokenizer.

    Raises:
        ModelError: the JSON is no tokenizer.
    """
    from pltz.models.bundle.bridge import Bridge

    return Bridge(tokenizer_json, codec.bundle.tokenizer)


def _tokenizer_of(target: Path_ | Target) -> bytes:
    """Return a target's tokenizer JSON, without loading its weights."""
    from pltz.models.target.checkpoint import resolve, tokenizer_json_of

    if isinstance(target, str | os.PathLike):
        return tokenizer_json_of(resolve(target))
    return target.tokenizer_json
