"""Naming: name, tenant, time and tags of a session found in a source.

    Naming(tenant="acme", name_key="id", time_key="updated")
    {"id": "chat-7", "updated": "2026-01-31T12:00", "messages": [...]}   ->   chat-7 of acme, at that time

A key names a member of a chat's object. The object itself is kept unchanged, including these members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pltz.archive import PutRequest
from pltz.datasets import moment
from pltz.models import Session
from pltz.plt_codec import ContentError
from pltz.serving.eviction.checked import Word
from pltz.serving.nightly.sources.source import SourceEntry

NAMING_KEYS = frozenset({"tenant", "tags", "base", "name_key", "tenant_key", "time_key"})  # fields of Naming
BY_ENTRY = NAMING_KEYS - {"name_key", "tenant_key", "time_key"}  # where the source itself gives these


@dataclass(frozen=True)
class Naming:
    """The rules for naming sessions (see the top of this file).

    ``base``: name under which tenants share system prompts.
    """

    tenant: Word = "default"
    name_key: Word | None = None
    tenant_key: Word | None = None
    time_key: Word | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    base: Word | None = None

    def settings(self) -> list[Any]:
        """Return the fields as plain values."""
        keys = [self.name_key, self.tenant_key, self.time_key]
        return [self.tenant, *keys, sorted(self.tags.items()), self.base]

    def item(self, entry: SourceEntry, session: Session, target: bytes | None = None) -> PutRequest:
        """Return an entry's session as an item to put.

        Raises ContentError where a key is missing or has a bad value.
        """
        name = entry.name if self.name_key is None else _word(session, self.name_key)
        tenant = entry.tenant or self.tenant
        if self.tenant_key is not None:
            tenant = _word(session, self.tenant_key)
        time = entry.time
        if self.time_key is not None:
            time = moment(_member(session, self.time_key), self.time_key)
        for word in (name, tenant):
            if word is None or not _is_text(word):
                raise ContentError(f"expected a name and a tenant in Unicode, found {word!r}"[:200])
        assert name is not None
        return PutRequest(name, session, tenant, dict(self.tags), self.base, target, time=time)


def _is_text(word: str) -> bool:
    """Return whether a word has no lone surrogates: JSON may have them, names in an archive may not."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _member(session: Session, key: str) -> Any:
    value = session.value
    if session.kind != "chat" or not isinstance(value, dict) or key not in value:
        raise ContentError(f"expected an object with the key {key!r}")
    return value[key]


def _word(session: Session, key: str) -> str:
    found = _member(session, key)
    if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
        raise ContentError(f"expected a string or number under the key {key!r}, found {str(found)[:40]!r}")
    return str(found)
