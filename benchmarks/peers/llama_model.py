"""A peer, llama.cpp: the bundle's own matrices in a GGUF, evaluated in floats on the same machine, token by token.

The architecture is `apertus`, whose block is that of numeric contract 1: RMS norms, grouped queries and keys with a
norm each, rotary angles, and a hidden layer without a gate. Its xIELU is the squared ReLU when its negative half is 0.
Matrices are Q8_0, which holds our int8 rows exactly; only the scale of a row is rounded, to 11 bits.

llama.cpp lacks two things, so they are done between its operations, in the callback it calls for each. The weights
were trained with activations clamped to the range of int8 (without that they predict nothing), and each head has a
temperature of its own. Where only speed is measured both are left out.

The input is rows of the embedding and the output is the residual after the last layer. Embedding and head stay with the
caller: our head picks a class and then one of its 128 members, which costs 1 % of a vocabulary's product (`macs` counts
the layers alone).

    with opened(weights, threads=1, positions=64) as model:
        residual = model.step(embedding_row, 0)  # (d,) float32

Needs llama-cpp-python and gguf (the extra ``llama``).
"""

import ctypes
import importlib.util
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pltz.plt_codec.weights import Shape, Weights

ARCHITECTURE = "apertus"
PACKAGES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}
GATED = "the export to llama.cpp is of models of numeric contract 1, and this one is of 2 (gated)"
STUB = 32  # rows of the unused vocabulary
ROPE_BASE = 10000.0
Q8_0_BLOCK = 32  # weights that share a scale in a GGUF
# Units of NUMERICS.md, 1 / the size of one integer:
NORMED, TURNED, VALUE, MIXED, HIDDEN, SQUARED, RESIDUAL = 20, 24, 20, 40, 64, 16, 256
NATS = math.log(2) / 64  # nats per unit of a score or logit
Floats = npt.NDArray[np.float32]
Act = tuple[int, Callable[[Floats], object]]  # (elements, function that changes them in place)


def missing() -> list[str]:
    """Return the packages that are missing. Without any this module works."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


def unavailable(weights: "Weights") -> str | None:
    """Return why this model cannot be measured in llama.cpp here, or None where it can."""
    if absent := missing():
        return f"{' and '.join(absent)} not installed (pip install 'pltz[llama]')"
    return GATED if weights.shape.gated else None


def macs(shape: "Shape") -> int:
    """Return llama.cpp's multiply-adds per token outside attention: the layers alone."""
    return shape.macs - (shape.classes + 128) * shape.d


def measure(weights: "Weights", tokens: npt.NDArray[Any], threads: int, rounds: int = 1) -> dict[str, Any]:
    """Measure the tokens/s of llama.cpp's layers over ``tokens`` (T,), one at a time from an empty cache.

    The best of the rounds counts, in processor time divided by the threads.

    Raises:
        UsageError: the model is of another contract than 1.
        ModelError: llama.cpp fails.
    """
    import llama_cpp

    rows = embedding(weights)[tokens]
    best = float("inf")
    with opened(weights, threads, len(tokens), faithful=False) as model:
        for _ in range(rounds):
            model.clear()
            start = time.process_time()
            for position, row in enumerate(rows):
                model.step(row, position)
            best = min(best, (time.process_time() - start) / threads)
    return {
        "version": llama_cpp.__version__,
        "architecture": ARCHITECTURE,
        "threads": threads,
        "macs_per_token": macs(weights.shape),
        "tokens_per_s": round(len(tokens) / best, 1),
    }


def embedding(weights: "Weights") -> Floats:
    """Return the input embedding, (V, d), in units of the residual."""
    return weights["embed.w"] * (weights["embed.m"] / (RESIDUAL << 16)).astype(np.float32)[:, None]


# ---- the file


def write_gguf(path: Path, weights: "Weights") -> None:
    """Write the layers of a model as a GGUF with a vocabulary of ``STUB`` rows of zeros.

    Raises UsageError for a gated model.
    """
    import gguf

    if weights.shape.gated:
        raise UsageError(GATED)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _write_settings(writer, weights.shape)
    _write_tensors(writer, weights, gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: Any, shape: "Shape") -> None:
    writer.add_context_length(1 << 16)
    writer.add_embedding_length(shape.d)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-12)
    writer.add_vocab_size(STUB)
    writer.add_tokenizer_model("no_vocab")
    zeros = [0.0] * shape.layers
    writer.add_xielu_alpha_p([math.log(math.e - 1)] * shape.layers)  # softplus of it is 1: x^2 above 0
    writer.add_xielu_alpha_n([-200.0] * shape.layers)  # softplus of it is 0: nothing below
    writer.add_xielu_beta(zeros)
    writer.add_xielu_eps(zeros)


def _write_tensors(writer: Any, weights: "Weights", kind: Any) -> None:
    shape = weights.shape
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.zeros((STUB, shape.d), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(shape.d, np.float32))
    theirs = ROPE_BASE ** (-2 * np.arange(shape.head_dim // 2) / shape.head_dim)  # radians per position
    ours = weights["table.phase"] * (2 * math.pi / 2**20)
    writer.add_tensor("rope_freqs.weight", (theirs / ours).astype(np.float32))
    parts = np.cumsum([shape.heads, shape.kv_heads]) * shape.head_dim
    for i in range(shape.layers):

        def matrix(name: str, w: npt.NDArray[Any], scale: npt.NDArray[Any], layer: int = i) -> None:
            writer.add_tensor(f"blk.{layer}.{name}.weight", _blocks(w, scale), raw_dtype=kind)

        def ones(name: str, n: int, layer: int = i) -> None:
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(n, np.float32))

        def scale(name: str, unit: float, layer: int = i) -> npt.NDArray[Any]:
            return weights[f"layer.{layer}.{name}.m"] * (unit / 2**24)

        qkv = np.split(weights[f"layer.{i}.qkv.w"], parts)
        for name, w, m in zip("qkv", qkv, np.split(scale("qkv", NORMED / VALUE), parts), strict=True):
            matrix(f"attn_{name}", w, m)
        matrix("attn_output", weights[f"layer.{i}.out.w"], scale("out", MIXED / RESIDUAL))
        matrix("ffn_up", weights[f"layer.{i}.up.w"], scale("up", NORMED / HIDDEN))
        matrix("ffn_down", weights[f"layer.{i}.down.w"], scale("down", SQUARED / RESIDUAL))
        for name, n in (("q_norm", shape.head_dim), ("k_norm", shape.head_dim), ("norm", shape.d)):
            ones(f"attn_{name}", n)
        ones("ffn_norm", shape.d)


def _blocks(w: npt.NDArray[Any], scale: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return int8 rows and their scales as the bytes of Q8_0: 32 weights after the float16 scale they share."""
    rows, columns = w.shape
    out = np.zeros((rows, columns // Q8_0_BLOCK, 2 + Q8_0_BLOCK), np.uint8)
    out[:, :, :2] = scale.astype("<f2").view(np.uint8).reshape(rows, 1, 2)
    out[:, :, 2:] = w.reshape(rows, -1, Q8_0_BLOCK).view(np.uint8)
    return out.reshape(rows, -1)


# ---- operations that llama.cpp lacks


def _acts(weights: "Weights", keep: Callable[[Floats], object]) -> dict[bytes, Act]:
    """Return, by llama.cpp's name of a result, its elements and the function that changes them before they are used.

    ``keep`` gets the residual.
    """
    shape, found = weights.shape, {}
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        heat = weights[f"layer.{i}.heat"] * (TURNED**2 * NATS / 2**16 * math.sqrt(shape.head_dim))
        found[f"Qcur_pos-{i}"] = width, _warmed(heat.astype(np.float32)[:, None])
        found[f"Kcur_pos-{i}"] = kv_width, _clamped(127 / TURNED)
        found[f"Vcur-{i}"] = kv_width, _clamped(127 / VALUE)
        found[f"kqv_out-{i}"] = width, _clamped(127 / MIXED)
        found[f"ffn_up-{i}"] = shape.hidden, _clamped(255 / HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            found[f"{name}-{i}"] = shape.d, _clamped(127 / NORMED)
    found[f"l_out-{shape.layers - 1}"] = shape.d, keep
    return {name.encode(): act for name, act in found.items()}


def _clamped(limit: float) -> Callable[[Floats], object]:
    return lambda values: np.clip(values, -limit, limit, out=values)


def _warmed(heat: Floats) -> Callable[[Floats], object]:
    """Return a function that clamps queries and multiplies each head by its inverse temperature, heat (H, 1)."""

    def act(values: Floats) -> None:
        np.clip(values, -127 / TURNED, 127 / TURNED, out=values)
        heads = values.reshape(len(heat), -1)
        heads *= heat

    return act


# ---- the model


class LlamaModel:
    """A llama.cpp context with one sequence, made by `opened`. Positions count from 0 and continue after `forget`."""

    def __init__(self, llama_cpp: Any, context: Any, width: int, residual: Floats | None) -> None:
        self._llama, self._context, self._residual = llama_cpp, context, residual
        self._batch = batch = llama_cpp.llama_batch_init(1, width, 1)
        batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, 1
        self._row = np.ctypeslib.as_array(batch.embd, (width,))

    def step(self, row: Floats, position: int) -> Floats:
        """Pass one row of the embedding, (d,), and return the residual after the last layer, (d,).

        The result is valid until the next step.

        Raises:
            ModelError: llama.cpp fails, or names its results otherwise than this module expects.
        """
        self._row[:] = row
        self._batch.pos[0] = position
        if self._residual is not None:
            self._residual[0] = np.nan
        if self._llama.llama_decode(self._context, self._batch):
            raise ModelError("llama.cpp could not decode a token")
        if self._residual is None:  # llama.cpp's own output, the residual with another norm, is enough to measure speed
            return np.ctypeslib.as_array(self._llama.llama_get_embeddings(self._context), self._row.shape)
        if np.isnan(self._residual[0]):
            raise ModelError("this llama.cpp names its results otherwise: take the version in constraints.txt")
        return self._residual

    def forget(self, before: int) -> None:
        """Drop the positions below ``before`` from the cache."""
        memory = self._llama.llama_get_memory(self._context)
        self._llama.llama_memory_seq_rm(memory, 0, 0, before)

    def clear(self) -> None:
        """Begin a new sequence."""
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)

    def close(self) -> None:
        """Free the batch. `opened` frees the context."""
        self._llama.llama_batch_free(self._batch)


@contextmanager
def opened(weights: "Weights", threads: int, positions: int, *, faithful: bool = True) -> Iterator[LlamaModel]:
    """Open a model in llama.cpp with room for so many positions at a time.

    With ``faithful`` False clamps and temperatures are left out.

    Raises:
        UsageError: the model is of another contract than 1.
        ModelError: llama.cpp rejects the model, or there is no memory for it.
    """
    import llama_cpp

    residual = np.zeros(weights.shape.d, np.float32)

    def keep(values: Floats) -> None:
        residual[:] = values

    callback = _callback(llama_cpp, _acts(weights, keep)) if faithful else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, weights)
        with _context(llama_cpp, path, positions, threads, callback) as context:
            model = LlamaModel(llama_cpp, context, weights.shape.d, residual if faithful else None)
            try:
                yield model
            finally:
                model.close()


def _callback(llama_cpp: Any, acts: dict[bytes, Act]) -> Any:
    """Return the callback that llama.cpp asks whether it wants a result, and calls again with each wanted one."""
    ggml = llama_cpp.llama_cpp._lib  # the library that links ggml finds its symbols
    ggml.ggml_get_name.restype, ggml.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    ggml.ggml_get_data_f32.restype, ggml.ggml_get_data_f32.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    @llama_cpp.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator]
    def evaluated(tensor: int, ask: bool, _: Any) -> bool:
        act = acts.get(ggml.ggml_get_name(tensor))
        if ask or act is None:
            return act is not None
        count, change = act
        values = (ctypes.c_float * count).from_address(ggml.ggml_get_data_f32(tensor))
        change(np.ctypeslib.as_array(values))
        return True

    return evaluated


@contextmanager
def _context(llama_cpp: Any, path: Path, positions: int, threads: int, callback: Any) -> Iterator[Any]:
    """Make a llama.cpp context on the CPU with room for so many positions."""
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.n_gpu_layers = 0
    options.progress_callback = quiet = llama_cpp.llama_progress_callback(lambda *_: True)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    del quiet
    if not model:
        raise ModelError(
            f"llama.cpp does not take the exported model: it may be older than the architecture {ARCHITECTURE}"
        )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = positions, threads, threads
    settings.n_batch = settings.n_ubatch = 1
    settings.embeddings, settings.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_NONE
    if callback is not None:
        settings.cb_eval = callback
    context = llama_cpp.llama_init_from_model(model, settings)
    try:
        if not context:
            raise ModelError("llama.cpp could not make a context: not enough memory")
        yield context
    finally:
        if context:
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
