"""The columns of a table or query that say what a session is, and whose: name, session, tenant, time.

    name       its name, a string or number
    session    JSON, as text or bytes
    tenant     optional: a string or number
    time       optional: seconds since 1970, ISO 8601 or a date of the database

They mean this wherever rows are read: `pltz archive put --query`, tables, sources of the nightly job. Rows with other
columns are sessions of no name.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError

COLUMNS = ("name", "session", "tenant", "time")


@dataclass(frozen=True)
class RowName:
    """Name, tenant and time that a row gives its session. ``time``: in seconds since 1970. None: not given."""

    name: str
    tenant: str | None = None
    time: int | None = None


def name_sessions(columns: Collection[str]) -> bool:
    """Return whether a row with these columns is a session with a name."""
    return {"name", "session"} <= set(columns) <= set(COLUMNS)


def name_of(row: Mapping[str, Any]) -> RowName:
    """Return the name, tenant and time of a row. Raises ContentError.

    >>> name_of({"name": 7, "session": "[]", "time": "1970-01-02"})
    RowName(name='7', tenant=None, time=86400)
    """
    for column in ("name", "tenant"):
        value = row.get(column)
        wanted = column == "name" or value is not None
        if wanted and (not isinstance(value, str | int | uuid.UUID) or isinstance(value, bool) or value == ""):
            found = "nothing" if value in (None, "") else type(value).__name__
            raise ContentError(f"expected a string or number as {column}, found {found}")
    tenant, time = row.get("tenant"), row.get("time")
    return RowName(
        str(row["name"]), None if tenant is None else str(tenant), None if time is None else moment(time, "time")
    )


def bytes_of(row: Mapping[str, Any]) -> bytes:
    """Return the bytes of a row's session. Raises ContentError where it is neither text nor bytes."""
    data = row["session"]
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if not isinstance(data, bytes | memoryview):
        raise ContentError(f"expected JSON as session, found {type(data).__name__}")
    return bytes(data)


def session_of(row: Mapping[str, Any]) -> Session:
    """Return the session of a row. Raises ContentError, UsageError where it is no JSON."""
    return Session.from_json_line(bytes_of(row))


def moment(value: Any, what: str) -> int:
    """Return the seconds since 1970 of a number or an ISO 8601 text (UTC where it has no zone).

    Raises ContentError.

    >>> moment("1970-01-02T00:00Z", "updated"), moment(7.9, "updated")
    (86400, 7)
    """
    try:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and 0 <= value < 1 << 40:
            return int(value)
        when = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        found = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (TypeError, ValueError, InvalidOperation):  # InvalidOperation: from a database's NaN
        found = -1
    if found < 0:
        raise ContentError(
            f"expected seconds since 1970 or a date such as 2026-01-31T12:00 as {what!r}, found {str(value)[:40]!r}"
        )
    return found
