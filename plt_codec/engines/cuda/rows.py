"""The rows of one iteration of batch.cu: positions of sequences, their buffers, and the launches of the layers."""

from __future__ import annotations

import ctypes
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.pack import up

ROWS = 32768  # positions of one iteration, at most
PRODUCT_SHARED = 96 << 10  # shared memory of the products of batch.cu
QUERIES = 64  # per CTA of its attention
ATTEND_SHARED = (QUERIES * (2 + 72) + 64 * 32) * 4  # its shared memory
ATTEND_CTAS = 4096  # CTAs of its attention, at most; each takes queries until none are left
ATTEND_SLOTS = 256  # slots that it serves side by side, at most
FEW = 8  # queries per key head of attend_few, at most
FEW_SHARED = 72 << 10  # its shared memory, at most: three CTAs fit a multiprocessor
FEWER_SHARED = 96 << 10  # the same of a second launch, for slots that need more: a GPU has 99 KB per CTA, or more
FEW_FIXED = 4 * (FEW * (2 + 72) + 4 + 64 * 32)  # of this, all but the scores
FEW_CTAS = 396  # its CTAs, at most: three per multiprocessor; each takes one slot and head after the other
MOVERS = 64  # slots whose keys recall and remember move side by side, at most
COLLECTORS = 1024  # threads of collect, at most: up to four slots each
LISTS = 5  # of slots that collect makes (common.cuh)
FEWEST, FEWER = 2, 3  # those of both launches of attend_few
ALIGNED = 256  # bytes, as what a device allocates


def packed(arrays: dict[str, npt.NDArray[Any]]) -> tuple[dict[str, int], npt.NDArray[np.uint8]]:
    """Pack arrays of any shape into one row of bytes, each at a multiple of ALIGNED.

    Returns where each begins, in bytes, and the row.
    """
    places: dict[str, int] = {}
    size = 0
    for name, array in arrays.items():
        places[name] = size
        size += up(array.nbytes, ALIGNED)
    whole = np.zeros(size, np.uint8)
    for name, array in arrays.items():
        whole[places[name] :][: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return places, whole


class RowBuffers:
    """Buffers on the device by name, and launches with them. A subclass decides which buffers there are.

    ``slots``: sequences under way side by side. ``rows``: positions of an iteration, at most. ``few``: bytes of shared
    memory of each launch of attend_few; 0: there is none. ``others``: whether there are sequences that it does not
    serve, or not in every step. ``in_place``: whether whole groups of keys of contexts are read where they are
    remembered.
    """

    slots: int
    rows: int
    in_place = False
    few: tuple[int, int] = (0, 0)
    others = True

    def __init__(self, model: DeviceModel):
        self.model, self.shape, self.device = model, model.shape, model.device
        self._at: dict[str, int] = {}
        self._within: dict[str, int] = {}  # buffers that are part of another

    def _open(self, arrays: dict[str, npt.NDArray[Any]], sizes: dict[str, int]) -> None:
        """Upload arrays, all at once, and allocate buffers of these sizes in bytes.

        Raises:
            ModelError: memory does not suffice. Nothing is held then.
        """
        places, whole = packed(arrays)
        try:
            self._at["arrays"] = begin = self.device.alloc(whole.nbytes)
            self.device.upload(begin, whole)
            self._within = {name: begin + at for name, at in places.items()}
            for name, size in sizes.items():
                self._at[name] = self.device.alloc(size)
        except Exception:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the buffers."""
        for address in self._at.values():
            self.device.free(address)
        self._at, self._within = {}, {}

    def download(self, name: str, array: npt.NDArray[Any]) -> None:
        """Fill an array from the buffer of that name, after everything launched before."""
        self.device.download(self.address(name), array)

    def _slot_sizes(self) -> dict[str, int]:
        """Return the sizes, in bytes, of the buffers of what collect deals out."""
        return {"pieces": self.slots * 16, "lists": LISTS * self.slots * 4, "turns": self.shape.layers * 8}

    def _row_sizes(self) -> dict[str, int]:
        """Return the sizes, in bytes, of the buffers that the layers need."""
        s, r = self.shape, self.rows
        dp, hidden = up(s.d, 64), up(s.hidden, 64)
        return {
            **self._slot_sizes(), "rows": r * 32, "x": r * dp * 4, "a": r * dp, "y": r * up(s.qkv, 64) * 2,
            "q": r * s.heads * 64, "o": r * up(s.heads * s.head_dim, 64), "h": r * hidden,
        }  # fmt: skip

    def address(self, name: str) -> int:
        """Return the address of a buffer or a tensor."""
        return self._at.get(name) or self._within.get(name) or self.model.at[name]

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
        """Launch a kernel. ``args``: names of buffers or tensors (None: a null pointer), or numbers."""
        values: list[Any] = [
            self.model.pointers
            if a == "model"
            else ctypes.c_int32(a)
            if isinstance(a, int)
            else ctypes.c_void_p(a if a is None else self.address(a))
            for a in args
        ]
        self.device.launch(kernel, grid, threads, values, shared, cluster, together)

    def _collect(self) -> None:
        """Advance the sequences, and deal out the next rows."""
        few, more = (max(0, size - FEW_FIXED) // 4 for size in self.few)
        self._launch("collect", (1, 1, 1), min(COLLECTORS, up(self.slots, 32)), "state", "sessions", "slots", "pieces",
                     "lists", "turns", few, more, shared=512)  # fmt: skip

    def _gated(self, tensor: str) -> str | None:
        """Return the name of a tensor that only contract 2 has, or None."""
        return tensor if self.shape.gated else None

    def _product(self, kernel: str, n: int, *args: str | None) -> None:
        """Launch a product to n channels."""
        grid = (-(-n // 128), -(-self.rows // 128), 1)
        self._launch(kernel, grid, 256, "state", *args, shared=PRODUCT_SHARED)

    def _layers(self, most: int, *, known: bool = False) -> None:
        """Launch embeddings and all layers for the rows that were dealt out, at most `most` per slot.

        ``known``: only keys and values are wanted.
        """
        s, rows, go = self.shape, self.rows, self._launch
        warps = (-(-rows // 8), 1, 1)
        go("enter", warps, 256, "state", "sessions", "pieces", "rows", "tokens", "embed.w", "embed.m",
           self._gated("layer.0.norm_in"), "x", "a")  # fmt: skip
        # attention is cut into chunks of queries, as many as fill the GPU
        chunks = -(-most * (s.heads // s.kv_heads) // QUERIES)
        abreast = min(self.slots, ATTEND_SLOTS)
        chunks = max(1, min(chunks, ATTEND_CTAS // (abreast * s.kv_heads)))
        known_at = ("contexts", "known") if self.in_place else (None, None)
        for i in range(s.layers):
            t = f"layer.{i}."
            self._product("to_qkv", s.qkv, "a", t + "qkv.w", t + "qkv.m", "y")
            go("heads", warps, 256, "state", "rows", "y", "table.phase",
               "table.cos", "table.sin", i, "q", "caches", "memory")  # fmt: skip
            # keys and values of the last layer are there: nothing else is asked
            if known and i + 1 == s.layers:
                return
            # the attention that suits the rows; two share the slots of a batch, each by itself
            to = i, t + "heat", "table.exp", "o"
            same = "sessions", "pieces", "q", "caches", "memory"
            for which, size in zip((FEWEST, FEWER), self.few, strict=True):
                if size:
                    ctas = min(self.slots * s.kv_heads, FEW_CTAS * FEW_SHARED // max(FEW_SHARED, size))
                    go("attend_few", (ctas, 1, 1), 256, "state", "lists", "turns", *same, *known_at, *to, which,
                       shared=size)  # fmt: skip
            if self.others:
                go("attend", (chunks, s.kv_heads, abreast), 256, "state", "lists", *same, *known_at, *to,
                   shared=ATTEND_SHARED)  # fmt: skip
            self._product("to_out", s.d, "o", t + "out.w", t + "out.m", "x")
            go("norms", warps, 256, "state", "x", self._gated(t + "norm_mid"), "a")
            # the hidden layer
            channels = 2 * up(s.hidden, 64) if s.gated else s.hidden
            self._product("to_up", channels, "a", t + "up.w", t + "up.m", self._gated("table.act"), "h")
            self._product("to_down", s.d, "h", t + "down.w", t + "down.m", "x")
            after = f"layer.{i + 1}.norm_in" if i + 1 < s.layers else "norm_out"
            go("norms", warps, 256, "state", "x", self._gated(after), "a")
