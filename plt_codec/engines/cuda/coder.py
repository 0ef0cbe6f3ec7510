"""Sequences to frames and back on a GPU, with the interface, frames and errors of `token_coder.TokenCoder`.

Everything between token ids and stream words happens on the device. The host uploads a batch of sequences, repeats the
same launches until nothing is left, and downloads tokens or words. The choice of batches and kernels changes no bit.

Slots bound the memory: a slot holds the keys and values of one sequence under way and takes the next one when it ends.
The sequences are sorted, the largest first, so that each fits the slot of one that came before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.engines.cuda.batch import CLUSTER_LANES, SequenceBatch
from pltz.plt_codec.engines.cuda.chain import IDS, LINKS, ChainDecoder
from pltz.plt_codec.engines.cuda.contexts import SingleContext, computed
from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.pack import MOST_SHARED, cluster_memory, gated_plan, grid_plan, macros, up
from pltz.plt_codec.engines.cuda.structs import SESSION
from pltz.plt_codec.engines.cuda.work import (
    GATED,
    KEYS,
    PLAIN,
    SequenceWork,
    all_steps,
    key_bytes,
    key_room,
    longest_apart,
    most_lanes,
    stream_words,
)
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import (
    MAX_TOKENS,
    NOTHING,
    Ids,
    Layout,
    Layouts,
    Tokens,
    checked,
    each,
    each_layout,
    layout_of,
    remembered,
)
from pltz.plt_codec.range_coder import STATE, most_words, shortest
from pltz.plt_codec.types import Encoded, FrameItem, Progress
from pltz.plt_codec.weights import Weights

TOKENS = 1 << 25  # tokens on the device at once
GRID_LIMIT = 2  # sequences one after the other by grid.cu: with more, cluster.cu decodes them faster
GRID_WIDE_LIMIT = 4  # the same of more than 16 lanes: with more, batch.cu does
GATED_LIMIT = 2  # sequences one after the other by gated.cu: with more, batch.cu decodes them faster
TWIN_SHARE = 6  # a coder beside another counts this part of the free memory: what both take at a time fits
CLUSTER_LIMIT = 3  # sequences per cluster: with more, batch.cu decodes them faster


class CudaCoder:
    """A coder of sequences of bundle token ids on one GPU.

    Args:
        weights: the model.
        device: "cuda" or "cuda:n".

    Raises:
        UsageError: the device is not there, or cannot run the kernels.
        ModelError: memory does not suffice.
    """

    def __init__(self, weights: Weights, device: str = "cuda", *, on: gpu.Device | None = None):
        self.shape, self.weights = weights.shape, weights
        self.kernel = "cuda"  # as NativeCoder.kernel
        self._number = int(device.partition(":")[2] or 0)
        self._device: gpu.Device = on or gpu.CudaDevice(self._number, macros(weights))
        self.model = DeviceModel(weights, self._device)
        self.single_context = SingleContext(self.model)
        self._chains = ChainDecoder(self.model)

    def twin(self, *, urgent: bool = False) -> CudaCoder:
        """Return a coder of the same weights on the same device, which another thread may use beside this one.

        It has a stream of its own, and takes a smaller share of the memory that is free. ``urgent``: its kernels begin
        before those of others that wait.
        """
        one = gpu.CudaDevice(self._number, macros(self.weights), share=TWIN_SHARE, urgent=urgent)
        return CudaCoder(self.weights, f"cuda:{self._number}", on=one)

    def rest(self) -> None:
        """Give back the memory that a twin keeps from call to call, so that others have it."""
        if isinstance(self._device, gpu.CudaDevice):
            self._device.rest()

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        layouts: Layouts = None,
        contexts: Sequence[Tokens | None] | None = None,
        progress: Progress | None = None,
    ) -> list[Encoded]:
        """Encode sequences of ids, each (T,), into a frame each; as `token_coder.TokenCoder.encode`.

        Raises:
            ContentError: ids are not one row of ids of the vocabulary.
            UsageError: layouts or contexts are not as many as the sequences.
            ModelError: memory does not suffice.
        """
        known = each(contexts, len(sequences), self.shape)
        tokens = [checked(t, self.shape.vocab).astype(np.int32) for t in sequences]
        cut = each_layout(layouts, [len(t) for t in tokens])
        inputs = [_CudaSequence(len(t), one, c) for t, one, c in zip(tokens, cut, known, strict=True)]
        out = [Encoded(b"", 0.0, 0, one) for one in cut]
        for part in self._parts(inputs):
            sessions, words = self._encode_part([tokens[n] for n in part], [inputs[n] for n in part], progress)
            for n, s in zip(part, sessions, strict=True):
                blocks = inputs[n].work.layout.extent(len(tokens[n])).blocks
                data = _finish(words[int(s["word_at"]) :][: int(s["place"])], int(s["lower"]), int(s["range"]))
                out[n] = Encoded(data, float(s["bits"]), blocks, cut[n])
        return out

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> list[npt.NDArray[np.int64]]:
        """Decode frames into their ids, each (tokens,).

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ContentError: a context is not one row of ids of the vocabulary.
            ModelError: memory does not suffice.
        """
        inputs = [_CudaSequence.of(i, remembered(i.context, self.shape)) for i in items]
        out = [np.zeros(0, np.int64)] * len(items)
        for run in (run for part in self._parts(inputs) for run in self._by_kernel(part, inputs)):
            found = self._decode_part([items[n].data for n in run], [inputs[n] for n in run], progress)
            for n, t in zip(run, found, strict=True):
                out[n] = t
        return out

    def decode_chain(
        self, items: Sequence[FrameItem], *, progress: Progress | None = None
    ) -> list[npt.NDArray[np.int64]]:
        """Decode frames each of which was encoded after the tokens of those before it, into ids, each (tokens,).

        The context of the first item stands before all of them. Of the others, one with an empty context was encoded
        alone; the rest have None. Frames that the whole GPU decodes one by one are decoded without a pause in between.

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ContentError: the context is not one row of ids of the vocabulary.
            ModelError: memory does not suffice.
        """
        above = remembered(items[0].context, self.shape) if items else NOTHING
        # a link knows how many tokens stand before it, and not yet which
        before, links = len(above), list[_CudaSequence]()
        for n, i in enumerate(items):
            alone = n > 0 and i.context is not None
            links.append(_CudaSequence.of(i, np.zeros(0 if alone else min(before, self.shape.memory), np.int64)))
            before += i.tokens
        # links that the whole GPU decodes one by one go without a pause, others each by itself
        out: list[npt.NDArray[np.int64]] = []
        for run in self._runs(links):
            here = slice(len(out), len(out) + len(run))
            if len(run) == 1 or not self.block_kernel(run[0].work):
                for item, link in zip(items[here], run, strict=True):
                    context = above if link.work.first else None
                    out += self.decode([replace(item, context=context)], progress=progress)
                    above = np.concatenate([above, out[-1]])[-self.shape.memory :]
            else:
                data = [i.data for i in items[here]]
                out += self._decode_run(data, run, above, progress)
                above = np.concatenate([above, *out[here]])[-self.shape.memory :]
        return out

    def clusters(self, work: Sequence[SequenceWork]) -> int:
        """Return the clusters that decode these sequences, one each; 0 if they are too many or too wide."""
        s, most = self.shape, self._device.clusters
        fits = s.head_dim % 8 == 0 and s.heads <= 16 and cluster_memory(s) <= MOST_SHARED
        if not fits or s.gated or len(work) > CLUSTER_LIMIT * most or any(most_lanes(w) > CLUSTER_LANES for w in work):
            return 0
        return min(most, len(work))

    def alone(self, work: Sequence[SequenceWork]) -> bool:
        """Return whether to decode these sequences one by one, each by the whole GPU."""
        s, grid = self.shape, self._device.grid
        if not grid:
            return False
        lanes, plan = max(most_lanes(w) for w in work), grid_plan(s, grid)
        return (
            len(work) <= (GRID_LIMIT if lanes <= CLUSTER_LANES else GRID_WIDE_LIMIT)
            and lanes <= plan["P_GRID_LANES"]
            and all(key_room(s, w) <= 512 * plan["P_GRID_GROUPS"] for w in work)
        )

    def gated(self, work: Sequence[SequenceWork]) -> bool:
        """Return whether to decode these sequences of a gated bundle one by one, each by the whole GPU."""
        lanes = max(most_lanes(w) for w in work)
        return self._device.gated > 0 and len(work) <= GATED_LIMIT and lanes <= gated_plan(self.shape)["P_GATED_LANES"]

    def block_kernel(self, work: SequenceWork) -> str:
        """Return the name of the kernel by which the whole GPU decodes a sequence; "" if none does."""
        if not work.tokens:
            return ""
        if self.gated([work]):
            return "decode_gated"
        if not self.alone([work]):
            return ""
        return "decode_grid" if most_lanes(work) <= CLUSTER_LANES else "decode_grid_wide"

    def _by_kernel(self, part: Sequence[int], inputs: Sequence[_CudaSequence]) -> Iterator[list[int]]:
        """Yield the numbers of sequences in runs, the few longest ones before the others where that takes less time.

        ``part``: the largest first, as in each run.
        """
        works = {n: inputs[n].work for n in part}
        order = sorted(part, key=lambda n: -all_steps(works[n]))
        longest, most = [works[n] for n in order[: GRID_LIMIT + CLUSTER_LIMIT * max(1, self._device.clusters)]], 0
        while most < min(GRID_LIMIT, len(order)) and self.block_kernel(longest[most]):
            most += 1
        side, fit = self._device.clusters, 0
        while fit < len(longest) and self.clusters([longest[fit]]):
            fit += 1
        clusters = [n for n in range(side, CLUSTER_LIMIT * side + 1, max(1, side)) if most + n <= fit]
        one, more = 0, 0
        if len(order) > 1 and (most or clusters):
            steps = [all_steps(works[n]) for n in order]
            one, more = longest_apart(steps, most, clusters, max(1, side), GATED if self.shape.gated else PLAIN)
        for numbers in (order[:one], order[one : one + more], order[one + more :]):
            if run := set(numbers):
                yield [n for n in part if n in run]

    def _runs(self, links: Sequence[_CudaSequence]) -> Iterator[list[_CudaSequence]]:
        """Yield the parts of a chain that the whole GPU decodes one by one, and those between, of bounded size."""
        for _, same in groupby(links, lambda link: bool(self.block_kernel(link.work))):
            run: list[_CudaSequence] = []
            ids = 0
            for link in same:
                more = link.work.tokens
                if run and (len(run) == LINKS or ids + more > IDS):
                    yield run
                    run = []
                if not run:
                    ids = link.work.first
                run.append(link)
                ids += more
            yield run

    def _decode_run(
        self, data: Sequence[bytes], run: Sequence[_CudaSequence], above: Ids, progress: Progress | None
    ) -> list[npt.NDArray[np.int64]]:
        """Decode a part of a chain after the ids above it, (m,)."""
        work = [link.work for link in run]
        own = np.array([w.tokens for w in work], np.int64)
        s = np.zeros(len(work), SESSION)
        s["first"] = [w.first for w in work]
        s["total"] = s["first"] + own
        s["lanes"], s["steps"] = [w.layout.lanes for w in work], [w.layout.steps for w in work]
        s["token_at"] = len(above) + np.cumsum(own) - own - s["first"]
        s["context"] = np.where(s["first"] > 0, 0, -1)
        words = _open_streams(s, data)
        ids = np.zeros(len(above) + int(own.sum()), np.int32)
        ids[: len(above)] = above
        found = self._chains.decode(self, s, work, ids, words, progress)
        return [part.astype(np.int64) for part in np.split(found, np.cumsum(own)[:-1])]

    def _parts(self, inputs: Sequence[_CudaSequence]) -> Iterator[list[int]]:
        """Yield the numbers of the sequences that are not empty, the largest first.

        They come in runs of bounded tokens and bounded memory of contexts.
        """
        order = sorted(
            (n for n, one in enumerate(inputs) if one.work.tokens),
            key=lambda n: (-key_room(self.shape, inputs[n].work), -inputs[n].work.tokens),
        )
        most = self._device.room() // 4 if len(order) > 1 and any(inputs[n].work.first for n in order) else 0
        part: list[int] = []
        each = key_bytes(self.shape)
        known: set[bytes] = set()
        total = longest = 0
        for n in order:
            one = inputs[n]
            longest = max(longest, up(one.work.first, KEYS))
            memory = (len(known) + (one.key not in known)) * longest * each
            if part and (total + one.work.tokens > TOKENS or (one.work.first and memory > most)):
                yield part
                part, known, total, longest = [], set(), 0, up(one.work.first, KEYS)
            part.append(n)
            known.add(one.key)
            total += one.work.tokens
        if part:
            yield part

    def _sessions(self, inputs: Sequence[_CudaSequence]) -> tuple[npt.NDArray[Any], list[Ids]]:
        """Return the sessions as the kernels see them, and their contexts, each once.

        Only the last token of a context stands before a session's own: no other one is an input there.
        """
        s = np.zeros(len(inputs), SESSION)
        s["first"] = [one.work.first for one in inputs]
        own = np.array([one.work.tokens for one in inputs], np.int64)
        s["total"] = s["first"] + own
        cut = [one.work.layout for one in inputs]
        s["lanes"], s["steps"] = [one.lanes for one in cut], [one.steps for one in cut]
        ends = np.cumsum(own + (s["first"] > 0))
        s["token_at"] = ends - own - s["first"]
        numbers: dict[bytes, int] = {}
        contexts: list[Ids] = []
        for one in inputs:
            if one.work.first and one.key not in numbers:
                numbers[one.key] = len(contexts)
                contexts.append(one.context)
        s["context"] = [numbers[one.key] if one.work.first else -1 for one in inputs]
        return s, contexts

    def _encode_part(
        self, tokens: Sequence[npt.NDArray[np.int32]], inputs: Sequence[_CudaSequence], progress: Progress | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
        sessions, contexts = self._sessions(inputs)
        _place_words(sessions, [stream_words(one.work.tokens) for one in inputs])
        words = np.zeros(int(sessions["words"].sum()), np.uint32)
        all_tokens = np.concatenate([a for one, t in zip(inputs, tokens, strict=True) for a in (one.before, t)])
        work = [one.work for one in inputs]
        with (
            computed(self.model, self.single_context, contexts) as known,
            SequenceBatch(self, sessions, work, known, all_tokens, words, False) as batch,
        ):
            batch.run(progress)
            batch.download("sessions", sessions)
            batch.download("words", words)
        return sessions, words

    def _decode_part(
        self, data: Sequence[bytes], inputs: Sequence[_CudaSequence], progress: Progress | None
    ) -> list[npt.NDArray[np.int64]]:
        sessions, contexts = self._sessions(inputs)
        words = _open_streams(sessions, data)
        tokens = np.zeros(sum(len(one.before) + one.work.tokens for one in inputs), np.int32)
        behind = sessions["first"] > 0  # of a context the last token stands before a session's own
        last = [one.before[0] for one in inputs if one.work.first]
        tokens[(sessions["token_at"] + sessions["first"] - 1)[behind]] = last
        work = [one.work for one in inputs]
        with (
            computed(self.model, self.single_context, contexts) as known,
            SequenceBatch(self, sessions, work, known, tokens, words, True) as batch,
        ):
            batch.run(progress)
            batch.download("tokens", tokens)
        begins = (sessions["token_at"] + sessions["first"]).tolist()
        return [tokens[at : at + one.work.tokens].astype(np.int64) for at, one in zip(begins, inputs, strict=True)]


class _CudaSequence:
    """One sequence to code: its work, and its context as far as that counts."""

    def __init__(self, tokens: int, layout: Layout, context: Ids):
        self.context = context if tokens else NOTHING
        self.work = SequenceWork(tokens, layout, len(self.context))
        self.key = self.context.tobytes()
        self.before = self.context[-1:].astype(np.int32)

    @classmethod
    def of(cls, item: FrameItem, context: Ids) -> _CudaSequence:
        """Return the sequence of a frame. Raises CorruptError for an impossible number of tokens."""
        if not 0 <= item.tokens < MAX_TOKENS:
            raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {item.tokens}")
        return cls(item.tokens, item.layout or layout_of(item.tokens), context)


def _place_words(sessions: npt.NDArray[Any], counts: Sequence[int]) -> None:
    """Give each session its words of the stream buffer, and begin its range."""
    sessions["words"] = counts
    sessions["word_at"] = np.cumsum(sessions["words"]) - sessions["words"]
    sessions["range"] = np.uint64(0xFFFFFFFFFFFFFFFF)


def _open_streams(sessions: npt.NDArray[Any], data: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Give each session its stream to decode; return the words of all streams."""
    streams = [np.frombuffer(d + bytes(-len(d) % 4), ">u4").astype(np.uint32) for d in data]
    _place_words(sessions, [len(s) for s in streams])
    sessions["most"] = [most_words(len(d)) for d in data]
    sessions["place"] = STATE // 4
    for n, s in enumerate(streams):
        first = [int(w) for w in s[:2]] + [0, 0]
        sessions["point"][n] = np.uint64(first[0] << 32 | first[1])
    return np.concatenate([*streams, np.zeros(1, np.uint32)])


def _finish(words: npt.NDArray[np.uint32], lower: int, width: int) -> bytes:
    """Return the shortest bytes that decode to these words and this state."""
    lower |= int.from_bytes(words.astype(">u4").tobytes(), "big") << 64
    return shortest(lower, width, 4 * len(words) + STATE)
