"""The page is well formed for any names, self-contained, and shows the earlier runs."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pltz.archive.nightly.html_report import page

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.archive.nightly.conftest import Nightly


def parsed(data: bytes) -> ET.Element:
    text = data.decode()
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_a_page_shows_this_run_and_those_before_it(
    nightly: Nightly, make_chat: Callable[..., dict[str, Any]], make_lines: Callable[..., bytes]
) -> None:
    pytest.importorskip("matplotlib")
    nightly.rest = "[[retention]]\nkeep_last = 3\n[collect]\n[verify]\n[report]\nkeep = 2\n"
    for night in range(3):
        nightly.write("chats/a.jsonl", make_lines(map(make_chat, range(3 * night))) + b"bad\n" * night)
        report = nightly.run()
    assert report["run"] == 3
    root = parsed(Path(report["page"]).read_bytes())
    text = " ".join(root.itertext())
    assert "run 3" in text and "Some sessions were refused" in text and "a.jsonl:8" in text
    [svg] = root.iter("{http://www.w3.org/2000/svg}svg")
    drawn = " ".join(svg.itertext())
    assert all(
        word in drawn for word in ("sessions seen", "ratio", "bytes", "refused", "sessions frozen per second")
    )
    source = Path(report["page"]).read_text()
    assert "<script" not in source and not re.search(r'(?:src|href)="(?!#)', source)
    kept = sorted(p.name for p in (nightly.root / "state/reports").iterdir())
    assert len(kept) == 4 and kept[-1].endswith("-000003.json")
    assert json.loads(Path(report["report"]).read_bytes())["totals"] == report["totals"]


HOSTILE = "<script>alert(1)</script>]]>&amp;\x00\x1b[2J\ud800\uffff\u2028"


def test_no_name_or_reason_breaks_the_page(nightly: Nightly) -> None:
    report = nightly.run()
    report["refused"] = [
        {"source": HOSTILE, "where": HOSTILE, "name": HOSTILE, "error": "ContentError", "reason": HOSTILE}
    ] * 2
    report["failures"] = [HOSTILE]
    report["exit_code"] = 7
    data = page([report])
    root = parsed(data)
    assert "<script>alert(1)</script>" in " ".join(root.itertext())
    assert b"<script" not in data


def test_a_report_that_is_none_is_passed_over(nightly: Nightly) -> None:
    nightly.run()
    folder = nightly.root / "state/reports"
    head = b'{"format": "pltz nightly report", "version": '
    for number, data in enumerate([b"", b"[]", head + b"2}", b"\xff", b"[" * 100_000, head + b"1}"]):
        (folder / f"20200101T000000Z-{number:06}.json").write_bytes(data)
    (folder / f"20200101T000000Z-{'9' * 30}.json").write_bytes(
        b"{}"
    )  # no run of ours: the next one could not be counted
    report = nightly.run()
    assert report["run"] == 6 and Path(report["page"]).is_file()


def test_a_clock_that_was_set_back_costs_no_report(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.rest = "[report]\nkeep = 2\n"
    kept = []
    for now in (2_000_000_000.0, 1_900_000_000.0, 1_000_000_000.0):
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda now=now: now)
            kept.append(nightly.run())
    assert [Path(r["report"]).exists() for r in kept] == [False, True, True]
    assert [Path(r["page"]).exists() for r in kept] == [False, True, True]
