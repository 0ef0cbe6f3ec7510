"""Conversion of a caller's values to sessions: paths, bytes, values, or any iterable of values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from pltz.datasets.byte_input import Readable
from pltz.datasets.loaders import Format, load
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError

# One session: a `Session`, a chat (an object or its messages), a text, or token ids, (T,).
SessionLike = Session | dict[str, Any] | list[dict[str, Any]] | str | bytes | Sequence[int] | NDArray[Any]
# Many: a path, the bytes of a file, a binary file object, one session, or any iterable of sessions. Type checkers give
# a list of sessions of several kinds no better type than list[object].
SessionsLike = str | os.PathLike[str] | Readable | SessionLike | Iterable[object]

SHOWN = 60  # characters of a path that is not there


def as_sessions(source: SessionsLike, format: Format = "auto", exact: bool = False) -> Iterable[Session]:
    """Yield a caller's source as sessions; see `pltz.compress`.

    >>> list(as_sessions([[1, 2], "text", {"messages": []}]))
    [Session('ids', 2 ids), Session('text', 4 bytes), Session('chat', dict of 1)]
    """
    return map(as_session, _items(source, format, exact))


def _items(source: SessionsLike, format: Format, exact: bool) -> Iterable[object]:
    """Return what `as_sessions` converts, one by one. Raises UsageError for no path, bytes, value or iterable."""
    if isinstance(source, str) and source != "-" and not os.path.exists(source):
        shown = source if len(source) <= SHOWN else source[:SHOWN] + "..."
        raise UsageError(f"found no file or folder {shown!r}: a text to freeze goes into a list, [text]")
    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(source, "read"):
        return load(source, format, exact=exact)  # type: ignore[arg-type]  # load checks the name of the format itself
    if isinstance(source, Session | dict) or _is_messages(source) or _is_ids(source):
        return [source]
    if not isinstance(source, Iterable):
        raise UsageError(f"expected sessions, a path or bytes, found {type(source).__name__}")
    return source


def as_session(item: object) -> Session:
    """Return one session. Dicts and lists of dicts are chats, str and bytes are texts, ints are ids.

    A `Session` is returned unchanged.

    Raises:
        UsageError: it is none of them.

    >>> as_session("hello")
    Session('text', 5 bytes)
    """
    if isinstance(item, Session):
        return item
    if isinstance(item, str):
        return Session("text", item.encode("utf-8", "surrogatepass"))
    if isinstance(item, bytes | bytearray | memoryview):
        return Session("text", item)
    if isinstance(item, dict) or (isinstance(item, list) and any(isinstance(part, dict) for part in item)):
        return Session("chat", item)
    if isinstance(item, os.PathLike):
        raise UsageError(
            f"expected a session, found the path {os.fspath(item)!r}: pltz.compress takes paths, and "
            "pltz.datasets.load yields the sessions of one"
        )
    if not isinstance(item, Sequence) and not hasattr(item, "dtype"):
        raise UsageError(
            f"expected a chat (dict or list), a text (str or bytes) or token ids, found {type(item).__name__}"
        )
    return Session("ids", item)


def _is_ids(value: object) -> bool:
    """Return whether a value is the token ids of one session, and not a sequence of sessions."""
    if hasattr(value, "dtype"):
        return getattr(value, "ndim", 0) == 1 and value.dtype.kind in "iu"
    return isinstance(value, list | tuple) and bool(value) and all(type(item) is int for item in value)


def _is_messages(value: object) -> bool:
    """Return whether a list is the messages of one chat, and not a list of sessions."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(item, dict) and ("role" in item or "from" in item) and "messages" not in item for item in value
    )
