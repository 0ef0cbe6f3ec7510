"""Codecs are tested by the small real bundle, in place of the fake one of the tests of coding."""

from tests.conftest import bundle

__all__ = ["bundle"]
