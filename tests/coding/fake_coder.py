"""A coder of ten bits an id, for tests of what is built on one, and a few sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import Layouts, each_layout
from pltz.plt_codec.types import Encoded, FrameItem


@dataclass
class FakeBundle:
    tokenizer: BundleTokenizer
    id: bytes = b"0123456789abcdef"
    zstd_dict: bytes = b'{"messages":[{"role":"user","content":"'


def ten_bits(ids: Any) -> bytes:
    return np.packbits(np.asarray(ids)[:, None] >> np.arange(10) & 1).tobytes()


class FakeCoder:
    """Ten bits per token; remembers its calls. Any bytes of the right number decode to something."""

    def __init__(self) -> None:
        self.encoded: list[int] = []  # sequences in each call
        self.decoded: list[int] = []

    def encode(
        self, sequences: Sequence[Any], *, contexts: Sequence[Any] | None = None, layouts: Layouts = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Encoded]:
        self.encoded.append(len(sequences))
        if progress:
            progress(sum(map(len, sequences)))
        cut = each_layout(layouts, [*map(len, sequences)])
        return [Encoded(ten_bits(ids), 0.0, 1, one) for ids, one in zip(sequences, cut, strict=True)]

    def decode(self, items: Sequence[FrameItem], *, progress: Callable[[int], None] | None = None) -> list[Any]:
        self.decoded.append(len(items))
        if progress:
            progress(sum(item.tokens for item in items))
        return [self._decode(item) for item in items]

    def _decode(self, item: FrameItem) -> Any:
        if len(item.data) != -(-10 * item.tokens // 8):
            raise CorruptError("the bitstring does not decode")
        bits = np.unpackbits(np.frombuffer(item.data, np.uint8), count=10 * item.tokens).reshape(-1, 10)
        return bits.astype(np.int64) @ (1 << np.arange(10))


class NeighbourCoder(FakeCoder):
    """Codes the tokens that a sequence begins with as its context does by their number alone, in two bytes."""

    def encode(
        self, sequences: Sequence[Any], *, contexts: Sequence[Any] | None = None, layouts: Layouts = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Encoded]:
        self.encoded.append(len(sequences))
        given = [None] * len(sequences) if contexts is None else contexts
        rows = zip(sequences, given, each_layout(layouts, [*map(len, sequences)]), strict=True)
        return [Encoded(self._encode(ids, context), 0.0, 1, one) for ids, context, one in rows]

    def _encode(self, ids: Any, context: Any) -> bytes:
        shared = 0
        while context is not None and shared < min(len(ids), len(context)) and ids[shared] == context[shared]:
            shared += 1
        return shared.to_bytes(2, "big") + ten_bits(ids[shared:])

    def _decode(self, item: FrameItem) -> Any:
        shared = int.from_bytes(item.data[:2], "big")
        if shared > (0 if item.context is None else min(len(item.context), item.tokens)):
            raise CorruptError("the bitstring does not decode without its context")
        rest = super()._decode(FrameItem(item.data[2:], item.tokens - shared))
        return rest if item.context is None else np.concatenate([item.context[:shared], rest])


class BrokenCoder(FakeCoder):
    """Decodes the last token of each sequence wrongly."""

    def _decode(self, item: FrameItem) -> Any:
        ids = super()._decode(item).copy()
        ids[-1:] ^= 1
        return ids


def chat(*turns: str, **more: Any) -> Session:
    messages = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return Session("chat", {**more, "messages": messages})


TALK = chat("What is a tower of segments?", "A chain of shared prompts, each of them stored once.")
IMAGE = Session(
    "chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]}
)
PROSE = Session("text", b"Prose, plain and long enough to be worth a frame.\xff")
