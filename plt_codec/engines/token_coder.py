"""Token sequences to bytes and back: the model, the layout and the range coder together.

A frame is one range-coder stream over all blocks of one sequence (FORMAT.md, "Frames"). Encoding runs the
blocks of many sequences together, all positions at once. Decoding steps many blocks side by side. Batching
never changes a bit, because the model is exact. A context (prefix.py) is run before the first batch that
needs it, once for all sequences of that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.torch import BlockJob, Memory, Stepper, TorchEngine
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import LANE_MARK, Layout, TokenBlock
from pltz.plt_codec.prefix import Ids, checked, each, remembered, room
from pltz.plt_codec.range_coder import SLACK, RangeDecoder, RangeEncoder, ideal_bits
from pltz.plt_codec.types import MAX_TOKENS, Encoded, FrameItem, Progress, Tokens
from pltz.plt_codec.weights import CLASS, PRECISION

ENCODE_ROWS = 8192  # positions in one parallel pass
DECODE_BYTES = 1 << 30  # keys and values held while stepping
DECODE_JOBS = 512  # blocks stepped side by side


class TokenCoder:
    """A coder of sequences of bundle token ids, over one engine."""

    def __init__(self, engine: TorchEngine):
        self.engine = engine

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        contexts: Sequence[Tokens | None] | None = None,
        lanes: int | None = None,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> list[Encoded]:
        """Encode sequences of ids, each (T,), into a frame each.

        Args:
            sequences: ids of the bundle's vocabulary.
            contexts: the tokens before each sequence, (m,) or None, which its decoder will know too. The last M
                count.
            lanes, steps: layout of the blocks; None is the default rule.
            progress: called with the number of tokens done since the last call.

        Raises:
            ContentError: ids are not one row of ids of the vocabulary.
            UsageError: the layout is out of range, or the contexts are not as many as the sequences.
        """
        shape = self.engine.shape
        layout = Layout.of(lanes, steps, shape.block)
        known = each(contexts, len(sequences), shape)
        writers = [
            _SequenceWriter(checked(t, shape.vocab), layout, shape.block, c)
            for t, c in zip(sequences, known, strict=True)
        ]

        # sequences share batches, by the positions that each has in a block
        def cost(w: _SequenceWriter, new: bool) -> int:
            return w.block.steps * w.block.lanes + (w.first if new else 0)

        memories = _ContextMemories(self.engine)
        for batch in _batches(writers, cost, ENCODE_ROWS, ENCODE_ROWS):
            memories.give(batch)
            self._encode_blocks(batch)
            if progress:
                progress(sum(w.done_tokens for w in batch))
        return [w.finish(layout) for w in writers]

    def _encode_blocks(self, writers: list[_SequenceWriter]) -> None:
        jobs = [BlockJob(w.block, w.inputs(), w.memory) for w in writers]
        residuals, memories = self.engine.parallel(jobs)
        for w, x, memory in zip(writers, residuals, memories, strict=True):
            rows = np.flatnonzero(w.block.predicting().reshape(-1))
            tokens = w.tokens[w.block.start + w.block.targets().reshape(-1)[rows]]
            x = x[: len(rows)]  # step-major: positions that do not predict come last
            classes = self.engine.class_frequencies(x)
            members = self.engine.member_frequencies(x, tokens // CLASS)
            w.put(tokens, classes, members)
            w.advance(memory)

    def decode(
        self, items: Sequence[FrameItem], *, progress: Progress | None = None
    ) -> list[npt.NDArray[np.int64]]:
        """Decode frames into their ids, each (tokens,).

        With another context than the frame was encoded after, this returns other tokens or raises
        CorruptError. Which of the two is up to chance, so the caller must check the content.

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ContentError: a context is not one row of ids of the vocabulary.
        """
        shape = self.engine.shape
        readers = [
            _SequenceReader(i, Layout(i.lanes, i.steps), shape.block, remembered(i.context, shape)) for i in items
        ]

        def cost(r: _SequenceReader, new: bool) -> int:
            return Stepper.cache_bytes(self.engine, r.block, r.remembered)

        memories = _ContextMemories(self.engine)
        for batch in _batches(readers, cost, DECODE_BYTES, DECODE_JOBS):
            memories.give(batch)
            self._decode_blocks(batch, progress)
        return [r.tokens[r.first :] for r in readers]

    def _decode_blocks(self, readers: list[_SequenceReader], progress: Progress | None) -> None:
        stepper = Stepper(self.engine, [BlockJob(r.block, None, r.memory) for r in readers])
        ordered = [readers[n] for n in stepper.order]
        for step in range(max(r.block.steps for r in ordered)):
            alive = [r for r in ordered if r.block.steps > step]
            ends = np.cumsum([r.block.lanes for r in alive])
            x = stepper.step(
                step,
                np.concatenate([r.feed for r in alive]),
                np.concatenate([r.starts + step for r in alive]),
            )
            # first the class of each lane's token, then the member of that class
            first = self.engine.class_frequencies(x)
            classes = np.zeros(len(x), np.int64)
            for r, end in zip(alive, ends, strict=True):
                begin = end - r.block.lanes
                stop = begin + r.block.active(step)
                classes[begin:stop] = r.decoder.decode(first[begin:stop])
            second = self.engine.member_frequencies(x, classes)
            members = np.zeros(len(x), np.int64)
            for r, end in zip(alive, ends, strict=True):
                begin = end - r.block.lanes
                stop = begin + r.block.active(step)
                members[begin:stop] = r.decoder.decode(second[begin:stop])
                r.put(step, classes[begin:stop] * CLASS + members[begin:stop])
            # the bits that this step cost by the model, for the caller's statistics
            row = np.arange(len(x))
            bits = 2 * PRECISION - np.log2(first[row, classes]) - np.log2(second[row, members])
            for r, end in zip(alive, ends, strict=True):
                r.spend(bits[end - r.block.lanes : end - r.block.lanes + r.block.active(step)].sum())
            if progress:
                progress(sum(r.block.active(step) for r in alive))
        for r, memory in zip(ordered, stepper.memories(), strict=True):
            r.advance(memory)


class _SequenceState:
    """One sequence in either direction: its position and its memory.

    `tokens` holds the context's `first` tokens, then its own. `waits`: the memory of its context is still to
    come.
    """

    def __init__(self, tokens: Ids, layout: Layout, block: int, context: Ids):
        self.tokens, self.first = tokens, len(context)
        self._coming = layout.blocks(len(tokens) - self.first, block, self.first)
        self._next = next(self._coming, None)
        self.memory: Memory | None = None
        self.waits = bool(self.first and self.left)
        self.key = context.tobytes()

    @property
    def context(self) -> Ids:
        """Return the ids of the context, (first,)."""
        return self.tokens[: self.first]

    @property
    def remembered(self) -> int:
        """Return the positions in memory when the next block runs."""
        return self.first if self.waits else self.memory.size if self.memory else 0

    @property
    def left(self) -> bool:
        """Return whether there is a block to run."""
        return self._next is not None

    @property
    def block(self) -> TokenBlock:
        """Return the block to run next, where one is left."""
        assert self._next is not None
        return self._next

    @property
    def before(self) -> int:
        """Return the token before the block."""
        return int(self.tokens[self.block.start - 1]) if self.block.start else LANE_MARK

    def advance(self, memory: Memory) -> None:
        """Go on to the next block, with the memory of the one that is done."""
        self._next = next(self._coming, None)
        self.memory = memory if self.left else None


class _SequenceWriter(_SequenceState):
    def __init__(self, tokens: Ids, layout: Layout, block: int, context: Ids):
        super().__init__(np.concatenate([context, tokens]), layout, block, context)
        self.blocks = layout.extent(len(tokens), block).blocks
        self.encoder, self.bits, self.done_tokens = RangeEncoder(), 0.0, 0

    def inputs(self) -> npt.NDArray[np.int64]:
        """Return the input ids of the block, (steps, lanes)."""
        b = self.block
        return b.inputs(self.tokens[b.start : b.start + b.tokens], self.before)

    def put(
        self, tokens: npt.NDArray[np.int64], classes: npt.NDArray[np.int64], members: npt.NDArray[np.int64]
    ) -> None:
        """Code the block: tokens (t,) and their frequencies (t, classes), (t, 128), step-major."""
        first, second = (tokens // CLASS).astype(np.int32), (tokens % CLASS).astype(np.int32)
        self.bits += ideal_bits(first, classes) + ideal_bits(second, members)
        self.done_tokens = len(tokens)
        lanes = self.block.lanes
        if classes.shape[1] != CLASS:  # alphabets of two sizes: step by step
            for begin in range(0, len(tokens), lanes):
                step = slice(begin, begin + lanes)
                self.encoder.encode(first[step], classes[step])
                self.encoder.encode(second[step], members[step])
            return
        row = np.arange(len(tokens))
        step_start = row // lanes * lanes
        active = np.minimum(lanes, len(tokens) - step_start)
        place = step_start + row  # 2 * step_start + lane
        symbols, table = np.empty(2 * len(row), np.int32), np.empty((2 * len(row), CLASS), np.int64)
        symbols[place], symbols[place + active] = first, second
        table[place], table[place + active] = classes, members
        self.encoder.encode(symbols, table)

    def finish(self, layout: Layout) -> Encoded:
        """Return the finished frame."""
        data = self.encoder.finish() if self.blocks else b""
        return Encoded(data, self.bits, self.blocks, layout.lanes, layout.steps)


class _SequenceReader(_SequenceState):
    def __init__(self, item: FrameItem, layout: Layout, block: int, context: Ids):
        if not 0 <= item.tokens < MAX_TOKENS:
            raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {item.tokens}")
        super().__init__(room(context, item.tokens), layout, block, context)
        self.decoder = RangeDecoder(item.data)
        self.budget = 8.0 * len(item.data) + SLACK
        self._begin()

    def spend(self, bits: float) -> None:
        """Count the bits of decoded symbols. An honest stream never yields more than it can hold."""
        self.budget -= bits
        if self.budget < 0:
            raise CorruptError(
                f"expected {len(self.tokens) - self.first} tokens in the frame, but its bytes end before: damaged data"
            )

    def _begin(self) -> None:
        if self.left:
            self.starts = self.block.start + self.block.lane_starts()
            self.feed = np.full(self.block.lanes, LANE_MARK, np.int64)
            self.feed[0] = self.before

    def put(self, step: int, tokens: npt.NDArray[np.int64]) -> None:
        """Take the tokens of the active lanes of a step. They are the inputs of the next step."""
        self.tokens[self.starts[: len(tokens)] + step] = tokens
        self.feed[: len(tokens)] = tokens

    def advance(self, memory: Memory) -> None:
        super().advance(memory)
        self._begin()


class _ContextMemories:
    """The memories of contexts: each is computed once per batch, and kept while the next batch needs it too."""

    def __init__(self, engine: TorchEngine):
        self.engine = engine
        self.known: dict[bytes, Memory] = {}

    def give(self, sides: Sequence[_SequenceState]) -> None:
        """Set the context's memory on the sequences that begin in this batch."""
        waiting = [s for s in sides if s.waits]
        needed = {s.key: s.context for s in waiting}
        self.known = {key: memory for key, memory in self.known.items() if key in needed}
        missing = [key for key in needed if key not in self.known]
        together = max(1, ENCODE_ROWS // max(1, self.engine.shape.memory))
        for begin in range(0, len(missing), together):
            keys = missing[begin : begin + together]
            blocks = [TokenBlock(0, len(needed[key]), 1) for key in keys]
            jobs = [
                BlockJob(b, b.inputs(needed[key], LANE_MARK), None) for b, key in zip(blocks, keys, strict=True)
            ]
            self.known.update(zip(keys, self.engine.parallel(jobs)[1], strict=True))
        for s in waiting:
            s.memory, s.waits = self.known[s.key], False


_T = TypeVar("_T", bound=_SequenceState)


def _batches(
    sides: Sequence[_T], cost: Callable[[_T, bool], int], limit: int, most: int
) -> Iterator[list[_T]]:
    """Yield batches of bounded cost, round after round, with one block of each unfinished sequence.

    Sequences that are alike come together. cost(sequence, new): `new` says that the sequence waits for a
    context that none before it in the batch has.
    """
    while waiting := [s for s in sides if s.left]:
        waiting.sort(key=lambda s: (s.block.steps, s.block.lanes, s.key))
        batch: list[_T] = []
        total, keys = 0, set[bytes]()
        for s in waiting:
            c = cost(s, s.waits and s.key not in keys)
            if batch and (total + c > limit or len(batch) == most):
                yield batch
                batch, total, keys = [], 0, set()
                c = cost(s, s.waits)
            batch.append(s)
            total += c
            keys.add(s.key)
        yield batch
