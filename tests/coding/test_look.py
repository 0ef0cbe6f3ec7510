"""Nothing is coded in vain: samples tell which texts zstd takes fewer bytes for."""

import base64
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pltz.coding import look
from pltz.coding.codec import Codec
from pltz.coding.look import RANDOM, REPEATING, doubtful, expected_sizes
from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.zstd import Fallback
from tests.coding.fake_coder import FakeBundle, FakeCoder

DICE = random.Random(7).randbytes(15_000)
HEX, BASE64 = DICE.hex().encode(), base64.b64encode(DICE)
DIGITS = "".join(str(n % 10) for n in DICE).encode()
PROSE = " ".join(m["content"] for s in sample_sessions() for m in s.value["messages"]).encode()[:40_000]


class CountingCoder(FakeCoder):
    """Remembers the tokens that it encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0

    def encode(self, sequences: Sequence[Any], **keywords: Any) -> list[Any]:
        self.tokens += sum(map(len, sequences))
        return super().encode(sequences, **keywords)


@pytest.mark.parametrize("content", [HEX, BASE64, DIGITS], ids=["hex", "base64", "digits"])
def test_random_digits_are_in_doubt_and_prose_is_not(content: bytes) -> None:
    fast, literals = Fallback().fast_size(content), int(len(content) / 1.5)
    assert doubtful(literals, content, fast) is RANDOM and doubtful(look.LEAST - 1, content, fast) is None
    prose = PROSE[:20_000]
    assert doubtful(int(len(prose) / 1.5), prose, Fallback().fast_size(prose)) is None  # even in so many tokens


def test_what_repeats_itself_is_in_doubt_from_a_length_on() -> None:
    content = b"".join(b"%d,%d,yes\n" % (n, n % 7) for n in range(6000))
    fast = Fallback().fast_size(content)
    assert doubtful(len(content) // 2, content, fast) is REPEATING
    assert doubtful(look.LEAST_REPEATING - 1, content, fast) is None


@pytest.mark.parametrize("samples", [RANDOM, REPEATING])
def test_samples_tell_the_bytes_of_all(samples: look.Samples) -> None:
    """Expect ten bits per token of a coder that takes them, whatever the length; samples stand after other tokens."""
    coder = CountingCoder()
    rows = [np.arange(count) % 1000 for count in (look.LEAST, 20_000, 300_000)]
    assert expected_sizes(coder, [(row, samples) for row in rows]) == pytest.approx([1.25 * len(row) for row in rows])
    assert coder.tokens <= 3 * samples.most * samples.tokens and expected_sizes(coder, []) == []


def test_a_file_leaves_to_zstd_what_the_model_would_code_in_vain() -> None:
    """Code a few samples, not the 20,000 tokens, of each random text, and give all of them back."""
    nano, coder = Bundle.load("nano"), CountingCoder()
    codec = Codec(FakeBundle(nano.tokenizer, zstd_dict=nano.zstd_dict), coder)
    texts = [Session("text", content) for content in (HEX, BASE64, DIGITS)]
    data = codec.compress(texts, independent=True)
    assert codec.decompress(data) == texts and [Reader(data).info(n).by_model for n in range(3)] == [False] * 3
    assert 0 < coder.tokens <= 3 * RANDOM.most * RANDOM.tokens


def test_a_text_that_says_the_same_again_is_coded_once() -> None:
    """Code what is left without its copies, and not all of it too: 40 kB took as long as what does not repeat."""
    nano, coder = Bundle.load("nano"), CountingCoder()
    codec = Codec(FakeBundle(nano.tokenizer, zstd_dict=nano.zstd_dict), coder)
    page = Session("text", PROSE[:8000] * 5)
    data = codec.compress([page])
    assert codec.decompress(data) == [page] and 0 < coder.tokens < len(nano.tokenizer.encode(page.value)) / 4
