"""The kernels on a CPU, for tests without a GPU, by emulate.h and the machine's C++ compiler (x86-64, GNU)."""

import ctypes
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.device import Argument, source
from pltz.plt_codec.errors import ModelError
from tests.compiled import compiled

HERE = Path(__file__).resolve().parent
FEW = ("decode_block", "decode_grid", "decode_grid_wide", "decode_gated")  # kernels for one session or a few


def available() -> bool:
    """Return whether this machine can compile and run the emulation."""
    return platform.machine() == "x86_64" and platform.system() == "Linux" and shutil.which("g++") is not None


class Emulation:
    """The kernels for one shape, compiled when they are first launched.

    Each kernel of FEW has a shared library of its own, since it takes the compiler as long as all others together, and
    most shapes are tested with one of them or none.

    Args:
        shape: as `macros` returns it.
        flags: more options for the compiler.
        text: the kernels; the bundle's unless given.
    """

    def __init__(self, shape: Mapping[str, int], flags: Sequence[str] = (), text: str | None = None):
        self.shape, self.flags = shape, flags
        self._text = source() if text is None else text
        self._libraries: dict[str, ctypes.CDLL] = {}

    def library(self, kernel: str) -> ctypes.CDLL:
        """Return the library of a kernel.

        Raises:
            ModelError: the kernels do not compile.
        """
        group = kernel if kernel in FEW else ""
        if group not in self._libraries:
            kernels = [group] if group else self._for_many()
            self._libraries[group] = ctypes.CDLL(str(self._compiled(kernels)))
        return self._libraries[group]

    def _for_many(self) -> list[str]:
        kernels = dict.fromkeys(re.findall(r"^KERNEL(?:[23]|_OF)?\([\w, ]+\)\s+(\w+)\(", self._text, re.MULTILINE))
        return [name for name in kernels if name not in FEW]

    def _compiled(self, kernels: list[str]) -> Path:
        calls = "".join(f"    EMULATED({name})\n" for name in kernels)
        compiler = ["g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-fPIC", "-w", *self.flags]
        header = (HERE / "emulate.h").read_text()
        text = (
            f'{self._text}\nextern "C" int emulated(const char *kernel, '
            "const uint32_t *grid, uint32_t threads, uint32_t cluster, uint32_t together, uint64_t bytes, void **args) "
            f"{{\n{calls}    return 1;\n}}\n"
        )
        command = [*compiler, "-shared", *(f"-D{k}={v}" for k, v in self.shape.items())]

        def make_header(part: Path) -> None:
            """Compile emulate.h: parsing it takes a fifth of a compilation."""
            file = part.with_suffix("")
            file.write_text(header)
            _run([*compiler, "-x", "c++-header", "-o", str(part), str(file)])

        def make(part: Path) -> None:
            parsed = compiled(".h.gch", [*compiler, "-x", "c++-header"], header, make_header)
            file = part.with_suffix(".cpp")
            file.write_text(f'#include "{parsed.with_suffix("")}"\n{text}')
            _run([*command, "-o", str(part), str(file)])
            file.unlink()

        return compiled(".so", command, header + text, make)


def check(text: str, shape: Mapping[str, int]) -> None:
    """Check that a text of kernels compiles for a shape. Raises ModelError."""
    options = ["-std=c++17", "-fsyntax-only", "-w", "-include", str(HERE / "emulate.h")]
    _run(["g++", *options, *(f"-D{k}={v}" for k, v in shape.items()), "-x", "c++", "-"], text)


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=text)
    if done.returncode:
        raise ModelError(f"the emulation does not compile: {done.stderr[:3000]}")


class EmulatedDevice:
    """A `Device` (device.py) that is this machine's CPU."""

    def __init__(self, emulation: Emulation, clusters: int = 0, grid: int = 0, gated: int = 0):
        self._emulation = emulation
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self.clusters, self.grid, self.gated = clusters, grid, gated
        self.stream, self.name = 0, "cpu"

    def alloc(self, size: int) -> int:
        """Return the address of ``size`` bytes of zeros."""
        array = np.zeros(size + 256, np.uint8)
        address = (array.ctypes.data + 127) // 128 * 128
        self._memory[address] = array
        return address

    def free(self, address: int) -> None:
        """Free memory that `alloc` returned."""
        del self._memory[address]

    def zero(self, address: int, size: int) -> None:
        """Fill ``size`` bytes with zeros."""
        ctypes.memset(address, 0, size)

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy an array of any shape to the device."""
        data = np.ascontiguousarray(array)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Fill an array of any shape from the device."""
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def launch(
        self, kernel: str, grid: tuple[int, int, int], threads: int, args: Sequence[Argument],
        shared: int = 0, cluster: int = 1, together: bool = False,
    ) -> None:  # fmt: skip
        """Run a kernel to its end."""
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        sizes = (ctypes.c_uint32 * 3)(*grid)
        if self._emulation.library(kernel).emulated(
            kernel.encode(), sizes, threads, cluster, grid[0] if together else cluster, ctypes.c_uint64(shared),
            pointers,
        ):
            raise ModelError(f"no kernel {kernel}")

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a call that runs `work` again."""
        return work

    def room(self) -> int:
        """Return the bytes that may be used."""
        return 1 << 31
