"""The progress of a put: what it counts, and the time of the rest, said once."""

from dataclasses import replace

import pytest

from pltz.archive.sessions import PutReceipt, PutRequest
from pltz.cli.archive.put_meter import PutMeter
from pltz.cli.ui.progress import Progress
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

RECEIPT = PutReceipt("default", "", 1, b"", 1, 10, True, False, "text", 1, 1, None)


def test_the_time_of_the_rest_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.archive.put_meter.time.monotonic", lambda: clock[0])
    bar = Progress("read", unit="bytes", shown=False)
    meter = PutMeter(bar, 1000, dry_run=False)
    items = [(PutRequest(str(n), Session("text", b"")), 100) for n in range(10)]
    assert [request.name for request in meter.reading(items)] == [str(n) for n in range(10)]
    assert (bar.label, bar.count) == ("read", 1000)
    meter.coding(3, 300)
    assert (bar.label, bar.note) == ("store", "coding 3 sessions, 300 B")
    meter.stored(replace(RECEIPT, name="0", unchanged=True))  # took no time
    meter.refuse(items[1][0], ContentError("an image"))
    clock[0] += 20
    meter.stored(replace(RECEIPT, name="2"))  # 100 bytes in 20 s, 700 bytes left
    meter.coding(7, 700)
    meter.stored(replace(RECEIPT, name="3"))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "refused: an image"
    assert len(said) == 2 and said[1].startswith("coding the rest takes about 2 min") and "Ctrl-C keeps" in said[1]
    assert (meter.sessions, meter.refused, bar.count) == (3, 1, 400)
