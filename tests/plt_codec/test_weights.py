"""Weights and shapes outside the numeric contract are refused."""

import numpy as np
import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.weights import Weights


@pytest.mark.parametrize("name", ["class.b", "member.b"])
@pytest.mark.parametrize("bias", [-(1 << 31), (1 << 31) - 1, -(1 << 24), 1 << 24])
def test_a_bias_beyond_the_bound_is_refused(name: str, bias: int) -> None:
    """Among them -2^31, whose absolute value in int32 is itself: native and torch coded other bits with it."""
    known = random_weights(1, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    tensors = {key: tensor.copy() for key, tensor in known.tensors.items()}
    tensors[name][0] = bias
    with pytest.raises(ModelError, match=name):
        Weights(known.shape, tensors)
    tensors[name][0] = np.clip(bias, 1 - (1 << 24), (1 << 24) - 1)
    Weights(known.shape, tensors)


@pytest.mark.parametrize("vocab", [128, 129, 1 << 17])
def test_a_vocabulary_of_no_two_classes_or_too_many_is_refused(vocab: int) -> None:
    """A range coder has no symbols of one class: native coded them, and the reference engine ended in ValueError."""
    with pytest.raises(ModelError, match="vocab"):
        random_weights(1, vocab=vocab)
