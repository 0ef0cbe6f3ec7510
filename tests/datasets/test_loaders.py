"""Sessions are read from common files, and a file with wrong content is named with its line."""

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, strategies as st

from pltz.datasets import Format, byte_input, load, sample_path, sample_sessions
from pltz.datasets.input_format import ReadOptions
from pltz.datasets.loaders import recognise
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, PltzError, UsageError

HI = {"messages": [{"role": "user", "content": "Hi"}], "id": 1}
YO = {"messages": [{"role": "user", "content": "Yo \u00e9"}]}
GPT = {"conversations": [{"from": "human", "value": "Hi"}]}


def chat(value: Any) -> Session:
    return Session("chat", value)


def lines(*values: Any) -> bytes:
    return b"".join(chat(value).to_json_line() for value in values)


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


OOPS = Session("text", b"{oops\n\0\n")
CASES: list[tuple[str, bytes, list[Session]]] = [
    ("a.jsonl", lines(HI, YO), [chat(HI), chat(YO)]), ("a.ndjson", lines(GPT).rstrip(), [chat(GPT)]),
    ("a.jsonl", b"\xef\xbb\xbf" + lines(HI), [chat(HI)]),
    ("a.jsonl", b"\n" + lines(HI).replace(b"\n", b"\r\n") + b" \n" + lines(YO), [chat(HI), chat(YO)]),
    ("a.jsonl", b"", []), ("a.jsonl", b"\n\n", []), ("a.jsonl", b"[1,2]\n\n3\n", [Session("text", b"[1,2]\n\n3\n")]),
    ("a.jsonl", lines(HI) + b"{oops\n\0\n" + lines(YO) + b'{"a', [chat(HI), OOPS, chat(YO), Session("text", b'{"a')]),
    ("a", lines(HI) + b'{"a":"\xff"}', [chat(HI), Session("text", b'{"a":"\xff"}')]),
    ("a.json", b'{"a":1}}', [Session("text", b'{"a":1}}')]),
    ("a.jsonl", lines(*[{}] * 900), [Session("text", lines(*[{}] * 900))]),
    ("a.jsonl", lines({"a": 1}) + b"-0\r\n7", [Session("text", b'{"a":1}\n-0\r\n7')]),
    ("a.jsonl", lines(HI, 1, 2, YO, 3), [chat(HI), Session("text", b"1\n2\n"), chat(YO), chat(3)]),
    ("a.json", json.dumps([{}] * 900).encode(), [Session("text", lines(*[{}] * 900))]),
    ("a.json", json.dumps([{}, HI, {}, 1]).encode(), [chat([{}, HI, {}, 1])]),
    ("a.json", json.dumps([{}, HI, {}, {}]).encode(), [chat({}), chat(HI), Session("text", lines({}, {}))]),
    ("a.jsonl", lines(HI) + b'{"a":1,"a":2}\r\n' + lines(YO), [chat(HI), Session("text", b'{"a":1,"a":2}'), chat(YO)]),
    ("a.JSONL.ZST", zstandard.compress(lines(HI, YO)), [chat(HI), chat(YO)]),
    ("a.jsonl.gz", gzip.compress(lines(HI)) + gzip.compress(lines(YO)), [chat(HI), chat(YO)]),
    ("a.txt.gz", gzip.compress(b"hello"), [Session("text", b"hello")]),
    ("a.data", gzip.compress(lines(HI, YO)), [chat(HI), chat(YO)]),
    ("a.txt", gzip.compress(b"hello", mtime=0), [Session("text", gzip.compress(b"hello", mtime=0))]),
    ("a.json", json.dumps(HI, indent=2).encode(), [chat(HI)]),
    ("a.json", json.dumps([HI, GPT], indent=1).encode(), [chat(HI), chat(GPT)]),
    ("a.json", json.dumps(HI["messages"]).encode(), [chat(HI["messages"])]),
    ("a.json", json.dumps([HI["messages"], YO["messages"]]).encode(), [chat(HI["messages"]), chat(YO["messages"])]),
    ("a.json", b'[{"prompt":"a"}]', [chat({"prompt": "a"})]),
    ("a.json", b'[{"role":"x","messages":[]}]', [chat({"role": "x", "messages": []})]),
    ("a.json", b'["a",{}]', [chat(["a", {}])]), ("a.json", b"[]", []), ("a.json", b'"a"', [chat("a")]),
    ("a.json", lines(HI, YO), [chat(HI), chat(YO)]), ("a.json", b' {"a":NaN}\n', [Session("text", b' {"a":NaN}\n')]),
    ("a.json", b"[1, 2, 3]", [Session("ids", [1, 2, 3])]),
    ("a.json", b"[[1, 2], [], [3]]", [Session("ids", [1, 2]), Session("ids", []), Session("ids", [3])]),
    ("a.json.zst", zstandard.compress(b"[1]"), [Session("ids", [1])]),
    ("a.npy", npy(np.array([1, 2, 3], np.uint16)), [Session("ids", [1, 2, 3])]),
    ("a.npy", npy(np.array([[1, 2], [3, 4]], ">i8")), [Session("ids", [1, 2]), Session("ids", [3, 4])]),
    ("a.npy", npy(np.asfortranarray([[1, 2], [3, 4]])), [Session("ids", [1, 2]), Session("ids", [3, 4])]),
    ("a.npy", npy(np.zeros(0, np.int32)), [Session("ids", [])]), ("a.txt", b"", [Session("text", b"")]),
    ("a.txt", b"\xff\xfeh\x00i\x00", [Session("text", b"\xff\xfeh\x00i\x00")]),
    ("a.md", lines(HI), [Session("text", lines(HI))]),
    ("a.txt.zst", zstandard.compress(b"hello"), [Session("text", b"hello")]),
    ("a.txt", zstandard.compress(b"hello"), [Session("text", zstandard.compress(b"hello"))]),
    ("a", b"hello", [Session("text", b"hello")]), ("a", b"", [Session("text", b"")]),
    ("a", b"[x] done\n[ ] todo\n", [Session("text", b"[x] done\n[ ] todo\n")]),
    ("a", b"12\n13\n", [Session("text", b"12\n13\n")]), ("a", lines(HI, YO), [chat(HI), chat(YO)]),
    ("a", lines(HI), [chat(HI)]), ("a", json.dumps([HI, YO], indent=1).encode(), [chat(HI), chat(YO)]),
    ("a", json.dumps([HI, YO]).encode() + b"\n\n", [chat(HI), chat(YO)]),
    ("a.data", zstandard.compress(lines(HI, YO)), [chat(HI), chat(YO)]),
    ("a.zst", zstandard.compress(npy(np.arange(3))), [Session("ids", [0, 1, 2])]),
    ("a", npy(np.arange(3)), [Session("ids", [0, 1, 2])]),
]


@pytest.mark.parametrize("name, data, sessions", CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_auto(tmp_path: Path, name: str, data: bytes, sessions: list[Session]) -> None:
    path = write(tmp_path, name, data)
    assert list(load(path)) == sessions and list(load(str(path))) == sessions
    if name == "a":
        assert list(load(data)) == sessions and list(load(io.BytesIO(data))) == sessions


GIVEN: list[tuple[Format, bytes, list[Session]]] = [
    ("auto", lines(HI, YO), [chat(HI), chat(YO)]), ("auto", lines(HI["messages"]), [chat(HI["messages"])]),
    ("auto", json.dumps([HI, YO], indent=1).encode(), [chat(HI), chat(YO)]),
    ("auto", zstandard.compress(lines(HI, YO)), [chat(HI), chat(YO)]),
    ("auto", lines(HI) + b'{"messages":[1e999]}\n', [chat(HI), Session("text", b'{"messages":[1e999]}')]),
    ("jsonl", b"1\n[2]\n", [chat(1), chat([2])]), ("jsonl", b"", []), ("text", lines(HI), [Session("text", lines(HI))]),
    ("text", zstandard.compress(b"a"), [Session("text", zstandard.compress(b"a"))]),
    ("ids", b"[1,2]", [Session("ids", [1, 2])]), ("ids", b"[]", [Session("ids", [])]),
    ("ids", b"[[1],[2]]", [Session("ids", [1]), Session("ids", [2])]),
    ("ids", b"[1,2]\n[]\n[3]\n", [Session("ids", [1, 2]), Session("ids", []), Session("ids", [3])]),
    ("ids", npy(np.arange(2)), [Session("ids", [0, 1])]),
]


@pytest.mark.parametrize("format, data, sessions", GIVEN)
def test_a_format_that_is_given(format: Format, data: bytes, sessions: list[Session]) -> None:
    assert list(load(data, format)) == sessions and list(load(io.BytesIO(data), format)) == sessions


BAD: list[tuple[str, Format, bytes, type[PltzError], str]] = [
    (
        "a.jsonl", "jsonl", lines(HI) + b"\n{oops\n", UsageError,
        "a.jsonl: line 3: expected JSON.*column 2.*--format text",
    ),
    ("a.jsonl", "jsonl", lines(HI) + b'{"a":"\xff"}', UsageError, "line 2: expected UTF-8, found byte 0xff"),
    ("a.jsonl", "jsonl", '{"a":1}'.encode("utf-16"), UsageError, "line 1: expected UTF-8, found byte 0xff"),
    ("a", "jsonl", lines(HI, YO) + b"oops\n", UsageError, "line 3: expected JSON"),
    ("a.json", "ids", b"", UsageError, "a.json: expected JSON"),
    ("a.json", "ids", b'{"a":1}}', UsageError, "expected JSON: Extra data at column 8"),
    ("a.json", "ids", b'{"a":"b', UsageError, "expected JSON: Unterminated string starting at column 6"),
    ("a.json", "auto", b"[1, -2]", ContentError, "sequence 1: expected ids 0..2"),
    ("a.json", "auto", b"[[1], [99999999999999999999]]", ContentError, "sequence 2: expected ids"),
    ("a.json", "ids", b'{"a":1}', UsageError, "expected a list of token ids"),
    ("a.json", "ids", b"[1, 2.5]", UsageError, "expected a list of token ids"),
    ("a.json", "ids", b"[true]", UsageError, "expected a list of token ids"),
    ("a.json", "ids", b"[NaN]", UsageError, "expected a list of token ids"),
    ("a.jsonl", "ids", b'[1]\n"a"\n', UsageError, "line 2: expected a list of token ids"),
    ("a.npy", "auto", b"not numpy", UsageError, "expected a .npy file"),
    ("a.npy", "auto", npy(np.arange(9))[:-1], UsageError, "expected 72 bytes for int64 of shape .9,., found 71"),
    ("a.npy", "auto", npy(np.arange(9)) + b"x", UsageError, "found 73"),
    ("a.npy", "auto", npy(np.arange(9.0)), UsageError, "expected integer ids .* found float64"),
    ("a.npy", "auto", npy(np.zeros((2, 2, 2), np.int8)), UsageError, "found int8 of shape"),
    ("a.npy", "auto", npy(np.zeros((1 << 40, 0), np.int8)), UsageError, "found int8 of shape"),
    ("a.npy", "auto", npy(np.array([-1])), ContentError, "sequence 1: expected ids 0"),
    ("a.npy", "auto", npy(np.array([None, {}])), UsageError, "for object of shape"),
    ("a.jsonl.zst", "auto", b"not zstd", CorruptError, "expected zstd data"),
    ("a.jsonl.gz", "auto", b"not gzip", CorruptError, "expected gzip data"),
    ("a.jsonl.gz", "auto", gzip.compress(lines(HI) * 99)[:-3], CorruptError, "stops before its end"),
    ("a.jsonl.zst", "auto", zstandard.compress(lines(HI) * 99)[:-3], CorruptError, "middle of a frame"),
]


@pytest.mark.parametrize("name, format, data, error, words", BAD, ids=[f"{i}-{b[4][:30]}" for i, b in enumerate(BAD)])
def test_a_bad_file_is_named(
    tmp_path: Path, name: str, format: Format, data: bytes, error: type[PltzError], words: str
) -> None:
    path = write(tmp_path, name, data)
    with pytest.raises(error, match=words) as caught:
        list(load(path, format))
    assert str(path) in str(caught.value)


def test_a_call_that_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a format of auto, .*found 'xml'"):
        load(b"", "xml")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(UsageError, match=r"found nothing at .*absent"):
        load(tmp_path / "absent")
    with pytest.raises(UsageError, match="found int"):
        load(3)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(UsageError, match="found nothing"):
        load("x" * 5000)


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", b"two")
    write(tmp_path, "a/z.jsonl", lines(HI))
    write(tmp_path, "c/d/e.txt", b"four")
    write(tmp_path, "c.txt", b"three")
    os.mkfifo(tmp_path / "pipe")
    assert list(load(tmp_path)) == [chat(HI), *(Session("text", text) for text in (b"two", b"three", b"four"))]
    assert next(load(tmp_path, "text")) == Session("text", lines(HI))
    (tmp_path / "empty").mkdir()
    assert list(load(tmp_path / "empty")) == []


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(lines(HI, YO)))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(load("-")) == [chat(HI), chat(YO)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert list(load("-")) == [Session("text", b"hello")]
    text_stream: Any = io.TextIOWrapper(io.BytesIO(b"hello"))
    assert list(load(text_stream)) == [Session("text", b"hello")]


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    packed = zstandard.compress(b"[" * (1 << 26)) * 50  # 3.2 GiB
    for name in ("a.jsonl.zst", "a.json.zst", "a.txt.zst", "a.npy.zst", "a.zst"):
        with pytest.raises(UsageError, match="at most 100000 bytes"):
            list(load(write(tmp_path, name, packed), max_bytes=100_000))


@given(data=st.binary())
def test_any_bytes_after_a_magic_are_sessions_or_a_named_error(data: bytes) -> None:
    for start in (b"\x93NUMPY", b"\x93NUMPY\x01\x00", npy(np.arange(3))[:40], b"\x28\xb5\x2f\xfd"):
        try:
            list(load(start + data))
        except PltzError:
            pass


def test_every_source_of_the_samples_is_attributed() -> None:
    notice = (sample_path().parent / "LICENSES.md").read_text(encoding="utf-8")
    counts: dict[tuple[str, str], int] = {}
    for session in sample_sessions():
        key = session.value["source"], session.value["license"]
        counts[key] = counts.get(key, 0) + 1
    for (source, licence), count in counts.items():
        assert f"| {count} | github.com/{source} | {licence} |" in notice
    assert sum(path.stat().st_size for path in sample_path().parent.iterdir()) < 1_500_000


def test_a_large_log_or_text_is_read_in_pieces_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_input, "LONG", 5000)
    log = lines(*({"type": "user", "sessionId": "s", "uuid": str(n), "parentUuid": None} for n in range(200)))
    forms = {"a.jsonl": log, "b.jsonl.zst": zstandard.compress(log), "c.txt": log, "d": b"\0" * 6000, "e.txt": b"small"}
    for name, data in forms.items():
        path = write(tmp_path, name, data)
        [short], [found] = list(recognise(path)), list(recognise(path, ReadOptions(long=True)))
        assert isinstance(found.session.value, LongText) == (name != "e.txt") and isinstance(short.session.value, bytes)
        assert found.session.value == short.session.value and (found.noun, found.size) == (short.noun, short.size)
    with pytest.raises(LimitError, match="at most 100 bytes"):
        list(recognise(tmp_path / "a.jsonl", ReadOptions(long=True, max_bytes=100)))
