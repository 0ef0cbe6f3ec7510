"""The record of a torture run: the requests to the archive, its acknowledgements, and what it must give back.

    record.main[("acme", "t-7")].acknowledge(digest, version)      # it must read back from now on
    record.main[...].pending.add(digest)                           # it may be there, or not
    compare(record, "main", seen)                                  # the differences

A killed child leaves doubt: a request without an acknowledgement may or may not have happened. A check reads
the archive at rest, sees which it was, and from then on expects what was seen."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, str]  # tenant, name


@dataclass
class KnownVersion:
    """A version that is in the archive. ``digest``: of its content, "" for one that was never whole.
    ``version``: its id in hex, "" where only the content was acknowledged. ``forgotten``: None where it was
    requested and not acknowledged. ``cut``: that was so once, and a repair may name the mark later."""

    digest: str
    version: str = ""
    forgotten: bool | None = False
    cut: bool = False


@dataclass
class KnownSession:
    """The expected state of a session.

    ``known``: versions, oldest first.
    ``pending``: digests that were requested and not acknowledged.
    ``cut``: digests that were pending at a check, or were freed: a repair may name a pack that has them.
    ``asked``: digests in the order in which the nightly job was given them.
    ``marks``: numbers in its texts and tags.
    ``parts``, ``style``: the base of a longer version.
    ``last``: digest that was requested last.
    ``twice``: digests that were requested again and may be two versions.
    ``erasing``: perhaps erased.
    ``buried``: an erase was asked for. One that was killed may have buried its name, though its versions are there.
    ``settled``: a get must find it, which is not so before a journal is drained.
    ``stamp``: number of the operation that changed it last."""

    known: list[KnownVersion] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    parts: list[Any] = field(default_factory=list)
    style: Any = None
    last: str = ""
    twice: set[str] = field(default_factory=set)
    erasing: bool = False
    buried: bool = False
    settled: bool = True
    stamp: int = 0

    @property
    def live(self) -> list[KnownVersion]:
        """Return the versions that are certainly there."""
        return [k for k in self.known if k.forgotten is False and not k.cut]

    def acknowledge(self, digest: str, version: str = "") -> None:
        """Note a version that must be there from now on."""
        self.pending -= {digest} - self.twice
        if not any(k.version == version and k.digest == digest for k in self.known):
            self.known.append(KnownVersion(digest, version))

    def possible(self) -> set[str | None]:
        """Return the digests that a get may give now. None stands for "no such session"."""
        doubt = {k.digest for k in self.known if k.forgotten is None or k.cut} | self.pending | self.cut
        sure = self.live[-1:] if self.settled else []
        absent: set[str | None] = {None} if not sure or self.erasing else set()
        return {*absent, *doubt, *(k.digest for k in self.live if not self.settled), *(k.digest for k in sure)}


class AcknowledgedRecord:
    """All sessions that the archives must hold. ``graves``: marks of erased sessions and bases. ``bases``: the
    operation that put under each of them last. ``log``: a file outside of the archives, with an fsync per
    line."""

    def __init__(self, log: Path) -> None:
        self.main: dict[Key, KnownSession] = {}
        self.copy: dict[Key, KnownSession] = {}
        self.graves: set[str] = set()
        self.bases: dict[str, int] = {}
        self.stamp = 0
        self.acknowledged = 0
        self._last = 0
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def mark(self) -> str:
        """Return a new number that identifies the text it is put into."""
        self._last += 1
        return f"<{self._last}>"

    def at(self, place: str) -> dict[Key, KnownSession]:
        """Return the sessions of an archive: "main" or "copy"."""
        return self.main if place == "main" else self.copy

    def use(self, base: str) -> None:
        """Note that a put under a base is asked: its prompt is there again, even where it was erased."""
        if base:
            self.bases[base] = self.stamp + 1
            self.graves.discard(f"assistant of {base}")

    def write(self, **facts: Any) -> None:
        """Append a line to the log and make it durable."""
        line = json.dumps({"at": round(time.time(), 3), **facts}, default=sorted)
        os.write(self._log, line.encode() + b"\n")
        os.fsync(self._log)

    def bury(self, key: Key) -> None:
        """Note that a session is erased: nothing of it may open again."""
        session = self.main.pop(key)
        self.graves |= session.marks


def digest_of(kind: str, data: bytes, tags: Mapping[str, str]) -> str:
    """Return a short name for the content of a session and its tags."""
    state = hashlib.blake2b(digest_size=12)
    state.update(json.dumps([kind, sorted(tags.items())]).encode())
    state.update(data)
    return state.hexdigest()


@dataclass
class Seen:
    """An archive at rest.

    ``versions``: (tenant, name, id, forgotten, digest or why it cannot be read) of all, oldest first within a
    session.
    ``gets``: results of gets, None for no such session.
    ``problems``: those that verify reports.
    ``lost``: ids of versions that verify calls lost.
    ``opened``: marks of all records that can be opened, read from the raw packs."""

    versions: list[tuple[str, str, str, bool, str, str]] = field(default_factory=list)
    gets: dict[Key, set[str | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    report: dict[str, int] = field(default_factory=dict)
    missing_copies: list[str] = field(default_factory=list)
    token: str = ""


def compare(record: AcknowledgedRecord, place: str, seen: Seen) -> list[str]:
    """Compare an archive at rest with the record, settle what was in doubt, and return the differences."""
    wrong = [f"verify: {problem}" for problem in seen.problems]
    rows: dict[Key, list[tuple[str, bool, str, str]]] = {}
    for tenant, name, version, forgotten, digest, error in seen.versions:
        rows.setdefault((tenant, name), []).append((version, forgotten, digest, error))
    sessions = record.at(place)
    for key in rows.keys() - sessions.keys():
        wrong.append(f"{key} is there, and was erased or never put")
    for key, session in list(sessions.items()):
        sure = bool(session.live)
        wrong += [f"{key}: {problem}" for problem in _settle(session, rows.get(key, []))]
        if session.erasing and sure and not session.known:  # else a collector took the forgotten versions
            record.bury(key)
        session.erasing = False
        wanted = next((k.digest for k in reversed(session.known) if k.forgotten is False), None)
        if given := seen.gets.get(key, {wanted}) - {wanted}:
            wrong.append(f"{key}: get gave {given}, and the last version is {wanted}")
    wrong += [f"verify calls version {version} lost" for version in sorted(seen.lost)]
    if place == "main" and (open_again := seen.opened & record.graves):
        wrong.append(f"erased, and opens: {sorted(open_again)[:5]}")
    return wrong


def _settle(session: KnownSession, rows: Iterable[tuple[str, bool, str, str]]) -> list[str]:
    """Match the versions that are there with those that must be, and return the differences.

    What was not acknowledged may be there whole, and never in part.
    """
    wrong: list[str] = []
    settled: list[KnownVersion] = []
    order: list[int] = []
    left = list(session.known)
    again = {k.digest for k in session.known} - {""}  # what was put again after a kill may be there twice
    for version, forgotten, digest, error in rows:
        known = next((k for k in left if k.version == version), None) or next(
            (k for k in left if not k.version and k.digest == digest), None
        )
        doubted = session.pending | session.cut
        if known is None and digest not in doubted | again:
            wrong.append(f"version {version} is there, and nobody asked for it ({digest or error})")
            continue
        if known is not None:
            left.remove(known)
            order.append(session.known.index(known))
            wrong += _differs(known, version, forgotten, digest, error)
        cut = known is not None and (known.cut or known.forgotten is None)
        settled.append(KnownVersion(digest or (known.digest if known else ""), version, forgotten, cut))
    missing = [k for k in left if k.forgotten is False and not k.cut]
    if missing and not (session.erasing and not settled):
        wrong += [f"version {k.version or k.digest} was acknowledged, and is not there" for k in missing]
    if order != sorted(order):
        wrong.append("versions are in another order than they were put in")
    # repair names packs of killed puts and collectors: they have what was put again, or forgotten and freed, since
    session.cut |= session.pending | {k.digest for k in left if k.forgotten is not False}
    session.known, session.pending, session.settled = settled, set(), True
    return wrong


def _differs(known: KnownVersion, version: str, forgotten: bool, digest: str, error: str) -> list[str]:
    """Return what is wrong with a version that must be there."""
    wrong = []
    if known.forgotten is False and forgotten and not known.cut:
        wrong.append(f"version {version} is forgotten, and nobody asked for that")
    if known.forgotten and not forgotten and not known.cut:
        wrong.append(f"version {version} was forgotten, and is back")
    if error and not forgotten:
        wrong.append(f"version {version} does not read: {error}")
    elif not error and known.digest and digest != known.digest:
        wrong.append(f"version {version} reads as {digest}, and {known.digest} was put")
    return wrong
