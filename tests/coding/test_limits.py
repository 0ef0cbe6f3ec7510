"""The limits of one session (plt_codec/limits.py): refused by name on every way in, before any expensive work."""

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.datasets.loaders import load
from pltz.models.session import json_value
from pltz.models.session.json_value import MAX_DEPTH
from pltz.models.session.session import Session
from pltz.plt_codec import limits
from pltz.plt_codec.container.file import Reader, Writer
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError
from pltz.plt_codec.limits import MAX_BYTES, MAX_IDS, MAX_TOKENS
from tests.failing import raising


def chat(text: str) -> Session:
    return Session("chat", {"messages": [{"role": "user", "content": text}]})


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


TOO_LARGE = {
    "text": lambda: Session("text", bytes(MAX_BYTES + 1)),
    "chat": lambda: chat("x" * (MAX_BYTES + 1)),
    "characters of three bytes": lambda: chat("\u20ac" * (MAX_BYTES // 3 + 1)),
    "a key": lambda: Session("chat", {"k" * (MAX_BYTES + 1): 1}),
    "beside the messages": lambda: Session("chat", {"messages": [], "more": "x" * (MAX_BYTES + 1)}),
    "ids": lambda: Session("ids", np.zeros(MAX_IDS + 1, np.int32)),
}


@pytest.mark.parametrize("make", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_session_over_the_limit_is_not_tokenised(codec: Codec, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    monkeypatch.setattr(type(codec.bundle.tokenizer), "encode_many", raising(AssertionError("it was tokenised")))
    with pytest.raises(LimitError, match=rf"session 0: .* at most {MAX_BYTES} bytes, found \d+: split") as info:
        codec.compress([make()])
    assert info.value.exit_code == 5 and isinstance(info.value, ContentError)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_a_value_nested_too_deep_is_refused_by_name(codec: Codec, depth: int) -> None:
    for session in (Session("chat", nested(depth)), Session("chat", {"messages": [{"x": nested(depth)}]})):
        with pytest.raises(LimitError, match=f"at most {MAX_DEPTH} nested"):
            codec.compress([session])
    with pytest.raises(LimitError, match=f"at most {MAX_DEPTH} nested"):
        json_value.parse("[" * depth + "]" * depth)


def test_the_deepest_value_goes_both_ways_and_a_deeper_line_is_kept_as_it_stands(codec: Codec) -> None:
    deepest, deeper = Session("chat", nested(MAX_DEPTH)), b"[" * 100_000 + b"]" * 100_000
    [line] = load(deeper + b"\n", "jsonl")
    assert line == Session("text", deeper) and codec.decompress(codec.compress([deepest, line])) == [deepest, line]


@pytest.mark.parametrize(("text", "count"), [
    ("[" + "0," * 9_998 + "0]", 10_000),
    ("[" + "0," * 9_999 + "0]", 10_001),
    ("[" + "[ ],{ }," * 5_000 + '"[{,\\\\\\",{["]', 10_002),
    ("[" + "{}," * 9_998 + '"' + ",[{" * 10_000 + '"]', 10_000),
], ids=["the most", "one more", "empty ones", "not in strings"])
def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    monkeypatch.setattr(json_value, "MAX_VALUES", 10_000)
    monkeypatch.setattr(json_value, "BLOCK", 1001)
    if count <= 10_000:
        assert json_value.parse(text) is not None
        return
    monkeypatch.setattr(json, "loads", raising(AssertionError("the values were made")))
    with pytest.raises(LimitError, match=f"at most 10000 JSON values in a session, found {count}"):
        json_value.parse(text)


def test_a_value_that_holds_itself_many_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_value, "MAX_VALUES", 10_000)
    value: list[Any] = []
    for _ in range(50):
        value = [value] * 10
    with pytest.raises(LimitError, match="JSON values"):
        json_value.check(value)


def test_a_line_over_the_limit_is_refused_with_its_size() -> None:
    lines = load(b"[1]\n" + b"x" * (MAX_BYTES + 7) + b"\n[2]\n", "jsonl")
    assert next(lines) == Session("chat", [1])
    with pytest.raises(LimitError, match=f"a line of at most {MAX_BYTES} bytes, found more: split it"):
        next(lines)
    with pytest.raises(LimitError, match=f"a file of at most {MAX_BYTES} bytes, found more: split it"):
        list(load(b"x" * (MAX_BYTES + 7), "text"))


def test_a_file_that_claims_more_is_damaged(codec: Codec) -> None:
    """The count alone decides: nothing is allocated for it."""
    kind, sink = (Kind.TEXT, Method.BYTES), io.BytesIO()
    writer = Writer(sink, Reader(codec.compress([])).header)
    with pytest.raises(LimitError, match=f"at most {MAX_TOKENS}"):
        writer.add(Frame(*kind, MAX_TOKENS + 1, 0, b"x"))
    writer.add(Frame(*kind, 5, content_check(*kind, 5, b"hello"), b"hello"))
    writer._frames[0] = writer._frames[0]._replace(units=MAX_TOKENS + 1)
    writer.finish()
    with pytest.raises(CorruptError, match="session 0: the block at byte 22 has a count or a size over its limit"):
        Reader(sink.getvalue()).frame(0)


CHILD = """
import resource, sys
sys.path[:0] = {path!r}
from pltz.models.session import json_value
from pltz.models.session.session import Session
import numpy
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
line = {line}
session = Session.from_json_line(line)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(peak >> 10)
"""


def peak_mib(line: str) -> int:
    """MiB that a fresh process takes to make a session of a line, beside what it took before."""
    code = CHILD.format(path=sys.path, line=line)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ('b"[" + b"[]," * 20_000_000 + b"0]"', 600),  # 20 M lists take 1.3 GB, and were made and then walked
        ('b"[" + b"0," * (json_value.MAX_VALUES - 2) + b"0]"', 150),  # the walk held a tuple per value: 470 MB
    ],
    ids=["more values than allowed", "as many values as allowed"],
)
def test_memory_to_parse_is_bounded(line: str, bound: int) -> None:
    assert peak_mib(line) < bound


def test_large_sessions_go_to_zstd(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Session("text", b"small"), chat("large " * 100)
    ids = Session("ids", np.arange(200) % 99)
    kinds = {}
    for limit in (1 << 22, 599, 0):
        monkeypatch.setattr(limits, "ZSTD_ABOVE", limit)
        data = codec.compress([small, large, ids])
        assert codec.decompress(data) == [small, large, ids]
        kinds[limit] = [Reader(data).info(n).method for n in range(3)]
    assert kinds[599][0] == kinds[1 << 22][0] and kinds[599][1:] == [Method.BYTES] * 2
    assert kinds[0] == [Method.BYTES] * 3
