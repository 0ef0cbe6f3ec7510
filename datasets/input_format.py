"""An input format: how one kind of file is recognised, what its sessions are called, and how it is read.

`registry.FORMATS` lists all of them. A new format is one file in datasets/formats/ and one line there. A format
says how it is recognised by one of three functions, and reads its files itself only where a file is no JSON:

    of_head     the first bytes of a file (parquet, aider's history)
    of_events   the first objects of a JSONL file that is one session (agent logs)
    of_value    one JSON value that is one session (a chat, a logged request)

What they look at is foreign: any key may hold a value of any type. So words are looked up in tuples, which hash
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pltz.datasets.dropped import DROPS
from pltz.datasets.file_names import PACKED
from pltz.datasets.file_walk import EXCLUDE, WalkedFile
from pltz.datasets.session_columns import RowName, name_of, name_sessions, session_of
from pltz.datasets.turns import Message
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.limits import MAX_BYTES

if TYPE_CHECKING:
    from pltz.datasets.byte_input import ByteInput

Noun = Literal["chat", "agent log", "json", "text", "ids", "binary"]
CHANGED = ("agent log", "text", "binary", "json")  # nouns of files that may be written again from the start

HEAD = 4096  # bytes of a file that `of_head` looks at
EVENTS = 8  # objects of a file that `of_events` looks at


@dataclass(frozen=True)
class Recognised:
    """A session of an input, and what it was recognised as.

    Attributes:
        noun: what it is.
        format: name of its format, a name in `registry.FORMATS`, or json, text, ids or binary.
        file: file it was read from, or what stands for one.
        place: the file, with the place in it.
        size: bytes of the file that were read for it, unpacked.
        given: as of a `Part`.
        dropped: bytes of what was dropped from it (`dropped.py`).
        mtime: when its file was changed last, in nanoseconds since 1970; 0: not known.
        part: path of the file below the log that it belongs to, with `ReadOptions.parts`. Then ``file`` is that log's.
        second: another file has the stem of its file (`file_walk.WalkedFile`).
    """

    session: Session
    noun: Noun
    format: str
    file: str
    place: str
    size: int = 0
    given: RowName | None = None
    dropped: int = 0
    mtime: int = 0
    part: str = ""
    second: bool = False

    @property
    def is_log(self) -> bool:
        """Return whether it is the log of an agent that a file is, and not one of many in rows of a file."""
        return self.noun == "agent log" and self.place == self.file

    @property
    def packing(self) -> str:
        """Return the packed file of which it has the content alone; empty for values, and where nothing packed it."""
        place, own = (self.place, self.noun == "agent log") if self.part else (self.file, self.noun in CHANGED)
        return place if own and place.endswith(PACKED) else ""

    @property
    def is_verbatim(self) -> bool:
        """Return whether the file has it as it is: as all of it or as a line, and not in a table."""
        return self.session.kind != "ids" and (self.place == self.file or self.place.startswith(f"{self.file}: line "))


def _silent(text: str) -> None:
    """Drop a remark."""


@dataclass(frozen=True)
class ReadOptions:
    """Hold the options of reading inputs.

    Attributes:
        format: name of the format of all of them, or auto.
        max_bytes: of a line, and of a file that is one session.
        columns: of a table; empty: all that JSON can hold.
        query: of a database, which answers with a session per row.
        exact: keep the bytes of JSON: of a chat as its writing, and what no writing gives back as a text, line end
            included. The sessions of a source in a row are its bytes (`Session.to_input_bytes`).
        warn: called with each remark, a sentence without a full stop.
        drop: what is dropped from the logs of agents, names of `dropped.DROPS`. Not with exact.
        refused: called with the reason for each file of a folder that cannot be read, or only in part, and the file.
            The others are read. None: the first such file is an error.
        exclude: patterns of files of a folder to leave out, as of `file_walk.walk`.
        left: called with each file that is left out, and those of which a user should know something. None: a remark,
            where there is a reason in words.
        parts: read the files below a folder that is named as a log beside it is as parts of that log's session.
        long: give large logs and texts as `LongText`, of any size, and not as bytes.
    """

    format: str = "auto"
    max_bytes: int = MAX_BYTES
    columns: tuple[str, ...] = ()
    query: str | None = None
    exact: bool = False
    warn: Callable[[str], None] = _silent
    drop: tuple[str, ...] = ()
    refused: Callable[[str, WalkedFile], None] | None = None
    exclude: tuple[str, ...] = EXCLUDE
    left: Callable[[WalkedFile], None] | None = None
    parts: bool = False
    long: bool = False

    def __post_init__(self) -> None:
        if unknown := set(self.drop) - set(DROPS):
            raise UsageError(f"expected to drop {' or '.join(DROPS)}, found {min(unknown)!r}")
        if self.drop and self.exact:
            raise UsageError("exact keeps every byte, so nothing can be dropped: leave out one of exact and drop")


@dataclass(frozen=True)
class Part:
    """A part of a file as its format reads it, not yet recognised.

    Attributes:
        content: a session, the bytes of a JSON value or a text, or a file in this one.
        place: of the part, for messages.
        noun: what it is, where the format says so.
        given: name, tenant and time, where it is a row that says them.
        format: of a JSON value, where it was recognised already.
    """

    content: Session | bytes | ByteInput
    place: str
    noun: Noun | None = None
    given: RowName | None = None
    format: InputFormat | None = None


def of_row(row: Mapping[str, Any], place: str, options: ReadOptions) -> Iterator[Part]:
    """Yield the session of a row by the rules of table.py, or tell why there is none where somebody is to be told.

    Else raises ContentError, UsageError.
    """
    try:
        yield _of_row(row, place)
    except (ContentError, UsageError) as exc:
        if options.refused is None:
            raise
        options.refused(str(exc), WalkedFile(place, place))


def _of_row(row: Mapping[str, Any], place: str) -> Part:
    """Return the session of a row. Raises ContentError, UsageError."""
    values = list(row.values())
    if len(values) == 1 and isinstance(values[0], str | bytes):
        value = values[0]
        return Part(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value, place)
    try:
        if name_sessions(row):
            return Part(session_of(row), place, given=name_of(row))
        if len(values) == 1 and isinstance(values[0], list) and all(type(item) is int for item in values[0]):
            return Part(Session("ids", values[0]), place)
    except (ContentError, UsageError) as exc:
        raise type(exc)(f"{place}: {exc}") from exc
    if any(isinstance(value, bytes) for value in values):
        raise ContentError(f"{place}: a column holds bytes, which JSON cannot: choose that column alone")
    return Part(Session("chat", dict(row)), place)


Read = Callable[["ByteInput", ReadOptions], Iterator[Part]]


def whole(noun: Noun) -> Read:
    """Return the reader of files that are one session each, byte for byte."""

    def read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
        yield Part(Session("text", source.text(long=options.long)), source.name, noun)

    return read


@dataclass(frozen=True)
class InputFormat:
    """One input format. ``about``: what its files are, for the help and the documents. ``suffix``: of its files, where
    that is not the one of JSON or text. ``conversation``: the messages of a log, `datasets.conversation` says which.
    ``id_of``: the id of a session that is one of a list, which names it.
    ``unfolded``: the log so that its conversation has all messages, and why it may have fewer as it is.
    """

    name: str
    noun: Noun
    about: str
    of_head: Callable[[bytes], bool] | None = None
    of_events: Callable[[Sequence[dict[str, Any]]], bool] | None = None
    of_value: Callable[[Any], bool] | None = None
    read: Read | None = None
    suffix: str | None = None
    conversation: Callable[[Any], list[Message]] | None = None
    id_of: Callable[[Any], Any] | None = None
    unfolded: Callable[[Any], tuple[Any, str]] | None = None
