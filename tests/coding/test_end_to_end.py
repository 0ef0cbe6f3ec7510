"""Sessions through tokenizer, model, coder and container and back, with a small real bundle: exact, or refused."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.lanes import LAYOUTS, LayoutName


@pytest.fixture(scope="session")
def codec(real_bundle: Bundle) -> Codec:
    """A bundle of 1024 ids with random weights: the whole machinery, no knowledge."""
    return Codec.load(real_bundle.path)


def by_model(codec: Codec, sessions: list[Session], **options: Any) -> bytes:
    """A file in which the model codes everything: the fallback is made useless."""
    stored = Codec(codec.bundle, codec.coder)
    stored._work.packed = lambda content: bytes(5 * len(content))  # type: ignore[method-assign]
    return stored.compress(sessions, verify=False, **options)


SESSIONS = [
    Session("chat", {"messages": [{"role": "user", "content": "Hello, how are you?"}]}),
    Session("chat", {"id": "s-1", "messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}]}),
    Session("chat", [{"role": "user", "content": "naïve \ud83d\ude00 text"}]),
    Session("chat", {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y" * 40}]}),
    Session("text", b""), Session("text", b"\xff\xfe broken \x80 bytes" * 3),
    Session("text", "Ünïcödé 中文 ".encode() * 9), Session("ids", np.array([5, 99, 1023, 0, 0, 31, 512])),
    Session("ids", np.zeros(0, np.int32)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_comes_back(codec: Codec, layout: LayoutName) -> None:
    data = by_model(codec, SESSIONS, layout=layout)
    assert codec.decompress(data) == SESSIONS
    reader = Reader(data)
    assert sum(reader.frame(i).by_model for i in range(len(reader))) >= 7
    for i in (3, 0, 7):  # each alone
        assert codec.decompress(data, [i]) == [SESSIONS[i]]


def test_the_same_bits_in_any_company(codec: Codec) -> None:
    """A session's frame does not depend on what is coded with it: 1, 7 or 64 together."""
    sample = [Session("text", s.to_bytes()[:300]) for s in sample_sessions()[:64]]
    frames = {}
    for size in (1, 7, 64):
        found = []
        for begin in range(0, 64, size):
            reader = Reader(by_model(codec, sample[begin : begin + size], independent=True))
            found += [reader.frame(i).data for i in range(len(reader))]
        frames[size] = found
    assert frames[1] == frames[7] == frames[64]


def small_file(codec: Codec) -> tuple[list[Session], bytes]:
    sessions = [SESSIONS[0], SESSIONS[5], SESSIONS[7]]
    return sessions, by_model(codec, sessions)


def outcome(codec: Codec, data: bytes) -> list[Session] | None:
    """What a reader makes of the bytes; None where it refuses by name. Anything else is a failure of the test."""
    try:
        return codec.decompress(data)
    except PltzError as exc:
        assert exc.exit_code >= 2 and str(exc)
        return None


@pytest.mark.slow
def test_every_single_byte_change_is_refused_or_harmless(codec: Codec) -> None:
    """Each byte, with each bit flipped and set to 0 and 255: never another content than what was put in."""
    sessions, data = small_file(codec)
    refused = 0
    for place in range(len(data)):
        for value in {data[place] ^ (1 << b) for b in range(8)} | {0, 255} - {data[place]}:
            broken = bytearray(data)
            broken[place] = value
            found = outcome(codec, bytes(broken))
            assert found is None or found == sessions
            refused += found is None
    assert refused > 8 * len(data) * 0.9


def test_damage_does_not_cost_memory(codec: Codec) -> None:
    """Reading damaged files allocates no more than a few times what the sound one does."""
    _, data = small_file(codec)

    def peak(candidate: bytes) -> int:
        tracemalloc.start()
        outcome(codec, candidate)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(data)
    honest = peak(data)
    for place in range(0, len(data), 3):
        broken = bytearray(data)
        broken[place] ^= 0xC0
        assert peak(bytes(broken)) <= 4 * honest
