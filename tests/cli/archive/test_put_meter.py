"""The progress of a put: what it counts."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pltz import PutReceipt, PutRequest
from pltz.archive.humanize import size as size_of
from pltz.cli.archive.put_meter import PutMeter
from pltz.cli.ui.progress import Progress
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

RECEIPT = PutReceipt("default", "", 1, b"", 1, 10, True, False, "text", 1, 1, None)


def test_what_is_read_stored_and_refused_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("read", unit="bytes", shown=False)
    meter = PutMeter(bar, 1000)
    items = [(PutRequest(str(n), Session("text", b"")), 100) for n in range(10)]
    assert [request.name for request in meter.reading(items)] == [str(n) for n in range(10)]
    assert (bar.label, bar.count) == ("read", 1000)
    meter.coding(3, 300)
    assert (bar.label, bar.note) == ("store", "coding 3 sessions, 300 B")
    meter.stored(replace(RECEIPT, name="0", unchanged=True))
    meter.refuse(items[1][0], ContentError("an image"))
    meter.pass_over(50)
    meter.coding(8, 800)
    for name in range(2, 10):
        meter.stored(replace(RECEIPT, name=str(name)))
    meter.coding(0, 0)
    assert capsys.readouterr().err == "refused: an image\n"
    assert (meter.sessions, meter.refused, bar.count) == (9, 1, 1050)


def test_parts_of_a_large_log_count_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[Callable[[], str]]()
    monkeypatch.setattr("pltz.cli.archive.put_meter.say_if_interrupted", said.append)
    bar = Progress("read", unit="bytes", shown=False)
    meter = PutMeter(bar, 3100)
    items = [(PutRequest(name, Session("text", b"")), size) for name, size in (("large", 3000), ("small", 100))]
    assert len(list(meter.reading(items))) == 2
    for part, done in ((1000, 0), (1000, 1000), (980, 2000)):
        meter.coding(1, part)
        assert (bar.count, bar.note) == (done, f"coding 1 session, {size_of(part)}")
    assert said[0]().startswith("interrupted: 0 sessions stored, and 2.0 kB of the next one.")
    meter.stored(replace(RECEIPT, name="large"))
    assert bar.count == 3000 and said[0]().startswith("interrupted: 1 session stored, those printed above")
    meter.coding(1, 100)
    meter.stored(replace(RECEIPT, name="small"))
    assert bar.count == 3100
