"""Slot files of llama.cpp itself, by the functions that a server calls: a spliced file goes on as the saved one."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pltz.experiments.slots.slot_delta import delta, splice
from tests.serving.engines.served_models import write_gguf


def test_a_spliced_slot_goes_on_alike_in_llama_cpp(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(
        str(write_gguf(tmp_path / "mini-llama.gguf")), n_ctx=256, n_threads=1, verbose=False, logits_all=True
    )
    prompts = ["You are a helpful assistant. ", "This is the shop of lamps. ", "You sell red lamps. "]
    parts = [model.tokenize(prompt.encode(), add_bos=False) for prompt in prompts]
    ids = [[one for part in parts[: n + 1] for one in part] for n in range(3)]

    def prefilled(known: list[int], path: Path) -> None:
        """Save the slot of ids, of which ``known`` have their KV in the context."""
        rest = ids[names.index(path.name)]
        assert rest[: len(known)] == known, "a prompt begins with the one above"
        model.eval(rest[len(known) :])
        array = (llama_cpp.llama_token * len(rest))(*rest)
        assert llama_cpp.llama_state_seq_save_file(model.ctx, str(path).encode(), 0, array, len(rest))

    def restored(path: Path) -> list[int]:
        """Restore a slot in an empty context. Returns its ids."""
        model.reset()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
        array, count = (llama_cpp.llama_token * 256)(), ctypes.c_size_t()
        assert llama_cpp.llama_state_seq_load_file(model.ctx, str(path).encode(), 0, array, 256, ctypes.byref(count))
        model.n_tokens = count.value
        model.input_ids[: count.value] = array[: count.value]
        return list(array[: count.value])

    names = ["platform.bin", "community.bin", "bot.bin"]
    for n, name in enumerate(names):  # as in section 8.1 of the paper: restore, prefill what is new, save
        prefilled(restored(tmp_path / names[n - 1]) if n else [], tmp_path / name)
    whole = [(tmp_path / name).read_bytes() for name in names]
    chain = [delta(below, above) for below, above in pairwise(whole)]
    assert sum(map(len, chain)) < sum(map(len, whole[1:])) / 2
    again = tmp_path / "again.bin"
    again.write_bytes(splice(splice(whole[0], chain[0]), chain[1]))
    assert again.read_bytes() == whole[2]
    scores = []
    for path in (tmp_path / "bot.bin", again):
        assert restored(path) == ids[2]
        model.eval(model.tokenize(b"What do you sell?", add_bos=False))
        scores.append(np.array(model.scores[model.n_tokens - 1]))
    assert np.array_equal(scores[0], scores[1]) and scores[0].std() > 0
