"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from pltz.archive import codec, identity, index, io, pack, plan, record, settings, token_archive
from pltz.archive.hooks import entry


@pytest.mark.parametrize(
    "module",
    [codec, entry, identity, index, io, pack, plan, record, settings, token_archive],
    ids=lambda m: m.__name__,
)
def test_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
