"""Token sequences to bytes and back: the reference engine, the layout and the range coder together.

A frame is one range-coder stream over all blocks of one sequence (FORMAT.md, "Frames"). Encoding runs all positions of
a block at once, decoding step by step. A context (lanes.py) is run once for all sequences that stand behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.torch import Memory, TorchEngine
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import (
    LANE_MARK,
    MAX_TOKENS,
    Ids,
    Layout,
    Layouts,
    TokenBlock,
    Tokens,
    checked,
    each,
    each_layout,
    layout_of,
    remembered,
    room,
)
from pltz.plt_codec.range_coder import RangeDecoder, RangeEncoder, ideal_bits
from pltz.plt_codec.types import Encoded, FrameItem, Progress
from pltz.plt_codec.weights import CLASS


class TokenCoder:
    """A coder of sequences of bundle token ids, over the reference engine."""

    def __init__(self, engine: TorchEngine):
        self.engine = engine

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        layouts: Layouts = None,
        contexts: Sequence[Tokens | None] | None = None,
        progress: Progress | None = None,
    ) -> list[Encoded]:
        """Encode sequences of ids, each (T,), into a frame each.

        Args:
            sequences: ids of the bundle's vocabulary.
            layouts: one for all sequences, or one of each; None: the default layout of each.
            contexts: the tokens before each sequence, (m,) or None, which its decoder will know too. The last M
                count.
            progress: called with the number of tokens done since the last call.

        Raises:
            ContentError: ids are not one row of ids of the vocabulary.
            UsageError: layouts or contexts are not as many as the sequences.
        """
        shape = self.engine.shape
        known = each(contexts, len(sequences), shape)
        rows = [checked(tokens, shape.vocab) for tokens in sequences]
        memories = _ContextMemories(self.engine)
        cut = each_layout(layouts, [len(ids) for ids in rows])
        return [self._encode(memories, *row, progress) for row in zip(known, rows, cut, strict=True)]

    def _encode(
        self, memories: _ContextMemories, context: Ids, ids: Ids, layout: Layout, progress: Progress | None
    ) -> Encoded:
        tokens, encoder, bits, count = np.concatenate([context, ids]), RangeEncoder(), 0.0, 0
        for block, memory in memories.blocks(context, len(ids), layout):
            own = tokens[block.start : block.start + block.tokens]
            inputs = block.inputs(own, _before(tokens, block))
            x = self.engine.run(inputs, block.start + block.targets(), memory)[: block.tokens]  # those that predict
            found = own[block.targets().reshape(-1)[: block.tokens]]
            first, second = (found // CLASS).astype(np.int32), (found % CLASS).astype(np.int32)
            classes, members = self.engine.class_frequencies(x), self.engine.member_frequencies(x, first)
            bits += ideal_bits(first, classes) + ideal_bits(second, members)
            for begin in range(0, block.tokens, block.lanes):
                step = slice(begin, begin + block.lanes)
                encoder.encode(first[step], classes[step])
                encoder.encode(second[step], members[step])
            count += 1
            if progress:
                progress(block.tokens)
        return Encoded(encoder.finish() if count else b"", bits, count, layout)

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> list[npt.NDArray[np.int64]]:
        """Decode frames into their ids, each (tokens,).

        With another context than the frame was encoded after, this returns other tokens or raises
        CorruptError. Which of the two is up to chance, so the caller must check the content.

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ContentError: a context is not one row of ids of the vocabulary.
        """
        known = [remembered(item.context, self.engine.shape) for item in items]
        for item in items:
            if not 0 <= item.tokens < MAX_TOKENS:
                raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {item.tokens}")
        memories = _ContextMemories(self.engine)
        return [self._decode(memories, c, item, progress) for item, c in zip(items, known, strict=True)]

    def _decode(
        self, memories: _ContextMemories, context: Ids, item: FrameItem, progress: Progress | None
    ) -> npt.NDArray[np.int64]:
        tokens, decoder = room(context, item.tokens), RangeDecoder(item.data)
        for block, memory in memories.blocks(context, item.tokens, item.layout or layout_of(item.tokens)):
            starts = block.start + block.lane_starts()
            feed = np.full(block.lanes, LANE_MARK, np.int64)
            feed[0] = _before(tokens, block)
            for step in range(block.steps):
                active = block.active(step)
                x = self.engine.run(feed[None], starts[None] + step, memory)[:active]
                # first the class of each lane's token, then the member of that class
                classes = decoder.decode(self.engine.class_frequencies(x))
                members = decoder.decode(self.engine.member_frequencies(x, classes))
                if decoder.spent:
                    raise CorruptError(
                        f"expected {item.tokens} tokens in the frame, but its bytes end before: damaged data"
                    )
                feed[:active] = tokens[starts[:active] + step] = classes.astype(np.int64) * CLASS + members
                if progress:
                    progress(active)
        return tokens[len(context) :]


class _ContextMemories:
    """The memories of contexts, each computed once."""

    def __init__(self, engine: TorchEngine):
        self.engine = engine
        self.known: dict[bytes, Memory] = {}

    def blocks(self, context: Ids, tokens: int, layout: Layout) -> Iterator[tuple[TokenBlock, Memory]]:
        """Yield the blocks of a sequence behind a context (m,), each with the memory to run it with."""
        memory = None
        for block in layout.blocks(tokens, len(context)):
            memory = self._after(context) if memory is None else memory
            yield block, memory
            memory = memory.after(block, self.engine.shape.memory)

    def _after(self, context: Ids) -> Memory:
        key = context.tobytes()
        if key not in self.known:
            self.known[key] = memory = Memory.empty(self.engine)
            if len(context):
                block = TokenBlock(0, len(context), 1)
                self.engine.run(block.inputs(context, LANE_MARK), block.targets(), memory)
        return Memory(self.known[key].keys, self.known[key].values)


def _before(tokens: Ids, block: TokenBlock) -> int:
    """Return the token before a block."""
    return int(tokens[block.start - 1]) if block.start else LANE_MARK
