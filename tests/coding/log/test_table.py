"""A log becomes columns, opaque bits and text, and the same bytes again; damage is refused or gives other bytes.

Where the table is compiled, its sources make the same of all that these tests split and join.
"""

import base64
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pltz.coding.log import codes, table
from pltz.coding.log.above import Above
from pltz.coding.log.kept import Kept
from pltz.models.session.spelling import DOCUMENTS, LINES, spell
from pltz.plt_codec.errors import CorruptError, PltzError, VersionError
from tests.coding.log import forged, logs
from tests.coding.log.sources import from_sources
from tests.examples import examples

with from_sources():
    from pltz.coding.log import table as sources

WORDS = st.sampled_from(["", "user", "x" * 80, "first\nsecond\nthird line of text", "naïve 中", "</a>&", "\u2028"])
STRINGS = st.one_of(
    WORDS, st.text(max_size=20), st.uuids().map(str),
    st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds") + "Z"),
    st.binary(min_size=12, max_size=60).map(bytes.hex), st.sampled_from(["toolu_01" + c * 22 for c in "aZ9"]),
)
SCALARS = st.one_of(
    STRINGS, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.floats(allow_nan=False),
)
KEYS = st.one_of(st.sampled_from(["type", "uuid", "content", "/a/b.py", "n"]), st.text(max_size=6))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)


def back(data: bytes, *above: bytes) -> bytes:
    """Return what `join` makes of the split of ``data``, after tables of what is above it."""
    contents, tables, made = None, None, b""
    for content in (*above, data):
        found = table.split(content, contents)
        assert found == sources.split(content, contents)
        text = table.text_of(piece.text for piece in found.pieces)
        tables = Above.made_of(found.columns, found.opaque, text, len(content), tables)
        contents, made = Above.of(content, contents), table.content_of(tables)
        assert made == sources.content_of(tables)
    return made


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(OBJECTS, max_size=6), st.sampled_from(LINES), st.booleans())
def test_lines_of_json_in_every_spelling_come_back(values: list[object], style: int, ended: bool) -> None:
    data = "\n".join(spell(value, style) for value in values).encode("utf-8", "surrogatepass") + b"\n" * ended
    assert back(data) == data


@settings(max_examples=examples(20), deadline=None)
@given(OBJECTS | st.lists(OBJECTS, max_size=3), st.sampled_from(DOCUMENTS), st.sampled_from(["", "\n", "\n\n", "\nx"]))
def test_documents_in_every_spelling_come_back(value: object, style: int, end: str) -> None:
    data = (spell(value, style) + end).encode("utf-8", "surrogatepass")
    assert back(data) == data


@settings(max_examples=examples(20), deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ \nau0e.', max_size=60).map(str.encode))
def test_any_bytes_come_back(data: bytes) -> None:
    assert back(data) == data


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=6), st.data())
def test_a_part_comes_back_after_the_log_above_it_wherever_it_is_cut(values: list[object], draw: st.DataObject) -> None:
    data = b"".join(spell(value, 0).encode("utf-8", "surrogatepass") + b"\n" for value in values)
    start = draw.draw(st.integers(0, len(data)))
    begin = draw.draw(st.integers(0, start))
    assert back(data[start:], data[:begin], data[begin:start]) == data[start:]


@pytest.mark.parametrize("name", logs.LOGS)
def test_the_logs_of_each_agent_come_back_and_their_tables_are_taken_out(name: str) -> None:
    data = logs.LOGS[name]
    found = table.split(data)
    assert table.join(found.columns, found.opaque, found.pieces, len(data)) == data and table.looks_like_log(data)
    text = sum(len(piece.text.encode()) for piece in found.pieces)
    assert text + len(found.columns) + len(found.opaque) < len(data) * 3 // 4


def test_a_split_is_the_same_however_deep_the_stack_is() -> None:
    data = b"\n".join(b"[" * depth + b"]" * depth for depth in (70, 128, 129, 400, 700)) + b"\n"

    def deep(frames: int) -> table.Table:
        return deep(frames - 1) if frames else table.split(data)

    assert deep(400) == deep(0) and back(data) == data
    pieces = "\n".join(piece.text for piece in deep(0).pieces)
    assert "[" * 129 in pieces


@pytest.mark.parametrize("name", logs.LOGS)
def test_an_appended_part_costs_only_what_is_new(name: str) -> None:
    data = logs.LOGS[name]
    above = Above.of(data)
    again = table.split(data, above)
    assert len(again.columns) + len(again.opaque) < len(data) // 20
    assert sum(len(piece.text) for piece in again.pieces) < len(data) // 20
    assert table.join(again.columns, again.opaque, again.pieces, len(data), above) == data


@pytest.mark.parametrize("data", [
    b"[" * 100_000, b"[" * 3000 + b"]" * 3000, b"[" * 90 + b"]" * 90, b'{"a":' * 70 + b"1" + b"}" * 70,
    b'{"a":"\\ud800"}', b'{"a":1,"a":2}', b'{"a":1e5,"b":1E-7,"c":-0,"d":-0.0,"e":1.10}', b'{"a":NaN,"b":Infinity}',
    b"{" * 5, b'{"t":"2024-02-30T00:00:00.000Z","u":"9999-12-31T23:59:59.999Z","v":"0001-01-01T00:00:00Z"}',
    b'{"n":' + b"9" * 5000 + b"}", b"\xff\xfe\n\x00\n\r\n",
    b'{\n\t"a": 1,\n \t"b": [\n\t],\n  "c": {\n    "d": "e"\n  },\n"\\ud800": 2\n}',
    b'"\\u00001.5"\n{"a":"\\u00001.5"}\n[1.50,"\\u0000"]',
    b'{"a":"{}","b":"x\\n{}\\n[]\\n{\\"k\\":1,\\"text\\":\\"of a line that is JSON\\"}"}',
    b'{"a":"' + base64.b64encode(b"\x08\x01" * 31 + bytes(range(8, 72, 8))) + b'"}',
    b'{"a":"' + base64.b64encode(b"\x12\x40" + logs.NOISE[:64] + b"\x18\x01") + b'"}',
    b'{"a":"call_7rYxWq3mN8kLpQ2sT5vB|' + base64.b64encode(logs.NOISE) + b'"}',
    b'{"a":"' + b"QUJD" * 9 + b'REDACTED/x-y_z0123456789abcdefghijklmnop=="}',
], ids=lambda data: repr(data[:24]))
def test_what_is_odd_comes_back(data: bytes) -> None:
    assert back(data) == data


def test_whole_numbers_that_stand_elsewhere_cost_little() -> None:
    counts = [(n * 7_368_787) % 999_983 + 2000 for n in range(60)]
    alone = b"".join(b'{"in":%d}\n' % n for n in counts)
    data = b"".join(b'{"in":%d,"again":%d}\n' % (n, n) for n in counts)
    assert back(data) == data and len(table.split(data).columns) < 1.4 * len(table.split(alone).columns)


@pytest.mark.parametrize("form", [table, sources])
def test_logs_after_the_same_past_know_nothing_of_each_other(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasts have places in common, which are copied before they change."""
    lines = logs.CLAUDE.splitlines(True)
    above = form.Above.of(b"".join(lines[:4]))
    mixed = b'{"type":"user","other":[{"z":1,"y":"%d"}],"message":{"role":"%d"}}\n'
    others = [b"".join(mixed % (n, n) for n in range(k, k + 9)) for k in range(3)]
    alone = []
    for data in (b"".join(lines[4:]), *others):
        monkeypatch.setattr(form, "PASTS", Kept(1 << 20, lambda kept: kept[1]))
        alone.append([form.split(data, up) for up in (above, None)])
    for _ in range(2):
        for data, wanted in zip((b"".join(lines[4:]), *others), alone, strict=True):
            assert [form.split(data, up) for up in (above, None)] == wanted
            assert form.join(*wanted[0], len(data), above) == data


@pytest.mark.parametrize("form", [table, sources])
def test_a_table_leaves_no_cycles(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector of garbage is held back meanwhile."""
    monkeypatch.setattr(form, "PASTS", Kept(0, lambda kept: kept[1]))
    for _ in range(2):  # the second one drops the past of the first
        gc.collect()
        found = form.split(logs.CLAUDE)
        assert form.join(*found, len(logs.CLAUDE)) == logs.CLAUDE
    assert gc.collect() < 20 and gc.isenabled()


def small() -> tuple[bytes, table.Table]:
    data = b"".join(logs.CLAUDE.splitlines(True)[:2]) + b'{"n":[1,2,{"a":"\\u0000"}]}\nno json\n\xff\n'
    return data, table.split(data)


def refused_or_bounded(columns: bytes, opaque: bytes, pieces: list[str], count: int) -> None:
    """Check that damaged parts are refused, or give bytes that are no more than there should be."""
    outcomes = [_joined(form.join, columns, opaque, pieces, count) for form in (table, sources)]
    assert outcomes[0] == outcomes[1] and (isinstance(outcomes[0], str) or len(outcomes[0]) == count)


def _joined(join: Callable[..., bytes], *parts: object) -> bytes | str:
    try:
        return join(*parts)
    except (CorruptError, VersionError) as exc:
        return str(exc)


def test_flipped_bits_and_truncations_are_refused_or_bounded() -> None:
    data, found = small()
    pieces = [piece.text for piece in found.pieces]
    for at in range(0, len(found.columns), 4):
        columns = bytearray(found.columns)
        columns[at] ^= 1 << at // 4 % 8
        refused_or_bounded(bytes(columns), found.opaque, pieces, len(data))
    for at in range(0, len(found.columns), 11):
        refused_or_bounded(found.columns[:at], found.opaque, pieces, len(data))
    for at in range(0, len(found.opaque), 23):
        refused_or_bounded(found.columns, found.opaque[:at], pieces, len(data))
    for at in range(len(pieces)):
        refused_or_bounded(found.columns, found.opaque, pieces[:at], len(data))
        refused_or_bounded(found.columns, found.opaque, [*pieces[:at], pieces[at] + "\n", *pieces[at + 1 :]], len(data))
    for count in (0, 1, len(data) - 1, len(data) + 1, 1 << 20):
        refused_or_bounded(found.columns, found.opaque, pieces, count)


@settings(max_examples=examples(20), deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=40), st.lists(st.text(max_size=9), max_size=5), st.integers(0, 3000))
def test_random_columns_are_refused_or_bounded(columns: bytes, opaque: bytes, pieces: list[str], count: int) -> None:
    refused_or_bounded(bytes([table.VERSION]) + columns, opaque, pieces, count)


def test_json_in_json_makes_no_more_than_the_count() -> None:
    text = '"'
    for _ in range(20):
        text = json.dumps([text])
    data = text.encode()
    found = table.split(data)
    assert len(found.columns) < 200 and len(data) > 1 << 20
    assert table.join(found.columns, found.opaque, found.pieces, len(data)) == data
    with pytest.raises(CorruptError, match="more than the bytes"):
        table.join(found.columns, found.opaque, found.pieces, 1000)


def bombs() -> dict[str, tuple[list[int], list[int], str]]:
    """Return the ways, numbers and text of lists that say much of little."""
    empty, lines = 40, 200  # texts, and lines of each, of which only the first one's are there
    copies = [empty, lines - 1, 0, *[lines - 1, 1, lines - 1, lines - 1] * (empty - 1)]
    message = [30, 0, 0, 1, 0, 1, *[0, 0, 1, 1] * 5, 0, 0, *[0, 1] * (6 * 29)]
    quotes = [20, *[0] * 6, 0, 0, *[0] * 7 * 19]
    inner, parsed = [codes.MESSAGE, codes.OBJECT] * 6, [codes.PARSED] * 6
    return {
        "JSON in JSON": ([codes.LIST, *parsed, codes.LONG, *[*parsed, codes.RECENT] * 19], quotes, '"'),
        "lines of nothing": ([codes.LIST, *[codes.LONG] * empty], copies, "\n" * (lines - 1)),
        "messages in messages": (
            [codes.LIST, *inner, codes.LONG, *[*inner, codes.SAME] * 29], message, "123:2\n" + "x" * 30,
        ),
        "many digits": ([codes.LIST, codes.JSON, *[codes.SAME] * 40], [41, 0, 0], "9" * 4000),
    }


@pytest.mark.parametrize("name", bombs())
def test_what_is_made_of_little_is_taken_off_before_it_is_made(name: str) -> None:
    """A kilobyte claimed to be 50 took 23 s, or gigabytes, before it was refused."""
    ways, numbers, text = bombs()[name]
    columns, line = forged.columns(ways, numbers, [text])
    assert len(columns) < 300 and len(line) > 3_000
    with pytest.raises(CorruptError, match="more than the bytes of the log"):  # the count is told later
        table.join(columns, b"", [text], len(line) // (32 if name == "many digits" else 4))
    assert table.join(columns, b"", [text], len(line)) == line.encode()


@pytest.mark.parametrize(
    "line", [b'{"a":1.5}', b'"a b"', b"1.5", b"-0.001", b"7", b'"k": 1.25,', b'  "k": "some text here",']
)
def test_values_by_themselves_come_back_at_the_end_of_a_log(line: bytes) -> None:
    assert back(line) == line and back(b"{\n" + line) == b"{\n" + line
    assert back(line + b"\n" + line) == line + b"\n" + line


def test_documents_that_no_spelling_gives_take_no_long() -> None:
    lines = [b" " * n + b"[" for n in range(900)]
    data = b"\n".join([*lines, b"1 ", *(b" " * n + b"]" for n in reversed(range(900)))])
    assert back(data) == data


def test_another_version_is_refused_by_name() -> None:
    data, found = small()
    with pytest.raises(VersionError, match="version"):
        table.join(bytes([table.VERSION + 1]) + found.columns[1:], found.opaque, found.pieces, len(data))
    with pytest.raises(CorruptError, match="no bytes"):
        table.join(b"", found.opaque, found.pieces, len(data))
    assert issubclass(VersionError, PltzError)
