"""Shrink: code again by the model what was put in a fast form. Spec: WRITING.md, "Shrinking".

    packs, the newest first --> fresh records --decode, with what stands above--> tokens --model--> shorter records
                                                                                        --prove--> new packs

*Fresh* is the record of a log whose text no model coded, and one of tokens by PPMd. Its successor has the same
segment and version, and a shorter bitstring. So nothing above or below it is touched, and readers may take either.
`LiveSet` counts the shorter one, and `collect` frees the other. A crash leaves the old form, or both.

Fresh records are few beside all that is there. They are found by reading packs that no collector condemned: what
lies in the others is about to be moved, and is shrunk there. A pack without fresh records, or only with those that the
model makes no shorter, is not read again: the user's cache folder has the names of these, by bundle.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, Self, cast

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains, decode_records
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Found
from pltz.archive.errors import Outdated
from pltz.archive.format.ids import NO_SEGMENT, Tokens, segment_of
from pltz.archive.format.index_file import SEGMENTS, Location, key_of_session
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import RUN, Context, segment_only, tokens_fit
from pltz.archive.maintenance.domain_records import identities
from pltz.archive.storage.seen import place_folder
from pltz.archive.work_part import WorkPart
from pltz.archive.writing.commits import FIRST, Pace
from pltz.archive.writing.segments import PendingSegment, Row
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import Coded, SegmentCodec, unproved
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.log.log_coder import parse
from pltz.coding.workers import START_BYTES
from pltz.plt_codec.container.frame import PPMD, TOWER, Method, is_bytewise
from pltz.plt_codec.errors import FormatError, ModelError, PltzError
from pltz.plt_codec.identity import SIZE

PROVERS = 2  # groups that are proved beside each other, on a GPU
# per commit, at most: of content, of coding it, and records, each of which may stand below `REACH` bytes in memory
COMMIT_BYTES, COMMIT_SECONDS, COMMIT_RECORDS = 1 << 26, 60.0, 64
TRIED = 1 << 12  # bytes of a text from which its ratio tells whether a model would shrink it
NOISE = 0.7  # bytes per byte of such a text that is left as it is: base64 and the like
SAVED = 0.3  # share of a text in the fast form that a model saves, about: `nano`, of 24 real logs

Progress = Callable[["Shrunk"], None]


@dataclass
class Shrunk:
    """The result of a run so far.

    Attributes:
        fresh: records in a fast form, of the packs looked at.
        fresh_bytes: bytes of their bitstrings.
        expected: bytes that shrinking them saves, about.
        shrunk: those that were coded anew; ``before`` and ``after`` are bytes of their bitstrings.
        kept: those that the model does not make shorter.
        left: those that there was no time for, or that others moved or erased meanwhile.
        unread: those that cannot be decoded; ``problems`` says why.
        condemned: packs that were not looked at, since a collector is to move what is in them.
        waiting: packs that there was no time to look at.
    """

    fresh: int = 0
    fresh_bytes: int = 0
    expected: int = 0
    shrunk: int = 0
    before: int = 0
    after: int = 0
    kept: int = 0
    left: int = 0
    unread: int = 0
    condemned: int = 0
    waiting: int = 0
    problems: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """Return the fresh records that were looked at."""
        return self.shrunk + self.kept + self.unread


class _Fresh(NamedTuple):
    """A fresh record: its place, its tokens, and bytes of its bitstring and of what the model is to code."""

    location: Location
    tokens: int
    size: int
    text: int


@dataclass
class _Begun:
    """Records of ``size`` bytes of content, coded anew and not yet put.

    Attributes:
        pending: the records that could be read, with their segments.
        unread, problems: as of `Shrunk`.
        proof: to come: the seconds in which the segments were decoded. None: nobody does that ahead.
        seconds: that coding took.
        moved: packs of the records that a shorter one took the place of.
    """

    size: int
    pending: list[tuple[Found, PendingSegment]] = field(default_factory=list)
    unread: int = 0
    problems: tuple[str, ...] = ()
    proof: Future[float] | None = None
    seconds: float = 0.0
    moved: set[bytes] = field(default_factory=set)


class _Provers:
    """Threads that decode what was coded by a GPU, while more is coded; none without one."""

    def __init__(self, log: LogCodec) -> None:
        self._log, self._own = log, threading.local()
        self.count = PROVERS * log.has_twins
        self._pool = ThreadPoolExecutor(PROVERS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, segments: Sequence[PendingSegment]) -> Future[float] | None:
        """Begin to decode segments. Those that do not give their tokens are left, and refused when they are put."""
        return self._pool.submit(self._prove, segments) if self.count and segments else None

    def _prove(self, segments: Sequence[PendingSegment]) -> float:
        began = time.monotonic()
        with suppress(ModelError):  # no room beside the coder that codes: they are decoded when they are put
            if not hasattr(self._own, "twin"):
                self._own.twin = self._log.twin()
            coded = [s.coded_by(s.codec, s.mode, s.data, len(s.tokens)) for s in segments]
            left = set(unproved(self._own.twin.decode, coded, [s.tokens for s in segments]))
            for n, segment in enumerate(segments):
                segment.proved = b"" if n in left else segment.data
        return time.monotonic() - began


class Shrinker:
    """Shrinks one archive. Several may run at once, beside writers and collectors."""

    def __init__(self, catalog: Catalog, writer: ArchiveWriter, codecs: BundleCodecs, indexes: IndexKeeper) -> None:
        self._catalog, self._writer, self._codecs, self._indexes = catalog, writer, codecs, indexes
        self._log = codecs.log.slow()

    def run(
        self,
        *,
        budget: float | None = None,
        part: WorkPart | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Shrunk:
        """Shrink what is fresh, and return what was done. Arguments and errors as of `Archive.shrink`."""
        began, coded, report = time.monotonic(), 0, Shrunk()
        until = None if budget is None else began + budget
        tell = progress or (lambda _: None)
        todo, looked = self._catalog.decide(partial(self._plan, part or WorkPart(), until, report))
        report.fresh, report.fresh_bytes = len(todo), sum(one.size for one in todo)
        report.expected = int(SAVED * sum(one.text for one in todo))
        tell(report)
        workers = self._codecs.workers
        workers.on |= workers.count > 0 and sum(one.tokens for one in todo) >= START_BYTES
        with _Provers(self._log) as provers:
            first = COMMIT_BYTES // 2 if provers.count else FIRST  # a GPU codes many as soon as few
            pace, at = Pace(COMMIT_BYTES, COMMIT_SECONDS, last=1, first=first), 0
            waiting = deque[_Begun]()
            while (at < len(todo) and not dry_run) or waiting:
                group = _group(todo[at:], pace.limit)
                size, spent = sum(one.tokens for one in group), time.monotonic() - began
                late = budget is not None and spent + (spent * size / coded if coded else 0) >= budget
                if group and not late:
                    at, coded = at + len(group), coded + size
                    waiting.append(self._begun(group, provers))
                    if len(waiting) <= provers.count:
                        continue
                elif late:
                    looked -= {one.location.pack for one in todo[at:]}
                    del todo[at:]
                if waiting:
                    pace.took(*self._put(begun := waiting.popleft(), report))
                    looked -= begun.moved
                    tell(report)
        report.left = report.fresh - report.done
        if report.shrunk:
            self._indexes.write_if_due()
        if not (dry_run or report.unread):
            self._settle(looked - self._catalog.listing.condemned)
        return report

    # ---- which records

    def _plan(self, part: WorkPart, until: float | None, report: Shrunk) -> tuple[list[_Fresh], set[bytes]]:
        """Return the fresh records that have no shorter one yet, those of packs put last first, and packs looked at.

        ``until``: time of the monotonic clock from which no pack is looked at. Raises StoreError.
        """
        listing, found, met, looked = self._catalog.listing, list[_Fresh](), set[bytes](), set[bytes]()
        mine = {pack for pack in listing.packs if part.has(pack)}
        report.condemned = len(mine & listing.condemned)
        packs = sorted(mine - listing.condemned - self._settled(), key=self._age, reverse=True)
        for number, pack in enumerate(packs):
            report.waiting = len(packs) - number
            if until is not None and time.monotonic() >= until:
                return found, looked
            items, whole = self._records(pack)
            for item in items:
                segment = item.record.id or b""
                whole &= self._codec(item.context) is not None or not _is_fast(item.context)
                if not (text := self._text(item)):
                    continue
                if segment in met or self._has_shorter(item):  # until it is collected: the shorter one may get lost
                    whole = False
                    continue
                met.add(segment)
                found.append(_Fresh(item.location, item.record.tokens, len(item.record.bitstring), text))
            looked |= {pack} if whole else set()
        report.waiting = 0
        return found, looked

    @cached_property
    def _file(self) -> Path:
        """Return the file that has the names of packs without work for this bundle, one after the other."""
        return place_folder("shrunk", self._catalog.listing.archive.hex()) / self._codecs.model.bundle_id.hex()

    def _settled(self) -> set[bytes]:
        try:
            data = self._file.read_bytes()
        except OSError:
            return set()
        return {data[at : at + SIZE] for at in range(0, len(data), SIZE)}

    def _settle(self, packs: set[bytes]) -> None:
        """Note packs without work, beside those that were noted and are still there."""
        packs = packs | (self._settled() & self._catalog.listing.packs.keys())
        new = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # they are looked at again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(b"".join(sorted(packs)))
            new.replace(self._file)

    def _age(self, pack: bytes) -> tuple[int, bytes]:
        try:
            return self._catalog.listing.opened(pack).head.moment, pack
        except (FormatError, FileNotFoundError):
            return 0, pack

    def _records(self, pack: bytes) -> tuple[list[Found], bool]:
        """Return the records of a pack that can be read, and whether all can: `verify` names the others."""
        try:
            items = [*self._catalog.listing.scan(pack)]
        except (FormatError, FileNotFoundError):  # a collector may have been faster
            return [], False
        found = [item for item in items if not isinstance(item, Damage)]
        return found, len(found) == len(items)

    def _text(self, item: Found) -> int:
        """Return the bytes that a model is to code of a record in a fast form; 0 where it is not, or is left as it is.

        Raises KeyMismatch, StoreError.
        """
        record, context, keys = item.record, item.context, self._catalog.keys
        if record.id is None or not record.tokens or record.mode & RUN or self._codec(context) is None:
            return 0
        if any(keys.doomed(context, one) for one in identities(record, context)) or keys.gone(context, record.id):
            return 0
        if context.method != Method.LOG:
            return len(record.bitstring)
        try:
            parsed = parse(keys.bits(context, record))
        except FormatError:  # `verify` names it
            return 0
        size = len(parsed.coded)
        return 0 if parsed.by_model or (size >= TRIED and size > NOISE * parsed.count) else size

    def _has_shorter(self, item: Found) -> bool:
        """Return whether the segment of a record has a shorter one already."""
        assert item.record.id is not None
        size = len(item.record.bitstring)
        return any(len(o.record.bitstring) < size for o in self._catalog.lookup.find(SEGMENTS, item.record.id))

    def _codec(self, context: Context) -> SegmentCodec | None:
        """Return the codec that codes records of a context anew; None where none does."""
        if context.method == Method.LOG:
            return self._log if context.tokenizer == self._log.tokenizer else None
        return self._codecs.of_ids(context.tokenizer) if _is_fast(context) else None

    # ---- code them anew

    def _begun(self, group: Sequence[_Fresh], provers: _Provers) -> _Begun:
        """Code some records anew, and begin to prove them. Raises Fenced, StoreError."""
        began = time.monotonic()
        self._catalog.store.want_room()
        begun = self._catalog.decide(partial(self._code, group))
        begun.proof = provers.submit([segment for _, segment in begun.pending if segment.codec.carries])
        begun.seconds = time.monotonic() - began
        return begun

    def _code(self, group: Sequence[_Fresh]) -> _Begun:
        """Return records with their segments, coded anew. Raises Outdated where others changed what is there."""
        begun = _Begun(sum(one.tokens for one in group))
        items = self._standing([self._catalog.lookup.at(one.location) for one in group])
        begun.pending = self._pending(items, begun)
        self._writer.encode([segment for _, segment in begun.pending])
        return begun

    def _standing(self, items: Sequence[Found]) -> list[Found]:
        """Return those of some records that are there, in packs that stay, and have no shorter one."""
        packs = self._catalog.listing.packs.keys() - self._catalog.listing.condemned
        return [i for i in items if i.location.pack in packs and self._text(i) and not self._has_shorter(i)]

    def _put(self, begun: _Begun, report: Shrunk) -> tuple[int, float]:
        """Put the records that are shorter, and count them. Returns the bytes that were coded, and seconds.

        Raises Fenced, StoreError, WriterFailed.
        """
        began = time.monotonic()
        proved = begun.proof.result() if begun.proof else 0.0
        waited = time.monotonic() - began
        vars(report).update(vars(self._catalog.decide(partial(self._publish, begun, report))))
        return begun.size, begun.seconds + proved + time.monotonic() - began - waited

    def _publish(self, begun: _Begun, before: Shrunk) -> Shrunk:
        """Put the records that are shorter. Raises Outdated where others changed what is there.

        ``before``: the result so far.
        """
        keys, report = self._catalog.keys, replace(before)
        report.unread, report.problems = before.unread + begun.unread, before.problems + begun.problems
        rows, new, relied = list[Row](), dict[bytes, PendingSegment](), set[bytes]()
        items = self._standing([item for item, _ in begun.pending])
        segments = {item.location: segment for item, segment in begun.pending}
        for item in items:
            segment = segments[item.location]
            size, shorter = len(keys.bits(item.context, item.record)), len(segment.data)
            if shorter >= size or not tokens_fit(len(segment.tokens), shorter):
                report.kept += 1
                continue
            report.shrunk += 1
            report.before += size
            report.after += shorter
            rows.append(self._row(item, segment))
            new[segment.id] = segment
            relied.add(item.location.pack)
        if rows:
            self._writer.publisher.put(rows, new, relied=relied, fence=partial(self._fence, items))
            begun.moved |= relied
        return report

    def _pending(self, items: Sequence[Found], report: _Begun) -> list[tuple[Found, PendingSegment]]:
        """Return records with their segments, decoded, to be coded anew. Those that cannot be read are left out.

        A part of a log is coded after what its record was: what stands below it hangs on that.
        """
        catalog, registry = self._catalog, self._codecs.registry
        anew = [self._anew(item) for item in items]
        chains = Chains(catalog, registry, needed=True)
        chains.load([item.record.parent for item in anew if item.record.mode & TOWER])
        was = [chains.above(item) for item in items]
        above = [up if isinstance(up, PltzError) else chains.above(item) for item, up in zip(anew, was, strict=True)]
        wanted = [
            chains.to_decode(item, cast("Tokens | Coded", up))
            for item, up, new in zip(items, was, above, strict=True)
            if not isinstance(new, PltzError)
        ]
        answers, sources = iter(decode_records(registry, catalog.keys, wanted)), iter(wanted)
        found = list[tuple[Found, PendingSegment]]()
        for item, one, up in zip(items, anew, above, strict=True):
            answer, source = (up, None) if isinstance(up, PltzError) else (next(answers), next(sources).source)
            if isinstance(up, PltzError) or isinstance(answer, PltzError):
                report.unread += 1
                where = f"{item.location.pack.hex()} at {item.location.offset}"
                report.problems += (f"the record in {where} is left as it is: {answer}",)
                continue
            segment = self._segment(item, one.context, answer, up)
            if isinstance(segment.codec, LogCodec):  # what is recalled stays so
                bits = catalog.keys.bits(item.context, item.record)
                segment.recalled, segment.source = segment.codec.recalled(bits, answer), source
            found.append((item, segment))
        return found

    def _anew(self, item: Found) -> Found:
        """Return a record in the context and the mode in which it is to be coded."""
        codec = self._codec(item.context)
        assert codec is not None
        context = replace(item.context, method=codec.method, bundle=codec.bundle_id)
        below = not codec.carries and item.record.parent != NO_SEGMENT
        return Found(item.location, item.record._replace(mode=TOWER) if below else item.record, context)

    def _segment(self, item: Found, context: Context, tokens: Tokens, above: Tokens | Coded) -> PendingSegment:
        """Return the segment of a record below what it is to be coded after, as a put would."""
        codec, keys, record = self._codec(item.context), self._catalog.keys, item.record
        assert codec is not None
        up: PendingSegment | None = None
        if isinstance(above, Coded) or len(above):
            up = PendingSegment(context, codec, None, NOTHING if isinstance(above, Coded) else above)
            up.part = above.decoded.part if isinstance(above, Coded) and above.decoded else None
        segment = PendingSegment(context, codec, up, tokens)
        segment.digest = keys.segment_digest(context.domain, context.tokenizer, record.parent, tokens)
        segment.id = segment_of(segment.digest)
        return segment

    def _row(self, item: Found, segment: PendingSegment) -> Row:
        """Return the record that takes the place of another, sealed under the same keys."""
        keys, record = self._catalog.keys, item.record
        record = record._replace(context=0, bitstring=segment.data, mode=segment.mode, veil=b"")
        if item.record.name is None or keys.gone(item.context, key_of_session(item.record, item.context)):
            return segment.context, keys.seal(segment.context, segment_only(record))  # others share the segment
        _, name, about = keys.session(item.context, item.record)
        return segment.context, keys.seal(segment.context, record._replace(name=name, about=about))

    def _fence(self, items: Sequence[Found]) -> None:
        """Raise Outdated where something was erased since the last look."""
        keys = self._catalog.keys
        keys.check({item.context.domain for item in items})
        if any(keys.doomed(item.context, one) for item in items for one in identities(item.record, item.context)):
            raise Outdated("something is being erased: nothing was put")


def _is_fast(context: Context) -> bool:
    """Return whether the records of a context may be in a fast form."""
    ids = context.method == Method.BYTES and not is_bytewise(context.tokenizer)
    return context.method in (Method.LOG, PPMD) or ids


def _group(todo: Sequence[_Fresh], limit: int) -> list[_Fresh]:
    """Return as many of the first records as are coded in one commit of ``limit`` bytes: one at least."""
    size, group = 0, list[_Fresh]()
    for one in todo[:COMMIT_RECORDS]:
        if group and size + one.tokens > limit:
            break
        group.append(one)
        size += one.tokens
    return group
