"""Batch: sequences on the device, the buffers to code them, and the launches that do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.contexts import Contexts
from pltz.plt_codec.engines.cuda.device import CLUSTER, Device
from pltz.plt_codec.engines.cuda.pack import PROVEN_KEYS, cluster_memory, gated_plan, grid_plan, up
from pltz.plt_codec.engines.cuda.rows import ROWS, STATE_TYPE, Rows
from pltz.plt_codec.engines.cuda.work import Work, all_steps, key_bytes, key_room, most_lanes, plan_slots
from pltz.plt_codec.engines.queued import Queued, watcher
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import MAX_LANES
from pltz.plt_codec.types import Progress
from pltz.plt_codec.weights import Shape

if TYPE_CHECKING:
    from pltz.plt_codec.engines.cuda.coder import CudaCoder

SLOTS = 1024  # sequences under way when decoding, at most: one block of threads looks after them
ENCODE_SLOTS = 64
BURST = 32  # iterations between two looks at what is left
CLUSTER_LANES = 16  # cluster.cu: most lanes; grid.cu: of its narrow kernel
DAMAGED, SPENT = 1, 2


def by_attend_wide(device: Device, shape: Shape, work: Sequence[Work], decoding: bool) -> bool:
    """Return whether the attention of wide.cu serves these sequences and their contexts."""
    return not decoding and device.wide and max(key_room(shape, w) for w in work) <= PROVEN_KEYS


class Batch(Rows):
    """One upload of sequences and the buffers to code them: made, run, downloaded, freed.

    sessions: as the kernels see them, each with the number of its context in ``known``, or -1.
    """

    def __init__(
        self,
        coder: CudaCoder,
        sessions: npt.NDArray[Any],
        work: Sequence[Work],
        known: Contexts | None,
        tokens: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
        decoding: bool,
    ):
        super().__init__(coder.model)
        self.work, self.decoding = work, decoding
        s = self.shape
        self.grid = decoding and coder.alone(work)
        self.gated = decoding and coder.gated(work)
        self.clusters = 1 if self.grid or self.gated else coder.clusters(work) if decoding else 0
        most_slots = self.clusters or (SLOTS if decoding else ENCODE_SLOTS)
        self.wide = by_attend_wide(self.device, s, work, decoding)
        self.known = known if any(w.first for w in work) else None
        rooms = plan_slots(s, work, most_slots, self.device.room() // 2 if len(work) > 1 else 0)
        self.slots = len(rooms)
        lanes = [most_lanes(s, w) for w in (work[: self.slots] if self.slots < len(work) else work)]
        self.lanes = max(lanes)
        most = sum(sorted(lanes)[-self.slots :]) if decoding else sum(up(w.tokens, self.lanes) for w in work)
        self.rows = min(ROWS, up(max(most, MAX_LANES), 128))
        caches = np.zeros((self.slots, 2), np.int64)
        caches[:, 1] = rooms
        caches[:, 0] = (np.cumsum(rooms) - rooms) * key_bytes(s)
        state = np.zeros(1, STATE_TYPE)
        state["slots"], state["count"], state["left"] = self.slots, len(work), len(work)
        state["rows_max"], state["decoding"] = self.rows, decoding
        arrays = {
            "state": state, "sessions": sessions, "caches": caches, "tokens": tokens, "words": words,
            "slots": np.full(self.slots, -1, np.int32),
        }  # fmt: skip
        self._open(arrays, self._sizes(sum(rooms) * key_bytes(s)))

    def _sizes(self, memory: int) -> dict[str, int]:
        """Bytes of the working buffers."""
        s, r = self.shape, self.rows
        out = {"memory": memory, "pieces": self.slots * 16}
        if self.grid:
            out["wire"] = 32 * grid_plan(s, self.device.grid)["P_GRID_WIRE"]
        if self.gated:
            out["wire"] = gated_plan(s)["P_GATED_WIRE"]
        if self.clusters:
            return out
        return out | self._row_sizes() | {
            "logits": r * up(s.classes, 64) * 4, "sums": r * (max(s.classes, 128) // 4 + 1) * 16, "intervals": r * 16,
        }  # fmt: skip

    def _address(self, name: str) -> int:
        """Return the address of a buffer, of a buffer of contexts, or of a tensor."""
        return (
            self.known._address(name)
            if name in ("contexts", "known") and self.known
            else super()._address(name)
        )

    def _begin(self, threads: int) -> None:
        """Deal out rows; sequences that begin behind a context get its keys and values."""
        self._collect(threads)
        if self.known:
            self._launch("recall", (self.slots, self.shape.layers * self.shape.kv_heads, 1), 256, "sessions", "pieces", "caches",
                         "memory", "contexts", "known")  # fmt: skip

    def iterate(self) -> None:
        """The launches of one iteration."""
        s, rows, go = self.shape, self.rows, self._launch
        self._begin(up(self.slots, 32))
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
        go("remember", (self.slots, s.layers * s.kv_heads, 1), 256, "sessions", "pieces", "caches", "memory",
           int(self.wide))  # fmt: skip

    def block(self) -> None:
        """The launches of one block of each slot: a cluster a slot, or all of the GPU for one."""
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
            go("decode_gated", (self.device.gated * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces", "caches",
               "memory", "model", "words", "tokens", "wire", shared=gated_plan(s)["P_GATED_SHARED"], cluster=CLUSTER,
               together=True)  # fmt: skip
        else:
            go("decode_block", (self.slots * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces", "caches", "memory",
               "model", "words", "tokens", shared=cluster_memory(s), cluster=CLUSTER)  # fmt: skip
        go("remember", (self.slots, s.layers * s.kv_heads, 1), 256, "sessions", "pieces", "caches", "memory",
           int(self.wide))  # fmt: skip
        self._begin(32)

    def least(self) -> int:
        """Iterations that are needed in any case."""
        total = sum(w.tokens for w in self.work)
        longest = max(all_steps(self.shape, w) for w in self.work) if self.decoding else 1
        return max(longest, total // self.rows) + 1

    def run(self, progress: Progress | None) -> None:
        """Repeat the iteration until nothing is left. Raises CorruptError."""
        if self.clusters:
            self._begin(32)
            replay, burst = self.block, 1
        else:
            replay, burst = self.device.record(self.iterate), self.least()
        state = np.zeros(1, STATE_TYPE)
        done = 0
        told = watcher() if self.clusters and self._single() else None
        while True:
            for _ in range(min(burst, 8 * BURST)):
                replay()
            if told:
                at = self._address("tokens") + 4 * bool(
                    self.work[0].first
                )  # the last of its context stands before
                told(Queued(at, self.work[0].tokens, self.device.stream, self.device.name))
                told = None
            burst = 1 if self.clusters else max(burst - 8 * BURST, BURST)
            self.download("state", state)
            if state["error"][0]:
                raise self._error(int(state["error"][0]), int(state["failed"][0]))
            if progress and state["tokens"][0] > done:
                progress(int(state["tokens"][0]) - done)
                done = int(state["tokens"][0])
            if not state["left"][0]:
                return

    def _single(self) -> bool:
        """Return whether there is one sequence, of one block."""
        one = self.work[0]
        return len(self.work) == 1 and self.decoding and one.tokens <= one.whole(self.shape)

    def _error(self, code: int, session: int) -> CorruptError:
        """Return the error that the device found, in the words of range_coder.py and token_coder.py."""
        if code == DAMAGED:
            return CorruptError("the bitstring does not decode with this bundle: damaged data")
        tokens = self.work[session].tokens
        return CorruptError(f"expected {tokens} tokens in the frame, but its bytes end before: damaged data")
