"""Loaders of sessions from common files.

| format | input | sessions |
|---|---|---|
| openai | JSONL, or JSON: objects with "messages", or lists of messages | one per line, or one per object |
| sharegpt | JSONL, or JSON: objects with "conversations" | one per line, or one per object |
| jsonl | JSONL of any JSON values | one per line that is not blank |
| text | any bytes | one per file |
| ids | JSON or JSONL: a list of ints or a list of such lists; .npy of 1 or 2 axes | one per flat list |
| auto | the suffix decides, else the content | |

``auto``: .jsonl and .ndjson are JSONL, .json is one JSON document, .npy is ids, and the suffixes in
``TEXT_SUFFIXES`` are text. Anything else (standard input, bytes, other suffixes) is decided by its content.
It is JSONL if its first line is a JSON object or list and more lines follow. It is a document if the whole is
a JSON object or list, and text if not. Files with a .zst or .gz suffix are unpacked first, and so is such
data under any other name. A folder stands for all regular files inside it, in the order of their paths.

A JSON document that is a list of messages is one session, and a list of ints is ids. Any other list of
objects, or of lists of objects, is one session per item.

JSON that Python would change is kept as it is: that line or document becomes a text session of its exact
bytes. Examples are repeated keys, NaN, and numbers that no double holds (see models/session/json_value.py).
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import numpy as np

from pltz.datasets.byte_input import GZIP_MAGIC, ZSTD_MAGIC, ByteInput, Readable
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.limits import MAX_BYTES

Format = Literal["auto", "openai", "sharegpt", "jsonl", "text", "ids"]
FORMATS: tuple[Format, ...] = ("auto", "openai", "sharegpt", "jsonl", "text", "ids")

TEXT_SUFFIXES = frozenset(
    (
        *(".txt", ".text", ".md", ".rst", ".log", ".csv", ".tsv", ".html", ".xml", ".yaml", ".yml", ".toml"),
        *(".ini", ".tex", ".srt", ".py", ".js", ".ts", ".c", ".h", ".cc", ".cpp", ".java", ".go", ".rs"),
        *(".rb", ".sh", ".sql", ".diff", ".patch"),
    )
)
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".npy": "npy"}
_BOM = b"\xef\xbb\xbf"
_NPY_MAGIC = b"\x93NUMPY"
_KEYS = {"openai": "messages", "sharegpt": "conversations"}


def load(
    source: str | os.PathLike[str] | bytes | Readable,
    format: Format = "auto",
    *,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Session]:
    """Yield the sessions of a file, a folder, a binary file object, bytes, or ``"-"`` for standard input.

    Input is read incrementally: a JSONL file of any length takes the memory of its longest line.
    ``max_bytes`` bounds that line, and a whole file of another format.

    Raises UsageError where the source is missing or does not have the format (with the line number),
    CorruptError for damaged zstd data, and ContentError for ids out of range.

    >>> [session] = load(b'{"messages":[{"role":"user","content":"Hi"}]}')
    >>> session.value["messages"][0]["content"]
    'Hi'
    """
    if format not in FORMATS:
        raise UsageError(f"expected a format of {', '.join(FORMATS)}, found {format!r}")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _sessions(ByteInput(io.BytesIO(source), "bytes", max_bytes), format)
    if source == "-":
        return _sessions(ByteInput(sys.stdin.buffer, "standard input", max_bytes), format)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not os.path.exists(source):
            raise UsageError(f"expected a file or a folder, found nothing at {path}")
        return _folder(path, format, max_bytes) if path.is_dir() else _file(path, format, max_bytes)
    if not hasattr(source, "read"):
        raise UsageError(f"expected a path, bytes or a binary file, found {type(source).__name__}")
    stream = getattr(source, "buffer", source)  # a text stream such as sys.stdin has its bytes beneath
    return _sessions(ByteInput(stream, str(getattr(source, "name", "stream")), max_bytes), format)


def sample_path() -> Path:
    """Return the path of the JSONL file of 200 sample sessions that ships with pltz."""
    return _SAMPLE / "chat_sessions.jsonl"


def sample_sessions() -> list[Session]:
    """Return the 200 sample sessions. ``messages[0]`` of each is the system prompt of its bot."""
    return list(load(sample_path()))


def sample_tenants() -> dict[str, Any]:
    """Return the platform, 5 communities and 20 bots of the sample.

    Each has an id and its prompt as ``text``.
    """
    return cast(dict[str, Any], json.loads((_SAMPLE / "tenants.json").read_bytes()))


def sample_assignments() -> list[dict[str, str]]:
    """Return the bot, community and platform of each sample session: keys session, bot, ..."""
    lines = (_SAMPLE / "assignments.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


_SAMPLE = Path(__file__).with_name("sample")


def _folder(folder: Path, format: Format, max_bytes: int) -> Iterator[Session]:
    found = (Path(base, name) for base, _, names in os.walk(folder, onerror=_unreadable) for name in names)
    for path in sorted(found, key=lambda path: path.relative_to(folder).as_posix()):
        if path.is_file():  # a pipe or a socket in a folder would block for ever
            yield from _file(path, format, max_bytes)


def _unreadable(exc: OSError) -> NoReturn:
    raise UsageError(f"{exc.filename}: cannot be read: {exc.strerror}") from exc


def _file(path: Path, format: Format, max_bytes: int) -> Iterator[Session]:
    try:
        stream = path.open("rb")
    except OSError as exc:
        _unreadable(exc)
    with stream:
        yield from _sessions(ByteInput(stream, str(path), max_bytes), format, path.suffixes[-2:])


def _sessions(source: ByteInput, format: Format, suffixes: list[str] | None = None) -> Iterator[Session]:
    """Yield the sessions of one source: unpack it, determine the format, read it."""
    suffixes = [suffix.lower() for suffix in suffixes or []]
    packed = suffixes[-1:] in ([".zst"], [".gz"])
    suffix = "".join((suffixes[:-1] if packed else suffixes)[-1:])
    told = suffix in _SUFFIXES or suffix in TEXT_SUFFIXES
    look = not packed and not told and format != "text"
    if suffixes[-1:] == [".zst"] or (look and source.peek(4) == ZSTD_MAGIC):
        source.unpack()
    elif suffixes[-1:] == [".gz"] or (look and source.peek(2) == GZIP_MAGIC):
        source.gunzip()
    yield from _READERS[_kind(source, format, suffix)](source, format)


def _kind(source: ByteInput, format: Format, suffix: str) -> str:
    """Return how to read a source: jsonl, json, npy, text, or sniff where only its content can tell."""
    if format == "text" or (format == "auto" and suffix in TEXT_SUFFIXES):
        return "text"
    if format == "jsonl":
        return "jsonl"
    kind = _SUFFIXES.get(suffix)
    if kind == "npy" or (kind is None and format in ("auto", "ids") and source.peek(6) == _NPY_MAGIC):
        return "npy"
    return kind or "sniff"


def _read_text(source: ByteInput, format: Format) -> Iterator[Session]:
    yield Session("text", source.rest())


def _read_jsonl(source: ByteInput, format: Format, ahead: bytes = b"") -> Iterator[Session]:
    """Yield one session per line. ``ahead``: the line already taken off the source to sniff it."""
    number = 0
    line: bytes | None = ahead or source.line()
    while line is not None:
        number += 1
        place = f"{source.name}: line {number}"
        text = _content(line, number == 1, place)
        if text.strip(b" \t\r\n"):
            yield _of_line(text, format, place)
        line = source.line()


def _content(line: bytes, first: bool, place: str) -> bytes:
    """Return a line without its line end and byte order mark. Raises UsageError for UTF-16."""
    if first and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{place}: expected UTF-8, found UTF-16: convert it, or read it as text")
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(_BOM) if first else line


def _of_line(text: bytes, format: Format, place: str) -> Session:
    try:
        session = Session.from_json_line(text)
    except UsageError as exc:
        raise UsageError(f"{place}: {exc}; --format text takes files of any content") from exc
    if format == "ids":
        return _of_ids(session.value, place)
    _check_shape(session, format, place)
    return session


def _check_shape(session: Session, format: Format, place: str) -> None:
    """Refuse a session that does not have the requested format.

    Lines kept as text pass. Raises UsageError.
    """
    key = _KEYS.get(format)
    if key is None or session.kind == "text":
        return
    value = session.value
    if isinstance(value, dict) and isinstance(value.get(key), list):
        return
    if format == "openai" and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return
    found = f"the keys {', '.join(value) or 'of an empty object'}"[:80] if isinstance(value, dict) else "none"
    raise UsageError(f'{place}: expected an object with a list "{key}", found {found}: try --format auto')


def _read_json(source: ByteInput, format: Format) -> Iterator[Session]:
    """Yield the sessions of one JSON document, or of JSON lines in a file named as a document."""
    first = source.line() or b""
    if _is_json(first) and source.peek(4096).strip():
        yield from _read_jsonl(source, format, first)
    else:
        yield from _of_file(first + source.rest(), format, source.name)


def _sniff(source: ByteInput, format: Format) -> Iterator[Session]:
    """Yield the sessions of JSON lines, a JSON document or text, as the content tells."""
    start = source.peek(4096).removeprefix(_BOM).lstrip()[:1]
    if format != "auto":
        yield from _read_json(source, format)
        return
    first = source.line() or b"" if start in (b"{", b"[") else b""
    if first and _is_json(first) and source.peek(4096).strip():
        yield from _read_jsonl(source, format, first)
        return
    data = first + source.rest()
    if first and _is_json(data):
        yield from _of_file(data, format, source.name)
    else:
        yield Session("text", data)


def _is_json(data: bytes) -> bool:
    """Return whether these bytes are one JSON text."""
    try:
        Session.from_json_line(data.removeprefix(_BOM))
    except UsageError:
        return False
    return True


def _of_file(data: bytes, format: Format, name: str) -> Iterator[Session]:
    """Yield the sessions of a JSON document's bytes. Raises UsageError."""
    try:
        document = Session.from_json_line(data.removeprefix(_BOM))
    except UsageError as exc:
        raise UsageError(f"{name}: {exc}; --format text takes files of any content") from exc
    if document.kind == "chat":
        yield from _of_document(document.value, format, name)
    elif format == "ids":
        raise UsageError(f"{name}: expected a list of token ids, found other JSON")
    else:
        yield Session("text", data)


def _of_document(value: Any, format: Format, name: str) -> Iterator[Session]:
    """Yield the sessions of a JSON document's value, by the rule at the top of this file."""
    if format == "ids" or (format == "auto" and (_is_ids(value) or _is_rows(value))):
        rows = value if _is_rows(value) else [value]
        for number, row in enumerate(rows, 1):
            yield _of_ids(row, f"{name}: sequence {number}")
        return
    many = isinstance(value, list) and (_all(value, _is_session) or not value)
    for number, item in enumerate(value if many else [value], 1):
        session = Session("chat", item)
        _check_shape(session, format, f"{name}: session {number}" if many else name)
        yield session


def _all(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(test, value))


def _is_session(item: Any) -> bool:
    """Return whether an item is an object that is no message, or a list of objects."""
    if isinstance(item, dict):
        if any(isinstance(item.get(key), list) for key in _KEYS.values()):
            return True
        return not (isinstance(item.get("role"), str) or isinstance(item.get("from"), str))
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


def _read_npy(source: ByteInput, format: Format) -> Iterator[Session]:
    """Yield the sessions of a .npy of integers: one for (T,), or one per row of (n, T). Raises UsageError."""
    if format not in ("auto", "ids"):
        raise UsageError(f"{source.name}: expected {format}, found a .npy file: use --format ids")
    array = _npy(source.rest(), source.name)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or (array.ndim == 2 and not array.shape[1]):
        found = f"{array.dtype} of shape {array.shape}"
        raise UsageError(f"{source.name}: expected integer ids with one or two axes, found {found}")
    for number, row in enumerate(array if array.ndim == 2 else array[None], 1):
        try:
            yield Session("ids", row)
        except ContentError as exc:
            raise ContentError(f"{source.name}: sequence {number}: {exc}") from exc


def _npy(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file, without pickles and never larger than the file. Raises UsageError."""
    stream = io.BytesIO(data)
    try:
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = headers[np.lib.format.read_magic(stream)](stream)
        size = math.prod(shape) * dtype.itemsize  # bytes
    except Exception as exc:  # the header is a Python literal: nearly any exception may be raised
        raise UsageError(f"{name}: expected a .npy file of integers: {exc}") from exc
    held = len(data) - stream.tell()
    if size != held or min(shape, default=0) < 0 or dtype.hasobject:
        raise UsageError(f"{name}: expected {size} bytes for {dtype} of shape {shape}, found {held}")
    return cast("np.ndarray[Any, Any]", np.load(io.BytesIO(data), allow_pickle=False))


_READERS: dict[str, Callable[[ByteInput, Format], Iterator[Session]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "npy": _read_npy,
    "sniff": _sniff,
}
