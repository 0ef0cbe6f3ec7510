"""Damage: whatever happens to a file of any format, reading gives a named error or the same value."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pltz.kv.store import kv_file
from pltz.plt_codec.errors import PltzError
from tests.formats import FORMATS, SoundFile
from tests.serving.eviction.opened import eventually

MANY, FEW = 150, 20  # places of flips; of each other damage
SEALED = [name for name in FORMATS if name.startswith(("warm, ", "memory, "))]
ODD: list[Any] = [None, True, -1, 10**400, 1e400, 0.5, "x", "\ud800", [], [[]], [0], [29.0, 32], {}, {"a": 1}]


def damages(data: bytes, many: int) -> Iterator[tuple[str, bytes]]:
    """Yield copies of a file with bits flipped, ends cut off or put on, runs of zeros, and runs that changed places."""
    draw, size = random.Random(5), len(data)
    for at in sorted({*range(min(size, many // 2)), size - 1} | {draw.randrange(size) for _ in range(many)}):
        yield f"flip {at}", data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    for end in sorted({0, 1, 7, size // 2, size - 1} | {draw.randrange(size) for _ in range(many // 6)}):
        yield f"cut {end}", data[:end]
    for more in (b"\0", b"x" * 9, data[:64]):
        yield "extend", data + more
    for _ in range(many // 6):
        one, other = sorted((draw.randrange(size), draw.randrange(size)))
        run = min(16, other - one, size - other)
        yield f"zero {one}", data[:one] + bytes(len(data[one : one + 16])) + data[one + 16 :]
        left, right = data[one : one + run], data[other : other + run]
        yield f"swap {one} {other}", data[:one] + right + data[one + run : other] + left + data[other + run :]


@pytest.fixture
def sound(
    name: str, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> SoundFile:
    monkeypatch.setattr(kv_file, "CHUNK", kv_file.CHUNK)  # so that it is put back
    return FORMATS[name](tmp_path, tiny_tokenizer_json())


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_a_named_error_or_the_same_value(name: str, sound: SoundFile) -> None:
    good, said = sound.path.read_bytes(), sound.read()
    refused = 0
    for how, hurt in damages(good, FEW if name.startswith("bundle") else MANY):
        if hurt == good:
            continue
        sound.path.write_bytes(hurt)
        try:
            found = sound.read()
        except PltzError:
            refused += 1
            assert not sound.goes or eventually(lambda: not sound.path.exists()), how  # a thread may remove it
        else:
            assert sound.may_be(found) if sound.may_be else found == said, how
    assert refused > FEW
    sound.path.write_bytes(good)
    assert sound.may_be or sound.read() == said


@pytest.mark.parametrize("name", SEALED)
def test_damage_under_checksums_that_are_right_raises_nothing_else(name: str, sound: SoundFile) -> None:
    assert sound.seal is not None
    good = sound.path.read_bytes()
    for how, hurt in damages(good, MANY):
        sound.path.parent.mkdir(exist_ok=True)
        sound.path.write_bytes(sound.seal(hurt))
        try:
            assert sound.read(), how
        except PltzError:
            continue


def mutants(tree: Any) -> Iterator[Any]:
    """Yield a tree of JSON once for each of its values and each odd one in its place."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        value = tree[key]
        for other in (*ODD, *(mutants(value) if isinstance(value, dict | list) else ())):
            copy = tree.copy()
            copy[key] = other
            yield copy


@pytest.mark.parametrize("name", SEALED)
def test_a_header_of_any_values_raises_nothing_else(name: str, sound: SoundFile) -> None:
    assert sound.seal is not None
    good, refused = sound.path.read_bytes(), 0
    end = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:end])
    for other in (*mutants(header), *ODD, header | {"more": {}}, {k: v for k, v in header.items() if k != "ids"}):
        text = json.dumps(other).encode()
        sound.path.write_bytes(sound.seal(len(text).to_bytes(8, "little") + text + good[end:]))
        try:
            assert sound.read(), other
        except PltzError:
            refused += 1
    assert refused > 100
