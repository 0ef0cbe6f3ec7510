"""Batch: sequences on the device, the buffers to code them, and the launches that do it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.cuda.device import CLUSTER
from pltz.plt_codec.cuda.pack import PROVEN_KEYS, cluster_memory, grid_plan, up
from pltz.plt_codec.cuda.work import Work, all_steps, most_lanes, plan_slots
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.item import Progress
from pltz.plt_codec.layout import MAX_LANES
from pltz.plt_codec.queued import Queued, watcher

if TYPE_CHECKING:
    from pltz.plt_codec.cuda.coder import CudaCoder

ROWS = 32768  # positions of one iteration, at most
SLOTS = 1024  # sequences under way when decoding, at most: one block of threads looks after them
ENCODE_SLOTS = 64
BURST = 32  # iterations between two looks at what is left
CLUSTER_LANES = 16  # cluster.cu: most lanes; grid.cu: of its narrow kernel
PRODUCT_SHARED = 96 << 10  # shared memory of the products of batch.cu
QUERIES = 64  # of a block of its attention
ATTEND_BLOCKS = 4096  # of its attention, at most; each goes through queries until none are left
WIDE_QUERIES = 128  # of a block of the attention of wide.cu
WIDE_SHARED = 48 << 10  # its shared memory: 32 KB of keys and values, 8 KB of weights at a multiple of that
WIDE_ROWS = 16  # of a block of heads_wide
STATE_TYPE = np.dtype(
    [
        (n, "i4")
        for n in (
            "rows",
            "next",
            "left",
            "error",
            "failed",
            "slots",
            "count",
            "rows_max",
            "decoding",
            "epoch",
        )
    ]
    + [("spare", "i4", 6), ("tokens", "i8")]
)
DAMAGED, SPENT = 1, 2


class Batch:
    """One upload of sequences and the buffers to code them: made, run, downloaded, freed."""

    def __init__(
        self,
        coder: CudaCoder,
        sessions: npt.NDArray[Any],
        work: Sequence[Work],
        tokens: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
        decoding: bool,
    ):
        self.coder, self.shape, self.device, self.model = coder, coder.shape, coder._device, coder._at
        self.work, self.decoding = work, decoding
        s = self.shape
        self.grid = decoding and coder.alone(work)
        self.clusters = 1 if self.grid else coder.clusters(work) if decoding else 0
        most_slots = self.clusters or (SLOTS if decoding else ENCODE_SLOTS)
        rooms = plan_slots(s, work, most_slots, self.device.room() // 2)
        self.slots = len(rooms)
        self.wide = not decoding and self.device.wide and max(rooms) <= PROVEN_KEYS  # by attend_wide
        lanes = (
            [most_lanes(s, *w) for w in work[: self.slots]]
            if self.slots < len(work)
            else [most_lanes(s, *w) for w in work]
        )
        self.lanes = max(lanes)
        most = sum(sorted(lanes)[-self.slots :]) if decoding else sum(up(w[0], self.lanes) for w in work)
        self.rows = min(ROWS, up(max(most, MAX_LANES), 128))
        caches = np.zeros((self.slots, 2), np.int64)
        caches[:, 1] = rooms
        each = 128 * s.kv_heads * s.layers
        caches[:, 0] = (np.cumsum(rooms) - rooms) * each
        state = np.zeros(1, STATE_TYPE)
        state["slots"], state["count"], state["left"] = self.slots, len(work), len(work)
        state["rows_max"], state["decoding"] = self.rows, decoding
        state["next"] = 0
        self._at: dict[str, int] = {}
        try:
            for name, array in (
                ("state", state), ("sessions", sessions), ("caches", caches), ("tokens", tokens), ("words", words),
                ("slots", np.full(self.slots, -1, np.int32)),
            ):  # fmt: skip
                self._at[name] = self.device.alloc(array.nbytes)
                self.device.upload(self._at[name], array)
            for name, size in self._sizes(sum(rooms) * each).items():
                self._at[name] = self.device.alloc(size)
        except Exception:
            self.close()
            raise

    def _sizes(self, memory: int) -> dict[str, int]:
        """Bytes of the working buffers."""
        s, r = self.shape, self.rows
        dp, hidden = up(s.d, 64), up(s.hidden, 64)
        out = {"memory": memory, "pieces": self.slots * 16}
        if self.grid:
            out["wire"] = 32 * grid_plan(s, self.device.grid)["P_GRID_WIRE"]
        if self.clusters:
            return out
        return out | {
            "rows": r * 32, "x": r * dp * 4, "a": r * dp,
            "y": r * up(s.qkv, 64) * 2, "q": r * s.heads * 64, "o": r * up(s.heads * s.head_dim, 64), "h": r * hidden,
            "logits": r * up(s.classes, 64) * 4, "sums": r * (max(s.classes, 128) // 4 + 1) * 16, "intervals": r * 16,
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the buffers back."""
        for address in self._at.values():
            self.device.free(address)
        self._at = {}

    def download(self, name: str, array: npt.NDArray[Any]) -> None:
        """A buffer's content."""
        self.device.download(self._at[name], array)

    def _launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        threads: int,
        *args: str | int | None,
        shared: int = 0,
        cluster: int = 1,
        together: bool = False,
    ) -> None:
        """args: names of buffers or tensors (None: none), or numbers."""
        values: list[Any] = [
            self.coder._model
            if a == "model"
            else ctypes.c_int32(a)
            if isinstance(a, int)
            else ctypes.c_void_p(a if a is None else self._at.get(a) or self.model[a])
            for a in args
        ]
        self.device.launch(kernel, grid, threads, values, shared, cluster, together)

    def iterate(self) -> None:
        """The launches of one iteration."""
        s, rows, go = self.shape, self.rows, self._launch
        warps = (-(-rows // 8), 1, 1)

        def product(kernel: str, n: int, *args: str | None) -> None:
            go(kernel, (-(-n // 128), -(-rows // 128), 1), 256, "state", *args, shared=PRODUCT_SHARED)

        def gated(tensor: str) -> str | None:
            return tensor if s.gated else None

        threads = up(self.slots, 32)
        go("collect", (1, 1, 1), threads, "state", "sessions", "slots", "pieces", shared=512)
        go(
            "enter",
            warps,
            256,
            "state",
            "sessions",
            "pieces",
            "rows",
            "tokens",
            "embed.w",
            "embed.m",
            gated("layer.0.norm_in"),
            "x",
            "a",
        )
        group = s.heads // s.kv_heads
        queries = WIDE_QUERIES if self.wide else QUERIES
        chunks = -(-(self.lanes if self.decoding else rows) * group // queries)
        chunks = max(1, min(chunks, ATTEND_BLOCKS // (self.slots * s.kv_heads)))
        for i in range(s.layers):
            t = f"layer.{i}."
            product("to_qkv", s.qkv, "a", t + "qkv.w", t + "qkv.m", "y")
            if self.device.wide:
                go("heads_wide", (-(-rows // WIDE_ROWS), 1, 1), 32 * WIDE_ROWS, "state", "rows", "y", "table.phase", "table.cos",
                   "table.sin", i, "q", "caches", "memory", int(self.wide), shared=64 * WIDE_ROWS * s.kv_heads)  # fmt: skip
            else:
                go("heads", warps, 256, "state", "rows", "y", "table.phase",
                   "table.cos", "table.sin", i, "q", "caches", "memory")  # fmt: skip
            go("attend_wide" if self.wide else "attend", (chunks, s.kv_heads, self.slots), 256, "sessions", "pieces", "q",
               "caches", "memory", i, t + "heat", "table.exp", "o",
               shared=WIDE_SHARED if self.wide else (QUERIES * (2 + 72) + 64 * 32) * 4)  # fmt: skip
            product("to_out", s.d, "o", t + "out.w", t + "out.m", "x")
            go("norms", warps, 256, "state", "x", gated(t + "norm_mid"), "a")
            channels = 2 * up(s.hidden, 64) if s.gated else s.hidden
            product("to_up", channels, "a", t + "up.w", t + "up.m", gated("table.act"), "h")
            product("to_down", s.d, "h", t + "down.w", t + "down.m", "x")
            after = f"layer.{i + 1}.norm_in" if i + 1 < s.layers else "norm_out"
            go("norms", warps, 256, "state", "x", gated(after), "a")
        product("to_class", s.classes, "a", "class.w", "class.m", "class.b", "logits")
        go("classes", warps, 256, "state", "rows", "logits", "table.exp", "sums", "intervals")
        each = (-(-self.slots // 4), 1, 1)
        if self.decoding:
            go("decode", each, 128, "state", "sessions", "pieces", "rows", "sums", "words", 0, "tokens")
        go("members", (rows, 1, 1), 128, "state", "rows", "x", "shift.w", "shift.m", "embed.w", "member.m", "member.b",
           gated("norm_out"), "table.exp", "sums", "intervals", shared=up(s.d, 64) * 5 + 512)  # fmt: skip
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
        else:
            go("decode_block", (self.slots * CLUSTER, 1, 1), 512, "state", "sessions", "slots", "pieces", "caches", "memory",
               "model", "words", "tokens", shared=cluster_memory(s), cluster=CLUSTER)  # fmt: skip
        go("remember", (self.slots, s.layers * s.kv_heads, 1), 256, "sessions", "pieces", "caches", "memory",
           int(self.wide))  # fmt: skip
        go("collect", (1, 1, 1), 32, "state", "sessions", "slots", "pieces", shared=512)

    def least(self) -> int:
        """Iterations that are needed in any case."""
        total = sum(w[0] for w in self.work)
        longest = max(all_steps(self.shape, *w) for w in self.work) if self.decoding else 1
        return max(longest, total // self.rows) + 1

    def run(self, progress: Progress | None) -> None:
        """Repeat the iteration until nothing is left. Raises CorruptError."""
        if self.clusters:
            self._launch("collect", (1, 1, 1), 32, "state", "sessions", "slots", "pieces", shared=512)
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
                told(Queued(self._at["tokens"], self.work[0][0], self.device.stream, self.device.name))
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
        """Whether there is one sequence, of one block."""
        tokens, lanes, steps = self.work[0]
        return len(self.work) == 1 and self.decoding and tokens <= (lanes * steps or self.shape.block)

    def _error(self, code: int, session: int) -> CorruptError:
        """What the device found, in the words of coder.py and frame.py."""
        if code == DAMAGED:
            return CorruptError("the bitstring does not decode with this bundle: damaged data")
        tokens = self.work[session][0]
        return CorruptError(f"expected {tokens} tokens in the frame, but its bytes end before: damaged data")
