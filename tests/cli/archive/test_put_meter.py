"""The progress of a put: what it counts, and the time of the rest, said once."""

from dataclasses import replace

import pytest

from pltz import PutReceipt, PutRequest
from pltz.archive.humanize import size as size_of
from pltz.cli.archive.put_meter import PutMeter
from pltz.cli.ui.progress import Progress, duration
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

RECEIPT = PutReceipt("default", "", 1, b"", 1, 10, True, False, "text", 1, 1, None)


def test_the_time_of_the_rest_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.archive.put_meter.time.monotonic", lambda: clock[0])
    bar = Progress("read", unit="bytes", shown=False)
    meter = PutMeter(bar, 1000, dry_run=False)
    items = [(PutRequest(str(n), Session("text", b"")), 100, n > 6) for n in range(10)]
    assert [request.name for request in meter.reading(items)] == [str(n) for n in range(10)]
    assert (bar.label, bar.count) == ("read", 1000)
    meter.coding(3, 300)
    assert (bar.label, bar.note) == ("store", "coding 3 sessions, 300 B")
    clock[0] += 20
    meter.stored(replace(RECEIPT, name="0", unchanged=True))  # took no time
    meter.refuse(items[1][0], ContentError("an image"))
    meter.stored(replace(RECEIPT, name="2"))  # 100 bytes in 20 s
    meter.coding(4, 400)  # three logs of the other seven sessions: of them nothing is known
    assert capsys.readouterr().err == "refused: an image\n"
    clock[0] += 42
    for name in ("3", "4", "5", "7"):
        meter.stored(replace(RECEIPT, name=name))
    meter.coding(2, 200)  # the first commit of a sort is not counted, as things are loaded in it
    clock[0] += 30
    for name in ("6", "8"):
        meter.stored(replace(RECEIPT, name=name))
    assert capsys.readouterr().err == ""
    meter.coding(1, 100)  # logs took 15 s for 100 bytes, and 100 bytes are left
    meter.stored(replace(RECEIPT, name="9"))
    meter.coding(0, 0)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"coding the rest takes about {duration(15)} ")
    assert "Ctrl-C keeps" in said[0]
    assert (meter.sessions, meter.refused, bar.count) == (9, 1, 1000)


def test_parts_of_a_large_log_count_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr("pltz.cli.archive.put_meter.say_if_interrupted", said.append)
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.archive.put_meter.time.monotonic", lambda: clock[0])
    bar = Progress("read", unit="bytes", shown=False)
    meter = PutMeter(bar, 3100, dry_run=False)
    items = [(PutRequest(name, Session("text", b"")), size, True) for name, size in (("large", 3000), ("small", 100))]
    assert len(list(meter.reading(items))) == 2
    for part, done in ((1000, 0), (1000, 1000), (980, 2000)):
        meter.coding(1, part)
        clock[0] += 10
        assert (bar.count, bar.note) == (done, f"coding 1 session, {size_of(part)}")
    assert said[-1].startswith("interrupted: 0 sessions stored, and 2.0 kB of the next one.")
    meter.stored(replace(RECEIPT, name="large"))
    assert bar.count == 3000 and said[-1].startswith("interrupted: 1 session stored, those printed above")
    meter.coding(1, 100)
    assert meter._paces[True].begun and meter._since == 1030
    meter.stored(replace(RECEIPT, name="small"))
    assert bar.count == 3100


def test_a_large_log_behind_small_ones_tells_the_time_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    meter = PutMeter(Progress("read", unit="bytes", shown=False), 10_000, dry_run=False)
    items = [(PutRequest(name, Session("text", b"")), size, True) for name, size in (("a", 100), ("b", 9900))]
    assert len(list(meter.reading(items))) == 2
    meter.coding(1, 100)
    meter.stored(replace(RECEIPT, name="a"))
    meter.coding(1, 3300)  # the first part of the large one
    meter.expect(20.0)
    assert f"coding the rest takes about {duration(60)} " in capsys.readouterr().err
    meter.expect(30.0)
    assert capsys.readouterr().err == ""


def test_a_time_that_was_wrong_is_said_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said by a sample as 90 s for ten sessions: at 10 s each that stays, at 40 s for some it does not."""
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.archive.put_meter.time.monotonic", lambda: clock[0])
    meter = PutMeter(Progress("read", unit="bytes", shown=False), 1000, dry_run=False)
    assert len(list(meter.reading((PutRequest(str(n), Session("text", b"")), 100, False) for n in range(10)))) == 10
    meter.coding(1, 100)
    meter.expect(9.0)
    assert f"coding the rest takes about {duration(90)} on this machine" in capsys.readouterr().err
    said = []
    for n, seconds in enumerate((10, 10, 10, 10, 40, 40, 20)):
        clock[0] += seconds
        meter.stored(replace(RECEIPT, name=str(n)))
        meter.coding(1, 100)
        said.append(capsys.readouterr().err)
    # 80 s passed for five, the first of them not counted, so that the other five take 17.5 s each
    assert said[:4] == [""] * 4 and said[5:] == ["", ""]
    assert said[4] == f"coding the rest takes about {duration(88)} from now, by what was coded since\n"
