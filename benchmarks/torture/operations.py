"""The operations of a torture run: what each requests, does in a child, and acknowledges.

An operation is planned in the parent (`plan`), which leases the sessions it will change. So no two operations
change one session at once, and the record stays exact. It works in a child (`work`), and each line from the
child is noted in the record (`heard`). Its end is noted last (`ended`), with a reason where an error is not one
that concurrent work allows."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.lookup import Version
from pltz.archive.copy import copy
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import NotFound
from pltz.archive.format.object_names import pack as pack_name
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.places import open_store
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.put_request import PutRequest
from pltz.benchmarks.torture.child import Line, Voice
from pltz.benchmarks.torture.record import AcknowledgedRecord, Key, KnownSession, Seen, digest_of
from pltz.coding.codecs.bundle_codecs import codecs_of
from pltz.coding.codecs.codec import BytesCodec, Coded, Plain, SegmentCodec
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session as Content
from pltz.plt_codec.container.frame import ALONE
from pltz.plt_codec.errors import FormatError, PltzError
from pltz.serving.eviction import worker
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.nightly import config, freeze, job

TENANTS = ("acme", "blue", "cyan")
# Tenants of sessions from the journal, and from the nightly job's files
HOOK, NIGHT = "hook", "night"
NIGHT_KEEP = 2  # versions of each session that the nightly job keeps
MARK = re.compile(rb"<[0-9]+>|assistant of base-[^.]*")
WORDS = ("freeze", "a", "session", "of", "the", "model", "and", "thaw", "it", "bit", "for", "bit", "later")
KEY = Secret(b"the key of the torture run", 0)
KEY_FILE = "night.key"
AT_ONCE = 64  # versions decoded in one batch
MOST_MESSAGES = 60  # of a chat that grows turn by turn; then it begins anew
GETS = 30  # sessions that a check gets one by one


@dataclass(frozen=True)
class World:
    """The folders and objects of a run. ``sealed``: the main archive is sealed and the copy is not, else the other
    way round."""

    folder: Path
    sealed: bool
    bundle: Bundle
    codecs: list[SegmentCodec]
    fault: str | None = None

    @classmethod
    def make(cls, folder: Path, sealed: bool, fault: str | None) -> World:
        """Load the bundle and prepare slow parts, so that children inherit them from their parent."""
        bundle = Bundle.load("nano")
        codecs = codecs_of([bundle], threads=1)
        for size in (1 << 10, 1 << 11):  # each window needs a compressor, which takes half a second
            codecs[1].encode([Plain(np.zeros(size, np.uint8), np.zeros(0, np.int64))])
        return cls(folder, sealed, bundle, codecs, fault)

    @property
    def journal(self) -> Path:
        """Return the folder of the hook's journal."""
        return self.folder / "journal"

    def place(self, name: str) -> Path:
        """Return the folder of an archive: "main" or "copy"."""
        return self.folder / name

    def key(self, name: str) -> Secret | None:
        """Return the key of an archive, or None for one that is not sealed."""
        return KEY if self.sealed == (name == "main") else None

    def open(self, name: str) -> Archive:
        """Open an archive with the bundle, to put chats and to read everything."""
        return Archive(self._opened(name, self.codecs), bundle=self.bundle)

    def open_plain(self, name: str) -> opener.OpenArchive:
        """Open an archive so that texts are put as bytes without the model."""
        return self._opened(name, [BytesCodec(), *self.codecs])

    def open_to_maintain(self, name: str) -> Archive:
        """Open an archive with its key, for work that codes nothing. The bundle is there if it codes after all."""
        return Archive(self._opened(name, self.codecs), bundle=self.bundle)

    def _opened(self, name: str, codecs: Sequence[Any]) -> opener.OpenArchive:
        """Open an archive for somebody who says that the clock of this child is right, whatever it is."""
        opened = opener.open_at(self.place(name), codecs, key=self.key(name))
        opened.catalog.force_time = True
        return opened


@dataclass
class Draw:
    """The means of a plan: the dice, the record, and the leases."""

    dice: Random
    record: AcknowledgedRecord
    world: World
    leased: set[Any] = field(default_factory=set)
    again: list[list[PlannedPut]] = field(default_factory=list)

    def free(self, tenants: Iterable[str] = (*TENANTS, HOOK), *, known: bool = True) -> list[Key]:
        """Return the keys of sessions that no operation holds. ``known``: only those that have a version."""
        return [
            key
            for key, session in self.record.main.items()
            if key[0] in tenants
            and (session.known or not known)
            and session.settled
            and not session.erasing
            and key not in self.leased
            and key[0] not in self.leased
        ]

    def some(self, keys: list[Key], most: int) -> list[Key]:
        """Return up to ``most`` of the keys."""
        return self.dice.sample(keys, min(len(keys), self.dice.randint(1, most)))


class Operation:
    """One operation. ``leases``: what it holds until it ended. ``place``: the archive it works on.

    ``steady``: it runs alone, by a clock that is right.
    """

    kind = ""
    allowed = r"Fenced: "  # errors that concurrent work may cause
    steady = False

    def __init__(self) -> None:
        self.leases: set[Any] = set()
        self.place = "main"
        self.stamp = 0

    def plan(self, draw: Draw) -> bool:
        """Choose what to do and note it in the record as requested. Return False where there is nothing to do."""
        return True

    def asked(self) -> Any:
        """Return the request, for the log."""
        return self.place

    def work(self, world: World, voice: Voice) -> None:
        """Perform the operation in a child."""
        raise NotImplementedError

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        """Note an acknowledgement, and return what is wrong with it, if anything."""
        return None

    def ended(self, record: AcknowledgedRecord) -> None:
        """Note how the operation ended."""


# ---- writers


@dataclass(frozen=True)
class PlannedPut:
    """A version to put. ``parts``: its segments as bytes, of which the first ``shared`` belong to the base,
    or the messages of a chat."""

    key: Key
    parts: tuple[Any, ...]
    shared: int
    base: str
    tags: dict[str, str]
    digest: str


class Texts(Operation):
    """Put texts as plain bytes, in several commits: new sessions, longer versions, and versions that share
    nothing with the last."""

    kind = "put"
    prefix = "t"

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[PlannedPut]] = []

    def plan(self, draw: Draw) -> bool:
        dice = draw.dice
        if draw.again and dice.random() < 0.5:
            puts = [p for p in draw.again.pop() if p.key[1].startswith(self.prefix) and self._fits(draw, p)]
            self.commits = [puts] if puts else []
            for old in puts:
                draw.record.use(old.base)
            for old in puts:  # a version in a condemned pack does not count and is put again
                draw.record.main[old.key].twice.add(old.digest)
        for _ in range(0 if self.commits else dice.randint(1, 4)):
            commit = [put for _ in range(dice.randint(1, 6)) if (put := self._new(draw))]
            if commit:
                self.commits.append(commit)
                self.leases |= {put.key for put in commit}
        self.leases = {put.key for commit in self.commits for put in commit}
        for commit in self.commits:
            for put in commit:
                session = draw.record.main[put.key]
                session.pending.add(put.digest)
                if session.buried:
                    self.allowed = r"Fenced: |StaysErased: "
        return bool(self.commits)

    def _fits(self, draw: Draw, put: PlannedPut) -> bool:
        """Return whether a put may be repeated: no newer version was put since, and it was not forgotten."""
        session = draw.record.main.get(put.key)
        if session is None or session.last != put.digest or put.key in draw.leased or put.key[0] in draw.leased:
            return False
        return not any(k.digest == put.digest and k.forgotten is not False for k in session.known)

    def _new(self, draw: Draw) -> PlannedPut | None:
        dice, mark = draw.dice, draw.record.mark()
        tenant = dice.choice(TENANTS)
        if tenant in draw.leased:
            return None
        old = [k for k in draw.free([tenant], known=False) if k[1].startswith(self.prefix)]
        key = dice.choice(old) if old and dice.random() < 0.5 else (tenant, f"{self.prefix}{mark}")
        if key in self.leases:
            return None
        self.leases.add(key)
        session = draw.record.main.setdefault(key, KnownSession())
        if session.style is None:
            base = dice.choice(["", "base-0", "base-1", f"base-{mark[1:-1]}"])
            session.style = base, dice.random() < 0.5
        if dice.random() < 0.3:
            session.parts = []
        session.marks.add(mark)
        put = self._put(dice, key, session, mark)
        session.last = put.digest
        draw.record.use(put.base)
        return put

    def _put(self, dice: Random, key: Key, session: KnownSession, mark: str) -> PlannedPut:
        base, prompted = session.style
        session.parts = [*session.parts[-6:], _text(dice, mark).encode()]
        head = [prompt(base)] if base else []
        head += [prompt(key[0])] if prompted else []
        parts = (*head, *session.parts)
        tags = {"mark": mark}
        return PlannedPut(key, parts, int(bool(base)), base, tags, digest_of("text", b"".join(parts), tags))

    def asked(self) -> Any:
        return [[[*put.key, put.digest] for put in commit] for commit in self.commits]

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_plain("main")
        voice.begin()
        for commit in self.commits:
            if world.fault == "early-put":
                for put in commit:
                    voice.ack(key=put.key, digest=put.digest)
            receipts = archive.writer.put([_new_session(put) for put in commit])
            for put, receipt in zip(commit, receipts, strict=True):
                if world.fault != "early-put":
                    voice.ack(key=put.key, digest=put.digest, version=receipt.id.hex())

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        record.main[tuple(facts["key"])].acknowledge(facts["digest"], facts.get("version", ""))
        return None

    def ended(self, record: AcknowledgedRecord) -> None:
        for commit in self.commits:
            for put in commit:
                record.use(put.base)


class Chats(Texts):
    """Put chats, coded by the bundle."""

    kind = "put chats"
    prefix = "c"
    answer_words = 6

    def _put(self, dice: Random, key: Key, session: KnownSession, mark: str) -> PlannedPut:
        turn = {"role": "user", "content": _text(dice, mark)}
        answer = {"role": "assistant", "content": " ".join(dice.choices(WORDS, k=self.answer_words))}
        session.parts = [*self._kept(session.parts), turn, answer]
        base = session.style[0]
        head = [{"role": "system", "content": prompt(base).decode()}] if base else []
        tags = {"mark": mark}
        parts = (*head, *session.parts)
        return PlannedPut(key, parts, 0, base, tags, digest_of("chat", _chat(parts).to_bytes(), tags))

    def _kept(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Return the messages that the next version begins with."""
        return parts[-4:]

    def work(self, world: World, voice: Voice) -> None:
        sessions = world.open("main")
        voice.begin()
        for commit in self.commits:
            items = [PutRequest(p.key[1], _chat(p.parts), p.key[0], p.tags, base=p.base or None) for p in commit]
            # the archive first: it joins turns when it is asked for one more receipt
            for stored, put in zip(sessions.put_many(items), commit, strict=True):
                voice.ack(key=put.key, digest=put.digest, version=stored.id.hex())


class GrowingChats(Chats):
    """Put a chat turn after turn, each as a version, so that turns are joined, and the joined ones again."""

    kind = "put turns"
    prefix = "g"
    answer_words = 70  # so that four turns have the tokens that are worth a join

    def plan(self, draw: Draw) -> bool:
        if (first := self._new(draw)) is None:
            return False
        puts, session = [first], draw.record.main[first.key]
        for _ in range(draw.dice.randint(3, 7)):
            mark = draw.record.mark()
            session.marks.add(mark)
            puts.append(self._put(draw.dice, first.key, session, mark))
            draw.record.use(first.base)
        session.last = puts[-1].digest
        session.pending |= {put.digest for put in puts}
        self.commits = [[put] for put in puts]
        return True

    def _kept(self, parts: Sequence[Any]) -> Sequence[Any]:
        return parts if len(parts) < MOST_MESSAGES else ()


class Twins(Texts):
    """Put two versions of one session at once, by two writers of this archive: both are acknowledged and kept."""

    kind = "two writers"

    def plan(self, draw: Draw) -> bool:
        puts = [put for _ in range(2) if (put := self._new(draw))]
        if not puts:
            return False
        first = puts[0]
        session = draw.record.main[first.key]
        mark = draw.record.mark()
        session.marks.add(mark)
        second = self._put(draw.dice, first.key, session, mark)
        self.commits = [[first], [second]]
        self.leases = {first.key}
        session.last = ""  # a put of either is not repeated: it would be a third version
        session.pending |= {first.digest, second.digest}
        self.places: list[tuple[list[Any], str]] = []
        return True

    def work(self, world: World, voice: Voice) -> None:
        archives = [world.open_plain("main") for _ in self.commits]
        voice.begin()
        with ThreadPoolExecutor(len(archives)) as pool:
            done = [
                (put, pool.submit(archive.writer.put, [_new_session(put)]))
                for archive, [put] in zip(archives, self.commits, strict=True)
            ]
            for put, receipts in done:
                [receipt] = receipts.result()
                place = [receipt.moment, receipt.id.hex()]
                voice.ack(key=put.key, digest=put.digest, version=receipt.id.hex(), place=place)

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        self.places.append((facts["place"], facts["version"]))
        return super().heard(record, facts)

    def ended(self, record: AcknowledgedRecord) -> None:
        """Order the two as the archive does: by moment and id."""
        order = {version: number for number, (_, version) in enumerate(sorted(self.places))}
        session = record.main[self.commits[0][0].key]
        twins = sorted((k for k in session.known if k.version in order), key=lambda k: order[k.version])
        session.known = [k for k in session.known if k.version not in order] + twins
        super().ended(record)


# ---- forgetting and erasing


class Forget(Operation):
    """Forget versions in one commit of marks."""

    kind = "forget"

    def __init__(self) -> None:
        super().__init__()
        self.chosen: dict[Key, list[str]] = {}

    def plan(self, draw: Draw) -> bool:
        keys = [k for k in draw.free() if any(v.version for v in draw.record.main[k].live)]
        for key in draw.some(keys, 8):
            versions = [v for v in draw.record.main[key].live if v.version]
            chosen = versions if draw.dice.random() < 0.6 else [draw.dice.choice(versions)]
            for known in chosen:
                known.forgotten = None
            self.chosen[key] = [known.version for known in chosen]
        self.leases = set(self.chosen)
        return bool(self.chosen)

    def asked(self) -> Any:
        return [[*key, versions] for key, versions in self.chosen.items()]

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_plain("main")
        voice.begin()
        archive.marker.forget([v for found in self._versions(archive) for v in found])
        voice.ack(forgotten=True)

    def _versions(self, archive: opener.OpenArchive) -> Iterable[list[Version]]:
        for (tenant, name), wanted in self.chosen.items():
            found = [v for v in archive.directory.sight(name, tenant).versions if v.id.hex() in wanted]
            if len(found) != len(wanted):
                raise NotFound(f"versions of {name!r} of tenant {tenant!r} are gone")
            yield found

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        for key, versions in self.chosen.items():
            for known in record.main[key].known:
                if known.version in versions:
                    known.forgotten = facts["forgotten"]
        return None


class Undelete(Forget):
    """Bring back forgotten versions of one session. Versions that a collector took cannot come back."""

    kind = "undelete"
    allowed = r"Fenced: |NotFound: |ArchiveError: a segment of this version is already gone"

    def plan(self, draw: Draw) -> bool:
        sessions = draw.record.main
        keys = [k for k in draw.free() if any(v.forgotten and v.version and v.digest for v in sessions[k].known)]
        if not keys:
            return False
        key = draw.dice.choice(keys)
        chosen = [v for v in sessions[key].known if v.forgotten and v.version and v.digest]
        for known in chosen:
            known.forgotten = None
        self.chosen = {key: [known.version for known in chosen]}
        self.leases = {key}
        return True

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_plain("main")
        voice.begin()
        archive.marker.undelete([v for found in self._versions(archive) for v in found])
        voice.ack(forgotten=False)


class Erase(Operation):
    """Erase a session: all its versions."""

    kind = "erase"

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[Key] = []

    def plan(self, draw: Draw) -> bool:
        begun = [
            k for k, s in draw.record.main.items() if s.erasing and k not in draw.leased and k[0] not in draw.leased
        ]
        keys = begun if begun and draw.dice.random() < 0.3 else draw.free()
        if not draw.world.sealed or not keys:
            return False
        self.keys = [draw.dice.choice(keys)]
        self.leases = set(self.keys)
        self._note(draw)
        return True

    def _note(self, draw: Draw) -> None:
        """Note the request. A put that is to be repeated must not bring back an erased session."""
        sessions = [draw.record.main[key] for key in self.keys]
        if any(s.erasing for s in sessions) or not any(s.live for s in sessions):
            self.allowed = r"Fenced: |NotFound: "  # erased by one that was killed, or forgotten and collected
        for key in self.keys:
            draw.record.main[key].erasing = draw.record.main[key].buried = True
        draw.again[:] = [[p for p in puts if p.key not in self.keys] for puts in draw.again]

    def asked(self) -> Any:
        return self.keys

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain("main")
        voice.begin()
        tenant, name = self.keys[0]
        if world.fault != "early-erase":
            archive.erase(name, tenant=tenant)
        voice.ack(erased=True)

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        for key in self.keys:
            record.bury(key)
        self.keys = []
        return None


class EraseTenant(Erase):
    """Erase all of a tenant."""

    kind = "erase tenant"

    def plan(self, draw: Draw) -> bool:
        tenants = [
            t
            for t in TENANTS
            if t not in draw.leased and not any(k[0] == t for k in draw.leased if isinstance(k, tuple))
        ]
        tenants = [t for t in tenants if any(k[0] == t and s.known for k, s in draw.record.main.items())]
        if not draw.world.sealed or not tenants:
            return False
        self.tenant = draw.dice.choice(tenants)
        self.keys = [key for key in draw.record.main if key[0] == self.tenant]
        self.leases = {self.tenant, *self.keys}
        self._note(draw)
        return True

    def asked(self) -> Any:
        return self.tenant

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain("main")
        voice.begin()
        archive.erase(tenant=self.tenant, everything=True)
        voice.ack(erased=True)


class EraseBase(Operation):
    """Erase a base domain, which is refused as long as any session stands on it."""

    kind = "erase base"
    allowed = r"Fenced: |NotFound: |ArchiveError: .*erase these first"

    def plan(self, draw: Draw) -> bool:
        bases = list(draw.record.bases)
        if not draw.world.sealed or not bases:
            return False
        self.base = draw.dice.choice(bases)
        return True

    def asked(self) -> Any:
        return self.base

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain("main")
        voice.begin()
        archive.erase(base=self.base)
        voice.ack(erased=True)

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        if record.bases[self.base] < self.stamp:  # else a concurrent put may have brought it back
            record.graves.add(f"assistant of {self.base}")
        return None


# ---- upkeep


class Upkeep(Operation):
    """An operation that moves records but changes no session."""

    def plan(self, draw: Draw) -> bool:
        self.place = "copy" if draw.dice.random() < 0.25 else "main"
        self.number = draw.dice.random()
        return True


class CollectNow(Upkeep):
    """Collect without grace: delete the packs that earlier runs condemned, condemn small and mostly dead
    ones."""

    kind = "collect"
    allowed = (
        r"ArchiveError: (another collector is deleting|a collector keeps moving)"
        # another collector condemned the copies in the meantime
        r"|ArchiveError: the record at byte .* was not found in a pack that stays"
        # it belongs to a version that was not acknowledged
        r"|ArchiveError: segment [0-9a-f]+ of a live session is missing"
        r"|Fenced: the archive got a manifest meanwhile"
    )

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain(self.place)
        small = 16 << 20 if self.number < 0.7 else 4096  # bytes
        voice.begin()
        done = archive.collect(grace=0, small=small)
        voice.ack(copied=done.copied, deleted=done.deleted, condemned=done.condemned)


class Repair(Upkeep):
    """Repair. The archive must be whole afterwards."""

    kind = "repair"

    def work(self, world: World, voice: Voice) -> None:
        store = open_store(world.place(self.place))
        voice.begin()
        done = Repairer(store).run()
        voice.ack(
            restored=done.restored,
            remade=done.remade,
            aside=done.aside,
            whole=done.whole,
            broken=done.broken,
            lost=len(done.lost),
            missing=done.missing,
            unnamed=len(done.unnamed),
            uncounted=done.uncounted,
        )

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        lost = {name: facts[name] for name in ("broken", "missing", "unnamed", "uncounted") if facts[name]}
        return f"repair says that something is lost: {lost}" if lost else None


class Rebuild(Upkeep):
    """Throw all indexes away and make one from the packs."""

    kind = "rebuild"

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain(self.place)
        voice.begin()
        archive.parts.indexes.rebuild()
        voice.ack()


class JoinSessions(Upkeep):
    """Join the turns of every session, as a collector does with those that it copies."""

    kind = "join"

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open(self.place)
        voice.begin()
        places = sorted((v.tenant, v.name, v.part) for v in archive.list(parts=True, partial=True))
        voice.ack(joined=archive.joiner().sessions(places))


class MergeIndexes(Upkeep):
    """Index the packs that no index covers, and merge the index with others."""

    kind = "merge indexes"

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open_to_maintain(self.place)
        voice.begin()
        archive.parts.indexes.write(everything=self.number < 0.5)
        voice.ack()


class VerifyArchive(Upkeep):
    """Verify while other operations work."""

    kind = "verify"

    def work(self, world: World, voice: Voice) -> None:
        archive = world.open(self.place)
        voice.begin()
        report = archive.verify(decode=self.number < 0.5)
        voice.ack(problems=[f"{p.kind} {p.name}: {p.what}" for p in report.problems], unreadable=report.unreadable)

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        bad = facts["problems"] or facts["unreadable"]
        return f"verify beside others says: {facts}" if bad else None


class Read(Operation):
    """Get sessions while other operations work."""

    kind = "get"

    def plan(self, draw: Draw) -> bool:
        keys = [k for k in draw.record.main if k[0] in (*TENANTS, HOOK)]
        self.keys = draw.some(keys, 20) if keys else []
        # a put or an erase may be acknowledged between the get and its line
        self.at_first = {key: draw.record.main[key].possible() for key in self.keys}
        return bool(self.keys)

    def asked(self) -> Any:
        return self.keys

    def work(self, world: World, voice: Voice) -> None:
        sessions = world.open("main")
        voice.begin()
        for tenant, name in self.keys:
            voice.ack(key=(tenant, name), digest=_got(sessions, (tenant, name)))

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        key, digest = tuple(facts["key"]), facts["digest"]
        session = record.main.get(key)
        if session is None:  # erased between the opening of the archive, which read its keys, and this line
            known = digest is None or digest in self.at_first[key]
            return None if known else f"{key} was erased, and get gave {digest}"
        if digest in session.possible() | self.at_first[key] or (session.stamp > self.stamp and digest is None):
            return None
        if session.pending and str(digest).startswith("LostError"):  # a version that was not acknowledged
            return None
        if session.stamp > self.stamp and digest in {k.digest for k in session.known}:
            return None
        return f"get of {key} gave {digest}, and {session.possible()} is possible"


class CopyArchive(Operation):
    """Copy sessions with their histories to the other archive."""

    kind = "copy"

    def __init__(self) -> None:
        super().__init__()
        self.chosen: dict[Key, list[str]] = {}
        self.digests: dict[str, str] = {}

    def plan(self, draw: Draw) -> bool:
        main, there = draw.record.main, draw.record.copy
        keys = [k for k in draw.free() if ("copy", *k) not in draw.leased and any(v.version for v in main[k].live)]
        for key in draw.some(keys, 8) if keys else []:
            live = [v for v in main[key].live if v.version]
            self.chosen[key] = [v.version for v in live]
            self.digests |= {v.version: v.digest for v in live}
            session = there.setdefault(key, KnownSession())
            session.twice |= main[key].twice
            session.pending |= {v.digest for v in live} - ({k.digest for k in session.known} - session.twice)
        self.leases = {("copy", *key) for key in self.chosen}
        return bool(self.chosen)

    def asked(self) -> Any:
        return [[*key, versions] for key, versions in self.chosen.items()]

    def work(self, world: World, voice: Voice) -> None:
        source, to = (world.open_plain(place) for place in ("main", "copy"))
        versions: list[Version] = []
        for (tenant, name), wanted in self.chosen.items():
            there = source.directory.sight(name, tenant).versions
            versions += [v for v in there if v.id.hex() in wanted and not v.forgotten]
        voice.begin()
        for done in copy(source, versions, to):
            voice.ack(key=(done.version.tenant, done.version.name), version=done.version.id.hex())

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        session, digest = record.copy[tuple(facts["key"])], self.digests[facts["version"]]
        if not any(k.digest == digest for k in session.known):
            session.acknowledge(digest)
        return None


# ---- the hook and the night


class Evict(Operation):
    """Act as a serving process: pass sessions to the hook, and report those that are durable in the journal."""

    kind = "evict"

    def plan(self, draw: Draw) -> bool:
        dice, self.rounds = draw.dice, list[list[tuple[Key, list[int], dict[str, str], str]]]()
        for _ in range(dice.randint(1, 4)):
            rows = []
            for _ in range(dice.randint(1, 5)):
                mark = draw.record.mark()
                key = (HOOK, f"h{mark}")
                session = draw.record.main[key] = KnownSession(settled=False)
                ids: list[int] = list(range(300, 300 + dice.choice([0, 40])))
                for _ in range(dice.randint(1, 2)):
                    ids = ids + [dice.randrange(300, 4000) for _ in range(dice.randint(1, 30))]
                    tags = {"mark": mark}
                    digest = digest_of("ids", Content("ids", ids).to_bytes(), tags)
                    session.marks.add(mark)
                    session.pending.add(digest)
                    rows.append((key, ids, tags, digest))
            self.rounds.append(rows)
        return True

    def asked(self) -> Any:
        return [[[*key, digest] for key, _, _, digest in rows] for rows in self.rounds]

    def work(self, world: World, voice: Voice) -> None:
        settings = HookSettings(flush_seconds=0.01, segment_bytes=2048)
        with EvictionHook.open(world.journal, settings=settings) as hook:
            voice.begin()
            for rows in self.rounds:
                tickets = [
                    hook.on_evict(EvictionRequest(key[1], ids, tenant=key[0], tags=tags, prefixes=(40,)))
                    for key, ids, tags, _ in rows
                ]
                hook.flush(30)
                for ticket, (key, _, _, digest) in zip(tickets, rows, strict=True):
                    if ticket and hook.durable(ticket):
                        voice.ack(key=key, digest=digest)

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        record.main[tuple(facts["key"])].acknowledge(facts["digest"])
        return None


class Drain(Operation):
    """Act as the hook's worker: move sessions from the journal to the archive."""

    kind = "drain"
    allowed = r"Fenced: |WrongClock: "  # nobody is there who could say that the clock is right
    wait = 0.0  # seconds to wait for another worker

    def work(self, world: World, voice: Voice) -> None:
        voice.begin()
        done = worker.drain(
            world.journal,
            world.place("main"),
            bundle=world.bundle,
            key=world.key("main"),
            threads=1,
            batch_tokens=150,
            wait=self.wait,
        )
        voice.ack(
            stored=done.stored, unchanged=done.unchanged, damaged=done.damaged, busy=done.busy, refused=done.refused
        )

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        return f"the worker refused: {facts['refused']}" if facts["refused"] else None


class Nightly(Operation):
    """Run the nightly job: JSONL files into the archive, retention, collect, verify."""

    kind = "nightly"
    fresh = True  # whether sources have new lines

    def plan(self, draw: Draw) -> bool:
        if NIGHT in draw.leased:
            return False
        self.leases = {NIGHT}
        dice, folder = draw.dice, draw.world.folder / "night"
        if self.fresh and dice.random() < 0.7:
            lines = [self._line(draw) for _ in range(dice.randint(1, 6))]
            number = len(list(folder.iterdir()))
            (folder / f"{number:06d}.jsonl").write_text("".join(line + "\n" for line in lines))
        self.until = {key: len(s.asked) for key, s in draw.record.main.items() if key[0] == NIGHT}
        for key, many in self.until.items():
            session = draw.record.main[key]
            old = set(session.asked[: max(0, many - NIGHT_KEEP)])
            for known in session.known:
                if known.digest in old:
                    known.forgotten = None
        return True

    def _line(self, draw: Draw) -> str:
        dice, mark = draw.dice, draw.record.mark()
        old = [k for k in draw.record.main if k[0] == NIGHT]
        key = dice.choice(old) if old and dice.random() < 0.5 else (NIGHT, f"n{mark}")
        session = draw.record.main.setdefault(key, KnownSession(settled=False))
        session.settled = False
        session.parts = [*session.parts[-4:], {"role": "user", "content": _text(dice, mark)}]
        value = {"id": key[1], "messages": list(session.parts)}
        digest = digest_of("chat", Content("chat", value).to_bytes(), {"from": "night"})
        session.asked.append(digest)
        session.pending.add(digest)
        session.marks.add(mark)
        return json.dumps(value)

    def asked(self) -> Any:
        return [[*key, many] for key, many in self.until.items()]

    def work(self, world: World, voice: Voice) -> None:
        # Use the parts that the parent prepared, and draw no plots: these take longer than the job.
        setattr(Bundle, "load", lambda *_: world.bundle)  # noqa: B010
        setattr(freeze, "codecs_of", lambda *_, **__: world.codecs)  # noqa: B010
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
        settings = config.load(world.folder / "night.toml")
        voice.begin()
        report = job.run(settings)
        voice.ack(
            code=report["exit_code"], failures=report["failures"], refused=report["refused"], verify=report["verify"]
        )

    def heard(self, record: AcknowledgedRecord, facts: Line) -> str | None:
        allowed = re.sub("ArchiveError: |Fenced: ", "", CollectNow.allowed) + "|this clock says "
        unexpected = [f for f in facts["failures"] if not re.search(allowed, f)]
        if facts["refused"] or unexpected or facts["code"] not in (0, 3, 7):
            return f"the nightly job says: {facts}"
        if any(not f.startswith("collect: ") for f in facts["failures"]):
            return None
        for key, many in self.until.items():
            session = record.main[key]
            old = session.asked[: max(0, many - NIGHT_KEEP)]
            for digest in session.asked[:many]:
                if digest in session.pending:
                    session.acknowledge(digest)
                    session.known[-1].forgotten = None if digest in old else False
        return None


# ---- reading back


def look(world: World, place: str, keys: list[Key], token: str | None, voice: Voice) -> None:
    """Read all of an archive at rest, in a child, and report its contents. ``token``: that of the last look."""
    archive = world.open(place)
    voice.begin()
    report = archive.verify(decode=True, expect=token)
    voice.tell({"token": report.token})
    voice.tell({"missing_copies": report.missing_copies})
    voice.tell({"problems": [f"{p.kind} {p.name}: {p.what}" for p in report.problems]})
    voice.tell({"lost": [v.id.hex() for v in report.lost]})
    counts = {
        "packs": report.packs,
        "records": report.records,
        "decoded": report.decoded,
        "unreadable": report.unreadable,
        "undecoded": report.undecoded,
    }
    voice.tell({"report": counts})
    digests: dict[str, str] = {}
    for versions in _batches(archive.directory.ls(forgotten=True, history=True)):
        for v, content in zip(versions, _contents(archive, versions), strict=True):
            digest = error = ""
            if isinstance(content, PltzError):
                error = _named(content)
            else:
                digest = _digest(content, v.tags)
            digests[v.id.hex()] = digest or error
            voice.tell({"version": [v.tenant, v.name, v.id.hex(), v.forgotten, digest, error]})
    for key in keys:
        voice.tell({"get": [key, _last(archive, key, digests)]})
    for key in keys[-GETS:]:
        voice.tell({"get": [key, _got(archive, key)]})
    voice.tell({"opened": sorted(_opened(archive.parts))})


def _batches(versions: Iterable[Version]) -> Iterator[list[Version]]:
    rest = iter(versions)
    while batch := list(itertools.islice(rest, AT_ONCE)):
        yield batch


def _contents(archive: Archive, versions: list[Version]) -> Iterator[Content | PltzError]:
    """Yield the content of versions, decoded in one batch, or one by one where one of them fails."""
    try:
        yield from list(map(archive.sessions.session, archive.parts.reader.towers(versions)))
    except PltzError:
        for version in versions:
            try:
                yield archive.sessions.read(version)
            except PltzError as exc:
                yield exc


def _last(archive: Archive, key: Key, digests: dict[str, str]) -> str | None:
    """Return the digest of the version that a get would read, None where there is none, or else the error."""
    tenant, name = key
    try:
        version = archive.directory.version(name, tenant).id.hex()
    except NotFound:
        return None
    except PltzError as exc:
        return _named(exc)
    return digests.get(version, f"version {version}, which is not listed")


def _named(exc: PltzError) -> str:
    return f"{type(exc).__name__}: {exc}"


def heard(seen: Seen, line: Line) -> None:
    """Add a line from `look` to what was seen."""
    [(what, value)] = line.items()
    match what:
        case "problems":
            seen.problems += value
        case "token":
            seen.token = value
        case "missing_copies":
            seen.missing_copies = value
        case "lost":
            seen.lost |= set(value)
        case "report":
            seen.report = value
            seen.problems += [f"{name}: {value[name]}" for name in ("unreadable", "undecoded") if value[name]]
        case "version":
            seen.versions.append(tuple(value))
        case "get":
            seen.gets.setdefault(tuple(value[0]), set()).add(value[1])
        case "opened":
            seen.opened |= set(value)


def _opened(archive: opener.OpenArchive) -> set[str]:
    """Return the marks in all records of a sealed archive that can be opened, read from the raw packs. Marks
    stand in tags and in texts of plain bytes."""
    keys, marks = archive.keys, set[bytes]()
    if not isinstance(keys, Keyring):
        return set()
    codecs = {codec.bundle_id: codec for codec in archive.codecs if codec.tokenizer == BytesCodec.tokenizer}
    for identity in pack_name.listed(archive.store.list):
        pack = Pack.of(archive.store.view(pack_name(identity)))
        for item in pack.scan():
            if isinstance(item, Damage):
                continue
            record, context = item[1], pack.head.contexts[item[1].context]
            with suppress(NotFound, FormatError):
                if record.name is not None:
                    marks |= set(MARK.findall(keys.session(context, record)[2]))
            with suppress(NotFound, FormatError):
                if record.id is not None and context.bundle in codecs and record.mode == ALONE:
                    bits = keys.bits(context, record)
                    [tokens] = codecs[context.bundle].decode([Coded(bits, record.tokens, np.zeros(0, np.int64))])
                    marks |= set(MARK.findall(tokens.astype(np.uint8).tobytes()))
    return {mark.decode() for mark in marks}


def _got(archive: Archive, key: Key) -> str | None:
    """Return the digest of what a get gives, None where there is no such session, or else the error."""
    tenant, name = key
    try:
        found = archive.get(name, tenant=tenant)
        return _digest(found.session, found.tags)
    except NotFound:
        return None
    except PltzError as exc:
        return _named(exc)


def _digest(content: Content, tags: Any) -> str:
    return digest_of(content.kind, content.to_bytes(), tags)


def prompt(name: str) -> bytes:
    """Return the prompt that sessions of a base, or of a tenant, have in common. It holds no mark, since it
    survives an erasure."""
    return (f"You are the assistant of {name}. Be brief, be exact, and say so where you do not know. " * 4).encode()


def _text(dice: Random, mark: str) -> str:
    """Return some words, now and then many, with the mark at their beginning."""
    count = dice.choice([4, 10, 30]) if dice.random() < 0.97 else 3000
    return f"{mark} " + " ".join(dice.choices(WORDS, k=count))


def _new_session(put: PlannedPut) -> NewSession:
    parts = [_bytes(part) for part in put.parts]
    return NewSession(put.key[1], parts, put.key[0], put.shared, put.base or "base", put.tags, "text")


def _bytes(part: bytes) -> Any:
    return np.frombuffer(part, np.uint8).astype(np.int64)


def _chat(parts: tuple[Any, ...]) -> Content:
    return Content("chat", {"messages": list(parts)})


OPERATIONS: dict[type[Operation], float] = {
    Texts: 9,
    Chats: 3,
    GrowingChats: 3,
    Twins: 2,
    Forget: 3,
    Undelete: 3,
    Erase: 4,
    EraseTenant: 0.3,
    EraseBase: 2,
    CollectNow: 6,
    Repair: 3,
    Rebuild: 2,
    MergeIndexes: 2,
    JoinSessions: 2,
    VerifyArchive: 1,
    Read: 3,
    CopyArchive: 4,
    Evict: 3,
    Drain: 4,
    Nightly: 3,
}


FAULTS: dict[str, type[Operation] | None] = {"early-put": Texts, "early-erase": Erase, "drop-pack": None}
FAULTY = 20.0  # weight of the operation with the injected fault
