"""A real decoder bundle, small and with random weights, behind the archive's codec interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.codec import BundleCodec, BytesCodec, Coded, Plain
from pltz.archive.writer import NewSession
from pltz.models.bundle import Bundle, write_bundle
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.weights import random_weights

NOTHING = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[[int], bytes]) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    weights = random_weights(5, vocab=1024, block=128, memory=32)
    write_bundle(folder, "tiny", weights, tiny_tokenizer_json(1024), b"", {})
    return Bundle.load(folder)


def test_towers_of_a_real_bundle(bundle: Bundle, tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "cold", [BundleCodec(bundle), BytesCodec()])
    dice = np.random.default_rng(1)
    prompt = dice.integers(0, 1024, 60)
    turns = [dice.integers(0, 1024, size) for size in (0, 1, 40, 300)]
    receipts = archive.put(
        [NewSession(f"s{n}", [prompt, *turns[: n + 1]], kind="chat", shared=1) for n in range(4)]
    )
    assert [r.new for r in receipts] == [2, 1, 1, 1]
    fresh = Archive.open(tmp_path / "cold", [BundleCodec(bundle)])
    for n in range(4):
        assert fresh.get(f"s{n}").tokens.tolist() == np.concatenate([prompt, *turns[: n + 1]]).tolist()
    assert fresh.verify(decode=True).decoded == 5
    with pytest.raises(ContentError):
        archive.put([NewSession("out of range", [np.array([1024])])])


def test_a_segment_is_coded_after_the_last_tokens_above(bundle: Bundle) -> None:
    codec, coder = BundleCodec(bundle), bundle.coder()
    dice = np.random.default_rng(2)
    tokens, above = dice.integers(0, 1024, 50), dice.integers(0, 1024, 90)
    [alone, after, last] = codec.encode([Plain(tokens, a) for a in (NOTHING, above, above[-codec.reach :])])
    assert codec.reach == 32 and after == last != alone
    assert alone == coder.encode([tokens])[0].data
    assert after == coder.encode([tokens], contexts=[above])[0].data
    assert codec.decode([Coded(after, 50, above)])[0].tolist() == tokens.tolist()
    with pytest.raises(CorruptError, match="tokenizer"):
        codec.decode([Coded(after, 50, np.array([5, 1024]))])


def test_bytes_codec_refuses_what_is_no_byte_and_what_lies() -> None:
    codec = BytesCodec()
    with pytest.raises(ContentError):
        codec.encode([Plain(np.array([256]), NOTHING)])
    for data, count in ((b"abc", 2), (b"abc", 500), (b"", 1), (b"\xff" * 9, 1 << 30)):
        with pytest.raises(CorruptError):
            codec.decode([Coded(data, count, NOTHING)])
