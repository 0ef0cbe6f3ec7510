"""Codecs, looked up by what they decode.

    codecs = CodecRegistry([BundleCodec(bundle), BytesCodec()])
    codec = codecs.for_context(context, record.mode)     # None: no bundle at hand decodes it

A codec that is not registered is made once, of ids by PPMd or as `make` says, and remembered beside the others. So
pltz reads for ever what an earlier version froze with its bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pltz.coding.codecs.codec import IdsCodec, SegmentCodec
from pltz.coding.codecs.modes import ALONE, CODING, Identity, is_bytewise

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

    def knows(self, codec: SegmentCodec) -> bool:
        """Return whether a codec is registered, or was made here."""
        return any(one is codec for one in (*self._registered, *self._made.values()))

    def __getitem__(self, number: int) -> SegmentCodec:
        """Return a registered codec by its place."""
        return self._registered[number]

    def __iter__(self) -> Iterator[SegmentCodec]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)


def _of(codec: SegmentCodec) -> _Needs:
    return codec.method, codec.bundle_id, codec.tokenizer
