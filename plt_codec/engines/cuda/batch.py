"""A batch of sequences on the device: the buffers to code them, and the launches that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.contexts import ContextBatch
from pltz.plt_codec.engines.cuda.device import CLUSTER
from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.pack import cluster_memory, gated_plan, grid_plan, up
from pltz.plt_codec.engines.cuda.rows import FEW, FEW_FIXED, FEW_SHARED, FEWER_SHARED, MOVERS, ROWS, RowBuffers
from pltz.plt_codec.engines.cuda.structs import BATCH
from pltz.plt_codec.engines.cuda.work import (
    SequenceWork,
    all_steps,
    encode_iterations,
    key_bytes,
    key_room,
    most_lanes,
    plan_slots,
)
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import MAX_LANES
from pltz.plt_codec.types import Progress
from pltz.plt_codec.weights import Shape

SLOTS = 4096  # sequences under way when decoding, at most: one CTA looks after them
ENCODE_SLOTS = 64  # the same when encoding, where sequences are long
MOST_ENCODE_SLOTS = 256  # the same where they are short: as many as fill the rows of an iteration
BURST = 32  # iterations between two downloads of the state
ENCODE_BURST = 2  # the same when encoding, once those that are needed in any case are done
CLUSTER_LANES = 16  # most lanes of cluster.cu, and of the narrow kernel of grid.cu
DAMAGED, SPENT = 1, 2
BY_BLOCK = 2  # State::decoding of a kernel that decodes a block


def encode_slots(work: Sequence[SequenceWork]) -> int:
    """Return how many sequences are encoded side by side: as many as fill an iteration."""
    return min(MOST_ENCODE_SLOTS, max(ENCODE_SLOTS, ROWS * len(work) // max(1, sum(w.tokens for w in work))))


def few_shared(shape: Shape, work: SequenceWork) -> int:
    """Return the bytes of shared memory that attend_few needs for all steps of a sequence; 0: it does not serve it."""
    queries = most_lanes(work) * shape.heads // shape.kv_heads
    return FEW_FIXED + 4 * queries * (key_room(shape, work) + 4) if queries <= FEW else 0


def few_launches(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the shared memory of both launches of attend_few for sequences that need these bytes; 0: there is none.

    What no launch has is left to `attend`, in steps with too many keys.
    """
    few, more = min(FEW_SHARED, max(sizes)), min(FEWER_SHARED, max(sizes))
    return few, more if more > few else 0


def by_context(sessions: npt.NDArray[Any], rooms: Sequence[int], slots: int) -> list[int]:
    """Return sequences in the order in which slots take them: the largest first, so that each fits a slot left to it.

    Of the first, one for each slot, those behind the same context stand side by side: the device reads that once.
    ``rooms``: of each sequence, in keys.
    """
    order = sorted(range(len(rooms)), key=lambda n: (-rooms[n], -int(sessions["total"][n])))
    contexts = sessions["context"].tolist()
    return sorted(order[:slots], key=lambda n: contexts[n]) + order[slots:]


class KernelChoice(Protocol):
    """The part of a coder that says which kernels decode."""

    model: DeviceModel

    def alone(self, work: Sequence[SequenceWork]) -> bool:
        """Return whether grid.cu decodes these sequences, one by one."""

    def gated(self, work: Sequence[SequenceWork]) -> bool:
        """Return whether gated.cu decodes these sequences, one by one."""

    def clusters(self, work: Sequence[SequenceWork]) -> int:
        """Return the clusters that decode these sequences, 0 where batch.cu does it."""


class SequenceBatch(RowBuffers):
    """One upload of sequences and the buffers to code them: made, run, downloaded, closed.

    Args:
        coder: its limits decide which kernels run.
        sessions: (n,) of type SESSION. Each has the number of its context in ``known``, or -1.
        work: of each sequence. The one with the most keys stands first, where an encoder takes slots in turn.
        known: keys and values of the contexts; None where there are none.
        tokens: ids of all sequences, (t,); places for them when decoding.
        words: their streams, (w,); places for them when encoding.
        decoding: decode; else encode.
    """

    def __init__(
        self,
        coder: KernelChoice,
        sessions: npt.NDArray[Any],
        work: Sequence[SequenceWork],
        known: ContextBatch | None,
        tokens: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
        decoding: bool,
    ):
        super().__init__(coder.model)
        self.decoding = decoding
        s = self.shape
        self.work = work
        self.grid, self.gated, self.clusters = self._kernels(coder) if decoding else (False, False, 0)
        most_slots = self.clusters or (SLOTS if decoding else encode_slots(work))
        self.known = known if any(w.first for w in work) else None
        # keys and values of slots; contexts are read where they are remembered, if many sequences are decoded
        self.in_place = self.known is not None and decoding and not self.clusters
        needs = [key_room(s, w, in_place=self.in_place) for w in work]
        memory = self.device.room() // 2 if len(work) > 1 else 0
        rooms = plan_slots(s, sorted(needs, reverse=True), most_slots, memory)
        self.slots = len(rooms)
        if decoding and not self.clusters:
            order = by_context(sessions, needs, self.slots)
            sessions, self.work = sessions[order], [work[n] for n in order]
            rooms = [needs[n] for n in order[: self.slots]]
        lanes = [most_lanes(w) for w in work]
        self.lanes = max(lanes)
        most = sum(sorted(lanes)[-self.slots :]) if decoding else sum(up(w.tokens, self.lanes) for w in work)
        self.rows = min(ROWS, up(max(most, MAX_LANES), 128))
        few = [few_shared(s, w) for w in work] if decoding and not self.clusters else [0]
        self.few = few_launches(few)
        self.others = not all(0 < size <= max(self.few) for size in few)
        self._caches = np.zeros((self.slots, 2), np.int64)
        self._caches[:, 1] = rooms
        self._caches[:, 0] = (np.cumsum(rooms) - rooms) * key_bytes(s)
        self._open(self._arrays(sessions, tokens, words), self._sizes(sum(rooms) * key_bytes(s)))

    def _arrays(
        self, sessions: npt.NDArray[Any], tokens: npt.NDArray[np.int32], words: npt.NDArray[np.uint32]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the sequences as the kernels see them."""
        state = np.zeros(1, BATCH)
        state["slots"], state["count"], state["left"] = self.slots, len(sessions), len(sessions)
        state["rows_max"], state["in_place"] = self.rows, self.in_place
        state["decoding"] = BY_BLOCK if self.clusters else self.decoding
        return {
            "state": state, "sessions": sessions, "caches": self._caches, "tokens": tokens, "words": words,
            "slots": np.full(self.slots, -1, np.int32),
        }  # fmt: skip

    def _kernels(self, coder: KernelChoice) -> tuple[bool, bool, int]:
        """Return whether grid.cu does it, whether gated.cu does, and the clusters at work (0: batch.cu does it)."""
        grid, gated = coder.alone(self.work), coder.gated(self.work)
        return grid, gated, 1 if grid or gated else coder.clusters(self.work)

    def _sizes(self, memory: int) -> dict[str, int]:
        """Return the sizes of the working buffers, in bytes; ``memory``: of keys and values."""
        s, r = self.shape, self.rows
        out = {"memory": memory, **self._slot_sizes()}
        if self.grid:
            out["wire"] = 32 * grid_plan(s, self.device.grid)["P_GRID_WIRE"]
        if self.gated:
            out["wire"] = gated_plan(s)["P_GATED_WIRE"]
        if self.clusters:
            return out
        return out | self._row_sizes() | {
            "logits": r * up(s.classes, 64) * 4, "sums": r * (max(s.classes, 128) // 4 + 1) * 16, "intervals": r * 16,
        }  # fmt: skip

    def address(self, name: str) -> int:
        """Return the address of a buffer, of a buffer of contexts, or of a tensor."""
        return self.known.address(name) if name in ("contexts", "known") and self.known else super().address(name)

    def begin(self) -> None:
        """Launch the kernels that deal out rows and give sequences that begin the keys and values of their context."""
        self._collect()
        if self.known:
            self._launch("recall", self._movers(), 256, "state", "lists", "sessions", "pieces", "caches", "memory",
                         "contexts", "known")  # fmt: skip

    def _movers(self) -> tuple[int, int, int]:
        return min(self.slots, MOVERS), self.shape.layers * self.shape.kv_heads, 1

    def iterate(self) -> None:
        """Launch the kernels of one iteration."""
        s, rows, go = self.shape, self.rows, self._launch
        self.begin()
        self._layers(self.lanes if self.decoding else rows)
        self._product("to_class", s.classes, "a", "class.w", "class.m", "class.b", "logits")
        go("classes", (-(-rows // 8), 1, 1), 256, "state", "rows", "logits", "table.exp", "sums", "intervals")
        each = (-(-self.slots // 4), 1, 1)
        if self.decoding:
            go("decode", each, 128, "state", "sessions", "pieces", "rows", "sums", "words", 0, "tokens")
        go("members", (rows, 1, 1), 128, "state", "rows", "x", "shift.w", "shift.m", "embed.w", "member.m", "member.b",
           self._gated("norm_out"), "table.exp", "sums", "intervals", shared=up(s.d, 64) * 5 + 512)  # fmt: skip
        if self.decoding:
            go("decode", each, 128, "state", "sessions", "pieces", "rows", "sums", "words", 1, "tokens")
        else:
            go("encode", each, 128, "state", "sessions", "pieces", "rows", "intervals", "words")
        self._remember()

    def _remember(self) -> None:
        self._launch("remember", self._movers(), 256, "state", "lists", "sessions", "pieces", "caches", "memory")

    def decode_block(self) -> None:
        """Launch the kernel that decodes one block of each slot: by a cluster each, or one slot by the whole GPU."""
        s, go = self.shape, self._launch
        if self.grid:
            clusters = self.device.grid
            kernel, size = (
                ("decode_grid", "P_GRID_SHARED")
                if self.lanes <= CLUSTER_LANES
                else ("decode_grid_wide", "P_GRID_WIDE_SHARED")
            )
            go(kernel, (clusters * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces", "caches", "memory",
               "model", "words", "tokens", "wire", shared=grid_plan(s, clusters)[size], cluster=CLUSTER,
               together=True)  # fmt: skip
        elif self.gated:
            go("decode_gated", (self.device.gated * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces",
               "caches", "memory", "model", "words", "tokens", "wire", shared=gated_plan(s)["P_GATED_SHARED"],
               cluster=CLUSTER, together=True)  # fmt: skip
        else:
            go("decode_block", (self.slots * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces", "caches",
               "memory", "model", "words", "tokens", shared=cluster_memory(s), cluster=CLUSTER)  # fmt: skip
        self._remember()

    def least(self) -> int:
        """Return the iterations that are needed, or fewer."""
        if self.decoding:
            total = sum(w.tokens for w in self.work)
            return max(max(all_steps(w) for w in self.work), total // self.rows) + 1
        rows = max(1, self.rows // self.slots)  # that each slot has of an iteration, while all are taken
        each = [encode_iterations(w, rows) for w in self.work]
        return max(max(each), -(-sum(each) // self.slots)) + 1

    def run(self, progress: Progress | None, iterate: Callable[[], None] | None = None) -> None:
        """Code all sequences. ``iterate``: a recording of `iterate`; without one it is recorded anew.


        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
        """
        if self.clusters:
            self.begin()
            replay, burst = self._next_block, 1
        else:
            replay, burst = iterate or self.device.record(self.iterate), self.least()
        state = np.zeros(1, BATCH)
        done = 0
        while True:
            for _ in range(min(burst, 8 * BURST)):
                replay()
            after = BURST if self.decoding else ENCODE_BURST
            burst = 1 if self.clusters else max(burst - 8 * BURST, after)
            done = self.report(state, done, progress)
            if not state["left"][0]:
                return

    def report(self, state: npt.NDArray[Any], done: int, progress: Progress | None) -> int:
        """Download the state, (1,) of type BATCH, and report tokens done since ``done``; return all done.

        Raises:
            CorruptError: the device found one.
        """
        self.download("state", state)
        if state["error"][0]:
            raise self._error(int(state["error"][0]), int(state["failed"][0]))
        tokens = int(state["tokens"][0])
        if progress and tokens > done:
            progress(tokens - done)
        return tokens

    def _next_block(self) -> None:
        self.decode_block()
        self.begin()

    def _error(self, code: int, session: int) -> CorruptError:
        """Return the error that the device found, in the words of range_coder.py and token_coder.py."""
        if code == DAMAGED:
            return CorruptError("the bitstring does not decode: it is damaged, or another bundle wrote it")
        tokens = self.work[session].tokens
        return CorruptError(f"expected {tokens} tokens in the frame, but its bytes end before: damaged data")
