"""WordIndex: which sessions have which words, kept in the user's cache folder. Nothing else needs it.

    index = WordIndex(opened, sessions)
    index.catch_up()                what is not in it is decoded, the session last talked in first; what is gone leaves
    for part in index.find(query):  parts of sessions, the best first

**Shards.** A shard is a SQLite database of some megabytes: a full-text table without the text, and a table of the parts
of sessions that its rows are of. A row has the words of short turns of one role, up to `ROW`: a row per turn takes
0.163 of what short turns say, and this 0.143. What is decoded then tells the turn. A shard is written as a whole:
packed, then encrypted (AES-256-GCM), so that a damaged one does not open. Its key comes from the newest root of its
tenant, so an erase ends it, with all copies. An archive without encryption has one group of shards and a key that is no
secret. Only their user may read the files.

**State.** `complete` says at which generation of the manifest all was in it, in which shards, and what could not be
read. While that holds, a search lists nothing. Else, and where a shard is gone or does not open, it lists and catches
up. Who is killed has written whole shards. One process at a time catches up; others answer from what is there.

The folder is not in the archive: that may be a bucket, or only be read; copies and backups carry no words; and of a
sealed archive none leave the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pltz.archive.catalog.freshness import token_of
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import SessionReader
from pltz.archive.errors import StoreError
from pltz.archive.format.ids import TENANT
from pltz.archive.opener import OpenArchive
from pltz.archive.search import ASIDE_TERMS, BESIDE, SearchQuery, last_of, newest_first, read, terms_of, turns_of
from pltz.archive.storage.seen import place_folder
from pltz.datasets.conversation import Place
from pltz.datasets.usage import NOT_KNOWN, Usage
from pltz.models.session.session import Session, kind_of
from pltz.plt_codec.errors import FormatError

MAGIC = b"PLTw\x03"
NONCE = 12  # bytes
SUFFIX, STATE = ".words", "complete"
LEVEL = 9  # of zstd: 19 takes 3 % less, and ten times as long
SHARD = 4 << 20  # bytes of a file, from which on another one is begun
GROWN = 1.2  # times its rows, from which on a shard that something was added to is put in order
BATCH = 1 << 23  # characters that are added to a shard together, about
ROW = 600  # characters of words of several turns in a row, at most
ATTEMPTS = 3  # while others erase or forget
SCHEMA = """
create table part(first integer primary key, rows int, id blob, tenant text, name text, part text, agent text,
                  project text, last int, usage text, places text);
create virtual table said using fts5(words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '='");
create virtual table term using fts5vocab(said, instance);
"""


class FoundPart(NamedTuple):
    """A part of a session in which a row has the words. ``places``: of a long log, of its parts that have one."""

    id: bytes
    tenant: str
    name: str
    part: str
    places: Sequence[Place]


class PartFacts(NamedTuple):
    """Facts of a part of a session that the index has."""

    agent: str
    usage: Usage


class Entry(NamedTuple):
    """A part of a session as it is put into the index.

    Attributes:
        last: when something was said last, in seconds since 1970.
        rows: the words of turns of one role together, in any order.
        places: of a long log, of each of its parts the number of rows before it, and its place; none of others.
    """

    version: Version
    agent: str
    last: int
    usage: Usage
    rows: Sequence[str]
    places: Sequence[tuple[int, Place]]


def entry_of(version: Version, session: Session) -> Entry:
    """Return what the index has of a session, of one part."""
    agent, last, usage, met = "", last_of(version), NOT_KNOWN, None
    rows, begun, places = list[str](), dict[str, set[str]](), list[tuple[int, Place]]()
    for talk, turn in turns_of(session):
        if talk is not met:
            agent, usage, met = talk.agent, usage.then(talk.usage), talk
            rows += map(" ".join, begun.values())
            begun.clear()
            places.append((len(rows), talk.place))
        last = max(last, turn.time)
        terms, row = terms_of(turn), begun.setdefault(turn.role, set())
        if row and sum(map(len, row)) + sum(map(len, terms)) > ROW:
            rows.append(" ".join(row))
            row.clear()
        row |= terms
    return Entry(version, agent, last, usage, [*rows, *map(" ".join, begun.values())], places[1:] and places)


class Shard:
    """A database of words, in memory. ``image``: its bytes; none of a new one. Raises sqlite3.Error."""

    def __init__(self, image: bytes = b"") -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        if image:
            self.db.deserialize(image)
        else:
            self.db.executescript(SCHEMA)

    def __del__(self) -> None:
        self.db.close()

    @cached_property
    def ids(self) -> set[bytes]:
        """Return the versions whose parts are in it."""
        return {one for (one,) in self.db.execute("select id from part")}

    def image(self, *, tidy: bool) -> bytes:
        """Return its bytes. ``tidy``: nothing in them is left of what was taken out."""
        if tidy:
            self.db.execute("insert into said(said) values('optimize')")
        self.db.commit()
        if tidy:
            self.db.execute("vacuum")
        return self.db.serialize()

    @property
    def rows(self) -> int:
        """Return the last row."""
        last = self.db.execute("select first + rows - 1 from part order by first desc").fetchone()
        return last[0] if last else 0

    def add(self, entry: Entry) -> None:
        """Add a part of a session."""
        v, first = entry.version, self.rows + 1
        row = first, len(entry.rows), v.id, v.tenant, v.name, v.part, entry.agent, entry.usage.project, entry.last
        more = json.dumps(entry.usage), json.dumps(entry.places)
        self.db.execute("insert into part values(?,?,?,?,?,?,?,?,?,?,?)", (*row, *more))
        self.db.executemany("insert into said(rowid, words) values(?,?)", enumerate(entry.rows, first))
        self.__dict__.pop("ids", None)

    def remove(self, gone: Iterable[bytes]) -> None:
        """Take parts of sessions out. Which words their rows have, the database tells itself."""
        self.db.execute("create temp table gone(row integer primary key)")
        for one in gone:
            first, count = self.db.execute("select first, rows from part where id = ?", [one]).fetchone()
            self.db.execute("delete from part where id = ?", [one])
            self.db.executemany("insert into gone values(?)", ((row,) for row in range(first, first + count)))
        words = "select doc, group_concat(term, ' ') from term where doc in (select row from gone) group by doc"
        rows = self.db.execute(words).fetchall()
        self.db.executemany("insert into said(said, rowid, words) values('delete', ?, ?)", rows)
        self.db.execute("drop table gone")
        self.__dict__.pop("ids", None)

    def find(self, query: SearchQuery, tenant: str | None) -> list[tuple[float, int, int]]:
        """Return score, time and first row of the parts that have rows with the words."""
        project = query.project.casefold()
        self.db.create_function("has", 2, lambda *about: any(project in one.casefold() for one in about))
        where = "substr(agent, 1, ?) = ? and last >= ? and ifnull(tenant = ?, 1)"
        where += " and has(name, project)" if project else ""
        parts = f"select first, rows, last from part where {where} order by first"
        first, size, last = _columns(self.db.execute(parts, [len(query.agent), query.agent, query.since, tenant]), 3)
        rows = self._rows(query.terms)
        weights = np.where(np.isin(rows, self._rows(f"({query.terms}) AND ({ASIDE_TERMS})")), BESIDE, 1.0)
        places = np.searchsorted(first, rows, "right") - 1
        places = places[places >= 0]
        if len(rows) > len(places) or project or query.agent or query.since or tenant:
            rows, weights = rows[len(rows) - len(places) :], weights[len(rows) - len(places) :]
            whole = rows < first[places] + size[places]
            places, weights = places[whole], weights[whole]
        there, of = np.unique(places, return_inverse=True)
        count = np.bincount(of, weights)
        score = count / (count + 1 + size[there] / 20)
        return list(zip(score.tolist(), last[there].tolist(), first[there].tolist(), strict=True))

    def _rows(self, terms: str) -> np.ndarray:
        """Return the rows that have terms, ascending."""
        [(found,)] = self.db.execute("select group_concat(rowid) from said where said match ?", [terms])
        return np.fromstring(found or "", np.int64, sep=",")

    def part(self, first: int, terms: str) -> FoundPart:
        """Return the part whose rows begin at one. ``terms``: what it was found by."""
        about = "select id, tenant, name, part, rows, places from part where first = ?"
        one, tenant, name, part, size, told = self.db.execute(about, [first]).fetchone()
        places = json.loads(told)
        rows = self._rows(terms) - first if places else np.zeros(0, np.int64)
        numbers = np.searchsorted([begin for begin, _ in places], rows[(rows >= 0) & (rows < size)], "right") - 1
        return FoundPart(one, tenant, name, part, [tuple(places[number][1]) for number in np.unique(numbers)])


def _columns(rows: Iterable[tuple[int, ...]], width: int) -> Sequence[np.ndarray]:
    """Return rows of numbers as columns."""
    return list(np.array(list(rows), np.int64).reshape(-1, width).T)


class WordIndex:
    """The index of words of an archive, on this machine.

    ``sessions``: returns the reader of its sessions, where something has to be decoded. Raises StoreError where the
    folder cannot be used.
    """

    def __init__(self, opened: OpenArchive, sessions: Callable[[], SessionReader]) -> None:
        self._opened, self._sessions = opened, sessions
        self.folder = place_folder("words", opened.settings.archive.hex())
        self._groups: dict[str, list[bytes]] = {}  # keys of a group of shards, the newest first
        self.shards: dict[str, Shard] = {}  # by file

    def load(self) -> None:
        """Read the shards that open. Raises KeyMismatch where the archive is sealed and no key was given."""
        self._opened.want_key()
        self._opened.catalog.look()
        self._groups.clear()
        found = {name: self._read(name) for name in self._names()}
        self.shards = {name: shard for name, shard in found.items() if shard}

    def catch_up(self, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Put in what is not in it, take out what is gone, and return the parts of sessions that are not in it.

        These cannot be read, or another process puts them in just now. ``progress``: called with the parts that were
        decoded and how many there are.
        """
        self.load()
        with suppress(OSError, ValueError, TypeError, LookupError):
            state = json.loads((self.folder / STATE).read_bytes())
            if state[0] == str(token_of(self._opened.catalog)) and state[1] == sorted(self.shards) == self._names():
                return len(state[2])
        with self._locked("update.lock", wait=False) as alone:
            for _ in range(ATTEMPTS if alone else 1):
                token, live = self._live()
                broken = self._renew(token, live, progress) if alone else set[bytes]()
                if (lacking := live.keys() - self._ids()) == broken and alone:  # else others took something out
                    with self._locked("write.lock"):
                        state = [token, sorted(self.shards), sorted(one.hex() for one in broken)]
                        self._write(STATE, json.dumps(state).encode())
                    break
            return len(lacking)

    def find(self, query: SearchQuery, tenant: str | None = None) -> Iterator[FoundPart]:
        """Yield the parts of sessions with rows that have the words, by their share of all rows, the newest first."""
        found = [(*row, name) for name, shard in self.shards.items() for row in shard.find(query, tenant)]
        for *_, first, name in sorted(found, reverse=True):
            yield self.shards[name].part(first, query.terms)

    def facts(self) -> dict[bytes, PartFacts]:
        """Return what is known of the parts of sessions in it, by version."""
        rows = (r for s in self.shards.values() for r in s.db.execute("select id, agent, usage from part"))
        return {one: PartFacts(agent, _usage(usage)) for one, agent, usage in rows}

    @property
    def size(self) -> int:
        """Return its bytes on disk."""
        return sum((self.folder / name).stat().st_size for name in self._names())

    def purge(self, live: Mapping[bytes, Version] | None = None) -> None:
        """Take out what is no last version of a session any more, and what was left by a process that was killed.

        ``live``: the last versions, where they are known. Raises KeyMismatch where the key was not given.
        """
        self._opened.want_key()
        if not self.folder.is_dir():
            return
        with self._locked("write.lock"):
            live = self._live()[1] if live is None else live
            for path in self.folder.glob("*.new"):
                path.unlink(missing_ok=True)
            for name in self._names():
                if name in self.shards and self.shards[name].ids <= live.keys():
                    continue
                shard = self._read(name)
                if shard is None and self._keys(name) is not None:
                    (self.folder / name).unlink()
                elif shard and (gone := shard.ids - live.keys()):
                    shard.remove(gone)
                    self._put(name, shard, tidy=True)

    def clear(self) -> None:
        """Begin anew."""
        with self._locked("write.lock"):
            for name in [STATE, *self._names()]:
                (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def rekeyed(self, tenant: str) -> Iterator[None]:
        """Carry the shards of a tenant over to other keys, where its keys change inside, without what was erased."""
        if not self.folder.is_dir():
            yield
            return
        group = self._group(tenant)
        before = self._keys(group)
        try:
            yield
        finally:
            self._opened.catalog.look()
            self._groups.clear()
            if (after := self._keys(group)) != before:
                self._reseal(group, tenant, before, after)

    def _reseal(self, group: str, tenant: str, before: list[bytes] | None, after: list[bytes] | None) -> None:
        with self._locked("write.lock"):
            live = {part.id for version in self._opened.directory.ls(tenant) for part in version.each}
            for name in self._names():
                if not name.startswith(group):
                    continue
                self._groups[group] = before or []
                shard = self._read(name)
                if shard is None or not after:
                    (self.folder / name).unlink()
                    continue
                shard.remove(shard.ids - live)
                self._groups[group] = after
                self._put(name, shard, tidy=True)
        self._groups.clear()

    def _live(self) -> tuple[str, dict[bytes, Version]]:
        """Return the state of the archive, and the parts of last versions that have words, the newest first."""
        catalog = self._opened.catalog
        with catalog.one_look():
            parts = newest_first(self._opened.directory.ls())
            return str(token_of(catalog)), {v.id: v for v in parts if kind_of(v.kind) != "ids"}

    def _renew(self, token: str, live: Mapping[bytes, Version], progress: Callable[[int, int], None]) -> set[bytes]:
        """Let the shards have what is live, and return what cannot be read. ``token``: of the archive as listed."""
        self.purge(live)
        there = self._ids()
        broken = self._add([v for key, v in live.items() if key not in there], token, progress)
        return {version.id for version, _ in broken}

    def _add(
        self, lacking: Sequence[Version], token: str, progress: Callable[[int, int], None]
    ) -> list[tuple[Version, Exception]]:
        """Put parts of sessions in, and return those that cannot be read."""
        broken, batch, done = list[tuple[Version, Exception]](), list[Entry](), 0
        if not lacking:
            return broken
        for group in {self._group(version.tenant) for version in lacking}:
            self._keys(group)  # those from before they are decoded: what is erased meanwhile is not sealed anew

        def looked() -> None:
            nonlocal done
            progress(done := done + 1, len(lacking))

        size = 0
        try:
            for version, session in read(self._sessions(), lacking, broken, looked):
                batch.append(entry_of(version, session))
                size += sum(map(len, batch[-1].rows))
                if size > BATCH:
                    self._extend(batch, token)
                    batch, size = [], 0
        finally:
            self._extend(batch, token)
        return broken

    def _extend(self, batch: Sequence[Entry], token: str) -> None:
        """Write a batch into the last shards of its groups. ``token``: of the archive when its versions were listed."""
        with self._locked("write.lock"):
            self._opened.catalog.look(0)
            live = None if str(token_of(self._opened.catalog)) == token else self._live()[1].keys()
            groups: dict[str, list[Entry]] = {}
            for entry in batch:
                if live is None or entry.version.id in live:
                    groups.setdefault(self._group(entry.version.tenant), []).append(entry)
            for group, entries in groups.items():
                if not self._keys(group):
                    continue
                names = [name for name in self._names() if name.startswith(group)]
                name = names[-1] if names else f"{group}-{0:06d}{SUFFIX}"
                shard = self._read(name) if names and (self.folder / name).stat().st_size < SHARD else None
                if names and shard is None:
                    name = f"{group}-{int(name[len(group) + 1 : -len(SUFFIX)]) + 1:06d}{SUFFIX}"
                shard = shard or self._new()
                before = shard.rows
                for entry in entries:
                    shard.add(entry)
                self._put(name, shard, tidy=shard.rows > GROWN * before)

    def _ids(self) -> set[bytes]:
        return set[bytes]().union(*(shard.ids for shard in self.shards.values()))

    def _names(self) -> list[str]:
        """Return the files of shards."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(SUFFIX))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _group(self, tenant: str) -> str:
        """Return the name of the shards that a tenant's sessions are in."""
        keys = self._opened.keys
        return keys.domain(TENANT, tenant).hex() if keys.cipher else "all"

    def _keys(self, name: str) -> list[bytes] | None:
        """Return the keys of a group, or of that of a file, the newest first; None where they cannot be read."""
        group = name.split("-")[0]
        if group not in self._groups:
            keys = self._opened.keys
            with suppress(FormatError, ValueError):
                self._groups[group] = keys.cache_keys(bytes.fromhex(group) if keys.cipher else b"")
        return self._groups.get(group)

    def _read(self, name: str) -> Shard | None:
        """Return the shard in a file, None where it is not there or does not open."""
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unusable(exc) from exc
        begin = len(MAGIC) + NONCE
        for key in self._keys(name) or ():
            with suppress(InvalidTag, ValueError, zstandard.ZstdError, sqlite3.Error):
                box = AESGCM(key).decrypt(data[len(MAGIC) : begin], data[begin:], self._about(name))
                return Shard(zstandard.decompress(box))
        return None

    def _new(self) -> Shard:
        try:
            return Shard()
        except sqlite3.OperationalError as exc:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} keeps no index of words: {exc}; use --scan") from exc

    def _put(self, name: str, shard: Shard, *, tidy: bool = False) -> None:
        """Write a shard. One that is full, or that something was taken out of, is put in order; an empty one goes."""
        if not shard.ids:
            (self.folder / name).unlink(missing_ok=True)
            self.shards.pop(name, None)
            return
        packed = zstandard.compress(shard.image(tidy=tidy), LEVEL)
        if not tidy and len(packed) >= SHARD:
            packed = zstandard.compress(shard.image(tidy=True), LEVEL)
        nonce = os.urandom(NONCE)
        key, *_ = self._keys(name) or [b""]
        self._write(name, MAGIC + nonce + AESGCM(key).encrypt(nonce, packed, self._about(name)))
        self.shards[name] = shard

    def _about(self, name: str) -> bytes:
        return MAGIC + self._opened.settings.archive + name.encode()

    def _write(self, name: str, data: bytes) -> None:
        """Write a file that takes its place at once. The next reader of a torn one does without."""
        path = self.folder / f"{name}.new"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            path.replace(self.folder / name)
        except OSError as exc:
            raise self._unusable(exc) from exc

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold a lock of this folder; yield whether it is held, where nobody is waited for."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            handle = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise self._unusable(exc) from exc
        try:
            held = True
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                held = False
            yield held
        finally:
            os.close(handle)

    def _unusable(self, exc: OSError) -> StoreError:
        where = f"the index of words cannot be kept in {self.folder}: {exc.strerror}"
        return StoreError(f"{where}: set XDG_CACHE_HOME, or search with --scan")


def _usage(text: str) -> Usage:
    project, models, *counts = json.loads(text)
    return Usage._make([project, tuple(models), *counts])
