"""``pltz archive get`` from a bucket by a machine that has nothing of it: three requests, however many packs."""

from __future__ import annotations

import pytest

from pltz.archive import opener
from pltz.archive.archive import Archive
from tests.archive.test_requests import CountedStore, add_names
from tests.cli.commands import Run

pytestmark = pytest.mark.usefixtures("bundle_at_hand")


@pytest.mark.parametrize("count", [10, 1000, 60_000])
def test_a_cold_get_is_three_requests(run: Run, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest, the index of all packs, and the pack of the session."""
    store = CountedStore()
    monkeypatch.setattr(opener, "open_store", lambda place: store)
    opener.create("s3://bucket/cold", manifest=True)
    made = Archive.open("s3://bucket/cold")
    made.put("a", "hello")
    add_names(store, made.parts.catalog, count)
    Archive.open("s3://bucket/cold").parts.indexes.write()
    store.requests.clear()
    store.kept.clear()
    assert run("archive", "get", "s3://bucket/cold", "a").stdout.strip() == "hello"
    assert store.requests == {"load": 1, "read": 2}
