"""Kernels: the forms of KV on a GPU, by kernels.cu. It works on torch's tensors, in torch's current stream.

    kernels_on(device)  ->  Kernels, or None where the device is no GPU or the extra `pltz[cuda]` is not installed

The bundle's engine compiles the source at first use and keeps the result (plt_codec/engines/cuda/device.py).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from pltz.models.kv.streams import (
    LANES,
    SECTION,
    SYMBOLS,
    TABLES,
    Tables,
    groups,
    per_lane,
    sections_each,
    stream_layers,
)
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("kernels.cu")
SLOTS = 4096
WARPS = 8  # per CTA of decode_streams and unpack
TYPES = ("torch.float32", "torch.float16", "torch.bfloat16")  # of KV, by the kernels' number
KEPT = 6  # words that a lane keeps between launches
SHARED = TABLES * SLOTS + 4 * TABLES * SYMBOLS + 4 * 32 + WARPS * (LANES * 34 + 128) * 2  # bytes, of decode_streams
HEADS = (32, 64, 128, 256)  # sizes of a head that `unpack` knows
ROWS = 32  # rows of CTAs that share a token's rows in `unpack`


class Launcher(Protocol):
    """A device that runs kernels, in order."""

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        """Launch a kernel with ``shared`` bytes of shared memory."""


class Gpu:
    """A GPU and its compiled kernels. Raises ModelError where they do not compile, or no memory for them is left."""

    def __init__(self, number: int) -> None:
        from cuda.bindings import driver

        self._cu, self._number = driver, number
        device = gpu._ask(driver.cuDeviceGet(number))
        names = driver.CUdevice_attribute
        major, minor = (
            int(gpu._ask(driver.cuDeviceGetAttribute(name, device)))
            for name in (
                names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self._context = gpu._ask(driver.cuDevicePrimaryCtxRetain(device))
        self._enter()
        code = gpu.compile_text(SOURCE.read_text("utf8"), 10 * major + minor, ["--fmad=false"])
        self._module = gpu._ask(driver.cuModuleLoadData(code))
        self._functions: dict[str, Any] = {}

    def _enter(self) -> None:
        gpu._ask((*self._cu.cuCtxSetCurrent(self._context), None))

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        """Launch a kernel in torch's current stream. See `Launcher`."""
        import torch

        self._enter()
        if kernel not in self._functions:
            function = gpu._ask(self._cu.cuModuleGetFunction(self._module, kernel.encode()))
            most = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu._ask((*self._cu.cuFuncSetAttribute(function, most, max(shared, 1 << 14)), None))
            self._functions[kernel] = function
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        stream = torch.cuda.current_stream(self._number).cuda_stream
        call = self._cu.cuLaunchKernel
        found = self._functions[kernel]
        gpu._ask((*call(found, *grid, threads, 1, 1, shared, stream, ctypes.addressof(pointers), 0), None))


def kernels_on(device: torch.device) -> Kernels | None:
    """Return the kernels on a device, or None where they cannot run: torch and C do the work then."""
    if device.type != "cuda":
        return None
    import torch

    return _on_gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _on_gpu(number: int) -> Kernels | None:
    import torch

    if torch.cuda.get_device_capability(number) < (8, 0) or not gpu.count():
        return None
    try:
        return Kernels(Gpu(number))
    except (ImportError, ModelError, OSError, AttributeError):  # no compiler, or bindings of another version
        return None


@dataclass(frozen=True, eq=False)
class DeviceTables:
    """Tables of the entropy coder as the kernel reads them. ``slots``: (TABLES, SLOTS) uint8, the symbol of each slot.

    ``entries``: (TABLES, SYMBOLS) int32, frequency << 16 | first slot. ``mean``: (TABLES,), ``level``: (layers,
    width), int16.
    """

    slots: torch.Tensor
    entries: torch.Tensor
    mean: torch.Tensor
    level: torch.Tensor

    @classmethod
    def of(cls, tables: Tables, device: torch.device) -> DeviceTables:
        """Return the tables on a device."""
        import torch

        freq = tables.freq.astype(np.int64)
        slots = np.stack([np.repeat(np.arange(SYMBOLS), row) for row in freq]).astype(np.uint8)
        entries = (freq << 16 | (np.cumsum(freq, 1) - freq)).astype(np.uint32).view(np.int32)

        def there(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device)

        level = np.ascontiguousarray(tables.level)
        return cls(there(slots), there(entries), there(tables.mean.view(np.int16)), there(level))


class Kernels:
    """The kernels on one device. Tensors are of that device, contiguous unless a method says otherwise."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def streams(
        self,
        words: torch.Tensor,
        ends: torch.Tensor,
        states: torch.Tensor,
        tables: DeviceTables,
        point: int,
        tokens: int,
    ) -> DecodedStreams:
        """Return streams to be decoded. ``words``: (n,) int16. ``states``: (streams, groups, 32) int32.

        ``ends``: (sections, groups) int32, which never fall and end with n. The caller checks shapes and ends.
        """
        return DecodedStreams(self._launcher, words, ends, states, tables, point, tokens)

    def add_residual(
        self,
        predicted: torch.Tensor,
        constant: torch.Tensor,
        q: torch.Tensor,
        step: torch.Tensor,
        out: torch.Tensor,
        beyond: torch.Tensor,
    ) -> None:
        """Set ``out`` to predicted + constant + q x step; (T, width) but constant (width,) and step (T,). q: int16.

        ``beyond``: (1,) int32, set to 1 where a number is too large for a float16 ``out``.
        """
        tokens, width = q.shape
        args = [*_pointers(predicted, constant, q, step, out, beyond), _int(width), _int(_kind(out))]
        self._run("add_residual", (tokens, 1, 1), args)

    def place_layer(
        self,
        y: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        kv: torch.Tensor,
        inputs: torch.Tensor,
        column: int,
        beyond: torch.Tensor,
    ) -> None:
        """Set ``kv``, (2, heads, T, D), to rows y, (T, 2 heads D), with keys turned to their positions.

        ``turn``: cosines and sines, (T, half). The rows go to columns ``column`` onwards of ``inputs``, (T, n), too.
        ``beyond``: as in `add_residual`, of the inputs.
        """
        _, heads, tokens, dim = kv.shape
        cos, sin = turn
        place = _pointer(inputs.data_ptr() + column * inputs.element_size())
        numbers = (tokens, heads, dim, cos.shape[1], inputs.shape[1], _kind(kv), _kind(inputs))
        args = [*_pointers(y, cos, sin, kv), place, *_pointers(beyond), *map(_int, numbers)]
        self._run("place_layer", (tokens, 1, 1), args)

    def unpack(
        self,
        fine: torch.Tensor,
        fine_scale: torch.Tensor,
        mean: torch.Tensor,
        sinks: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        middle: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return the KV, (layers, 2, heads, T, D), of the parts of `q8` or `q4`.

        ``fine``: int8 codes, and their scales. ``middle``: of `q4` codes, scales, places of the fine tokens, and the 16
        centroids. ``turn``: as in `place_layer`.
        """
        import torch

        layers, two, heads, sink_count, dim = sinks.shape
        fines = fine.shape[3]
        tokens = sink_count + fines + (0 if middle is None else middle[0].shape[3])
        codes, scale, at, book = middle or (None, None, None, None)
        kv = torch.empty((layers, two, heads, tokens, dim), dtype=sinks.dtype, device=sinks.device)
        rows = layers * two * heads
        numbers = (rows, heads, tokens, dim, sink_count, fines, turn[0].shape[1], _kind(kv))
        args = [
            *_pointers(codes, scale, fine, fine_scale, at, mean, sinks, book, *turn, kv),
            *map(_int, numbers),
            ctypes.c_float(dim**0.5),
        ]
        self._run("unpack", (-(-tokens // WARPS), min(rows, ROWS), 1), args, 4 * WARPS * dim)
        return kv

    def _run(self, kernel: str, grid: tuple[int, int, int], args: Sequence[Any], shared: int = 0) -> None:
        if grid[0]:
            self._launcher.launch(kernel, grid, 256, args, shared)


class DecodedStreams:
    """Integers of streams: several streams side by side, or one that is decoded section by section, in order.

    ``q``: (layers, T, width) int16. ``classes``: (T,) uint8. ``bad``: (1,) int32, not 0 where a stream does not end as
    it must. They are right where `decode` was called for their layers, and bad after the last.
    """

    def __init__(
        self,
        launcher: Launcher,
        words: torch.Tensor,
        ends: torch.Tensor,
        states: torch.Tensor,
        tables: DeviceTables,
        point: int,
        tokens: int,
    ) -> None:
        import torch

        def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=words.device)

        self._launcher, self._tables, self._tokens, self._point = launcher, tables, tokens, point
        self._words, self._ends, self._states = words, ends, states
        self.layers, self.width = tables.level.shape
        self._groups = groups(tokens, self.layers * self.width)
        self._per_lane = per_lane(self.layers * self.width)
        self._kept = room(self._groups, LANES, KEPT, dtype=torch.int32)
        self.q = room(self.layers, tokens, self.width, dtype=torch.int16)
        self.classes = room(tokens, dtype=torch.uint8)
        self._begins = stream_layers(self.layers, self.width)
        self._sums = room(len(self._begins), tokens, 2, dtype=torch.int32)
        self.bad = torch.zeros(1, dtype=torch.int32, device=words.device)

    def sections(self) -> Iterator[tuple[int, int]]:
        """Return the layers, from and to, that one launch decodes."""
        step = SECTION if self._per_lane == 1 and len(self._begins) == 1 else self.layers
        return ((first, min(first + step, self.layers)) for first in range(0, self.layers, step))

    def decode(self, first: int, last: int) -> None:
        """Decode layers, as `sections` gives them."""
        if not self._groups:
            return
        t = self._tables
        pointers = _pointers(
            self._words, self._ends, self._states, t.slots, t.entries, t.mean, t.level, self._kept, self.q,
            self.classes, self._sums, self.bad,
        )  # fmt: skip
        numbers = (
            self._groups, self._tokens, self.layers, self.width, self._point, self._per_lane,
            SECTION * sections_each(self.width), first, last,
        )  # fmt: skip
        grid = (-(-self._groups // WARPS), len(self._begins), 1)
        self._launcher.launch("decode_streams", grid, 32 * WARPS, [*pointers, *map(_int, numbers)], SHARED)


    def sums(self) -> NDArray[np.uint32]:
        """Return the two sums of each token over all streams, (T, 2). See `streams.sums_of`."""
        whole = np.zeros((self._tokens, 2), np.uint32)
        stops = [*self._begins[1:], self.layers]
        found = self._sums.cpu().numpy().view(np.uint32)
        for first, stop, (a, b) in zip(self._begins, stops, found.transpose(0, 2, 1), strict=True):
            count = np.uint32((stop - first) * self.width)
            whole[:, 1] += b + count * whole[:, 0]  # modulo 2^32, as all of it
            whole[:, 0] += a
        return whole


class SideStream:
    """A stream for work beside torch's current one, as a context. On a CPU all work is done in order.

    When the context ends, the current stream waits for all work beside it. So memory may be given back then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Self:
        import torch

        if self._device.type == "cuda":
            self._outside, self._own = torch.cuda.current_stream(self._device), _own_stream(self._device)
            self._own.wait_stream(self._outside)
        return self

    def run(self, work: Callable[[], None]) -> Callable[[], None]:
        """Launch work beside. Returns a call that makes the outer stream wait for it."""
        if self._device.type != "cuda":
            work()
            return lambda: None
        import torch

        with torch.cuda.stream(self._own):
            work()
            event = self._own.record_event()
        return lambda: self._outside.wait_event(event)

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self._outside.wait_stream(self._own)


@functools.cache
def _own_stream(device: torch.device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(device, priority=-1)


def _int(value: int) -> Any:
    return ctypes.c_int(value)


def _pointer(address: int) -> Any:
    return ctypes.c_void_p(address)


def _pointers(*tensors: torch.Tensor | None) -> list[Any]:
    """Return the addresses of tensors, null for None. Raises ModelError for a tensor with gaps."""
    if any(t is not None and not t.is_contiguous() for t in tensors):
        raise ModelError("expected contiguous tensors for a kernel")
    return [_pointer(0 if t is None else t.data_ptr()) for t in tensors]


def _kind(tensor: torch.Tensor) -> int:
    """Return the kernel's number of a float type."""
    return TYPES.index(str(tensor.dtype))
