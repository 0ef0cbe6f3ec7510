"""A session: a value that a user freezes and gets back exactly.

    kind     value                         equal means
    chat     a JSON value (dict or list)   same types, values and order of keys (1 is not 1.0)
    text     bytes, of any encoding        same bytes
    ids      int32 array of token ids      same ids

A line of a JSONL file becomes a chat. Its value may not come back (a repeated key, NaN, a number no double
holds). Then the line itself is kept as a text session, so nothing changes silently, and ``to_json_line`` puts
that line back as it was.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from pltz.models.session import json_value
from pltz.models.session.long_text import LongText
from pltz.models.session.spelling import WRITINGS, written
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.limits import check_bytes

Kind = Literal["chat", "text", "ids"]
KINDS: tuple[Kind, ...] = ("chat", "text", "ids")

MAX_ID = (1 << 31) - 1
ID_BYTES = 4  # bytes an id counts for in `content_bytes`


def kind_number(kind: Kind, writing: int = 0) -> int:
    """Return the number of a kind and a writing, as contexts of archives have it.

    >>> [kind_number(kind) for kind in KINDS], kind_number("chat", 4), kind_of(6), writing_in(6), writing_in(0)
    ([0, 1, 2], 6, 'chat', 4, 0)
    """
    return len(KINDS) - 1 + writing if writing else KINDS.index(kind)


def kind_of(number: int) -> Kind:
    """Return the kind of a number."""
    return KINDS[number] if number < len(KINDS) else "chat"


def writing_in(number: int) -> int:
    """Return the writing of a number."""
    return max(0, number - len(KINDS) + 1)


ROLE_BYTES = {"system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 5, "function": 6}
ROLE_OF_BYTE = {code: role for role, code in ROLE_BYTES.items()}
_ANY_ROLE = re.compile("[\x01-\x06]")


def lean(value: Any) -> bytes | None:
    """Return a chat of nothing but roles and texts as one role byte and the text per message; None for other values.

    >>> lean({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})
    b'\\x02hi\\x03yo'
    """
    if type(value) is not dict or list(value) != ["messages"] or type(value["messages"]) is not list:
        return None
    parts = []
    for message in value["messages"]:
        if type(message) is not dict or list(message) != ["role", "content"]:
            return None
        role, text = message["role"], message["content"]
        if type(role) is not str or role not in ROLE_BYTES or type(text) is not str or _ANY_ROLE.search(text):
            return None
        parts.append(chr(ROLE_BYTES[role]) + text)
    return "".join(parts).encode("utf-8", "surrogatepass") or None


def _unlean(data: bytes) -> Any:
    text = data.decode("utf-8", "surrogatepass")
    starts = [m.start() for m in _ANY_ROLE.finditer(text)]
    ends = [*starts[1:], len(text)]
    return {
        "messages": [
            {"role": ROLE_OF_BYTE[ord(text[a])], "content": text[a + 1 : b]} for a, b in zip(starts, ends, strict=True)
        ]
    }


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Session:
    """One session. ``==`` is strict: ``Session("chat", [1]) != Session("chat", [1.0])``.

    Immutable: any thread may use it.

    The value of a text may be a `LongText`, which nothing but an archive takes above `MAX_BYTES`.

    ``ids`` accepts any flat sequence of integers 0..2^31-1 and keeps a read-only int32 array (n,). A chat's
    value is checked when it is written, not here. ``writing``: how the bytes of a chat's input are written
    (spelling.py), where they are kept; 0: as pltz writes them.

    Raises:
        UsageError: an unknown kind, or a value of the wrong type.
        ContentError: ids out of range.

    >>> Session("text", b"hello")
    Session('text', 5 bytes)
    """

    kind: Kind
    value: Any
    writing: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"expected a session of kind {', '.join(KINDS)}, found {self.kind!r}")
        if self.writing and (self.kind != "chat" or not 0 < self.writing < WRITINGS):
            raise UsageError(f"expected a writing of a chat below {WRITINGS}, found {self.writing} of a {self.kind}")
        if self.kind == "text":
            if isinstance(self.value, LongText):
                return
            if not isinstance(self.value, (bytes, bytearray, memoryview)):
                raise UsageError(f"expected the bytes of a text session, found {type(self.value).__name__}")
            object.__setattr__(self, "value", bytes(self.value))
        elif self.kind == "ids":
            object.__setattr__(self, "value", _ids(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        return self.kind == other.kind and self.difference(other) is None

    def __hash__(self) -> int:
        return hash((self.kind, self.to_bytes()))

    def __reduce__(self) -> tuple[type["Session"], tuple[Kind, Any, int]]:
        return Session, (self.kind, self.value, self.writing)

    def __repr__(self) -> str:
        if self.kind == "chat":
            sized = isinstance(self.value, dict | list)
            size = f"{type(self.value).__name__} of {len(self.value)}" if sized else repr(self.value)
        else:
            size = f"{len(self.value)} {'bytes' if self.kind == 'text' else 'ids'}"
        return f"Session({self.kind!r}, {size})"

    def difference(self, other: "Session") -> str | None:
        """Return where another session differs, in words for a message; None if it is equal."""
        if self.kind != other.kind:
            return f"expected a {self.kind} session, found a {other.kind} session"
        if self.writing != other.writing:
            return f"expected writing {self.writing}, found {other.writing}"
        if self.kind == "chat":
            return json_value.difference(self.value, other.value)
        if self.kind == "text":
            return None if self.value == other.value else "the bytes differ"
        return None if np.array_equal(self.value, other.value) else "the ids differ"

    def to_bytes(self) -> bytes:
        """Return the session as plain bytes, without a model.

        They are lean chat or compact JSON, the text, or little-endian int32. Lean chat is one byte 1..6 for
        each message's role, then its text; it is used where that says all (see `lean`). A list of objects, one or
        more, is a line of JSON per object, so that the bytes of a longer one begin with those of a shorter one.

        Raises:
            ContentError: a chat's value is not plain JSON.
            LimitError: the session is over a limit (plt_codec/limits.py).
        """
        if self.kind == "ids":
            check_bytes(ID_BYTES * len(self.value))
            return cast(bytes, self.value.astype("<i4").tobytes())
        data = cast(bytes, self.value)
        if self.kind == "chat":
            bare = lean(self.value)
            if bare is None or 4 * len(self.value["messages"]) > json_value.MAX_VALUES:
                json_value.check(self.value)  # a lean chat is nothing but strings
            if _is_lines(self.value):
                data = b"".join(map(_line, self.value))
            else:
                data = json_value.compact(self.value).encode("utf-8", "surrogatepass") if bare is None else bare
        check_bytes(len(data))
        return data[:]

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes that it has in the input it was read from, as `to_input_bytes`, some at a time."""
        yield from self.value.pieces() if isinstance(self.value, LongText) else [self.to_input_bytes()]

    @classmethod
    def from_bytes(cls, kind: Kind, data: bytes) -> "Session":
        """Return the session that ``to_bytes`` wrote.

        Raises:
            CorruptError: ``to_bytes`` cannot have written the bytes.
        """
        if kind == "chat":
            try:
                if data[:1] and data[0] in ROLE_OF_BYTE:
                    return cls(kind, _unlean(data))
                if data[:1] == b"{" and data[-1:] == b"\n":
                    items = [json_value.parse(line.decode("utf-8", "surrogatepass")) for line in data[:-1].split(b"\n")]
                    if not _is_lines(items):
                        raise CorruptError("expected an object in each line of a chat session, found another value")
                    return cls(kind, items)
                return cls(kind, json_value.parse(data.decode("utf-8", "surrogatepass")))
            except (ValueError, ContentError) as exc:
                raise CorruptError(f"expected the JSON of a chat session: {exc}") from exc
        if kind == "ids":
            if len(data) % 4:
                raise CorruptError(f"expected ids of 4 bytes each, found {len(data)} bytes")
            values = np.frombuffer(data, "<i4")
            if len(values) and values.min() < 0:
                raise CorruptError("expected ids 0..2^31-1, found a negative one")
            return cls(kind, values)
        return cls(kind, data)

    @classmethod
    def from_json_line(cls, line: bytes) -> "Session":
        """Read a chat from one line of a JSONL file, or keep the line as a text session where JSON would change it.

        Raises:
            UsageError: the line is not JSON in UTF-8.
            LimitError: the line is longer than a session may be.
        """
        check_bytes(len(line))
        try:
            return cls("chat", json_value.parse(line.decode("utf-8")))
        except ContentError:
            return cls("text", line)
        except UnicodeDecodeError as exc:
            raise UsageError(f"expected UTF-8, found byte 0x{line[exc.start]:02x} at {exc.start}") from exc
        except json.JSONDecodeError as exc:
            where = f"column {exc.colno}" if exc.lineno == 1 else f"line {exc.lineno} column {exc.colno}"
            raise UsageError(f"expected JSON: {exc.msg.removesuffix(' at')} at {where}") from exc

    def to_json_line(self) -> bytes:
        """Return one line of JSONL, line end included, that ``from_json_line`` reads back to an equal session.

        It is UTF-8, except that a line with a lone surrogate is written in ASCII escapes. Ids become a JSON
        list, which the loader's format "ids" reads back.

        Raises:
            ContentError: the session is a text that was not kept as a line of JSON, or holds two adjacent
                surrogates as separate characters (JSON reads those as one).
        """
        if self.kind == "text":
            return _raw_line(self.value)
        if self.kind == "ids":
            return json.dumps(self.value.tolist(), separators=(",", ":")).encode() + b"\n"
        text = json_value.dump(self.value)
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError:
            text = json.dumps(self.value, separators=(",", ":"))
        changed = json_value.difference(self.value, json.loads(text))
        if changed:
            raise ContentError(f"a pair of separate surrogates has no JSON form, {changed}")
        return text.encode() + b"\n"

    def to_input_bytes(self) -> bytes:
        """Return the session as a part of an exact file: the bytes that it has in the input it was read from.

        They are a text itself, and those of its writing of a chat that has one. Else they are a line of JSON per object
        of a list of objects, and one line of any other session.

        Raises:
            ContentError: the session has no form in JSON.
        """
        if self.kind == "text":
            return cast(bytes, self.value)
        if self.writing:
            return written(self.value, self.writing)
        if _is_lines(self.value):
            return b"".join(Session("chat", item).to_json_line() for item in self.value)
        return self.to_json_line()


def _is_lines(value: Any) -> bool:
    """Return whether a value is a list of objects, one or more."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _line(value: Any) -> bytes:
    return json_value.compact(value).encode("utf-8", "surrogatepass") + b"\n"


def _ids(value: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return ids as a flat read-only int32 array."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as exc:
        raise UsageError("expected a flat sequence of ids") from exc
    if array.size == 0:
        array = np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"expected a flat sequence of integer ids, found {array.ndim}-d {array.dtype}")
    if len(array) and not (array.min() >= 0 and array.max() <= MAX_ID):
        raise ContentError(f"expected ids 0..2^31-1, found {array.min()}..{array.max()}")
    array = array.astype(np.int32)
    array.flags.writeable = False
    return array


def _raw_line(text: bytes) -> bytes:
    """Return a text that ``from_json_line`` kept as a line, as that line."""
    try:
        if b"\n" not in text and Session.from_json_line(text).kind == "text":
            return text + b"\n"
    except UsageError:
        pass
    raise ContentError("a text session has no place in a JSONL file: write it as text")


def content_bytes(session: Session) -> int:
    """Return the raw size of a session's content in bytes, which ratios are computed against.

    It is the UTF-8 bytes of all message texts of a chat, the bytes of a text, or 4 bytes per id. JSON that is
    no chat, and the events of an agent log, are all content: the UTF-8 bytes of their shortest text.

    >>> content_bytes(Session("chat", {"messages": [{"role": "user", "content": "h\\u00e9"}]}))
    3
    >>> content_bytes(Session("chat", {"prompt": "1 + 1", "answer": 2}))
    29
    """
    if session.kind == "text":
        return len(session.value)
    if session.kind == "ids":
        return ID_BYTES * len(session.value)
    messages = messages_of(session)
    return _json_bytes(session.value) if messages is None else sum(map(_message_bytes, messages))


def messages_of(session: Session) -> list[Any] | None:
    """Return the messages of a chat or the events of an agent log, None for a session without messages.

    >>> messages_of(Session("chat", {"messages": [{"role": "user", "content": "hi"}]}))
    [{'role': 'user', 'content': 'hi'}]
    """
    value = session.value
    if session.kind == "chat" and isinstance(value, dict):
        value = value.get("messages", value.get("conversations", value.get("conversation")))
    if session.kind == "chat" and isinstance(value, list):
        return value if not value or any(isinstance(item, dict) for item in value) else None
    return None


def _message_bytes(message: Any) -> int:
    """Return the bytes of a message's content, or of all of an event that has neither a role nor a content."""
    if isinstance(message, dict) and any(key in message for key in ("content", "value", "role", "from")):
        return _text_bytes(message.get("content", message.get("value")))
    return _json_bytes(message)


def _json_bytes(value: Any) -> int:
    try:
        return len(json_value.dump(value).encode("utf-8", "surrogatepass"))
    except ContentError:
        return 0  # no JSON: refused where it is frozen


def _text_bytes(content: Any) -> int:
    """Return the UTF-8 bytes of a message's content: a string, or a list of parts with a text each."""
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode("utf-8", "surrogatepass"))
    parts = content if isinstance(content, list) else []
    return sum(_text_bytes(part.get("text")) for part in parts if isinstance(part, dict))
