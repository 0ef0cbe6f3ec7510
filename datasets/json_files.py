"""JSON files: one JSON document, or one JSON value per line, as sessions.

A document that is a list of messages is one session, and a list of integers is ids. Any other list of objects, or of
lists of objects, is one session per item. A JSONL file is one session per line, or one in all where its first lines
are events of an agent (`registry.of_events`). Lines, and items, in a row that no format recognises are one session
together: a text of JSON lines. So a log of an unknown agent is one session, and not one per event.

The log of an agent is kept byte for byte, whatever its lines hold (log_lines.py). So is any line that is no JSON, which
a remark tells.

JSON that Python would change is kept as it is: that line or document becomes a text session of its exact bytes.
Examples are repeated keys, NaN, and numbers that no double holds (see models/session/json_value.py). With ``exact``
a session has the writing of its line or document (models/session/spelling.py), so that it stays a chat whoever wrote
its JSON. Where none gives the bytes back, they become a text. It then has its line end, its byte order mark and the
empty lines beside it, so the sessions in a row are the bytes of the file.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from pltz.datasets import registry
from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import EVENTS, HEAD, Noun, Part, ReadOptions
from pltz.datasets.log_lines import BOM, values
from pltz.datasets.session_columns import RowName
from pltz.models.session.session import Session
from pltz.models.session.spelling import writing_of
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.limits import MAX_BYTES, check_bytes

AHEAD = (1 << 14, 1 << 18, 1 << 22)  # bytes that are looked at, one after the other, for the first events
BETWEEN = b" \t\r\n,"  # bytes between the items of a list
FIRST = BOM + BETWEEN[:-1] + b"["  # bytes before the first
_KEYS = ("messages", "conversations")
_DECODER = json.JSONDecoder(strict=False)


def read_lines(source: ByteInput, options: ReadOptions, ahead: bytes = b"") -> Iterator[Part]:
    """Yield one session per line. ``ahead``: the line already taken off the source to look at it."""
    writing = 0  # of the last part
    for part, data in _in_runs(_lines(source, options, ahead), options):
        kept = _exact(part, data, writing) if options.exact or _is_log(part) else part
        writing = _session_of(kept).writing or writing
        yield kept


def _lines(source: ByteInput, options: ReadOptions, ahead: bytes) -> Iterator[tuple[Part, bytes]]:
    """Yield the session of each line with its bytes, those of the empty lines beside it too."""
    number = odd = 0
    why = ""  # the first odd line is no JSON
    begun = b""  # empty lines before the next line
    held: tuple[Part, bytes] | None = None  # the last part, to whose bytes empty lines behind it are added
    line: bytes | None = ahead or source.line()
    while line is not None:
        number += 1
        place = f"{source.name}: line {number}"
        text = _content(line, number == 1)
        if text.strip(b" \t\r\n"):
            if held is not None:
                yield held
            try:
                part = _of_line(text, options, place, whole=line.endswith(b"\n"))
            except UsageError as exc:
                if options.format != "auto":
                    raise
                part, why = Part(Session("text", text), place, "text"), why or f"{place}: {exc.__cause__}"
                odd += 1
            held, begun = (part, begun + line), b""
        elif held is not None:
            held = held[0], held[1] + line
            check_bytes(len(held[1]))
        else:
            begun += line
            check_bytes(len(begun))
        try:
            line = source.line()
        except UsageError:
            if held is not None:
                yield held
            raise
    if held is not None:
        yield held
    elif begun and options.exact:
        yield Part(Session("text", begun), source.name, "text"), begun
    if odd:
        kept = "this line is" if odd == 1 else f"this line and {odd - 1:,} more are"
        options.warn(f"{why}; {kept} kept byte for byte")


def _in_runs(parts: Iterable[tuple[Part, bytes]], options: ReadOptions) -> Iterator[tuple[Part, bytes]]:
    """Yield parts with their bytes, and those in a row that no format recognises as one: a text of JSON lines.

    Parts without bytes have those of their line. No text is longer than a session may be. Where a part cannot be read,
    those before it are given first.
    """
    first: Part | None = None  # of the run
    count, lines = 0, bytearray()  # of the run

    def run() -> Iterator[tuple[Part, bytes]]:
        if first is not None:
            data = bytes(lines)
            yield (first if count == 1 else replace(first, content=Session("text", data))), data

    try:
        for part, data in parts:
            if options.format != "auto" or part.noun not in ("json", "text"):
                yield from run()
                yield part, data
                first = None
                continue
            data = data or _session_of(part).to_json_line()
            if first is None or len(lines) + len(data) > options.max_bytes:
                yield from run()
                first, count, lines = part, 0, bytearray()
            elif part.noun == "json" != first.noun:
                first = replace(first, noun="json")
            count += 1
            lines += data
    except UsageError:
        yield from run()
        raise
    yield from run()


def _session_of(part: Part) -> Session:
    assert isinstance(part.content, Session)
    return part.content


def read_document(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of one JSON document, or of JSON lines in a file named as a document."""
    first = source.line() or b""
    if is_json(first) and source.peek(4096).strip():
        yield from read_lines(source, options, first)
        return
    data = first + source.rest()
    if options.format != "auto" or is_json(data):
        yield from of_document(data, options, source.name)
    elif data:
        options.warn(f"{source.name}: no JSON: kept byte for byte")
        yield Part(Session("text", data), source.name, "text")


def listed(source: ByteInput) -> bool:
    """Return whether a file is a list of sessions that have an id each, as an export is."""
    found = _item(source, FIRST) if source.peek(HEAD).lstrip(FIRST[:-1])[:1] == b"[" else None
    known = registry.of_value(found[0]) if found else None
    return known is not None and known.id_of is not None


def read_list(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of such a list one by one, byte for byte, and what is no JSON behind them as a text."""
    number, between = 1, FIRST
    while (found := _item(source, between)) is not None:
        value, start, end = found
        source.read(start)
        known, place = registry.of_value(value), f"{source.name}: session {number}"
        own = known.id_of(value) if known and known.id_of else None
        given = RowName(f"{known.name}/{own}") if known and own else None
        yield Part(Session("text", source.read(end - start)), place, known.noun if known else "json", given, known)
        number, between = number + 1, BETWEEN
    if (rest := source.rest()).strip() != b"]":
        options.warn(f"{source.name}: session {number}: no JSON: kept byte for byte")
        yield Part(Session("text", rest), f"{source.name}: session {number}", "text")


def _item(source: ByteInput, between: bytes) -> tuple[Any, int, int] | None:
    """Return the value of the next item of a list, and where it begins and ends; None where none is whole.

    ``between``: bytes that may be before it. Nothing is taken.
    """
    size = AHEAD[0]
    while True:
        data = source.peek(size)
        item = data.lstrip(between)
        with suppress(ValueError, RecursionError):
            text = codecs.getincrementaldecoder("utf-8")().decode(item)
            value, end = _DECODER.raw_decode(text)
            start = len(data) - len(item)
            return value, start, start + len(text[:end].encode())
        if len(data) < size or size > min(source.limit, MAX_BYTES):
            return None
        size *= 2


def begins_document(source: ByteInput) -> bool:
    """Return whether a file begins as a JSON document of many lines does."""
    return source.peek(HEAD).lstrip().partition(b"\n")[0].rstrip() in (b"{", b"[")


def first_events(source: ByteInput) -> list[dict[str, Any]]:
    """Return the first objects of a JSONL file without taking them; none where a line is another value.

    Lines that are no JSON are passed over: a log that an agent is writing is one, though its first line is cut.
    """
    for size in AHEAD:
        data = source.peek(size)
        found = list(islice(values(data), EVENTS))
        if found or len(data) < size:
            break
    return found if all(isinstance(event, dict) for event in found) else []


def _content(line: bytes, first: bool) -> bytes:
    """Return a line without its line end and byte order mark."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(BOM) if first else line


def _of_line(text: bytes, options: ReadOptions, place: str, *, whole: bool) -> Part:
    """Return the session of one line. ``whole``: the line has an end, or lines behind it."""
    try:
        session = Session.from_json_line(text)
    except UsageError as exc:
        way_out = "--format text takes files of any content"
        if text.strip() in (b"{", b"["):
            way_out = f"a document of many lines is read under a name that ends in .json; {way_out}"
        if not whole:
            way_out = f"the line has no end: if the file is still being written, try again later; {way_out}"
        raise UsageError(f"{place}: {exc}; {way_out}") from exc
    if options.format == "ids":
        return Part(_of_ids(session.value, place), place)
    return _part(session, place, options.format)


def _exact(part: Part, data: bytes, writing: int = 0) -> Part:
    """Return a part that gives these bytes back: with its writing, or as a text. Raises UsageError for ids.

    ``writing``: of the part before it.
    """
    session = _session_of(part)
    if session.to_input_bytes() == data and not _is_log(part):
        return part
    if session.kind == "ids":
        raise UsageError(f"{part.place}: these ids are written in another way than pltz writes them: leave --exact out")
    noun = part.noun or (part.format.noun if part.format else _noun_of(session.value))
    if noun != "agent log" and session.kind == "chat" and (found := writing_of(data, session.value, writing)):
        return replace(part, content=replace(session, writing=found))
    return replace(part, content=Session("text", data), noun=noun)


def _is_log(part: Part) -> bool:
    """Return whether a part is the log of an agent, which is kept byte for byte."""
    return part.noun == "agent log" or (part.format is not None and part.format.noun == "agent log")


def is_json(data: bytes) -> bool:
    """Return whether these bytes are one JSON text."""
    try:
        Session.from_json_line(data.removeprefix(BOM))
    except UsageError:
        return False
    return True


def of_document(data: bytes, options: ReadOptions, name: str) -> Iterator[Part]:
    """Yield the sessions of a JSON document's bytes. Raises UsageError."""
    try:
        document = Session.from_json_line(data.removeprefix(BOM))
    except UsageError as exc:
        raise UsageError(f"{name}: {exc}; --format text takes files of any content") from exc
    if document.kind == "chat":
        parts = list(_of_value(document.value, options, name))
        if options.exact and len(parts) != 1:
            yield Part(Session("text", data), name, _noun_of(document.value))
        elif options.exact or [part.place for part in parts if _is_log(part)] == [name]:
            yield _exact(parts[0], data)
        else:
            yield from parts
    elif options.format == "ids":
        raise UsageError(f"{name}: expected a list of token ids, found other JSON")
    else:
        yield Part(Session("text", data), name, "json")


def _noun_of(value: Any) -> Noun:
    """Return the noun of a JSON value, which may be a list of chats."""
    if not _all(value, _has_messages) and (whole := registry.of_value(value)):
        return whole.noun  # a list of what are no sessions by themselves, as Cline's
    items = value if isinstance(value, list) and _all(value, _is_session) else [value]
    known = [registry.of_value(item) for item in items]
    return "json" if None in known or known[0] is None else known[0].noun


def _part(session: Session, place: str, format: str) -> Part:
    """Return a session as a part: with its format, or json where none recognises it or it is kept as it is."""
    if session.kind != "chat":
        return Part(session, place, "json")
    if format != "auto":
        return Part(session, place)
    known = registry.of_value(session.value)
    unknown = known is None and registry.of_row(session.value) is None
    return Part(session, place, "json" if unknown else None, format=known)


def _of_value(value: Any, options: ReadOptions, name: str) -> Iterator[Part]:
    """Yield the sessions of a JSON document's value, by the rule at the top of this file."""
    format = options.format
    if format == "ids" or (format == "auto" and (_is_ids(value) or _is_rows(value))):
        rows = value if _is_rows(value) else [value]
        for number, row in enumerate(rows, 1):
            place = f"{name}: sequence {number}"
            yield Part(_of_ids(row, place), place)
        return
    one = format == "auto" and value and registry.of_value(value) is not None and not _all(value, _has_messages)
    many = isinstance(value, list) and not one and (_all(value, _is_session) or not value)
    yield from (part for part, _ in _in_runs(_items(value if many else [value], format, name, many=many), options))


def _items(values: list[Any], format: str, name: str, *, many: bool) -> Iterator[tuple[Part, bytes]]:
    """Yield the values of a document as parts. ``many``: they are items of a list."""
    for number, item in enumerate(values, 1):
        place = f"{name}: session {number}" if many else name
        session = Session("chat", item)
        part = _part(session, place, format)
        yield (_exact(part, session.to_json_line()) if many and _is_log(part) else part), b""


def _all(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(test, value))


def _has_messages(item: Any) -> bool:
    return isinstance(item, dict) and any(isinstance(item.get(key), list) for key in _KEYS)


def _is_session(item: Any) -> bool:
    """Return whether an item is an object that is no message, or a list of objects."""
    if isinstance(item, dict):
        return _has_messages(item) or not (isinstance(item.get("role"), str) or isinstance(item.get("from"), str))
    return _all(item, lambda message: isinstance(message, dict))


def _is_ids(value: Any) -> bool:
    return _all(value, lambda item: type(item) is int)


def _is_rows(value: Any) -> bool:
    """Return whether a value is a list of lists of ints, at least one of them not empty."""
    return _all(value, lambda row: row == [] or _is_ids(row)) and any(value)


def _of_ids(value: Any, place: str) -> Session:
    if not _is_ids(value) and value != []:
        raise UsageError(f"{place}: expected a list of token ids, found other JSON")
    try:
        return Session("ids", value)
    except (ContentError, UsageError) as exc:
        raise ContentError(f"{place}: expected ids 0..2^31-1, found others") from exc
