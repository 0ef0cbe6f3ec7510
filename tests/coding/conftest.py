"""Fixtures of the tests of coding: ``codec``, of ``bundle``, with a fake coder. Others code with ``nano``."""

import pytest

from pltz.coding.codec import Codec
from pltz.models.bundle.tokenizer import BundleTokenizer
from tests.archive.conftest import nano
from tests.coding.fake_coder import FakeBundle, FakeCoder
from tests.conftest import bundle as real_bundle

__all__ = ["bundle", "codec", "nano", "real_bundle"]


@pytest.fixture(scope="module")
def bundle(tiny_tokenizer: BundleTokenizer) -> FakeBundle:
    return FakeBundle(tiny_tokenizer)


@pytest.fixture
def codec(bundle: FakeBundle) -> Codec:
    return Codec(bundle, FakeCoder())
