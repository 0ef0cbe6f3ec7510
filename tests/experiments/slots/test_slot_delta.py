"""Slot files as base plus delta: back byte for byte, and anything else refused by name.

Against a real server too: PLTZ_LLAMA_SERVER=/path/to/llama-server python -m pytest -m llama_server
"""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings, strategies as st

from pltz.experiments.slots.slot_delta import delta, splice
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, PltzError, VersionError
from tests.cli.commands import ok
from tests.examples import examples


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


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_a_damaged_delta_is_refused(data: st.DataObject) -> None:
    base, found = BASE, bytearray(DELTA)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(8, len(found) - 1))
        found[at] ^= data.draw(st.integers(1, 255))
    else:
        del found[data.draw(st.integers(0, len(found) - 1)) :]
    with pytest.raises(PltzError):
        splice(base, bytes(found))


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
    ok(run("slot", "splice", paths["platform"], *deltas, "-o", str(tmp_path / "again.bin")))
    assert (tmp_path / "again.bin").read_bytes() == names["bot.bin"]
    wrong = run("slot", "splice", paths["platform"], deltas[1], "-o", str(tmp_path / "wrong.bin"))
    assert wrong.exit_code == 2 and not (tmp_path / "wrong.bin").exists()
    assert run("slot", "delta", paths["platform"], str(tmp_path / "none"), "-o", str(tmp_path / "x")).exit_code == 2
