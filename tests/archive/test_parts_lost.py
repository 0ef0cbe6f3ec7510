"""A part that a lost pack may have is called lost, and never absent or as it was before."""

from pathlib import Path

import pytest

from pltz.archive.archive import Archive
from pltz.archive.errors import LostError, NotFound
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.writing.put_request import PutRequest


@pytest.fixture
def cold(tmp_path: Path) -> Archive:
    """An archive of which the pack with two parts of a session is given up, and one part was put since."""
    place = tmp_path / "cold"
    cold = Archive.open(place, create=True, bundle="nano")
    cold.put("p", "the main part", part="")
    cold.put("p", "one", part="a")
    before = set(place.glob("packs/*"))
    list(cold.put_many([PutRequest("p", "two", part="a"), PutRequest("p", "first", part="b/c")]))
    for path in set(place.glob("packs/*")) - before:
        path.unlink()
        (place / "parity" / path.name).unlink()
    cold = Archive.open(place, bundle="nano")
    assert not Repairer(cold.parts.store).run().whole
    cold = Archive.open(place, bundle="nano")
    cold.put("p", "the main part goes on")
    return Archive.open(place, bundle="nano")


def test_what_a_lost_pack_may_have_is_not_called_absent_nor_old(cold: Archive) -> None:
    assert cold.get("p").value == b"the main part goes on"  # it is newer than what was lost
    for part in ("a", "b/c"):
        with pytest.raises(LostError):
            cold.get("p", part=part)
    with pytest.raises(LostError):
        list(cold.get_parts("p"))


def test_a_part_that_is_nowhere_is_absent_where_nothing_is_lost(tmp_path: Path) -> None:
    cold = Archive.open(tmp_path / "sound", create=True, bundle="nano")
    cold.put("p", "one")
    with pytest.raises(NotFound, match="has no part 'a'"):
        cold.get("p", part="a")
