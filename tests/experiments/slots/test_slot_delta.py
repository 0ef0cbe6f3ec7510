"""Slot files as base plus delta: back byte for byte, and anything else refused by name.

Against a real server too: PLTZ_LLAMA_SERVER=/path/to/llama-server python -m pytest -m llama_server
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings, strategies as st

from pltz.experiments.slots.measure_slots import act
from pltz.experiments.slots.slot_delta import FIELDS, delta, splice
from pltz.experiments.slots.slot_layout import SlotLayout
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, PltzError, UsageError, VersionError
from pltz.serving.engines.llama_server import LlamaServer
from tests.examples import examples
from tests.serving.engines.llama_process import running
from tests.serving.engines.served_models import write_gguf

RECORDED = Path(__file__).parents[2] / "serving/engines/recorded/slot.bin"
BINARY = os.environ.get("PLTZ_LLAMA_SERVER", "")


def made(
    tokens: int, *, seed: int = 0, shared: int = 0, transposed: int = 0, layers: int = 2, streams: int = 1,
    named: int = 1, sequence: int = 0, row: int = 8, version: int = 3, tail: bytes = b"",
) -> bytes:  # fmt: skip
    """Return a slot file of random rows. The first ``shared`` cells are those of seed 0."""
    words = [-1, 1, tokens, *range(tokens), 0]
    out = [struct.pack("<4sII", b"qsgg", version, len(words)), struct.pack(f"<{len(words)}i", *words)]
    out.append(struct.pack("<I", streams))
    for stream in range(streams):
        if stream != sequence % streams:
            out.append(struct.pack("<I", 0))
            continue
        out.append(struct.pack("<I", tokens))
        for cell in range(tokens):
            out.append(struct.pack("<iI", cell, named) + struct.pack("<i", sequence) * named)
        out.append(struct.pack("<II", transposed, layers))
        for part in range(2 * layers):
            first, own = (np.random.default_rng([one, part]).integers(0, 256, (64, row), np.uint8) for one in (0, seed))
            cells = np.concatenate([first[:shared], own[shared:tokens]])
            if transposed and part >= layers:  # elements of two bytes
                out.append(struct.pack("<iII", 1, 2, row // 2))
                out.append(cells.reshape(tokens, -1, 2).transpose(1, 0, 2).tobytes())
            else:
                out.append(struct.pack("<iQ", 1, row) + cells.tobytes())
    return b"".join([*out, tail])


BASE = made(8)
DELTA = delta(BASE, made(12, shared=8, seed=1))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("named", [0, 1])
def test_a_chain_of_slots_comes_back_byte_for_byte(transposed: int, named: int) -> None:
    some = partial(made, transposed=transposed, named=named, row=512)
    platform = some(20)
    community = some(30, seed=1, shared=20, sequence=1, streams=2)
    bot = some(33, seed=2, shared=20, streams=3)
    first, second = delta(platform, community), delta(platform, bot)
    assert splice(platform, first) == community and splice(platform, second) == bot
    assert len(first) < len(community) * 10 / 30 + 500 and len(second) < len(bot) * 13 / 33 + 500
    assert splice(community, delta(community, community)) == community
    assert splice(bot, delta(bot, platform)) == platform, "shorter than its base"


def test_a_real_slot_file_is_read_to_its_last_byte() -> None:
    data = memoryview(RECORDED.read_bytes())
    layout = SlotLayout.of(data, "slot.bin")
    assert (layout.cells, layout.positions, len(layout.arrays)) == (15, tuple(range(15)), 8)
    assert layout == SlotLayout.of_skeleton(memoryview(layout.skeleton(data)), len(data), "slot.bin")
    assert splice(data, delta(data, data)) == data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", FormatError),
        (made(4, version=4), VersionError),
        (made(4, tail=b"1234"), FormatError),  # a second cache
        (made(4)[:-1], CorruptError),
        (made(4)[:40], CorruptError),
        (made(0), ContentError),
        (made(4, layers=0), FormatError),
        (made(4, transposed=2), FormatError),
        (made(4, sequence=300), FormatError),
        (made(4).replace(struct.pack("<iI", 2, 1), struct.pack("<iI", 2, 7)), FormatError),
        (made(4).replace(struct.pack("<iI", 2, 1), struct.pack("<iI", -2, 1)), FormatError),
        (struct.pack("<4sII", b"qsgg", 3, 0xFFFFFFFF), CorruptError),
        (made(4).replace(struct.pack("<iQ", 1, 8), struct.pack("<iQ", 1, 1 << 25)), FormatError),
    ],
)
def test_another_layout_is_refused(data: bytes, error: type[PltzError]) -> None:
    with pytest.raises(error):
        delta(data, made(8))
    with pytest.raises(error):
        delta(made(8), data)


def test_files_of_other_models_and_other_bases_are_refused() -> None:
    base, slot = made(8), made(12, shared=8, seed=1)
    found = delta(base, slot)
    for other in (made(8, layers=3), made(8, row=16), made(8, transposed=1)):
        with pytest.raises(UsageError, match="one model"):
            delta(other, slot)
    with pytest.raises(UsageError, match="share no cell"):
        delta(made(8, seed=5), slot)
    with pytest.raises(UsageError, match="SHA-256"):
        splice(made(8, seed=5), found)
    with pytest.raises(VersionError):
        splice(base, found[:8] + struct.pack("<I", 2) + found[12:])
    with pytest.raises(FormatError, match="begins with"):
        splice(base, slot)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_a_damaged_delta_is_refused(data: st.DataObject) -> None:
    base = BASE
    found = bytearray(DELTA)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(8, len(found) - 1))
        found[at] ^= data.draw(st.integers(1, 255))
    else:
        del found[data.draw(st.integers(0, len(found) - 1)) :]
    with pytest.raises(PltzError):
        splice(base, bytes(found))


def test_a_delta_that_lies_about_its_size_allocates_nothing() -> None:
    import hashlib

    base = made(8)
    found = delta(base, made(12, shared=8, seed=1))
    fields = list(FIELDS.unpack_from(found))
    fields[6] = 0xFFFFFFFF  # bytes of the skeleton
    packed = found[FIELDS.size : FIELDS.size + fields[7]]
    head = FIELDS.pack(*fields) + packed
    with pytest.raises(CorruptError):
        splice(base, head + hashlib.sha256(head).digest() + found[len(head) + 32 :])


@pytest.mark.llama_server
@pytest.mark.skipif(not os.path.isfile(BINARY), reason="needs llama-server: PLTZ_LLAMA_SERVER=/path/to/it")
def test_a_spliced_slot_goes_on_alike_in_a_real_server(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "mini-llama.gguf")
    slots = tmp_path / "slots"
    slots.mkdir()
    with running(BINARY, model, slots) as url:
        server = LlamaServer(url, model=model)
        prompts = ["You are a helpful assistant. ", "This is the shop of lamps. ", "You sell red lamps. "]
        ids = [server.tokenize("".join(prompts[: n + 1])) for n in range(3)]
        question = server.tokenize("".join(prompts) + "What do you sell?")
        names = ["platform.bin", "community.bin", "bot.bin"]
        for n, name in enumerate(names):  # as in section 8.1 of the paper: restore, prefill what is new, save
            if n:
                act(url, "restore", names[n - 1])
            server.thaw(ids[n], slot=0, any_target=True)
            act(url, "save", name)
        whole = [(slots / name).read_bytes() for name in names]
        chain = [delta(below, above) for below, above in pairwise(whole)]
        assert sum(map(len, chain)) < sum(map(len, whole[1:])) / 2
        again = splice(splice(whole[0], chain[0]), chain[1])
        assert again == whole[2]
        (slots / "again.bin").write_bytes(again)
        said = []
        for name in ("bot.bin", "again.bin"):
            act(url, "restore", name)
            done = server.complete(question, slot=0, n_predict=12, temperature=0.0)
            assert done.cached > len(ids[1]), "the restored KV is used"
            said.append(done.ids.tolist())
        assert said[0] == said[1]


def test_the_commands_go_through_files(tmp_path: Path, run: Callable[..., Result]) -> None:
    names = {"platform.bin": made(8), "community.bin": made(12, shared=8, seed=1)}
    names["bot.bin"] = made(14, shared=8, seed=1)
    for name, data in names.items():
        (tmp_path / name).write_bytes(data)
    paths = {name.partition(".")[0]: str(tmp_path / name) for name in names}
    for below, above in (("platform", "community"), ("community", "bot")):
        done = run("slot", "delta", paths[below], paths[above], "-o", str(tmp_path / f"{above}.delta"))
        assert done.exit_code == 0 and "spliced back and compared" in done.output
    deltas = [str(tmp_path / f"{name}.delta") for name in ("community", "bot")]
    done = run("slot", "splice", paths["platform"], *deltas, "-o", str(tmp_path / "again.bin"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "again.bin").read_bytes() == names["bot.bin"]
    wrong = run("slot", "splice", paths["platform"], deltas[1], "-o", str(tmp_path / "wrong.bin"))
    assert wrong.exit_code == 2 and not (tmp_path / "wrong.bin").exists()
    missing = run("slot", "delta", paths["platform"], str(tmp_path / "none"), "-o", str(tmp_path / "x"))
    assert missing.exit_code == 2
