"""Codecs, looked up by what they decode.

    codecs = CodecRegistry([BundleCodec(bundle), BytesCodec()])
    codec = codecs.for_context(pack.head.contexts[record.context])     # None: no bundle at hand decodes it

A codec that follows from one at hand, of an embedded bundle or of ids under zstd, is made once and remembered beside
the registered ones. So pltz reads for ever what an earlier version froze with its bundle. Else looking up registers
nothing, but the codecs of all other bundles at hand, once, where none decodes a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

from pltz.coding.codecs.codec import IdsCodec, SegmentCodec
from pltz.coding.codecs.modes import CODING, Identity

_Needs = tuple[bytes, int, bytes, int]  # bundle, contract, tokenizer, bits of the mode that say how it was coded


class CodecRegistry(Sequence[SegmentCodec]):
    """Registered codecs in their order; the first one codes new sessions that name no other.

    One thread registers; any thread may look up.
    """

    def __init__(self, codecs: Iterable[SegmentCodec] = ()) -> None:
        self._registered = list(codecs)
        self._derived: dict[_Needs, SegmentCodec | None] = {}
        self.more: Callable[[], Iterable[SegmentCodec]] | None = None  # asked once, where a look-up finds none

    def register(self, codec: SegmentCodec) -> None:
        """Add a codec after the others."""
        self._registered.append(codec)
        self._derived.clear()

    def replace(self, codecs: Iterable[SegmentCodec]) -> None:
        """Register these codecs in place of all."""
        self._registered = list(codecs)
        self._derived.clear()

    def for_context(self, context: Identity) -> SegmentCodec | None:
        """Return the codec that decodes the segments of a context; None if there is none."""
        needs = context.bundle, context.contract, context.tokenizer, context.mode & CODING
        found = next((codec for codec in self._registered if _decodes(codec, needs)), None)
        if found is None:
            if needs not in self._derived:
                self._derived[needs] = self._derive(context, needs)
            found = self._derived[needs]
        if found is None and self.more is not None:
            more, self.more = self.more, None
            self.replace([*self._registered, *more()])
            return self.for_context(context)
        return found

    def for_ids(self, tokenizer: bytes) -> IdsCodec:
        """Return the codec that codes ids of a tokenizer by zstd."""
        needs = IdsCodec.bundle_id, IdsCodec.contract, tokenizer, IdsCodec.mode
        found = self._derived.get(needs)
        if not isinstance(found, IdsCodec):
            found = self._derived[needs] = IdsCodec(tokenizer)
        return found

    def knows(self, codec: SegmentCodec) -> bool:
        """Return whether a codec is registered, or was derived here."""
        return any(one is codec for one in (*self._registered, *self._derived.values()))

    def _derive(self, context: Identity, needs: _Needs) -> SegmentCodec | None:
        """Return a codec that follows from one at hand and decodes a context; None if there is none."""
        if _decodes(ids := IdsCodec(context.tokenizer), needs):
            return ids
        same = (codec for codec in self._registered if codec.tokenizer == context.tokenizer)
        other = next((found for codec in same if (found := codec.with_bundle(context.bundle))), None)
        return other if other is not None and _decodes(other, needs) else None

    @overload
    def __getitem__(self, number: int) -> SegmentCodec: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[SegmentCodec]: ...

    def __getitem__(self, number: int | slice) -> SegmentCodec | Sequence[SegmentCodec]:
        """Return registered codecs by their place."""
        return self._registered[number]

    def __len__(self) -> int:
        """Return the number of registered codecs."""
        return len(self._registered)


def _decodes(codec: SegmentCodec, needs: _Needs) -> bool:
    return (codec.bundle_id, codec.contract, codec.tokenizer) == needs[:3] and not needs[3] & ~codec.mode
