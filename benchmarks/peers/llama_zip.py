"""A peer, the method of llama-zip: a float language model in llama.cpp and an arithmetic coder, token by token.

The method is that of github.com/AlexBuz/llama-zip. The model gives the distribution of the next token, the coder
narrows its interval by it, the token is passed to the model, and so on. Decoding runs the same steps. The method has no
layout (one lane, one token after the other) and is exact only on one machine and one build; pltz adds both. Weights,
tokenizer and context are ours (`llama_model`): a position sees its block and the memory before it, as in one unbroken
lane of NUMERICS.md.

Every doubt is decided for the peer. Only the coder's bits count, truncated as our own are, and the number of tokens is
known for free. The frequencies sum to 2^24 over 128 classes and then 128 members, where llama-zip has 2^32 over the
vocabulary. The difference is negligible (a floor of 2^-24 on 128 symbols costs 10^-5 bits).
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pltz.benchmarks.peers.llama_model import NATS, NORMED, RESIDUAL, LlamaModel, embedding
from pltz.plt_codec.range_coder import RangeDecoder, RangeEncoder
from pltz.plt_codec.weights import CLASS, PRECISION

if TYPE_CHECKING:
    from pltz.plt_codec.weights import Weights

MARKER = 0  # the input before the first token
Floats = npt.NDArray[np.float32]


class ZipHead:
    """The two levels of a bundle's head in floats: from residuals (d,) to frequencies (1, n) that sum to 2^24."""

    def __init__(self, weights: "Weights") -> None:
        shape = weights.shape
        unit = NORMED * NATS / 2**24
        self._length = np.sqrt(np.float32(shape.d))
        self._classes = weights["class.w"] * (weights["class.m"] * unit).astype(np.float32)[:, None]
        self._class_bias = (weights["class.b"] * NATS).astype(np.float32)
        shift = (weights["shift.m"] / (RESIDUAL << 16)).astype(np.float32)
        self._shift = weights["shift.w"] * shift[:, None]
        members = weights["embed.w"] * (weights["member.m"] * unit).astype(np.float32)[:, None]
        self._members = members.reshape(-1, CLASS, shape.d)
        self._member_bias = (weights["member.b"] * NATS).astype(np.float32).reshape(-1, CLASS)

    def classes(self, residual: Floats) -> npt.NDArray[np.int64]:
        """Return the frequency of each class, (1, n)."""
        return frequencies(self._classes @ self._normed(residual) + self._class_bias)

    def members(self, residual: Floats, chosen: int) -> npt.NDArray[np.int64]:
        """Return the frequency of each token of a class, (1, n)."""
        normed = self._normed(residual + self._shift[chosen])
        return frequencies(self._members[chosen] @ normed + self._member_bias[chosen])

    def _normed(self, x: Floats) -> Floats:
        limit = np.float32(127 / NORMED)
        found: Floats = np.clip(x * (self._length / np.linalg.norm(x)), -limit, limit)
        return found


def frequencies(logits: Floats) -> npt.NDArray[np.int64]:
    """Return integers of at least 1 in proportion to exp(logits), (1, n), that sum to 2^24.

    The likeliest gets the remainder.
    """
    weights = np.exp((logits - logits.max()).astype(np.float64))
    total = 1 << PRECISION
    found: npt.NDArray[np.int64] = 1 + (weights * ((total - len(weights)) / weights.sum())).astype(np.int64)
    found[int(found.argmax())] += total - int(found.sum())
    return found.reshape(1, -1)


class LlamaZip:
    """A coder of tokens through an open `LlamaModel`, which must have room for a block and the memory."""

    def __init__(self, model: LlamaModel, weights: "Weights") -> None:
        self._model, self._rows, self._head = model, embedding(weights), ZipHead(weights)
        self._block, self._memory = weights.shape.block, weights.shape.memory

    def encode(self, tokens: npt.NDArray[np.int32]) -> bytes:
        """Return the coder's bytes for tokens (T,).

        Raises:
            ModelError: llama.cpp fails.
        """
        coder, before = RangeEncoder(), MARKER
        self._model.clear()
        for position, token in enumerate(tokens.tolist()):
            residual = self._step(before, position)
            chosen, member = divmod(token, CLASS)
            coder.encode(np.array([chosen], np.int32), self._head.classes(residual))
            coder.encode(np.array([member], np.int32), self._head.members(residual, chosen))
            before = token
        return coder.finish()

    def decode(self, data: bytes, count: int) -> npt.NDArray[np.int32]:
        """Decode ``count`` tokens and return them, (count,).

        Raises:
            ModelError: llama.cpp fails.
            CorruptError: the bytes come from other tokens or another machine.
        """
        coder, before = RangeDecoder(data), MARKER
        found = np.zeros(count, np.int32)
        self._model.clear()
        for position in range(count):
            residual = self._step(before, position)
            chosen = int(coder.decode(self._head.classes(residual))[0])
            member = int(coder.decode(self._head.members(residual, chosen))[0])
            found[position] = before = chosen * CLASS + member
        return found

    def _step(self, token: int, position: int) -> Floats:
        if position and position % self._block == 0:
            self._model.forget(position - self._memory)
        return self._model.step(self._rows[token], position)
