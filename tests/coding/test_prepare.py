"""The tokens that the model codes of a session, or none: the same rules for files and archives."""

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.coding.host_work import tokens_for_model
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError, ModelError, OpaqueContentError, TokenizerMismatch
from pltz.plt_codec.types import FrameItem
from tests.coding.fake_coder import IMAGE, FakeBundle, FakeCoder


@pytest.mark.parametrize("by_zstd", [False, True])
def test_opaque_parts_and_foreign_ids_are_refused_either_way(bundle: FakeBundle, by_zstd: bool) -> None:
    with pytest.raises(OpaqueContentError):
        tokens_for_model(IMAGE, bundle.tokenizer, by_zstd=by_zstd, keep_opaque=False)
    assert tokens_for_model(IMAGE, bundle.tokenizer, by_zstd=by_zstd, keep_opaque=True) is None
    with pytest.raises(TokenizerMismatch):
        tokens_for_model(Session("ids", np.array([10**6])), bundle.tokenizer, by_zstd=by_zstd, keep_opaque=True)


def test_a_session_that_does_not_decode_is_named(bundle: FakeBundle) -> None:
    class Refusing(FakeCoder):
        def _decode(self, item: FrameItem) -> object:
            if item.tokens == 40:
                raise CorruptError("the bitstring does not decode")
            return super()._decode(item)

    rows = [Session("ids", np.random.default_rng(n).integers(0, 1000, size)) for n, size in enumerate((60, 40, 50))]
    with pytest.raises(ModelError, match=r"session 1 does not come back .*does not decode"):
        Codec(bundle, Refusing()).compress(rows)
