"""The codecs of an archive, looked up by what they decode, and the bundles of which they are made.

    codecs = CodecRegistry([BundleCodec(bundle), BytesCodec()])
    codec = codecs.for_context(context, record.mode)     # None: no bundle at hand decodes it

    codecs = BundleCodecs(registry, [Bundle.load()])
    codecs.model, codecs.plain, codecs.log      # what codes new sessions
    codecs.add(tokenizer_json)                  # let ids of another tokenizer be put and read

The first bundle codes new sessions; all are for reading. A codec that is not registered is made once, of ids by PPMd or
as `make` says, and remembered beside the others. So pltz reads for ever what an earlier version froze with its bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, Unpack

from pltz.coding.codecs.codec import BundleCodec, BytesCodec, Identity, IdsCodec, PpmdCodec, SegmentCodec
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.workers import Workers
from pltz.plt_codec import limits
from pltz.plt_codec.container.frame import ALONE, CODING, PPMD, Method, is_bytewise
from pltz.plt_codec.errors import BundleMismatch, PltzError
from pltz.plt_codec.lanes import LayoutName

if TYPE_CHECKING:
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import BundleTokenizer


ONCE_BYTES = 1 << 15  # bytes of content, logs left out: a second of a core for the bundle `mini`

_Needs = tuple[int, bytes, bytes]  # method, bundle, tokenizer


class CodecRegistry:
    """Registered codecs in their order; the first one codes new sessions that name no other.

    One thread registers; any thread may look up.

    ``make``: returns the codec of a context, None where there is none.
    """

    def __init__(self, codecs: Iterable[SegmentCodec] = ()) -> None:
        self._registered = list(codecs)
        self._made: dict[_Needs, SegmentCodec | None] = {}
        self.make: Callable[[Identity], SegmentCodec | None] = lambda _: None

    def register(self, *codecs: SegmentCodec) -> None:
        """Add codecs after the others."""
        self._registered += codecs
        self._made.clear()

    def for_context(self, context: Identity, mode: int = ALONE) -> SegmentCodec | None:
        """Return the codec that decodes the segments of a context that have this mode; None if there is none."""
        needs = context.method, context.bundle, context.tokenizer
        found = next((codec for codec in self._registered if _of(codec) == needs), None)
        if found is None and (found := self._made.get(needs)) is None and needs not in self._made:
            ids = IdsCodec(context.tokenizer)
            made = ids if _of(ids) == needs and not is_bytewise(context.tokenizer) else self.make(context)
            self._made[needs] = found = made if made and _of(made) == needs else None
        return found if found and not mode & CODING & ~found.mode else None

    def for_ids(self, tokenizer: bytes) -> IdsCodec:
        """Return the codec that codes ids of a tokenizer by PPMd."""
        needs = IdsCodec.method, IdsCodec.bundle_id, tokenizer
        found = self._made.get(needs)
        if not isinstance(found, IdsCodec):
            found = self._made[needs] = IdsCodec(tokenizer)
        return found

    def __getitem__(self, number: int) -> SegmentCodec:
        """Return a registered codec by its place."""
        return self._registered[number]

    def __iter__(self) -> Iterator[SegmentCodec]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)


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
    fast = [PpmdCodec(bundle, engine.get("threads")) for bundle in bundles]
    return [models[0], plain[0], *models[1:], *plain[1:], BytesCodec(), *logs, *fast]


class BundleCodecs:
    """The codecs of one open archive.

    Args:
        registry: where the archive's codecs are looked up. Those of the bundles are registered, where it is empty.
        bundles: the first one codes new sessions; all are read.
        model_logs, model_ids: the text of logs, and tokens of all else, are put by the model; else by PPMd. None: as
            `begin_put` decides.
        workers: as in `codecs_of`, where the codecs are made here.
        engine: options of the codecs that are made.
    """

    def __init__(
        self,
        registry: CodecRegistry,
        bundles: Sequence[Bundle],
        *,
        model_logs: bool = False,
        model_ids: bool | None = True,
        workers: Workers | None = None,
        **engine: Unpack[EngineOptions],
    ) -> None:
        if not registry:
            registry.register(*codecs_of(bundles, workers=workers, **engine))
        self.bundle, self.tokenizer = bundles[0], bundles[0].tokenizer
        self.registry, self._engine = registry, engine
        self._model_ids = True if model_ids is None and engine.get("device", "cpu") != "cpu" else model_ids
        self._small = True
        registry.make = self.codec_for
        self._bundles = bundles
        self._tokenizers = {bundle.tokenizer.fingerprint: bundle.tokenizer for bundle in bundles}
        self._added: dict[bytes, bytes] = {}  # fingerprints of tokenizers, by their tokenizer.json
        self._of_ids: dict[bytes, SegmentCodec] = {}  # the first codec that takes the ids of a tokenizer
        for codec in registry:
            if isinstance(codec, LogCodec):
                codec.by_model = model_logs
            elif not isinstance(codec, BytesCodec | IdsCodec | PpmdCodec):
                self._of_ids.setdefault(codec.tokenizer, codec)

    @cached_property
    def model(self) -> SegmentCodec:
        """Return the codec of the first bundle's tokens."""
        return self.registry[0]

    def begin_put(self, size: int | None) -> None:
        """Begin a put of so many bytes of content; None: of more than are read at once."""
        self._small = size is not None and size <= ONCE_BYTES

    def by_model(self, size: int, *, grows: bool) -> bool:
        """Return whether the model codes the tokens of a session of so many bytes in this put; else PPMd, at once.

        Where nothing else is said, it codes what takes about a second in all, but no turn of a stored session.

        ``grows``: whether it begins with a stored session.
        """
        return size <= limits.ZSTD_ABOVE and (self._small and not grows if self._model_ids is None else self._model_ids)

    @cached_property
    def fast(self) -> PpmdCodec:
        """Return the codec, by PPMd, of the first bundle's tokens."""
        return next(codec for codec in self.registry if isinstance(codec, PpmdCodec))

    @cached_property
    def plain(self) -> BytesCodec:
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
        if context.method == PPMD:
            return PpmdCodec(bundle, self._engine.get("threads"))
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


def _of(codec: SegmentCodec) -> _Needs:
    return codec.method, codec.bundle_id, codec.tokenizer
