"""The page is well formed for any names, self-contained, and shows the earlier runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pltz.serving.nightly.html_report import ADVICE, nightly_page
from tests.serving.nightly.nights import night

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.serving.nightly.conftest import Nightly


def parsed(data: bytes) -> ET.Element:
    text = data.decode()
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_a_page_shows_this_run_and_those_before_it(
    nightly: Nightly, make_chat: Callable[..., dict[str, Any]], make_lines: Callable[..., bytes]
) -> None:
    pytest.importorskip("matplotlib")
    nightly.rest = "[[retention]]\nkeep_last = 3\n[collect]\n[verify]\n[report]\nkeep = 2\n"
    for number in range(3):
        nightly.write("chats/a.jsonl", make_lines(map(make_chat, range(3 * number))) + b"bad\n" * number)
        report = nightly.run()
    assert report["run"] == 3
    root = parsed(Path(report["page"]).read_bytes())
    text = " ".join(root.itertext())
    assert "Run 3" in text and "Some sessions were refused" in text and "a.jsonl:8" in text
    assert "2 REFUSED" in text and ADVICE["UsageError"] in text and "saved so far" in text
    drawn = [" ".join(svg.itertext()) for svg in root.iter("{http://www.w3.org/2000/svg}svg")]
    titles = ("sessions met", "bytes of new sessions", "duration", "ratio", "bytes of the archive", "failures")
    assert len(drawn) == len(titles) and all(map(str.__contains__, drawn, titles))
    assert time.strftime("%m-%d", time.gmtime(report["started"])) in drawn[0]  # dates below, no numbers of runs
    source = Path(report["page"]).read_text()
    assert "<script" not in source and not re.search(r'(?:src|href)="(?!#)', source)
    kept = sorted(p.name for p in (nightly.root / "state/reports").iterdir())
    assert len(kept) == 4 and kept[-1].endswith("-000003.json")
    assert json.loads(Path(report["report"]).read_bytes())["totals"] == report["totals"]


def test_saved_so_far_adds_the_nights_up(
    nightly: Nightly, make_chat: Callable[..., dict[str, Any]], make_lines: Callable[..., bytes]
) -> None:
    nightly.rest = "[report]\nkeep = 1\n"
    reports = []
    for count in (2, 3):
        nightly.write("chats/a.jsonl", make_lines(map(make_chat, range(count))))
        reports.append(nightly.run())
    for name in ("bytes", "frozen_bytes"):
        assert reports[1]["so_far"][name] == sum(report["totals"][name] for report in reports)
    assert reports[1]["so_far"]["since"] == reports[0]["started"]


def test_each_state_has_its_badge_in_words() -> None:
    for exit_code, refused, words in ((0, 0, "OK"), (3, 0, "DAMAGED"), (5, 2, "2 REFUSED"), (7, 0, "NOT DONE")):
        text = " ".join(parsed(nightly_page([night(1, exit_code=exit_code, refused=refused)])).itertext())
        assert f" {words} " in text and "Plots of the runs appear" in text
    failed = nightly_page([night(1, exit_code=7, refused=2, failures=("collect: no space",))]).decode()
    assert "NOT DONE: 2 sessions refused" in failed and "collect: no space" in failed


CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("runs, width, scheme", [(1, 1000, "light"), (100, 1000, "dark"), (100, 390, "light")])
def test_a_browser_shows_it_whole(tmp_path: Path, runs: int, width: int, scheme: str) -> None:
    """Look at a screenshot: the colours of its scheme, a badge, plots, and nothing cut off at the right."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    reports = [night(run) for run in range(1, runs)] + [night(runs, exit_code=5, refused=3)]
    (tmp_path / "page.html").write_bytes(nightly_page(reports))
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += [f"--user-data-dir={tmp_path}/profile", f"--window-size={width},2600", f"--screenshot={tmp_path}/page.png"]
    words += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", f"file://{tmp_path}/page.html"]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=50)
    shot = image.open(tmp_path / "page.png").convert("RGB")
    assert shot.size == (width, 2600)
    paper, amber = ((23, 25, 28), (229, 169, 79)) if scheme == "dark" else ((255, 255, 255), (138, 82, 0))
    colours = {colour: count for count, colour in shot.getcolors(1 << 24)}
    assert max(colours, key=colours.__getitem__) == paper and colours.get(amber, 0) > 100
    right = shot.crop((width - 8, 0, width, 2600)).getcolors(1 << 16)
    assert [colour for _, colour in right] == [paper]
    blue = colours.get((74, 144, 194), 0)  # of the first series
    assert blue > 1000 if runs > 1 else blue == 0


HOSTILE = "<script>alert(1)</script>]]>&amp;\x00\x1b[2J\ud800\uffff\u2028"


def test_no_name_or_reason_breaks_the_page(nightly: Nightly) -> None:
    report = nightly.run()
    report["refused"] = [
        {"source": HOSTILE, "where": HOSTILE, "name": HOSTILE, "error": "ContentError", "reason": HOSTILE}
    ] * 2
    report["failures"] = [HOSTILE]
    report["exit_code"] = 7
    data = nightly_page([report])
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
