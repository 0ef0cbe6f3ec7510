"""Kernels: the forms of KV on a GPU, by kernels.cu. It works on torch's tensors, in torch's current stream.

    kernels_on(device)  ->  Kernels, or None where the device is no GPU or the extra `pltz[cuda]` is not installed

The bundle's engine compiles the source at first use and keeps the result (plt_codec/engines/cuda/device.py).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from pltz.kv.engines.streams import (
    BLOCK,
    LANES,
    SECTION,
    SYMBOLS,
    TABLES,
    Tables,
    groups,
    per_lane,
    sections,
    sections_each,
    stream_layers,
)
from pltz.plt_codec import ModelError, UsageError, device as gpu

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("kernels.cu")
SLOTS = 4096
WARPS = 8  # per CTA of decode_streams
TYPES = ("torch.float32", "torch.float16", "torch.bfloat16")  # of KV, by the kernels' number
KEPT = 6  # words that a lane keeps between launches
SHARED = TABLES * SLOTS + 4 * TABLES * SYMBOLS + 4 * 32 + WARPS * (LANES * 34 + 128) * 2  # bytes, of decode_streams
CODER = 4 * TABLES * SYMBOLS + 4 * 32  # bytes, of look_ahead and encode_streams
BESIDE = 8  # streams for work beside torch's current one


def source() -> str:
    """Return the kernels as one text."""
    return gpu.whole(SOURCE.read_text("utf8"))


class Launcher(Protocol):
    """A device that runs kernels, in order."""

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        """Launch a kernel with ``shared`` bytes of shared memory."""


class Gpu:
    """A GPU and its compiled kernels.

    ``text``: the kernels. ``options``: of the compiler. Raises CompileError where they do not compile, and ModelError
    where no memory for them is left.
    """

    def __init__(self, number: int, text: str, options: Sequence[str] = ()) -> None:
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
        code = gpu.compile_text(text, 10 * major + minor, options)
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
    return _on_gpu(number_of(device)) if device.type == "cuda" else None


def number_of(device: torch.device) -> int:
    """Return the number of a GPU: of torch's current one where it has none."""
    import torch

    return torch.cuda.current_device() if device.index is None else device.index


@functools.cache
def most_shared(device: torch.device) -> int:
    """Return the bytes of shared memory that a CTA may have."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


@functools.cache
def _on_gpu(number: int) -> Kernels | None:
    launcher = compiled(number, source(), ("--fmad=false",))
    return None if launcher is None else Kernels(launcher)


@functools.cache
def compiled(number: int, text: str, options: tuple[str, ...] = ()) -> Launcher | None:
    """Return what launches kernels on a GPU, or None where they cannot run.

    A GPU that is too old, or without the extra `pltz[cuda]`, is no fault. Kernels that fail on any other are told of
    in a warning.
    """
    import torch

    if torch.cuda.get_device_capability(number) < (8, 0) or not gpu.count():
        return None
    try:
        return Gpu(number, text, options)
    except (ImportError, ModelError, OSError, AttributeError, RuntimeError) as exc:  # also: bindings of another version
        _warn_once(f"no kernels for KV on cuda:{number}, torch does their work slowly: {exc or type(exc).__name__}")
        return None


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(f"pltz: {why}", RuntimeWarning, stacklevel=3)


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


@dataclass(frozen=True, eq=False)
class DeviceStreams:
    """Coded integers on a device, and what they were coded with.

    ``words``: (n,) int16. ``ends``: (sections, groups) int32. ``states``: (streams, groups, 32) int32. ``point``: the
    floor of the operating point. ``tokens``: their number. See `streams.Streams`.
    """

    words: torch.Tensor
    ends: torch.Tensor
    states: torch.Tensor
    tables: DeviceTables
    point: int
    tokens: int


class Kernels:
    """The kernels on one device. Tensors are of that device, contiguous unless a method says otherwise."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def decoded(self, coded: DeviceStreams) -> DecodedStreams:
        """Return the integers of streams, which are still to be decoded. The caller checks shapes and ends."""
        return DecodedStreams(self._launcher, coded)

    def encode(
        self, q: torch.Tensor, classes: torch.Tensor, tables: DeviceTables, point: int
    ) -> tuple[DeviceStreams, NDArray[np.uint32]]:
        """Return the streams of integers, as `streams.encode` does, and the two sums of each token, (T, 2).

        ``q``: (layers, T, width) int16. ``classes``: (T,) uint8, each below 16. The host waits for the number of words.
        Raises UsageError where 32 bits do not count the words.
        """
        import torch

        layers, tokens, width = q.shape
        elements = layers * width
        begins, count = stream_layers(layers, width), groups(tokens, elements)
        room = functools.partial(torch.empty, device=q.device)
        shifts = room((layers, -(-width // BLOCK), tokens), dtype=torch.int8)
        sums = room((len(begins), tokens, 2), dtype=torch.int32)
        counts = room((sections(layers, width), count), dtype=torch.int32)
        states = room((len(begins), count, LANES), dtype=torch.int32)
        given = addresses(q, classes, tables.entries, tables.mean, tables.level, shifts)
        span = SECTION * sections_each(width)
        size = (tokens, layers, width, point)
        grid = (-(-tokens // (32 * WARPS)), len(begins), 1)
        self._run("look_ahead", grid, [*given, *addresses(sums), *map(_int, (*size, span, len(begins)))], CODER)

        def code(words: torch.Tensor | None, ends: torch.Tensor | None) -> None:
            numbers = map(_int, (count, *size, per_lane(elements), span, len(begins)))
            args = [*given, *addresses(words, ends, counts, states), *numbers]
            self._run("encode_streams", (-(-count // WARPS), len(begins), 1), args, CODER)

        code(None, None)
        totals = counts.flatten().cumsum(0, dtype=torch.int64)
        total = int(totals[-1]) if count else 0
        if total >= 1 << 31:
            raise UsageError("too many words for the form predictive: keep the KV in another form")
        words, ends = room(total, dtype=torch.int16), totals.int().reshape(counts.shape)
        code(words, ends)
        return DeviceStreams(words, ends, states, tables, point, tokens), _sums(sums, begins, layers, width)

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
        args = [*addresses(predicted, constant, q, step, out, beyond), _int(width), _int(_kind(out))]
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
        args = [*addresses(y, cos, sin, kv), place, *addresses(beyond), *map(_int, numbers)]
        self._run("place_layer", (tokens, 1, 1), args)

    def _run(self, kernel: str, grid: tuple[int, int, int], args: Sequence[Any], shared: int = 0) -> None:
        if grid[0]:
            self._launcher.launch(kernel, grid, 32 * WARPS, args, shared)


class DecodedStreams:
    """Integers of streams: several streams side by side, or one that is decoded section by section, in order.

    ``q``: (layers, T, width) int16. ``classes``: (T,) uint8. ``bad``: (1,) int32, not 0 where a stream does not end as
    it must. They are right where `decode` was called for their layers, and bad after the last. ``many``: whether there
    are several streams. They may be decoded in any order.
    """

    def __init__(self, launcher: Launcher, coded: DeviceStreams) -> None:
        import torch

        def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=coded.words.device)

        self._launcher, self._coded = launcher, coded
        self.layers, self.width = coded.tables.level.shape
        self._groups = groups(coded.tokens, self.layers * self.width)
        self._per_lane = per_lane(self.layers * self.width)
        self._kept = room(self._groups, LANES, KEPT, dtype=torch.int32)
        self.q = room(self.layers, coded.tokens, self.width, dtype=torch.int16)
        self.classes = room(coded.tokens, dtype=torch.uint8)
        self._begins = stream_layers(self.layers, self.width)
        self._sums = room(len(self._begins), coded.tokens, 2, dtype=torch.int32)
        self.bad = torch.zeros(1, dtype=torch.int32, device=coded.words.device)
        self.many = len(self._begins) > 1

    def steps(self) -> list[tuple[int, int]]:
        """Return the layers, from and to, that `decode` may take at once: those of a stream, or of a section."""
        begins = self._begins if self.many or self._per_lane > 1 else range(0, self.layers, SECTION)
        return list(itertools.pairwise([*begins, self.layers]))

    def decode(self, first: int, last: int) -> None:
        """Decode layers from ``first`` to ``last``: one of `steps`. Several streams may be decoded at once."""
        if not self._groups:
            return
        c, t, span = self._coded, self._coded.tables, SECTION * sections_each(self.width)
        pointers = addresses(
            c.words, c.ends, c.states, t.slots, t.entries, t.mean, t.level, self._kept, self.q,
            self.classes, self._sums, self.bad,
        )  # fmt: skip
        numbers = (
            self._groups, c.tokens, self.layers, self.width, c.point, self._per_lane,
            span, len(self._begins), first, last,
        )  # fmt: skip
        side_by_side = sum(first <= begin < last for begin in self._begins) if self.many else 1
        grid = (-(-self._groups // WARPS), side_by_side, 1)
        self._launcher.launch("decode_streams", grid, 32 * WARPS, [*pointers, *map(_int, numbers)], SHARED)

    def decode_all(self) -> None:
        """Decode all layers: streams side by side, or the sections of one."""
        for first, last in [(0, self.layers)] if self.many else self.steps():
            self.decode(first, last)

    def sums(self) -> NDArray[np.uint32]:
        """Return the two sums of each token over all streams, (T, 2)."""
        return _sums(self._sums, self._begins, self.layers, self.width)


def _sums(parts: torch.Tensor, begins: Sequence[int], layers: int, width: int) -> NDArray[np.uint32]:
    """Return the two sums of each token over all streams, (T, 2), of those of each stream, (streams, T, 2)."""
    found = parts.cpu().numpy().view(np.uint32)
    whole = np.zeros(found.shape[1:], np.uint32)
    for first, stop, (a, b) in zip(begins, [*begins[1:], layers], found.transpose(0, 2, 1), strict=True):
        whole[:, 1] += b + np.uint32((stop - first) * width) * whole[:, 0]  # modulo 2^32, as all of it
        whole[:, 0] += a
    return whole


class SideStreams:
    """Streams for work beside torch's current one, as a context. On a CPU all work is done in order.

    When the context ends, the current stream waits for all work beside it. So memory may be given back then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[torch.cuda.Event] = []

    def __enter__(self) -> Self:
        import torch

        if self._device.type == "cuda":
            self._outside = torch.cuda.current_stream(self._device)
            self._begin = self._outside.record_event()
        return self

    def run(self, work: Callable[[], object], lane: int = 0, after: torch.cuda.Event | None = None) -> Any:
        """Launch work in one of BESIDE streams, after an event. Returns the event of its end, None on a CPU."""
        if self._device.type != "cuda":
            work()
            return None
        import torch

        own = _own_stream(self._device, lane % BESIDE)
        own.wait_event(self._begin)
        if after is not None:
            own.wait_event(after)
        with torch.cuda.stream(own):
            work()
            self._ends.append(own.record_event())
        return self._ends[-1]

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Let the outer stream wait for an event."""
        if event is not None:
            self._outside.wait_event(event)

    def __exit__(self, *_: object) -> None:
        for event in self._ends:
            self._outside.wait_event(event)


class BackgroundStream:
    """A stream of its own as torch's current one, as a context. The outer stream never waits for its work.

    It begins after what the outer stream was given before. When the context ends, the host has waited for it. On a CPU
    it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> Self:
        import torch

        if self._device.type == "cuda":
            self._outside = torch.cuda.current_stream(self._device)
            self._own = _background(self._device)
            self._own.wait_stream(self._outside)
            self._inside = torch.cuda.stream(self._own)
            self._inside.__enter__()
        return self

    def keep(self, *tensors: torch.Tensor) -> None:
        """Say that the outer stream will use tensors that were made inside."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self._outside)

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            self._inside.__exit__(*error)
            self._own.synchronize()


@functools.cache
def _own_stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(device, priority=-1)


@functools.cache
def _background(device: torch.device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(device)


def _int(value: int) -> Any:
    return ctypes.c_int(value)


def _pointer(address: int) -> Any:
    return ctypes.c_void_p(address)


def addresses(*tensors: torch.Tensor | None) -> list[Any]:
    """Return the addresses of tensors, null for None. Raises ModelError for a tensor with gaps."""
    if any(t is not None and not t.is_contiguous() for t in tensors):
        raise ModelError("expected contiguous tensors for a kernel")
    return [_pointer(0 if t is None else t.data_ptr()) for t in tensors]


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy (rows, ...) over the bus by its engine, in torch's current stream. A row has no gaps; rows may lie apart.

    Raises ModelError where the copy cannot begin.
    """
    import torch
    from cuda.bindings import driver

    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    copy.srcDevice, copy.dstDevice = source.data_ptr(), target.data_ptr()
    copy.srcPitch, copy.dstPitch = (side.stride(0) * side.itemsize for side in (source, target))
    copy.WidthInBytes, copy.Height = source[0].nbytes, len(source)
    device = target.device if target.is_cuda else source.device
    stream = torch.cuda.current_stream(device).cuda_stream
    gpu._ask((*driver.cuMemcpy2DAsync(copy, stream), None))


def _kind(tensor: torch.Tensor) -> int:
    """Return the kernel's number of a float type."""
    return TYPES.index(str(tensor.dtype))
