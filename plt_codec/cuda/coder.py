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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.coder import SLACK, STATE
from pltz.plt_codec.context import each
from pltz.plt_codec.cuda import device as gpu
from pltz.plt_codec.cuda.batch import CLUSTER_LANES, Batch
from pltz.plt_codec.cuda.pack import MOST_SHARED, cluster_memory, grid_plan, macros, tensors
from pltz.plt_codec.cuda.work import Work, key_room, most_lanes
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.item import MAX_TOKENS, Encoded, FrameItem, Progress, Tokens
from pltz.plt_codec.layout import Layout
from pltz.plt_codec.weights import Weights

if TYPE_CHECKING:
    from pltz.plt_codec.frame import TokenCoder

TOKENS = 1 << 25  # tokens on the device at once
FRAME_WORDS = 2  # 32-bit words a token takes in a stream, at most: two symbols of at most 24 bits, and a carry of rounding
SESSION = np.dtype(
    [
        ("token_at", "i8"), ("total", "i8"), ("word_at", "i8"), ("words", "i8"), ("lower", "u8"), ("range", "u8"),
        ("point", "u8"), ("place", "i8"), ("bits", "f8"), ("budget", "f8"), ("start", "i8"), ("lanes", "i4"),
        ("steps", "i4"), ("size", "i4"), ("L", "i4"), ("C", "i4"), ("full", "i4"), ("step", "i4"), ("old", "i4"),
        ("error", "i4"), ("done", "i4"), ("spare", "i8", 8),
    ]
)  # fmt: skip
MODEL = (
    "embed.w", "class.w", "shift.w", "embed.m", "class.m", "class.b", "shift.m", "member.m", "member.b",
    "table.exp", "table.phase", "table.cos", "table.sin",
)  # fmt: skip
MODEL_LAYERS = ("qkv.w", "out.w", "up.w", "down.w", "qkv.m", "out.m", "up.m", "down.m", "heat")
GRID_LIMIT = 2  # sequences one after the other by grid.cu: with more, cluster.cu decodes them faster
GRID_WIDE_LIMIT = 4  # the same of more than 16 lanes: with more, batch.cu does
CLUSTER_LIMIT = 3  # sequences a cluster: with more, batch.cu decodes them faster


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
        with Batch(self, sessions, work, np.concatenate(tokens), words, False) as batch:
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
        with Batch(self, sessions, work, tokens, words, True) as batch:
            batch.run(progress)
            batch.download("tokens", tokens)
        return [t.astype(np.int64) for t in np.split(tokens, np.cumsum(sessions["total"])[:-1])]


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
