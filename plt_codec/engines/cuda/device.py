"""The GPU: compiles the kernels at first use (NVRTC), caches them, allocates, copies and launches.

It uses NVIDIA's own bindings (`cuda-bindings`, the extra `pltz[cuda]`) and the primary context of the device, which it
shares with torch. Compiled kernels are cached in $XDG_CACHE_HOME/pltz, else ~/.cache/pltz. Their names depend on
everything that determines them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.pack import MOST_SHARED
from pltz.plt_codec.engines.cuda.pool import OutOfMemory, Pool
from pltz.plt_codec.errors import ModelError, UsageError

HERE = Path(__file__).resolve().parent
SOURCES = ("batch.cu", "cluster.cu", "grid.cu", "gated.cu")
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
OLDEST = 80  # compute capability that the instructions need
CLUSTERS = 90  # from here on there are clusters of CTAs
MOST_GATED = 8  # clusters of gated.cu: its CTAs have places for the words by which they meet
CLUSTER = 16  # CTAs per cluster of cluster.cu, grid.cu and gated.cu
MOST_CONFIGS = 256  # launch configurations that are kept
LINES = 6  # of a compiler that refuses, that are told
OUT_OF_MEMORY = 2  # the driver's error of that name
UNASKED = 48 << 10  # bytes of shared memory that any kernel may have
Argument = Any  # a ctypes scalar


class CompileError(ModelError):
    """The kernels do not compile for a GPU that could run them."""


class Device(Protocol):
    """A device as the coder needs it. Addresses are plain numbers."""

    clusters: int  # clusters of cluster.cu that run side by side; 0: it cannot run
    grid: int  # clusters of grid.cu; 0: it cannot run
    gated: int  # clusters of gated.cu; 0: it cannot run
    stream: int  # the CUstream of all its work; 0: it works synchronously
    name: str  # its name in torch

    def alloc(self, size: int) -> int:
        """Return the address of ``size`` bytes of zeros. Raises ModelError if memory does not suffice."""

    def free(self, address: int) -> None:
        """Free memory that `alloc` returned."""

    def zero(self, address: int, size: int) -> None:
        """Fill ``size`` bytes with zeros, after everything launched before."""

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy an array of any shape to the device."""

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Fill an array of any shape from the device, after everything launched before."""

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Argument],
        shared: int = 0, cluster: int = 1, together: bool = False,
    ) -> None:  # fmt: skip
        """Launch a kernel with ``shared`` bytes of shared memory and ``cluster`` CTAs per cluster.

        Launches run in order. ``together``: all CTAs of the kernel run side by side.
        """

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of `work` and return a call that replays them."""

    def room(self) -> int:
        """Return the bytes of device memory that are free."""


def source() -> str:
    """Return all kernels as one text."""
    return whole("".join((HERE / name).read_text("utf8") for name in SOURCES if (HERE / name).exists()))


def whole(kernels: str) -> str:
    """Return kernels with the headers of this folder in place of the first line that includes each."""
    seen = set()

    def header(found: re.Match[str]) -> str:
        name = found[1]
        if name in seen:
            return "\n"
        seen.add(name)
        return INCLUDE.sub(header, (HERE / name).read_text("utf8"))

    return INCLUDE.sub(header, kernels)


def compile_kernels(shape: Mapping[str, int], capability: int) -> bytes:
    """Return the machine code of the kernels for the macros of a shape. Raises as `compile_text` does."""
    return compile_text(source(), capability, [f"-D{k}={v}" for k, v in shape.items()])


def compile_text(kernels: str, capability: int, options: Sequence[str] = ()) -> bytes:
    """Return the machine code of kernels, from the cache where it is there. ``options``: of the compiler.

    Raises:
        CompileError: they do not compile.
        ImportError: there is no compiler.
    """
    from cuda.bindings import nvrtc

    # code is kept by everything that decides it
    target = f"sm_{capability}" + ("a" if capability == 90 else "")
    options = [f"--gpu-architecture={target}", "--std=c++17", *options]
    text = kernels.encode()
    version = _ask(nvrtc.nvrtcVersion())
    name = hashlib.blake2b(repr((text, options, version)).encode(), digest_size=16).hexdigest()
    kept = _folder() / f"cuda-{name}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        pass
    # compiled here, and kept for the next process
    program = _ask(nvrtc.nvrtcCreateProgram(text, b"pltz.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if int(status):
            log = b" " * int(_ask(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(_refused(target, log.decode(errors="replace")))
        code = b" " * int(_ask(nvrtc.nvrtcGetCUBINSize(program)))
        _ask(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    _keep(kept, code)
    return code


def _refused(target: str, log: str) -> str:
    """Return why kernels do not compile, in the compiler's first lines, and what to do."""
    lines = [line for line in log.strip("\0 \n").splitlines() if line.strip()][:LINES]
    first = "\n  ".join(line[:200] for line in lines)
    return (
        f"the CUDA kernels do not compile for {target}:\n  {first}\n"
        "Update the compiler (`pip install -U 'pltz[cuda]'`), and report these lines if they stay"
    )


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pltz"


def _keep(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. A cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
            f.write(data)
        os.replace(f.name, path)
    except OSError:
        pass


def _ask(answer: tuple[Any, ...]) -> Any:
    """Return the result of a call of the bindings. Raises ModelError with the name of the driver's error."""
    status, *rest = answer
    if int(status):
        raise ModelError(f"CUDA: {getattr(status, 'name', status)}")
    return rest[0] if len(rest) == 1 else tuple(rest)


def _allocate(cu: Any, size: int) -> int:
    """Return the address of ``size`` new bytes. Raises OutOfMemory if memory does not suffice, else ModelError."""
    status, address = cu.cuMemAlloc(size)
    if int(status) == OUT_OF_MEMORY:
        raise OutOfMemory(f"not enough GPU memory: {size} bytes more are needed ({status.name})")
    return int(_ask((status, address)))


@functools.cache
def count() -> int:
    """Return the number of GPUs; 0 if there is no driver or the extra is not installed."""
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401

        _ask(driver.cuInit(0))
        return int(_ask(driver.cuDeviceGetCount()))
    except (ImportError, RuntimeError, OSError, AttributeError, ModelError):  # the bindings' ways to miss a driver
        return 0


class CudaDevice:
    """One GPU with the kernels for one shape, and a stream of its own.

    ``share``: the part of the free memory that `room` tells of is one of so many. ``urgent``: the stream has the
    highest priority.

    Raises:
        UsageError: it is not there, or cannot run them.
        CompileError: the kernels do not compile.
        ModelError: the driver refuses.
    """

    def __init__(self, number: int, shape: Mapping[str, int], *, share: int = 1, urgent: bool = False):
        from cuda.bindings import driver

        if number >= count():
            raise UsageError(f"device cuda:{number} is not here: the driver shows {count()} GPUs")
        self._cu = cu = driver
        self._share = share
        self._device = _ask(cu.cuDeviceGet(number))
        # the capability decides which kernels there are
        attribute = cu.CUdevice_attribute
        major = _ask(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device))
        minor = _ask(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device))
        self.capability = int(major) * 10 + int(minor)
        if self.capability < OLDEST:
            raise UsageError(f"cuda:{number} has compute capability {major}.{minor}, the kernels need {OLDEST / 10}")
        # context, stream, code and memory of this device
        self._context = _ask(cu.cuDevicePrimaryCtxRetain(self._device))
        self._enter()
        usual, highest = _ask(cu.cuCtxGetStreamPriorityRange())
        self._stream = _ask(cu.cuStreamCreateWithPriority(1, highest if urgent else usual))  # 1: waits for no other
        # beside others a thread waits asleep, since they can use its core; alone it waits awake, which is sooner over
        self._done = None
        if share > 1:
            flags = cu.CUevent_flags
            asleep = int(flags.CU_EVENT_BLOCKING_SYNC) | int(flags.CU_EVENT_DISABLE_TIMING)
            self._done = _ask(cu.cuEventCreate(asleep))
        self.stream, self.name = int(self._stream), f"cuda:{number}"
        self._module = _ask(cu.cuModuleLoadData(compile_kernels(shape, self.capability)))
        self._functions: dict[str, Any] = {}
        self._granted: dict[str, int] = {}  # bytes of shared memory that each kernel may have, where it was asked for
        self._configs: dict[tuple[object, ...], Any] = {}
        # beside others a thread would wait for all of them whenever it frees memory
        kept = int(_ask(cu.cuMemGetInfo())[0]) // share * 3 // 4 if share > 1 else None
        self._pool = Pool(functools.partial(_allocate, cu), cu.cuMemFree, device=number, kept=kept)  # holds no device
        # clusters that the kernels of one block may have at once, 0 where they do not run
        self.clusters = self.gated = 0
        if self.capability >= CLUSTERS and shape["P_GATED"] and shape["P_GATED_LANES"]:
            self.gated = min(MOST_GATED, self._clusters("decode_gated", shape["P_GATED_SHARED"]))
        elif self.capability >= CLUSTERS and not shape["P_GATED"]:
            self.clusters = self._clusters("decode_block", MOST_SHARED)
        self.grid = shape["P_GRID"] if shape["P_GRID"] <= self.clusters else 0

    def _clusters(self, kernel: str, shared: int) -> int:
        """Return the number of clusters of a kernel that run side by side."""
        config = self._config((CLUSTER * 64, 1, 1), 512, shared, CLUSTER, False)
        try:
            return int(_ask(self._cu.cuOccupancyMaxActiveClusters(self.function(kernel, shared, CLUSTER), config)))
        except ModelError:
            return 0

    def _config(self, grid: tuple[int, int, int], threads: int, shared: int, cluster: int, together: bool) -> Any:
        cu = self._cu
        named = grid, threads, shared, cluster, together
        if named in self._configs:
            return self._configs[named]
        if len(self._configs) > MOST_CONFIGS:
            self._configs.clear()
        config = self._configs[named] = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, self._stream
        attributes = []
        if cluster > 1:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = cluster
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
            attributes.append(attribute)
        if together:  # all blocks at once, or none
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _enter(self) -> None:
        _ask((*self._cu.cuCtxSetCurrent(self._context), None))

    def function(self, kernel: str, shared: int, cluster: int) -> Any:
        """Return a kernel, allowed that many bytes of shared memory and CTAs per cluster."""
        if kernel not in self._functions:
            f = self._functions[kernel] = _ask(self._cu.cuModuleGetFunction(self._module, kernel.encode()))
            if cluster > 8:
                self._set(f, self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        if shared > self._granted.get(kernel, UNASKED):
            most = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._set(self._functions[kernel], most, shared)
            self._granted[kernel] = shared
        return self._functions[kernel]

    def _set(self, function: Any, name: Any, value: int) -> None:
        _ask((*self._cu.cuFuncSetAttribute(function, name, value), None))

    def alloc(self, size: int) -> int:
        """Return the address of ``size`` bytes of zeros. Raises ModelError if memory does not suffice."""
        self._enter()
        address = self._pool.take(size)
        self.zero(address, max(size, 16))
        return address

    def free(self, address: int) -> None:
        """Free memory that `alloc` returned.

        Kernels under way may still use it: its next owner comes after them in the one stream there is.
        """
        self._enter()
        self._pool.give(address)

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._enter()
            self._pool.drop()

    def zero(self, address: int, size: int) -> None:
        """Fill ``size`` bytes with zeros, after everything launched before."""
        self._enter()
        _ask((*self._cu.cuMemsetD8Async(address, 0, size, self._stream), None))

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy an array of any shape to the device. The driver has its own copy once this returns."""
        self._enter()
        data = np.ascontiguousarray(array)
        if data.nbytes:
            _ask((*self._cu.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream), None))

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Fill an array of any shape from the device, after everything launched before."""
        self._enter()
        if self._done is not None:
            _ask((*self._cu.cuEventRecord(self._done, self._stream), None))
            _ask((*self._cu.cuEventSynchronize(self._done), None))
        if array.nbytes:
            _ask((*self._cu.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._stream), None))
        _ask((*self._cu.cuStreamSynchronize(self._stream), None))

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Argument],
        shared: int = 0, cluster: int = 1, together: bool = False,
    ) -> None:  # fmt: skip
        """Launch a kernel with ``shared`` bytes of shared memory and ``cluster`` CTAs per cluster.

        Launches run in order. ``together``: all CTAs of the kernel run side by side.
        """
        cu = self._cu
        f = self.function(kernel, shared, cluster)
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        config = self._config(grid, threads, shared, cluster, together)
        _ask((*cu.cuLaunchKernelEx(config, f, ctypes.addressof(pointers), 0), None))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of `work` in a CUDA graph and return a call that replays them."""
        cu = self._cu
        self._enter()
        _ask(
            (
                *cu.cuStreamBeginCapture(  # relaxed: a coder collected just now may give its memory back in the middle
                    self._stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
                ),
                None,
            )
        )
        try:
            work()
        finally:
            graph = _ask(cu.cuStreamEndCapture(self._stream))
        executable = _ask(cu.cuGraphInstantiate(graph, 0))
        cu.cuGraphDestroy(graph)
        return _Recording(cu, executable, self._stream)

    def room(self) -> int:
        """Return the bytes of device memory that are free, or the share of it."""
        self._enter()
        return (int(_ask(self._cu.cuMemGetInfo())[0]) + self._pool.kept) // self._share

    def rest(self) -> None:
        """Free the memory that is kept for the next call."""
        self._enter()
        self._pool.drop()


class _Recording:
    """Recorded launches. The driver frees the recording once all launches have run."""

    def __init__(self, cu: Any, executable: Any, stream: Any):
        self._cu, self._executable, self._stream = cu, executable, stream

    def __call__(self) -> None:
        _ask((*self._cu.cuGraphLaunch(self._executable, self._stream), None))

    def __del__(self) -> None:
        self._cu.cuGraphExecDestroy(self._executable)
