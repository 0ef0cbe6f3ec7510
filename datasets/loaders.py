"""Loaders of sessions from common files.

| format | input | sessions |
|---|---|---|
| agent-log | JSONL of the events of one session | one per file |
| jsonl | JSONL of any JSON values | one per line that is not blank |
| text | any bytes | one per file |
| ids | JSON or JSONL: a list of ints or a list of such lists; .npy of 1 or 2 axes | one per flat list |
| auto | the suffix decides, else the content | |

``auto``: .jsonl and .ndjson are JSONL, .json is one JSON document, .npy is ids, and the suffixes in
``TEXT_SUFFIXES`` are text. Anything else (standard input, bytes, other suffixes) is decided by its content. It is what
`registry.FORMATS` recognises by its first bytes: tables, databases, zip files. Else it is JSONL if its first
line is a JSON object or list and more lines follow. It is a document if the whole is a JSON object or list. It is text
if it is UTF-8 without NUL, and else binary. Agent logs are recognised whatever their suffix. Files with a .zst, .zstd
or .gz suffix are unpacked first, and so is such data under any name that is not one of a text. A folder stands for the
files that `walk` finds in it.

Each session is recognised: `recognise` says what it is and by which format. JSON of no known format is json, never
silently a chat, and values of it in a row are one session of JSON lines (json_files.py). Such remarks are warnings
(`InputWarning`), or go to `ReadOptions.warn`.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, cast

from pltz.datasets import json_files, registry
from pltz.datasets.byte_input import GZIP_MAGIC, LONG, SKIPPABLE, ZSTD_MAGIC, ByteInput, Readable
from pltz.datasets.dropped import without
from pltz.datasets.file_names import stem_of
from pltz.datasets.file_walk import WalkedFile, walk
from pltz.datasets.input_format import HEAD, InputFormat, Noun, Part, ReadOptions, Recognised, whole
from pltz.datasets.log_lines import BOM
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import PltzError, UsageError, refusing
from pltz.plt_codec.limits import MAX_BYTES

Format = Literal["auto", "agent-log", "jsonl", "text", "ids"]
FORMATS: tuple[Format, ...] = ("auto", "agent-log", "jsonl", "text", "ids")

TEXT_SUFFIXES = frozenset(
    (
        *(".txt", ".text", ".md", ".rst", ".log", ".csv", ".tsv", ".html", ".xml", ".yaml", ".yml", ".toml"),
        *(".ini", ".tex", ".srt", ".py", ".js", ".ts", ".c", ".h", ".cc", ".cpp", ".java", ".go", ".rs"),
        *(".rb", ".sh", ".sql", ".diff", ".patch"),
    )
)
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".npy": "npy"}
_PACKED = {".zst": ByteInput.unpack, ".zstd": ByteInput.unpack, ".gz": ByteInput.gunzip}
LOGS = (".jsonl", ".jsonl.zst", ".jsonl.zstd", ".jsonl.gz")  # of logs beside which a folder holds parts of theirs
ABOVE = 3  # folders that are looked at, from the source up
_TEXT_HEADS = frozenset(("aider", "specstory", "cursor"))  # recognised in files that are text by their suffix


class InputWarning(UserWarning):
    """A remark about an input: it is of no known format, is empty, or grew while it was read."""


def load(
    source: str | os.PathLike[str] | bytes | Readable,
    format: Format = "auto",
    *,
    max_bytes: int = MAX_BYTES,
    exact: bool = False,
) -> Iterator[Session]:
    """Yield the sessions of a file, a folder, a binary file object, bytes, or ``"-"`` for standard input.

    Input is read incrementally: a JSONL file of any length takes the memory of its longest line.
    ``max_bytes`` bounds that line, and a whole file of another format.

    Args:
        exact: keep the bytes of JSON too: of a chat as its writing, else as a text. The sessions in a row are then the
            bytes of the source (`Session.to_input_bytes`). Not for tables, databases and .npy files.

    Raises:
        UsageError: the source is missing, or does not have the format; the message names the line.
        CorruptError: zstd data is damaged.
        ContentError: ids are out of range.

    >>> [session] = load(b'{"messages":[{"role":"user","content":"Hi"}]}')
    >>> session.value["messages"][0]["content"]
    'Hi'
    """
    options = ReadOptions(format, max_bytes, exact=exact, warn=_warn)
    return (found.session for found in recognise(source, options))


def recognise(
    source: str | os.PathLike[str] | bytes | Readable, options: ReadOptions | None = None
) -> Iterator[Recognised]:
    """Yield the sessions of a source with what they were recognised as.

    Takes the arguments of `load`, and raises its errors.

    >>> [found] = recognise(b'{"messages":[{"role":"user","content":"Hi"}]}')
    >>> found.noun, found.format
    ('chat', 'openai')
    """
    options = options or ReadOptions()
    if options.format not in FORMATS:
        raise UsageError(f"expected a format of {', '.join(FORMATS)}, found {options.format!r}")
    return _of_any(source, options)


def _without(found: Recognised, names: tuple[str, ...]) -> Recognised:
    """Return the log of an agent without what is to be dropped, and anything else as it is."""
    if not names or found.noun != "agent log":
        return found
    session, size = without(found.session, names)
    return replace(found, session=session, dropped=size)


def _of_any(source: str | os.PathLike[str] | bytes | Readable, options: ReadOptions) -> Iterator[Recognised]:
    """Yield the sessions of a source. Raises the errors of `load`."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _of_source(ByteInput(io.BytesIO(source), "bytes", options.max_bytes), options)
    if source == "-":
        return _of_source(ByteInput(sys.stdin.buffer, "standard input", options.max_bytes), options)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not os.path.exists(source):
            raise UsageError(f"expected a file or a folder, found nothing at {path}")
        if path.is_dir():
            return recognise_files(walk(path, options.exclude), options, path)
        owned = [(log, inside) for log, inside in _owned(path, _owners(path.parent, options))]
        return (_part(path, inside, log, options) for log, inside in owned) if owned else _file(path, options)
    if not hasattr(source, "read"):
        raise UsageError(f"expected a path, bytes or a binary file, found {type(source).__name__}")
    stream = getattr(source, "buffer", source)  # a text stream such as sys.stdin has its bytes beneath
    name = str(getattr(source, "name", "stream"))
    return _of_source(ByteInput(stream, name, options.max_bytes), options)


def sample_path() -> Path:
    """Return the path of the JSONL file of 200 sample sessions that ships with pltz."""
    return Path(__file__).with_name("sample") / "chat_sessions.jsonl"


def sample_sessions() -> list[Session]:
    """Return the 200 sample sessions. ``messages[0]`` of each is the system prompt of its bot."""
    return list(load(sample_path()))


def _warn(text: str) -> None:
    warnings.warn(text, InputWarning, stacklevel=2)


def recognise_files(files: Iterable[WalkedFile], options: ReadOptions, source: Path) -> Iterator[Recognised]:
    """Yield the sessions of the files of a folder, as `walk` gives them: a log before the files of its folder.

    What a file cannot give goes to ``options.refused``, and what is left out to ``options.left``.
    """
    owners = _owners(source, options)
    for file in files:
        if file.fate == "refused":
            _refuse(UsageError(f"{file.path}: {file.why}"), options, file)
        elif file.fate != "read":
            _leave(file, options)
        else:
            try:
                yield from _walked(file, owners, options)
            except OSError as exc:
                _refuse(UsageError(f"{file.path}: cannot be read: {exc.strerror}"), options, file)
            except PltzError as error:
                _refuse(error, options, file)


def _walked(file: WalkedFile, owners: dict[Path, Path], options: ReadOptions) -> Iterator[Recognised]:
    """Yield the sessions of a file of a folder, or the part of a session that it is. ``owners``: adds logs to them."""
    path = Path(file.path)
    with refusing(file.path):
        for log, inside in _owned(path, owners):
            yield _part(path, inside, log, options)
            return
        for found in _file(path, options):
            if options.parts and found.is_log:
                owners[Path(os.path.abspath(path)).with_name(stem_of(path.name))] = path
            yield replace(found, second=True) if file.second else found


def _owners(folder: Path, options: ReadOptions) -> dict[Path, Path]:
    """Return the log beside a folder, or one above it, that has its name: what lies below belongs to its session."""
    found: dict[Path, Path] = {}
    folder = Path(os.path.abspath(folder))
    for named in (folder, *folder.parents)[:ABOVE] if options.parts else ():
        for log in (named.with_name(named.name + suffix) for suffix in LOGS if named.name):
            with suppress(OSError, PltzError):
                if log.is_file() and any(one.is_log for one in _file(log, replace(options, warn=lambda _: None))):
                    found[named] = log
    return found


def _owned(path: Path, owners: dict[Path, Path]) -> Iterator[tuple[Path, str]]:
    """Yield the log that a file belongs to, and its path as a part of that; nothing where it belongs to none."""
    path = Path(os.path.abspath(path))
    for parent in reversed(path.parents):
        if parent in owners:
            yield owners[parent], path.relative_to(parent).as_posix()
            return


def _part(path: Path, inside: str, log: Path, options: ReadOptions) -> Recognised:
    """Return a file as a part of the session of a log: as a log too, or byte for byte."""
    with suppress(PltzError):
        found = next(_file(path, replace(options, warn=lambda _: None)), None)
        if found and found.is_log:
            return replace(found, file=str(log), part=inside)
    with path.open("rb") as stream:
        mtime = _mtime(os.fstat(stream.fileno()))
        data = ByteInput(stream, str(path), options.max_bytes, path).text(long=options.long)
    return Recognised(Session("text", data), "text", "text", str(log), str(path), len(data), mtime=mtime, part=inside)


def _refuse(error: PltzError, options: ReadOptions, file: WalkedFile) -> None:
    """Tell why a file of a folder cannot be read, or raise the error where nobody is to be told."""
    if options.refused is None:
        raise error
    options.refused(str(error), file)


def told(file: WalkedFile) -> str:
    """Return what becomes of a file that is left out, or what a user should know of it, in words."""
    return f"{file.path}: {file.why}" + (", left out" if file.fate == "left" and file.rule != "empty" else "")


def _leave(file: WalkedFile, options: ReadOptions) -> None:
    """Tell that a file is left out, or what a user should know of it."""
    if options.left is not None:
        options.left(file)
    elif file.why:
        options.warn(told(file))


def _unreadable(exc: OSError) -> NoReturn:
    raise UsageError(f"{exc.filename}: cannot be read: {exc.strerror}") from exc


def _mtime(at: os.stat_result) -> int:
    """Return when a file was changed last, in nanoseconds since 1970; 0 where that is before, or after 2262."""
    return at.st_mtime_ns if 0 < at.st_mtime_ns < 1 << 63 else 0


def _file(path: Path, options: ReadOptions) -> Iterator[Recognised]:
    try:
        stream = path.open("rb")
    except OSError as exc:
        _unreadable(exc)
    with stream:
        before = os.fstat(stream.fileno())
        whole = path if path.is_file() else None  # a pipe is read once, front to back
        source = ByteInput(stream, str(path), options.max_bytes, whole)
        source.mtime = _mtime(before)
        yield from _of_source(source, options, path.suffixes[-2:])
        after = os.fstat(stream.fileno())
        if whole and (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            options.warn(
                f"{path}: changed while it was read, from {before.st_size:,} to {after.st_size:,} bytes: "
                "freeze it again when nothing writes to it"
            )


def _of_source(source: ByteInput, options: ReadOptions, suffixes: list[str] | None = None) -> Iterator[Recognised]:
    """Yield the sessions of one source, and remark what a user may not expect of it.

    Whatever its format raises is a refusal of this source. Raises the errors of `load`.
    """
    with refusing(source.name):
        sessions = other = 0
        remark = ""
        empty = not source.peek(1)
        for found in _recognised(source, options, suffixes or []):
            sessions += 1
            if found.file != source.name:  # of a zip file, and told there
                pass
            elif found.noun == "json" and options.format == "auto":
                other += 1
                remark = remark or f"{found.place}: no known chat format"
            elif found.noun == "binary":
                why = "is not unpacked" if found.format == "packed" else "no text in UTF-8"
                options.warn(f"{found.place}: {why}: kept byte for byte, as binary")
            yield found
        if not sessions:
            why = "is empty" if empty else "holds no session"
            _leave(WalkedFile(source.name, source.name, fate="left", rule="empty", why=why), options)
        elif empty:
            options.warn(f"{source.name}: is empty")
        if source.torn:
            _leave(WalkedFile(source.name, source.name, fate="told", why=source.torn), options)
        if other:
            count = "1 session is" if other == 1 else f"{other:,} sessions are"
            options.warn(f"{remark}; {count} kept as JSON, {'byte for byte' if options.exact else 'value for value'}")


def _recognised(source: ByteInput, options: ReadOptions, suffixes: list[str]) -> Iterator[Recognised]:
    """Yield the sessions of one source: unpack it, determine the format, read it, recognise what was read."""
    suffix = _unpacked(source, options, [suffix.lower() for suffix in suffixes])
    known, parts = _parts(source, options, suffix)
    before = 0
    for part in parts:
        if isinstance(part.content, ByteInput):
            part.content.mtime = source.mtime
            yield from _member(part.content, options)
            continue
        yield _without(_named(part, known, source, before), options.drop)
        before = source.taken


def _member(source: ByteInput, options: ReadOptions) -> Iterator[Recognised]:
    """Yield the sessions of a file in a zip file, which is like one of a folder."""
    try:
        yield from _of_source(source, options, Path(source.name).suffixes[-2:])
    except PltzError as error:
        _refuse(error, options, WalkedFile(source.name, source.name))


def _unpacked(source: ByteInput, options: ReadOptions, suffixes: list[str]) -> str:
    """Unpack a zstd or gzip source, and return the suffix of what is inside."""
    packed = suffixes[-1] if suffixes and suffixes[-1] in _PACKED else ""
    suffix = "".join((suffixes[:-1] if packed else suffixes)[-1:])
    head = b"" if suffix in TEXT_SUFFIXES or options.format == "text" else source.peek(4)
    if packed:
        _PACKED[packed](source)
    elif head == ZSTD_MAGIC or (head[:1] and head[0] >> 4 == 5 and head[1:] == SKIPPABLE):
        source.unpack()
    elif head[:2] == GZIP_MAGIC:
        source.gunzip()
    return suffix


def _parts(source: ByteInput, options: ReadOptions, suffix: str) -> tuple[InputFormat | None, Iterator[Part]]:
    """Return the format of a source, None where its values say it, and an iterator of its parts."""
    format, kind = options.format, _SUFFIXES.get(suffix)
    if format == "text":
        return None, whole("text")(source, options)
    if format == "agent-log":
        events = json_files.first_events(source)
        return (registry.of_events(events) if events else None), whole("agent log")(source, options)
    if format in ("auto", "ids") and (kind in (None, "npy")):
        known = registry.of_head(source.peek(HEAD))
        is_text = suffix in TEXT_SUFFIXES
        if known is None and kind == "npy":
            known = next(one for one in registry.FORMATS if one.name == "npy")
        if known and known.read and (not is_text or known.name in _TEXT_HEADS):
            is_store = known.name == "sqlite" and options.query is None
            if options.exact and known.noun in ("json", "ids") and not is_store:
                raise UsageError(f"{source.name}: --exact keeps JSON and texts, this is {known.about}: leave it out")
            return known, known.read(source, options)
    if format == "auto" and suffix in TEXT_SUFFIXES:
        return None, whole("text")(source, options)
    if format == "auto" and (events := json_files.first_events(source)) and (known := registry.of_events(events)):
        return known, whole("agent log")(source, options)
    if format == "auto" and not options.exact and json_files.listed(source):
        return None, json_files.read_list(source, options)
    if format == "jsonl" or (kind == "jsonl" and not json_files.begins_document(source)):
        return None, json_files.read_lines(source, options)
    if kind in ("json", "jsonl") or format != "auto":
        return None, json_files.read_document(source, options)
    return None, _sniff(source, options)


def _sniff(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the sessions of JSON lines, a JSON document, text or bytes, as the content tells."""
    start = source.peek(HEAD).removeprefix(BOM).lstrip()[:1]
    first = source.line() or b"" if start in (b"{", b"[") else b""
    if first and json_files.is_json(first) and source.peek(HEAD).strip():
        yield from json_files.read_lines(source, options, first)
        return
    if not first:
        text = source.text(long=options.long)
        yield Part(Session("text", text), source.name, "text" if is_text(text[:LONG]) else "binary")
        return
    data = first + source.rest()
    if json_files.is_json(data):
        yield from json_files.of_document(data, options, source.name)
    else:
        yield Part(Session("text", data), source.name, "text" if is_text(data) else "binary")


def _named(part: Part, known: InputFormat | None, source: ByteInput, before: int) -> Recognised:
    """Return a part as the session that it is, and what it was recognised as.

    ``before``: bytes of the source that were consumed before it.
    """
    content, noun = part.content, part.noun
    assert not isinstance(content, ByteInput)
    if isinstance(content, bytes):
        content, noun = _of_bytes(content)
    if noun is None and content.kind == "chat":
        row = registry.of_row(content.value) if part.given else None
        known = part.format or registry.of_value(content.value) or row or known
        noun = known.noun if known and (known.of_value or known.of_events) else "json"
        form = known.name if known else "json"
    else:
        noun, known = noun or cast("Noun", content.kind), part.format or known
        form = known.name if known else noun
    own = part.given and isinstance(content.value, bytes | LongText)  # one of many, which is read with them
    size = len(content.value) if own else source.taken - before
    return Recognised(content, noun, form, source.name, part.place, size, part.given, mtime=source.mtime)


def _of_bytes(data: bytes) -> tuple[Session, Noun | None]:
    """Return bytes as JSON, with no noun yet, where all of them are an object or a list; else as text or binary."""
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            session = Session.from_json_line(data)
        except PltzError:
            pass
        else:
            return session, None if session.kind == "chat" else "json"
    return Session("text", data), "text" if is_text(data) else "binary"


def is_text(data: bytes) -> bool:
    """Return whether bytes are text: UTF-8 without NUL.

    >>> is_text("é".encode()), is_text(bytes(4)), is_text(b"\\xff")
    (True, False, False)
    """
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
