"""Fixtures of the hot store's tests, which those of the thaw use too."""

from tests.kv.store.conftest import bundle, clock, cold, kin, small, stranger
from tests.models.target.test_target import target

__all__ = ["bundle", "clock", "cold", "kin", "small", "stranger", "target"]
