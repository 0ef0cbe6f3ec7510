"""BundleCodecs: the bundles that an archive is open with, and the codecs made of them.

    codecs = BundleCodecs(registry, [Bundle.load()])
    codecs.model, codecs.plain, codecs.log      # what codes new sessions
    codecs.add(tokenizer_json)                  # let ids of another tokenizer be put and read

The first bundle codes new sessions; all are for reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, Unpack

from pltz.coding.codecs.codec import BundleCodec, BytesCodec, IdsCodec, SegmentCodec
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.codecs.modes import Identity
from pltz.coding.codecs.registry import CodecRegistry
from pltz.coding.workers import Workers
from pltz.plt_codec import limits
from pltz.plt_codec.container.frame import Method
from pltz.plt_codec.errors import BundleMismatch, PltzError
from pltz.plt_codec.lanes import LayoutName

if TYPE_CHECKING:
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import BundleTokenizer


class EngineOptions(TypedDict, total=False):
    """Options with which codecs are made."""

    device: str
    threads: int | None
    layout: LayoutName


def codecs_of(
    bundles: Sequence[Bundle], *, workers: Workers | None = None, **engine: Unpack[EngineOptions]
) -> list[SegmentCodec]:
    """Return the codecs for an archive: the first bundle and its plain bytes, then all others for reading.

    ``workers``: processes with `HostWork` of the first bundle, beside its model; None: none.
    """
    models: list[SegmentCodec] = [BundleCodec(bundle, **engine) for bundle in bundles]
    plain: list[SegmentCodec] = []
    logs: list[SegmentCodec] = []
    for bundle in bundles:
        beside = None if plain else workers  # the first bundle codes what is put
        plain.append(BytesCodec(bundle, beside))
        logs.append(LogCodec(bundle, **engine, workers=beside))
    return [models[0], plain[0], *models[1:], *plain[1:], BytesCodec(), *logs]


class BundleCodecs:
    """The codecs of one open archive.

    Args:
        registry: where the archive's codecs are looked up. Those of the bundles are registered, where it is empty.
        bundles: the first one codes new sessions; all are read.
        model_logs, model_ids: the text of logs, and token ids, are put by the model; else by PPMd.
        workers: as in `codecs_of`, where the codecs are made here.
        engine: options of the codecs that are made.
    """

    def __init__(
        self,
        registry: CodecRegistry,
        bundles: Sequence[Bundle],
        *,
        model_logs: bool = False,
        model_ids: bool = True,
        workers: Workers | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        if not registry:
            registry.register(*codecs_of(bundles, workers=workers, **engine))
        self.bundle, self.tokenizer = bundles[0], bundles[0].tokenizer
        self.registry, self._engine, self._model_ids = registry, engine, model_ids
        registry.make = self.codec_for
        self._bundles = bundles
        self._tokenizers = {bundle.tokenizer.fingerprint: bundle.tokenizer for bundle in bundles}
        self._added: dict[bytes, bytes] = {}  # fingerprints of tokenizers, by their tokenizer.json
        self._of_ids: dict[bytes, SegmentCodec] = {}  # the first codec that takes the ids of a tokenizer
        for codec in registry:
            if isinstance(codec, LogCodec):
                codec.by_model = model_logs
            elif not isinstance(codec, BytesCodec | IdsCodec):
                self._of_ids.setdefault(codec.tokenizer, codec)

    @cached_property
    def model(self) -> SegmentCodec:
        """Return the codec of the first bundle's tokens."""
        return self.registry[0]

    @cached_property
    def plain(self) -> SegmentCodec:
        """Return the codec of plain bytes, by zstd."""
        return next(codec for codec in self.registry if isinstance(codec, BytesCodec))

    @cached_property
    def workers(self) -> Workers:
        """Return the processes beside the model of what is put; of count 0 where there are none."""
        logs = (codec.workers for codec in self.registry if isinstance(codec, LogCodec))
        return next(logs, None) or Workers(None)

    @cached_property
    def log(self) -> LogCodec:
        """Return the codec of logs."""
        return next(codec for codec in self.registry if isinstance(codec, LogCodec))

    def add(self, tokenizer: bytes, device: str | None = None) -> bytes:
        """Add another tokenizer, by its tokenizer.json, and return its fingerprint. Raises ModelError.

        ``device``: of its codec; None: that of the others.
        """
        if tokenizer in self._added:
            return self._added[tokenizer]
        from pltz.coding.codecs.bridged import BridgedCodec
        from pltz.models.bundle.bridge import Bridge

        bridge = Bridge(tokenizer, self.tokenizer)
        if bridge.fingerprint not in self._of_ids:
            engine = self._engine if device is None else self._engine | EngineOptions(device=device)
            codec = self.model if bridge.identity else BridgedCodec(self.bundle, bridge, **engine)
            if not bridge.identity:
                self.registry.register(codec)
            self._of_ids[bridge.fingerprint] = codec
        self._added[tokenizer] = bridge.fingerprint
        return bridge.fingerprint

    def of_ids(self, tokenizer: bytes) -> SegmentCodec | None:
        """Return the codec of the ids of a tokenizer, by its fingerprint; None where they cannot be put."""
        return self._of_ids.get(tokenizer)

    def of_many_ids(self, tokenizer: bytes) -> IdsCodec:
        """Return the codec, by PPMd, of ids of a tokenizer that are too many for the model."""
        return self.registry.for_ids(tokenizer)

    def too_many_for_model(self, size: int) -> bool:
        """Return whether a session of so many bytes is put by zstd."""
        return size > limits.ZSTD_ABOVE

    def model_codes_ids(self, size: int) -> bool:
        """Return whether ids of so many bytes are put by the model; else by PPMd."""
        return self._model_ids and not self.too_many_for_model(size)

    def tokenizer_of(self, fingerprint: bytes) -> BundleTokenizer:
        """Return the tokenizer with a fingerprint, of a bundle given or at hand. Raises BundleMismatch."""
        if fingerprint not in self._tokenizers:
            raise BundleMismatch(
                f"frozen under tokenizer {fingerprint.hex()}, which no bundle at hand has: "
                "add its bundle with `pltz bundle add FOLDER`"
            )
        return self._tokenizers[fingerprint]

    def codec_for(self, context: Identity) -> SegmentCodec | None:
        """Return the codec of a context, of the bundles given and of those at hand; None if there is none."""
        from pltz.coding.codecs.bridged import BridgedCodec
        from pltz.models.bundle.bridge import Bridge

        other = next((json for json, name in self._added.items() if name == context.tokenizer), None)
        bundle = next((one for one in (*self._bundles, *self._at_hand) if one.id == context.bundle), None)
        if bundle is None:
            return None
        if context.method == Method.BYTES:
            return BytesCodec(bundle)
        if context.method == Method.LOG:
            return LogCodec(bundle, **self._engine, tokenizer=context.tokenizer)
        if context.tokenizer == bundle.tokenizer.fingerprint:
            return BundleCodec(bundle, **self._engine)
        return BridgedCodec(bundle, Bridge(other, bundle.tokenizer), **self._engine) if other else None

    @cached_property
    def _at_hand(self) -> Sequence[Bundle]:
        """Return the bundles at hand beside those given. One that is damaged is passed over."""
        from pltz.models.bundle.bundle import Bundle
        from pltz.models.bundle.locations import locations

        found: list[Bundle] = []
        for location in locations():
            with suppress(PltzError):
                found.append(Bundle.load(location.folder))
        for bundle in found:
            self._tokenizers.setdefault(bundle.tokenizer.fingerprint, bundle.tokenizer)
        return found
