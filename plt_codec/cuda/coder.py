"""Sequences to frames and back on a GPU: same interface, frames and errors as `frame.TokenCoder`.

Everything between token ids and stream words happens on the device: the host uploads a batch of sequences, repeats the same
launches until nothing is left, and downloads tokens or words. What is batched with what, and which kernels run, changes no bit.

Slots bound the memory: a slot holds the keys and values of one sequence under way and takes the next one when it ends. The
sequences are sorted, the largest first, so that each fits the slot of one that came before it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.coder import SLACK, STATE
from pltz.plt_codec.context import each
from pltz.plt_codec.cuda import device as gpu
from pltz.plt_codec.cuda.device import CLUSTER
from pltz.plt_codec.cuda.pack import MOST_SHARED, grid_plan, macros, pitch, tensors, up
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.item import MAX_TOKENS, Encoded, FrameItem, Progress, Tokens
from pltz.plt_codec.layout import MAX_LANES, Layout
from pltz.plt_codec.queued import Queued, watcher
from pltz.plt_codec.weights import Shape, Weights

if TYPE_CHECKING:
    from pltz.plt_codec.frame import TokenCoder

ROWS = 32768  # positions of one iteration, at most
SLOTS = 1024  # sequences under way when decoding, at most: one block of threads looks after them
ENCODE_SLOTS = 64
BURST = 32  # iterations between two looks at what is left
TOKENS = 1 << 25  # tokens on the device at once
KEYS = 32  # room for keys is a multiple
FRAME_WORDS = 2  # 32-bit words a token takes in a stream, at most: two symbols of at most 24 bits, and a carry of rounding
SESSION = np.dtype(
    [
        ("token_at", "i8"), ("total", "i8"), ("word_at", "i8"), ("words", "i8"), ("lower", "u8"), ("range", "u8"),
        ("point", "u8"), ("place", "i8"), ("bits", "f8"), ("budget", "f8"), ("start", "i8"), ("lanes", "i4"),
        ("steps", "i4"), ("size", "i4"), ("L", "i4"), ("C", "i4"), ("full", "i4"), ("step", "i4"), ("old", "i4"),
        ("error", "i4"), ("done", "i4"), ("spare", "i8", 8),
    ]
)  # fmt: skip
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
PRODUCT_SHARED = 96 << 10  # shared memory of the products of batch.cu
QUERIES = 64  # of a block of its attention
MODEL = (
    "embed.w", "class.w", "shift.w", "embed.m", "class.m", "class.b", "shift.m", "member.m", "member.b",
    "table.exp", "table.phase", "table.cos", "table.sin",
)  # fmt: skip
MODEL_LAYERS = ("qkv.w", "out.w", "up.w", "down.w", "qkv.m", "out.m", "up.m", "down.m", "heat")
CLUSTER_LANES = 16  # cluster.cu: most lanes; grid.cu: of its narrow kernel
GRID_LIMIT = 2  # sequences one after the other by grid.cu: with more, cluster.cu decodes them faster
GRID_WIDE_LIMIT = 4  # the same of more than 16 lanes: with more, batch.cu does
CLUSTER_LIMIT = 3  # sequences a cluster: with more, batch.cu decodes them faster
Work = tuple[int, int, int]  # a sequence's tokens, lanes, steps (0, 0: default layout)


@functools.lru_cache(maxsize=1 << 16)
def key_room(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Keys that a sequence ever holds: its first block's, or what a full one leaves and the larger of a full and the last."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    first = next(layout.blocks(tokens, shape.block))
    room = first.steps * first.lanes
    if tokens > whole:
        last = next(layout.blocks((tokens - 1) % whole + 1, shape.block))
        starts = first.lane_starts()
        kept = int((first.steps - np.clip(first.tokens - shape.memory - starts, 0, first.steps)).sum())
        room = kept + max(room, last.steps * last.lanes)
    return up(room, KEYS)


def most_lanes(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Lanes of the widest block of a sequence."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    ends = {min(tokens, whole), (tokens - 1) % whole + 1}
    return max(next(layout.blocks(n, shape.block)).lanes for n in ends)


def all_steps(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Steps of all blocks of a sequence."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    full, rest = divmod(tokens, whole)

    def of(n: int) -> int:
        return next(layout.blocks(n, shape.block)).steps if n else 0

    return full * of(whole) + of(rest)


def plan_slots(shape: Shape, work: Sequence[Work], most: int, memory: int) -> list[int]:
    """Rooms (keys) of the slots for sequences sorted by room: as many as `most` and `memory` bytes allow, one at least."""
    each = 128 * shape.kv_heads * shape.layers  # bytes a key
    out: list[int] = []
    for w in work[:most]:
        room = key_room(shape, *w)
        if out and (sum(out) + room) * each > memory:
            break
        out.append(room)
    return out


def cluster_memory(s: Shape) -> int:
    """Shared memory of a block of cluster.cu (SHARED there)."""
    dp, fp, op, cp = up(s.d, 64), up(s.hidden, 64), up(s.heads * s.head_dim, 64), up(s.classes, 64)
    rows, out, upper = 16 * s.heads, -(-dp // 8 // 16), -(-fp // 8 // 32) * 2
    total = 16 * (dp * 4 + pitch(dp) + pitch(fp) + pitch(op)) + (s.heads + 2 * s.kv_heads) * 1024
    total += 2 * 18 * rows * 4 + rows * 288 + 4 * max(16 * s.heads * 64, 16 * cp) + 16 * 72 * 4
    total += up(max(16 * 64, s.heads * 64, 16 * upper * 8, 16 * out * 32), 16)
    total += 2 * 16 * (max(s.classes, 128) // 4 + 1) * 16 + 4 * 16 * 4 + 64 + 64 * 32 * 4
    total = up(total, 32) + 32 + 256 + 16 * 128 + 8 * cp + up(s.layers * s.heads, 4) * 4
    return total + s.layers * (64 + 8 * (2 * out + upper)) * 4


class CudaCoder:
    """Codes sequences of bundle token ids on one GPU.

    device: "cuda" or "cuda:n". Raises UsageError where that cannot be used, ModelError where memory does not suffice.
    """

    def __init__(self, weights: Weights, device: str = "cuda", *, on: gpu.Device | None = None):
        self.shape, self.weights = weights.shape, weights
        self._torch_device = "cpu" if on else device
        self.kernel = "cuda"  # as NativeCoder.kernel: what runs, in a word
        number = int(device.partition(":")[2] or 0)
        self._device: gpu.Device = on or gpu.CudaDevice(number, macros(weights))
        self._at: dict[str, int] = {}
        for name, array in tensors(weights).items():
            self._keep(name, array)
        order = [*MODEL, *(f"layer.{i}.{part}" for part in MODEL_LAYERS for i in range(weights.shape.layers))]
        self._model = (ctypes.c_uint64 * len(order))(*(self._at[name] for name in order))

    def _keep(self, name: str, array: npt.NDArray[Any]) -> None:
        self._at[name] = self._device.alloc(array.nbytes)
        self._device.upload(self._at[name], array)

    def __del__(self) -> None:
        for address in getattr(self, "_at", {}).values():
            self._device.free(address)

    @functools.cached_property
    def _reference(self) -> TokenCoder:
        """What codes sequences that have a context: the kernels have no place for one yet."""
        from pltz.plt_codec.engine import TorchEngine
        from pltz.plt_codec.frame import TokenCoder

        return TokenCoder(TorchEngine(self.weights, self._torch_device))

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

        contexts: the tokens before each sequence, (m,) or None, as in `frame.TokenCoder`; those are coded by torch on the same device.
        progress: told of tokens done.
        """
        known = each(contexts, len(sequences), self.shape)
        after = [n for n, c in enumerate(known) if len(c)]
        if after:
            alone = [n for n, c in enumerate(known) if not len(c)]
            both: dict[int, Encoded] = {}
            for numbers, coder in ((alone, self), (after, self._reference)):
                rows = [sequences[n] for n in numbers]
                given = None if coder is self else [known[n] for n in numbers]
                done = coder.encode(rows, contexts=given, lanes=lanes, steps=steps, progress=progress)
                both.update(zip(numbers, done, strict=True))
            return [both[n] for n in range(len(known))]
        layout = Layout.of(lanes, steps, self.shape.block)
        tokens = [_checked(np.asarray(t), self.shape.vocab) for t in sequences]
        work = [(len(t), layout.lanes or 0, layout.steps or 0) for t in tokens]
        out: list[Encoded | None] = [None] * len(tokens)
        for n, t in enumerate(tokens):
            if not len(t):
                out[n] = Encoded(b"", 0.0, 0, layout.lanes, layout.steps)
        for part in self._parts(work):
            sessions, words = self._encode_part([tokens[n] for n in part], [work[n] for n in part], progress)
            for n, s in zip(part, sessions, strict=True):
                blocks = -(
                    -len(tokens[n])
                    // (layout.lanes * layout.steps if layout.lanes and layout.steps else self.shape.block)
                )
                data = _finish(
                    words[int(s["word_at"]) :][: int(s["place"])], int(s["lower"]), int(s["range"])
                )
                out[n] = Encoded(data, float(s["bits"]), blocks, layout.lanes, layout.steps)
        return [e for e in out if e is not None]

    def decode(
        self, items: Sequence[FrameItem], *, progress: Progress | None = None
    ) -> list[npt.NDArray[np.int64]]:
        """Frames -> ids, each (tokens,). Raises CorruptError where a stream cannot be what it says; contexts as in `encode`."""
        after = [n for n, i in enumerate(items) if i.context is not None and len(i.context)]
        if after:
            alone = [n for n, i in enumerate(items) if i.context is None or not len(i.context)]
            both: dict[int, npt.NDArray[np.int64]] = {}
            for numbers, coder in ((alone, self), (after, self._reference)):
                decoded = coder.decode([items[n] for n in numbers], progress=progress)
                both.update(zip(numbers, decoded, strict=True))
            return [both[n] for n in range(len(items))]
        work = []
        for i in items:
            layout = Layout(i.lanes, i.steps)
            if not 0 <= i.tokens < MAX_TOKENS:
                raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {i.tokens}")
            work.append((i.tokens, layout.lanes or 0, layout.steps or 0))
        out = [np.zeros(i.tokens if not i.tokens else 0, np.int64) for i in items]
        for part in self._parts(work):
            found = self._decode_part([items[n].data for n in part], [work[n] for n in part], progress)
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
            or any(most_lanes(s, *w) > CLUSTER_LANES for w in work)
        ):
            return 0
        return min(most, len(work))

    def alone(self, work: Sequence[Work]) -> bool:
        """Whether to decode these sequences one by one, each by the whole GPU."""
        s, grid = self.shape, self._device.grid
        if not grid:
            return False
        lanes, plan = max(most_lanes(s, *w) for w in work), grid_plan(s, grid)
        return (
            len(work) <= (GRID_LIMIT if lanes <= CLUSTER_LANES else GRID_WIDE_LIMIT)
            and lanes <= plan["P_GRID_LANES"]
            and all(key_room(s, *w) <= 512 * plan["P_GRID_GROUPS"] for w in work)
        )

    def _parts(self, work: Sequence[Work]) -> Iterator[list[int]]:
        """Places of the sequences that are not empty, the largest first, in runs of bounded tokens."""
        order = sorted(
            (n for n, w in enumerate(work) if w[0]),
            key=lambda n: (-key_room(self.shape, *work[n]), -work[n][0]),
        )
        part: list[int] = []
        total = 0
        for n in order:
            if part and total + work[n][0] > TOKENS:
                yield part
                part, total = [], 0
            part.append(n)
            total += work[n][0]
        if part:
            yield part

    def _sessions(self, work: Sequence[Work], words: Sequence[int]) -> npt.NDArray[Any]:
        """The sessions as the kernels see them; words: stream words of each."""
        s = np.zeros(len(work), SESSION)
        s["total"] = [w[0] for w in work]
        s["lanes"], s["steps"] = [w[1] for w in work], [w[2] for w in work]
        s["words"] = words
        s["token_at"] = np.cumsum(s["total"]) - s["total"]
        s["word_at"] = np.cumsum(s["words"]) - s["words"]
        s["range"] = np.uint64(0xFFFFFFFFFFFFFFFF)
        return s

    def _encode_part(
        self, tokens: Sequence[npt.NDArray[np.int32]], work: Sequence[Work], progress: Progress | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
        sessions = self._sessions(work, [FRAME_WORDS * w[0] + 4 for w in work])
        words = np.zeros(int(sessions["words"].sum()), np.uint32)
        with _Batch(self, sessions, work, np.concatenate(tokens), words, False) as batch:
            batch.run(progress)
            batch.download("sessions", sessions)
            batch.download("words", words)
        return sessions, words

    def _decode_part(
        self, data: Sequence[bytes], work: Sequence[Work], progress: Progress | None
    ) -> list[npt.NDArray[np.int64]]:
        streams = [np.frombuffer(d + bytes(-len(d) % 4), ">u4").astype(np.uint32) for d in data]
        sessions = self._sessions(work, [len(s) for s in streams])
        sessions["budget"] = [8 * len(d) + SLACK for d in data]
        sessions["place"] = STATE // 4
        for n, s in enumerate(streams):
            first = [int(w) for w in s[:2]] + [0, 0]
            sessions["point"][n] = np.uint64(first[0] << 32 | first[1])
        tokens = np.zeros(int(sessions["total"].sum()), np.int32)
        words = np.concatenate([*streams, np.zeros(1, np.uint32)])
        with _Batch(self, sessions, work, tokens, words, True) as batch:
            batch.run(progress)
            batch.download("tokens", tokens)
        return [t.astype(np.int64) for t in np.split(tokens, np.cumsum(sessions["total"])[:-1])]


class _Batch:
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
        chunks = -(-(self.lanes if self.decoding else rows) * group // QUERIES)
        chunks = max(1, min(chunks, 4096 // (self.slots * s.kv_heads)))
        for i in range(s.layers):
            t = f"layer.{i}."
            product("to_qkv", s.qkv, "a", t + "qkv.w", t + "qkv.m", "y")
            go("heads", warps, 256, "state", "rows", "y", "table.phase",
               "table.cos", "table.sin", i, "q", "caches", "memory")  # fmt: skip
            go("attend", (chunks, s.kv_heads, self.slots), 256, "sessions", "pieces", "q", "caches", "memory", i,
               t + "heat", "table.exp", "o", shared=(QUERIES * (2 + 72) + 64 * 32) * 4)  # fmt: skip
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
        go("remember", (self.slots, s.layers * s.kv_heads, 1), 256, "sessions", "pieces", "caches", "memory")

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
        go("remember", (self.slots, s.layers * s.kv_heads, 1), 256, "sessions", "pieces", "caches", "memory")
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
