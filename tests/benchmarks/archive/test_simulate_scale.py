"""The simulation counts what the archive's code asks for, and its line goes through what was counted."""

from typing import Any

import pytest

from pltz.benchmarks import plots
from pltz.benchmarks.archive import simulate_scale
from pltz.benchmarks.archive.simulate_scale import CountedBucket, line, looked_up, measured, of_head


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_scale, "COMMIT", 50)
        patch.setattr(simulate_scale, "NIGHT", 10)
        return [measured(count) for count in (50, 150)]


def test_the_bucket_counts_requests_and_bytes() -> None:
    bucket = CountedBucket()
    with bucket.counting() as cost:
        assert bucket.put("packs/a", b"123") and not bucket.put("packs/a", b"4")
        assert bucket.read("packs/a", 1, 9) == b"23"
        for _ in range(2):
            assert bytes(bucket.open("packs/a").read(0, 3)) == b"123"
        with pytest.raises(FileNotFoundError):
            bucket.view("packs/b")
        bucket.folders["parity"] = {str(n): b"" for n in range(1001)}
        assert len(bucket.list("parity")) == 1001 and bucket.list("keys") == {}
        bucket.delete("packs/a")
    assert cost.requests == {"PUT": 2, "GET": 4, "LIST": 3, "DELETE": 1} and (cost.read, cost.written) == (8, 4)
    bucket.put("index/a", b"12345")
    with bucket.counting() as cost:
        for _ in range(2):
            bucket.open("index/a")
    assert cost.requests == {"GET": 1} and cost.read == 5, "an index is fetched once"


def test_what_is_measured(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        costs = row["costs"]
        assert costs["get, archive open"]["LIST"] == costs["put of one"]["LIST"] == 0
        assert 0 < costs["get, archive open"]["GET"] <= costs["get, nothing cached"]["GET"]
        assert 0 < costs["put of one"]["PUT"] <= 4
        assert costs["verify"]["read"] > 0.9 * simulate_scale.OWN * row["sessions"]
        assert costs["erase of one"]["PUT"] and all(row[f"{of}_mb"] > 0 for of in ("reader", "writer", "erase"))
    assert rows[1]["stored"] > 2 * rows[0]["stored"] and rows[1]["packs"] > rows[0]["packs"]


def test_the_line(rows: list[dict[str, Any]]) -> None:
    small, large = rows
    for row in rows:
        on = line(small, large, row["sessions"])
        assert on["costs"]["verify"]["read"] == pytest.approx(row["costs"]["verify"]["read"])
        assert on["stored"] == pytest.approx(row["stored"])
    far = line(small, large, 250)
    assert far["stored"] - large["stored"] == pytest.approx(large["stored"] - small["stored"]) and far["modelled"]
    assert plots.draw("scale", [small, large, far]).startswith(b"<?xml")


def test_of_a_large_index_a_page_per_key_is_read(rows: list[dict[str, Any]]) -> None:
    small, large = rows
    alone, both = (large["costs"][f"get{name}, index by ranges"] for name in (" without a prompt", ""))
    assert alone["GET"] <= 4 and both["GET"] <= 6, "manifest, head, page and record, and of a prompt page and record"
    far = line({**small, "packs": 2}, {**large, "packs": 2}, 10_000_000)
    cold = far["costs"]["get, nothing cached"]
    assert cold["GET"] == both["GET"] and far["index_bytes"] > 10 * 10_000_000
    assert cold["read"] - both["read"] == (1 << 20) - large["index_bytes"]
    assert of_head(100_000_000, 2_000, 1 << 30) == {"GET": 1, "read": 1 << 20}
    assert of_head(10**9, 20_000, 1 << 33)["GET"] == 3
    look = looked_up(400_000)
    assert 2 < look["GET"] <= look["most_GET"] == 3 and look["read"] < 18 << 16
