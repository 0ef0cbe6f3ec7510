"""LogCodec: segments of agent logs, bytes as tokens, by a table and the bundle's model (coding/FORMAT.md).

    bytes of the segment --table--> columns, text --model or PPMd, after the segment above--> bitstring

A segment is coded after what decoding the segments above it left. So the table of each has to be the same whoever codes
it: it is made of the segments alone, by the splitter of one number, and the number is in the tokenizer of a log. A
segment has another id under another splitter, which codes the log anew from its first segment on. The bitstring holds a
digest of the bytes. A writer that finds the segment stored compares digests, and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, as_bytes
from pltz.coding.log import table
from pltz.coding.log.above import Above
from pltz.coding.log.codes import SPLITTER
from pltz.coding.log.log_coder import LogCoder, checked, holds, parse
from pltz.coding.log.recall import Recalled, own_of
from pltz.plt_codec import limits
from pltz.plt_codec.container.frame import TOWER, Method, tokenizer_of_bytes
from pltz.plt_codec.lanes import Tokens

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Doubling, Parts, Progress
    from pltz.coding.workers import Later, Workers
    from pltz.models.bundle.bundle import Bundle
    from pltz.plt_codec.lanes import LayoutName


LOG_TOKENIZER = tokenizer_of_bytes(Method.LOG, SPLITTER)


class LogCodec(SegmentCodec):
    """Codes the bytes of agent logs, as tokens.

    ``layout``: of the texts that the model codes. ``by_model``: whether the model codes the text of
    segments up to `ZSTD_ABOVE`; else PPMd does. ``workers``: as in `LogCoder`. ``coder``: of the bundle's tokens; None:
    one is made when it is needed. ``tokenizer``: of logs cut by which splitter; those of others are read alike.
    """

    method, mode = Method.LOG, TOWER
    tokenizer = LOG_TOKENIZER
    carries = vouching = True

    def __init__(
        self,
        bundle: Parts,
        *,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        by_model: bool = True,
        workers: Workers | None = None,
        coder: Coder | None = None,
        tokenizer: bytes = LOG_TOKENIZER,
    ) -> None:
        self.bundle_id, self.tokenizer, self.by_model = bundle.id, tokenizer, by_model
        self._bundle, self._device, self._threads, self.workers = bundle, device, threads, workers
        self._few_steps, self._given = layout == "fast", coder
        self._any_size = False

    def slow(self) -> LogCodec:
        """Return the same codec, but the model may code the text of all segments, also of those that take it hours."""
        _ = self._coder  # of both
        slow = copy(self)
        slow.by_model = slow._any_size = True
        return slow

    def twin(self, coder: Coder | None = None) -> LogCodec:
        """Return the same codec over another coder of the same tokens, for another thread; None: over its twin."""
        twin = copy(self)
        twin._coder = self._coder.twin(coder or cast("Doubling", self._coder.coder).twin())
        return twin

    @property
    def has_twins(self) -> bool:
        """Return whether its coder, on a GPU, can have others beside it."""
        return hasattr(self._coder.coder, "twin")

    @cached_property
    def _coder(self) -> LogCoder:
        def make() -> Coder:
            return self._given or cast("Bundle", self._bundle).coder(self._device, self._threads)

        return LogCoder(self._bundle, make, self.workers)

    @property
    def weight(self) -> int:  # type: ignore[override]
        """Return half the contents that are split or joined at once: 1 on two cores."""
        return max(1, self._coder.side_by_side // 2)

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return a log frame for each segment. Raises ContentError for an id over 255."""
        pairs = [(p.recalled.own if p.recalled else as_bytes(p.tokens), p.up) for p in batch]
        begun = [self.begin(*pair, self._is_for_the_model(pair[0])) for pair in pairs]
        recalled = [p.recalled for p in batch]
        return self._coder.encode_begun(pairs, begun, fast=self._few_steps, recalled=recalled)

    def _is_for_the_model(self, content: bytes) -> bool:
        return self.by_model and (self._any_size or len(content) <= limits.ZSTD_ABOVE)

    def begin(self, content: bytes, above: Above | None, by_model: bool) -> Later | None:
        """Begin to split a content after the part above, for `encode_begun`, as `LogCoder.begin`."""
        return self._coder.begin(content, above, by_model)

    def encode_begun(
        self, pairs: Sequence[tuple[bytes, Above | None]], begun: Sequence[Later | None], *, fast: bool = False
    ) -> list[bytes]:
        """Return a log frame for each content and the part above it. ``fast``: as in `LogCoder.encode`."""
        return self._coder.encode_begun(pairs, begun, fast=fast)

    def decode(self, batch: Sequence[Coded], *, progress: Progress | None = None) -> list[Tokens]:
        """Return the bytes of each segment, (count,) uint8. Raises CorruptError.

        ``progress``: called with the number of tokens decoded since the last call.
        """
        return [np.frombuffer(content(), np.uint8) for content in self.decode_begun(batch, progress=progress)]

    def decode_begun(self, batch: Sequence[Coded], *, progress: Progress | None = None) -> list[Callable[[], bytes]]:
        """Decode the texts of segments, and begin to join them to their bytes, as `LogCoder.decode_begun`.

        Segments above that are not decoded yet are decoded first.
        """
        left, at = list[Coded](), list(batch)
        while at := [one for coded in at if isinstance(one := coded.up, Coded) and not one.decoded]:
            left += at
        for one in reversed(left):
            if not one.decoded:
                self._decode([one], None)
        return self._decode(batch, progress)

    def _decode(self, batch: Sequence[Coded], progress: Progress | None) -> list[Callable[[], bytes]]:
        """Decode the texts of segments of which those above are decoded."""
        above = [_part(c.up) for c in batch]
        rows = [(c.data, c.count, up) for c, up in zip(batch, above, strict=True)]
        found = self._coder.decode_begun(rows, progress=progress, sources=[c.source for c in batch])
        for coded, decoded in zip(batch, found, strict=True):
            coded.decoded = decoded
        return [decoded.content for decoded in found]

    def begin_chain(self, batch: Sequence[Coded]) -> Callable[[], Iterator[Tokens]] | None:
        """Begin to decode parts of a log of which no text was coded by the model. Raises CorruptError, as what follows.

        Where the first one has a part above it, that is decoded.
        """
        rows, sources = [(c.data, c.count) for c in batch], [c.source for c in batch]
        begun = self._coder.begin_chain(rows, _part(batch[0].up), sources) if all(c.count for c in batch) else None
        if begun is None:
            return None
        for coded, decoded in zip(batch, begun, strict=True):
            coded.decoded = decoded
        return lambda: (np.frombuffer(one.content(), np.uint8) for one in begun)

    def recalled(self, data: bytes, tokens: Tokens) -> Recalled | None:
        """Return what a bitstring has of these tokens without the passages that it recalls; None: all of them."""
        recalls = checked(data, len(tokens)).recalls if data else b""
        return Recalled(content := as_bytes(tokens), own_of(content, recalls), recalls) if recalls else None

    def makes(self, part: Above, data: bytes) -> bool:
        """Return whether a bitstring is what this codec makes of a part, but for how its text is coded."""
        parsed = parse(data)
        return (parsed.columns, parsed.bits) == table.split(part.content, part.up)[:2]

    def vouches(self, data: bytes, tokens: Tokens) -> bool:
        """Return whether a bitstring holds the digest of these tokens."""
        return holds(data, as_bytes(tokens))


def _part(up: Coded | Above | None) -> Above | None:
    """Return the part that a segment is decoded after, of one above it that is decoded."""
    if isinstance(up, Coded):
        return up.decoded.part if up.decoded else None
    return up


def method_of(data: bytes) -> tuple[str, int]:
    """Return the method of a bitstring, and its opaque bytes, which no coder shrinks. Raises CorruptError."""
    if not data:
        return "log + ppmd", 0
    parsed = parse(data)
    return parsed.name, len(parsed.opaque)
