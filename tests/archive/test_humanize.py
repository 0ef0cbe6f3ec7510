"""Numbers in words."""

import pytest

from pltz.archive.humanize import counted, size


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1900, "1.9 kB"), (4.14e6, "4.1 MB"), (1.25e10, "12.5 GB")]
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 packs"), (1, "1 pack"), (2, "2 packs"), (1_000_000, "1,000,000 packs")]
)
def test_counted(count: int, text: str) -> None:
    assert counted(count, "pack") == text
