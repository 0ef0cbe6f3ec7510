"""The compiled engine: the numeric contract, the layout and the range coder in C, called through ctypes.

`NativeCoder` gives the same frames as `token_coder.TokenCoder` with the torch engine, bit for bit, several times
faster. One C call codes a whole batch with no Python in between and without the GIL. The C sources are in native/. The
instructions used (AMX, AVX-512 VNNI, AVX2, NEON or plain C) are chosen when a coder is made, and change no bit.

Installation builds the module `_native` where a C compiler is available; `available()` says whether that worked.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import fields
from itertools import repeat

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError, ModelError, UsageError
from pltz.plt_codec.lanes import (
    MAX_TOKENS,
    NOTHING,
    Ids,
    Layout,
    Layouts,
    Tokens,
    checked,
    each,
    each_layout,
    layout_of,
    remembered,
    room,
)
from pltz.plt_codec.types import Encoded, FrameItem, Progress
from pltz.plt_codec.weights import Weights

KERNEL_VARIABLE = "PLTZ_KERNEL"  # environment: the kernel to use if the caller names none
LIBRARY_VARIABLE = "PLTZ_NATIVE"  # environment: another build of the C sources, say one with sanitizers
INTERFACE = 4  # version of the functions that native/ exports
SLICE = 1 << 12  # tokens coded in one C call, between two reports of progress
MAX_THREADS = 64
DEFAULT_THREADS = 16  # at most, if the caller names no number: a step of a few lanes has no work for more
TENSORS = (
    "embed.w", "embed.m", "class.w", "class.m", "class.b", "shift.w", "shift.m", "member.m", "member.b",
    "table.exp", "table.cos", "table.sin", "table.phase",
)  # fmt: skip
LAYER_TENSORS = ("qkv.w", "qkv.m", "out.w", "out.m", "up.w", "up.m", "down.w", "down.m", "heat")
GATED_TENSORS = ("norm_out", "table.act")  # contract 2: more
GATED_LAYER_TENSORS = ("gate.w", "gate.m", "norm_in", "norm_mid")


class _Request(ctypes.Structure):
    """One session, laid out as batch.c reads it."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("total", ctypes.c_int64),
        ("data", ctypes.c_char_p),
        ("length", ctypes.c_int64),
        ("lanes", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("context", ctypes.c_int32),
    )


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the built module as a C library, or None.

    None means that it was not built, does not load here, or is of another version.
    """
    spec = importlib.util.find_spec("pltz.plt_codec.engines.native._native")
    path = os.environ.get(LIBRARY_VARIABLE) or (spec and spec.origin)
    if not path:
        return None
    try:
        library = ctypes.CDLL(path)
        if library.pltz_interface() != INTERFACE:
            return None
    except (OSError, AttributeError):
        return None
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    for name, result, arguments in (
        ("pltz_kernel", ctypes.c_char_p, [ctypes.c_int]),
        ("pltz_model_new", pointer, [pointer, pointer, ctypes.c_char_p]),
        ("pltz_model_free", None, [pointer]),
        ("pltz_open", pointer, [pointer, pointer, int32, int32, int32]),
        ("pltz_run", int64, [pointer, int64]),
        ("pltz_frame", pointer, [pointer, int32, pointer, pointer]),
        ("pltz_failed", ctypes.c_int, [pointer]),
        ("pltz_close", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def available() -> bool:
    """Return whether the compiled engine was built and loads here."""
    return _library() is not None


def kernels() -> list[str]:
    """Return the kernels this machine can run, best first; none where the engine is not available."""
    library, out = _library(), list[str]()
    while library is not None and (name := library.pltz_kernel(len(out))):
        out.append(name.decode())
    return out


class NativeCoder:
    """A coder of sequences of bundle token ids in C.

    It has the interface, frames and errors of `token_coder.TokenCoder`.

    Args:
        weights: the model.
        threads: how many to use; None is one per processor of this process, up to 16.
        kernel: one of `kernels()`; None is the environment variable PLTZ_KERNEL, else the best.

    Neither ``threads`` nor ``kernel`` changes a bit.

    Raises:
        UsageError: the kernel does not run here, or the engine is not available.
        ModelError: memory does not suffice.
    """

    def __init__(self, weights: Weights, threads: int | None = None, kernel: str | None = None):
        library = _library()
        if library is None:
            raise UsageError(
                "the compiled engine was not built: install pltz where a C compiler is, or use the torch engine"
            )
        if threads is not None and threads < 1:
            raise UsageError(f"expected at least 1 thread, got {threads}")
        self.shape = weights.shape
        self.threads = min(MAX_THREADS, threads or min(DEFAULT_THREADS, _processors()))
        self.kernel = _choose(kernel or os.environ.get(KERNEL_VARIABLE) or None)
        self._library = library
        names = [*TENSORS, *(f"layer.{i}.{name}" for i in range(weights.shape.layers) for name in LAYER_TENSORS)]
        if weights.shape.gated:
            names += GATED_TENSORS
            names += (f"layer.{i}.{name}" for i in range(weights.shape.layers) for name in GATED_LAYER_TENSORS)
        self._tensors = [np.ascontiguousarray(weights[name]) for name in names]  # C reads some in place
        pointers = (ctypes.c_void_p * len(names))(*(t.ctypes.data for t in self._tensors))
        sizes = [int(getattr(weights.shape, f.name)) for f in fields(weights.shape)]
        self._model: int | None = library.pltz_model_new(
            (ctypes.c_int32 * len(sizes))(*sizes), pointers, self.kernel.encode()
        )
        if not self._model:
            raise ModelError("not enough memory for the compiled engine")

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.pltz_model_free(self._model)
            self._model = None

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        layouts: Layouts = None,
        contexts: Sequence[Tokens | None] | None = None,
        progress: Progress | None = None,
    ) -> list[Encoded]:
        """Encode sequences of ids, each (T,), into a frame each; as `token_coder.TokenCoder.encode`.

        Raises:
            ContentError: ids are not one row of ids of the vocabulary.
            UsageError: layouts or contexts are not as many as the sequences.
            ModelError: memory does not suffice.
        """
        known = each(contexts, len(sequences), self.shape)
        tokens = list(map(checked, sequences, repeat(self.shape.vocab)))
        cut = each_layout(layouts, list(map(len, tokens)))
        rows = zip(known, tokens, cut, strict=True)
        sides = [_NativeSequence(c, np.concatenate([c, t]), b"", layout) for c, t, layout in rows]
        frames = self._run(sides, False, progress)
        return [
            Encoded(data, bits, layout.extent(len(t)).blocks, layout)
            for t, layout, (data, bits) in zip(tokens, cut, frames, strict=True)
        ]

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> list[npt.NDArray[np.int64]]:
        """Decode frames into their ids, each (tokens,).

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ContentError: a context is not one row of ids of the vocabulary.
            ModelError: memory does not suffice.
        """
        sides: list[_NativeSequence] = []
        for i in items:
            if not 0 <= i.tokens < MAX_TOKENS:
                raise CorruptError(f"expected fewer than {MAX_TOKENS} tokens in a frame, found {i.tokens}")
            context = remembered(i.context, self.shape)
            layout = i.layout or layout_of(i.tokens)
            sides.append(_NativeSequence(context, room(context, i.tokens), bytes(i.data), layout))
        self._run(sides, True, progress)
        return [s.tokens[s.first :] for s in sides]

    def _run(
        self, sides: list[_NativeSequence], decoding: bool, progress: Progress | None
    ) -> list[tuple[bytes, float]]:
        """Code all sides; return the frames and their ideal bits when encoding."""
        if not sides:
            return []
        library = self._library
        requests, place = _requests(sides)
        array = (_Request * len(requests))(*requests)
        batch = library.pltz_open(self._model, array, len(requests), decoding, self.threads)
        if not batch:
            raise ModelError(f"not enough memory to code {len(requests)} sequences at once: pass fewer")
        try:
            while done := library.pltz_run(batch, SLICE):
                if done < 0:
                    raise _error(done, requests[library.pltz_failed(batch)])
                if progress:
                    progress(done)
            return [] if decoding else [_frame(library, batch, i) for i in place]
        finally:
            library.pltz_close(batch)


class _NativeSequence:
    """One sequence while C works on it: `tokens` are the context's `first` ones, then its own."""

    def __init__(self, context: Ids, tokens: Ids, data: bytes, layout: Layout):
        own = tokens[len(context) :]
        self.context, self.tokens = (context, tokens) if len(own) else (NOTHING, own)
        self.first = len(self.context)
        self.data, self.lanes, self.steps = data, layout.lanes, layout.steps

    def request(self, context: int) -> _Request:
        """Return the request that C reads. `context`: number of the earlier request that holds its context, or -1."""
        at, size = self.tokens.ctypes.data, len(self.tokens)
        return _Request(at, size, self.data, len(self.data), self.lanes, self.steps, self.first, context)


def _requests(sides: list[_NativeSequence]) -> tuple[list[_Request], list[int]]:
    """Return the requests for C, and the number of each side's request.

    Long sequences come first, so that none is left to run alone at the end. Sequences of one context stand
    together, behind it.
    """
    groups: dict[bytes, list[int]] = {}
    for n in sorted(range(len(sides)), key=lambda n: -len(sides[n].tokens)):
        groups.setdefault(sides[n].context.tobytes(), []).append(n)
    requests: list[_Request] = []
    place = [0] * len(sides)
    for group in groups.values():
        context, ids = -1, sides[group[0]].context
        if len(ids):
            context, size = len(requests), len(ids)
            requests.append(_Request(ids.ctypes.data, size, None, 0, 1, size, size, -1))
        for n in group:
            place[n] = len(requests)
            requests.append(sides[n].request(context))
    return requests, place


def _error(code: int, request: _Request) -> Exception:
    """Return the error that a negative answer of pltz_run means, in the words of range_coder.py and token_coder.py."""
    if code == -1:
        return ModelError("not enough memory for the keys and values of one sequence")
    if code == -2:
        return CorruptError("the bitstring does not decode: it is damaged, or another bundle wrote it")
    return CorruptError(
        f"expected {request.total - request.first} tokens in the frame, but its bytes end before: damaged data"
    )


def _frame(library: ctypes.CDLL, batch: int, index: int) -> tuple[bytes, float]:
    length, bits = ctypes.c_int64(), ctypes.c_double()
    data = library.pltz_frame(batch, index, ctypes.byref(length), ctypes.byref(bits))
    return ctypes.string_at(data, length.value) if length.value else b"", bits.value


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _choose(kernel: str | None) -> str:
    known = kernels()
    if kernel is not None and kernel not in known:
        raise UsageError(f"kernel {kernel!r} does not run here: expected one of {', '.join(known)}")
    return kernel or known[0]
