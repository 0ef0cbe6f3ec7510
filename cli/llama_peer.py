"""llama.cpp as a peer of decoding: the model's own matrices in a GGUF, run token by token on the same machine.

The architecture is `arcee`, which is ours but for details that cost nothing: grouped-query attention with rotary angles, a
hidden layer of squared ReLU without a gate, RMS norms (it has none on queries and keys). Matrices are Q8_0, the width of
ours, and output is the whole vocabulary by the input embedding, where ours picks a class and then one of its 128 members:
llama.cpp does more multiply-adds a token (`macs`). Tokens are given, not sampled; that time is left out.

Needs llama-cpp-python and gguf (the extra ``llama``).
"""

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

    from pltz.plt_codec.weights import Shape, Weights

ARCHITECTURE = "arcee"
PACKAGES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}


def missing() -> list[str]:
    """The packages that are not installed here; empty: `measure` works."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


def macs(shape: "Shape") -> int:
    """Multiply-adds a token outside attention, of llama.cpp: the layers, and the whole vocabulary."""
    layers = shape.macs - (shape.classes + 128) * shape.d
    return layers + shape.vocab * shape.d


def measure(
    weights: "Weights", tokens: "np.ndarray[Any, Any]", threads: int, rounds: int = 1
) -> dict[str, Any]:
    """Tokens/s of llama.cpp over ``tokens`` (T,), one at a time from an empty cache; the best of the rounds."""
    import llama_cpp

    best = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, weights)
        with _context(llama_cpp, path, len(tokens), threads) as context:
            for _ in range(rounds):
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
                best = min(best, _seconds(llama_cpp, context, tokens))
    return {
        "version": llama_cpp.__version__,
        "architecture": ARCHITECTURE,
        "threads": threads,
        "macs_per_token": macs(weights.shape),
        "tokens_per_s": round(len(tokens) / best, 1),
    }


def write_gguf(path: Path, weights: "Weights") -> None:
    """The matrices of a model as a GGUF without a tokenizer. The scale of a row is left out: it costs no time."""
    import gguf
    import numpy as np

    shape, writer = weights.shape, gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_context_length(1 << 16)
    writer.add_embedding_length(shape.d)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)

    def matrix(name: str, w: "np.ndarray[Any, Any]") -> None:
        kind = gguf.GGMLQuantizationType.Q8_0
        scaled = w.astype(np.float32) / (64 * w.shape[1] ** 0.5)
        writer.add_tensor(name, gguf.quants.quantize(scaled, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.d, np.float32))

    matrix("token_embd.weight", weights["embed.w"])
    ones("output_norm.weight")
    parts = np.cumsum([shape.heads, shape.kv_heads]) * shape.head_dim
    for i in range(shape.layers):
        for name, w in zip("qkv", np.split(weights[f"layer.{i}.qkv.w"], parts), strict=True):
            matrix(f"blk.{i}.attn_{name}.weight", w)
        for ours, theirs in (("out", "attn_output"), ("up", "ffn_up"), ("down", "ffn_down")):
            matrix(f"blk.{i}.{theirs}.weight", weights[f"layer.{i}.{ours}.w"])
        ones(f"blk.{i}.attn_norm.weight")
        ones(f"blk.{i}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def _context(llama_cpp: Any, path: Path, tokens: int, threads: int) -> Iterator[Any]:
    """A llama.cpp context on the CPU with room for so many tokens."""
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ModelError(
            "llama.cpp does not take the exported model: it may be older than the architecture arcee"
        )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = tokens, threads, threads
    context = llama_cpp.llama_init_from_model(model, settings)
    try:
        if not context:
            raise ModelError("llama.cpp could not make a context: not enough memory")
        yield context
    finally:
        if context:
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def _seconds(llama_cpp: Any, context: Any, tokens: "np.ndarray[Any, Any]") -> float:
    """Seconds of passing the tokens one by one, the logits of each computed."""
    cell = (llama_cpp.llama_token * 1)()
    start = time.perf_counter()
    for token in tokens.tolist():
        cell[0] = token
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(cell, 1)):
            raise ModelError("llama.cpp could not decode a token")
        llama_cpp.llama_get_logits(context)
    return time.perf_counter() - start
