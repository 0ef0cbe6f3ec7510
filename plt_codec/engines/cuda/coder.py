"""Sequences to frames and back on a GPU: same interface, frames and errors as `token_coder.TokenCoder`.

Everything between token ids and stream words happens on the device: the host uploads a batch of sequences, repeats the same
launches until nothing is left, and downloads tokens or words. What is batched with what, and which kernels run, changes no bit.

Slots bound the memory: a slot holds the keys and values of one sequence under way and takes the next one when it ends. The
sequences are sorted, the largest first, so that each fits the slot of one that came before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.engines.cuda.batch import CLUSTER_LANES, Batch, by_attend_wide
from pltz.plt_codec.engines.cuda.contexts import Contexts, OneContext, computed
from pltz.plt_codec.engines.cuda.model import Model
from pltz.plt_codec.engines.cuda.pack import MOST_SHARED, cluster_memory, gated_plan, grid_plan, macros, up
from pltz.plt_codec.engines.cuda.session import SESSION
from pltz.plt_codec.engines.cuda.work import KEYS, Work, key_bytes, key_room, most_lanes
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.prefix import NOTHING, Ids, each, remembered
from pltz.plt_codec.range_coder import SLACK, STATE
from pltz.plt_codec.types import MAX_TOKENS, Encoded, FrameItem, Progress, Tokens
from pltz.plt_codec.weights import Weights

TOKENS = 1 << 25  # tokens on the device at once
FRAME_WORDS = 2  # 32-bit words a token takes in a stream, at most: two symbols of at most 24 bits, and a carry of rounding
GRID_LIMIT = 2  # sequences one after the other by grid.cu: with more, cluster.cu decodes them faster
GRID_WIDE_LIMIT = 4  # the same of more than 16 lanes: with more, batch.cu does
GATED_LIMIT = 2  # sequences one after the other by gated.cu: with more, batch.cu decodes them faster
CLUSTER_LIMIT = 3  # sequences a cluster: with more, batch.cu decodes them faster


class CudaCoder:
    """Codes sequences of bundle token ids on one GPU.

    device: "cuda" or "cuda:n". Raises UsageError where that cannot be used, ModelError where memory does not suffice.
    """

    def __init__(self, weights: Weights, device: str = "cuda", *, on: gpu.Device | None = None):
        self.shape, self.weights = weights.shape, weights
        self.kernel = "cuda"  # as NativeCoder.kernel: what runs, in a word
        number = int(device.partition(":")[2] or 0)
        self._device: gpu.Device = on or gpu.CudaDevice(number, macros(weights))
        self.model = Model(weights, self._device)
        self.one_context = OneContext(self.model)

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        contexts: Sequence[Tokens | None] | None = None,
        lanes: int | None = None,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> list[Encoded]:
        """sequences: each (T,) ids -> a frame each. Raises ContentError, UsageError.

        contexts: the tokens before each sequence, (m,) or None, as in `token_coder.TokenCoder`.
        progress: told of tokens done.
        """
        known = each(contexts, len(sequences), self.shape)
        layout = Layout.of(lanes, steps, self.shape.block)
        tokens = [_checked(np.asarray(t), self.shape.vocab) for t in sequences]
        jobs = [_Job(len(t), layout, c) for t, c in zip(tokens, known, strict=True)]
        out = [Encoded(b"", 0.0, 0, layout.lanes, layout.steps)] * len(tokens)
        for part in self._parts(jobs):
            sessions, words = self._encode_part([tokens[n] for n in part], [jobs[n] for n in part], progress)
            for n, s in zip(part, sessions, strict=True):
                blocks = -(-len(tokens[n]) // jobs[n].work.whole(self.shape))
                data = _finish(
                    words[int(s["word_at"]) :][: int(s["place"])], int(s["lower"]), int(s["range"])
                )
                out[n] = Encoded(data, float(s["bits"]), blocks, layout.lanes, layout.steps)
        return out

    def decode(
        self, items: Sequence[FrameItem], *, progress: Progress | None = None
    ) -> list[npt.NDArray[np.int64]]:
        """Frames -> ids, each (tokens,). Raises CorruptError where a stream cannot be what it says; contexts as in `encode`."""
        jobs = []
        for i in items:
            if not 0 <= i.tokens < MAX_TOKENS:
                raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {i.tokens}")
            jobs.append(_Job(i.tokens, Layout(i.lanes, i.steps), remembered(i.context, self.shape)))
        out = [np.zeros(0, np.int64)] * len(items)
        for part in self._parts(jobs):
            found = self._decode_part([items[n].data for n in part], [jobs[n] for n in part], progress)
            for n, t in zip(part, found, strict=True):
                out[n] = t
        return out

    def clusters(self, work: Sequence[Work]) -> int:
        """Clusters to decode these sequences with, one each; 0: they are too many or too wide."""
        s, most = self.shape, self._device.clusters
        fits = s.head_dim % 8 == 0 and s.heads <= 16 and cluster_memory(s) <= MOST_SHARED
        if (
            not fits
            or s.gated
            or len(work) > CLUSTER_LIMIT * most
            or any(most_lanes(s, w) > CLUSTER_LANES for w in work)
        ):
            return 0
        return min(most, len(work))

    def alone(self, work: Sequence[Work]) -> bool:
        """Return whether to decode these sequences one by one, each by the whole GPU."""
        s, grid = self.shape, self._device.grid
        if not grid:
            return False
        lanes, plan = max(most_lanes(s, w) for w in work), grid_plan(s, grid)
        return (
            len(work) <= (GRID_LIMIT if lanes <= CLUSTER_LANES else GRID_WIDE_LIMIT)
            and lanes <= plan["P_GRID_LANES"]
            and all(key_room(s, w) <= 512 * plan["P_GRID_GROUPS"] for w in work)
        )

    def gated(self, work: Sequence[Work]) -> bool:
        """Return whether to decode these sequences of a gated bundle one by one, each by the whole GPU."""
        lanes = max(most_lanes(self.shape, w) for w in work)
        return (
            self._device.gated > 0
            and len(work) <= GATED_LIMIT
            and lanes <= gated_plan(self.shape)["P_GATED_LANES"]
        )

    def _parts(self, jobs: Sequence[_Job]) -> Iterator[list[int]]:
        """Places of the sequences that are not empty, the largest first, in runs of bounded tokens and bounded memory of contexts."""
        order = sorted(
            (n for n, job in enumerate(jobs) if job.work.tokens),
            key=lambda n: (-key_room(self.shape, jobs[n].work), -jobs[n].work.tokens),
        )
        most = self._device.room() // 4 if len(order) > 1 and any(jobs[n].work.first for n in order) else 0
        part: list[int] = []
        known: set[bytes] = set()
        total = longest = 0
        for n in order:
            job = jobs[n]
            longest = max(longest, up(job.work.first, KEYS))
            memory = len(known | {job.key}) * longest * key_bytes(self.shape)
            if part and (total + job.work.tokens > TOKENS or (job.work.first and memory > most)):
                yield part
                part, known, total, longest = [], set(), 0, up(job.work.first, KEYS)
            part.append(n)
            known.add(job.key)
            total += job.work.tokens
        if part:
            yield part

    def _sessions(self, jobs: Sequence[_Job], words: Sequence[int]) -> tuple[npt.NDArray[Any], list[Ids]]:
        """The sessions as the kernels see them, and their contexts, each once; words: stream words of each.

        Of a context the last token alone stands before a session's own: the only one that is an input there.
        """
        s = np.zeros(len(jobs), SESSION)
        s["first"] = [job.work.first for job in jobs]
        own = np.array([job.work.tokens for job in jobs], np.int64)
        s["total"] = s["first"] + own
        s["lanes"], s["steps"] = [job.work.lanes for job in jobs], [job.work.steps for job in jobs]
        s["words"] = words
        ends = np.cumsum(own + (s["first"] > 0))
        s["token_at"] = ends - own - s["first"]
        s["word_at"] = np.cumsum(s["words"]) - s["words"]
        s["range"] = np.uint64(0xFFFFFFFFFFFFFFFF)
        numbers: dict[bytes, int] = {}
        contexts: list[Ids] = []
        for job in jobs:
            if job.work.first and job.key not in numbers:
                numbers[job.key] = len(contexts)
                contexts.append(job.context)
        s["context"] = [numbers[job.key] if job.work.first else -1 for job in jobs]
        return s, contexts

    def _known(
        self, contexts: Sequence[Ids], work: Sequence[Work], decoding: bool
    ) -> AbstractContextManager[Contexts | None]:
        """Keys and values of contexts, laid out for who codes these sequences."""
        return computed(
            self.model, self.one_context, contexts, by_attend_wide(self._device, self.shape, work, decoding)
        )

    def _encode_part(
        self, tokens: Sequence[npt.NDArray[np.int32]], jobs: Sequence[_Job], progress: Progress | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
        sessions, contexts = self._sessions(jobs, [FRAME_WORDS * job.work.tokens + 4 for job in jobs])
        words = np.zeros(int(sessions["words"].sum()), np.uint32)
        all_tokens = np.concatenate([a for job, t in zip(jobs, tokens, strict=True) for a in (job.before, t)])
        work = [job.work for job in jobs]
        with (
            self._known(contexts, work, False) as known,
            Batch(self, sessions, work, known, all_tokens, words, False) as batch,
        ):
            batch.run(progress)
            batch.download("sessions", sessions)
            batch.download("words", words)
        return sessions, words

    def _decode_part(
        self, data: Sequence[bytes], jobs: Sequence[_Job], progress: Progress | None
    ) -> list[npt.NDArray[np.int64]]:
        streams = [np.frombuffer(d + bytes(-len(d) % 4), ">u4").astype(np.uint32) for d in data]
        sessions, contexts = self._sessions(jobs, [len(s) for s in streams])
        sessions["budget"] = [8 * len(d) + SLACK for d in data]
        sessions["place"] = STATE // 4
        for n, s in enumerate(streams):
            first = [int(w) for w in s[:2]] + [0, 0]
            sessions["point"][n] = np.uint64(first[0] << 32 | first[1])
        tokens = np.concatenate([np.pad(job.before, (0, job.work.tokens)) for job in jobs])
        words = np.concatenate([*streams, np.zeros(1, np.uint32)])
        work = [job.work for job in jobs]
        with (
            self._known(contexts, work, True) as known,
            Batch(self, sessions, work, known, tokens, words, True) as batch,
        ):
            batch.run(progress)
            batch.download("tokens", tokens)
        begins = (sessions["token_at"] + sessions["first"]).tolist()
        return [
            tokens[at : at + job.work.tokens].astype(np.int64) for at, job in zip(begins, jobs, strict=True)
        ]


class _Job:
    """One sequence to code: its work, and its context as far as that counts."""

    def __init__(self, tokens: int, layout: Layout, context: Ids):
        self.context = context if tokens else NOTHING
        self.work = Work(tokens, layout.lanes or 0, layout.steps or 0, len(self.context))
        self.key = self.context.tobytes()
        self.before = self.context[-1:].astype(np.int32)


def _checked(tokens: npt.NDArray[Any], vocab: int) -> npt.NDArray[np.int32]:
    """Same checks and messages as frame.TokenCoder."""
    if tokens.ndim != 1 or len(tokens) >= MAX_TOKENS:
        raise ContentError(f"expected one row of fewer than {MAX_TOKENS} token ids, got shape {tokens.shape}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab):
        raise ContentError(f"expected token ids in 0..{vocab - 1}, got {tokens.min()}..{tokens.max()}")
    return np.ascontiguousarray(tokens, np.int32)


def _finish(words: npt.NDArray[np.uint32], lower: int, width: int) -> bytes:
    """The shortest bytes that decode to what the words and the state say (RangeEncoder.finish)."""
    total = 4 * len(words) + STATE
    lower |= int.from_bytes(words.astype(">u4").tobytes(), "big") << 64
    for size in range(max(0, total - STATE - 1), total):
        shift = 8 * (total - size)
        value = -(-lower >> shift)
        if value << shift < lower + width:
            return value.to_bytes(size, "big")
    return lower.to_bytes(total, "big")
