"""Archives: packs, runs, versions and towers, as archive/format/FORMAT.md describes them.

An archive is its files by name. All packs that the manifest names are read; indexes are read only for the packs that
they name. What is damaged is told, and the rest is given.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from tests.second_reader import chat, log
from tests.second_reader.bridge import Bridge
from tests.second_reader.fields import Bits, Block, Damaged, Fields, Newer, block, fallback, signed, u32
from tests.second_reader.model import Bundle, digest, sequence_of
from tests.second_reader.sealed import Keyring, keyed, unseal
from tests.second_reader.state import COPIED, Files, restored, state_of

PACK_VERSION, COLUMNS, NONE, ROOT = 11, tuple(range(14)), bytes(16), bytes(10)
SEGMENT, SESSION, BOTH, MARK = range(1, 5)  # kinds of records
ABOVE, FAST, RUN = 1, 2, 4  # bits of a mode
MODEL, LOG, BYTES = range(3)  # methods


class Context(NamedTuple):
    """Hold what many records share."""

    domain_kind: int
    domain: bytes
    tokenizer: bytes
    bundle: bytes
    method: int
    target: bytes
    kind: int  # of a session
    cipher: int
    root: bytes
    name: bytes  # of the domain; empty where it is sealed


class About(NamedTuple):
    """Hold what is known about a session. ``numbers``: turns, size, file time, first, and seconds to last."""

    part: str
    title: str
    numbers: list[int]
    tags: dict[str, str]


class Record(NamedTuple):
    """A record of a pack. ROOT: there is no segment."""

    context: Context
    kind: int
    segment: bytes
    parent: bytes
    tokens: int
    data: bytes
    key: bytes  # of its session
    name: bytes
    about: About
    moment: int
    time: int
    mark: tuple[bytes, int, int]  # version id, counter, verb
    part: int  # key of its part
    mode: int


class Version(NamedTuple):
    """A version of a session. ``lacks``: the last segments of its record's run that it has not."""

    record: Record
    id: bytes
    moment: int
    time: int
    leaf: bytes  # its first 4 bytes
    lacks: int


class Run(NamedTuple):
    """Hold what a run has in front of its bitstring."""

    lengths: list[int]
    versions: list[tuple[int, int, int, bytes]]  # segments that it lacks, moment, time, leaf
    size: int  # bytes of all this


# ---- packs


def context_of(fields: Fields) -> Context:
    """Return the next context of a table."""
    what = fields.number(1)
    content, method, base, sealed, writing = what & 3, what >> 2 & 3, what >> 4 & 1, what >> 5 & 1, what >> 7
    writing = writing and (fields.number(1) or 255)
    if content > 2 or method > 2 or writing > (0 if content else chat.WRITINGS):
        raise Newer("a context of a newer version")
    stored = fields.take(1 if method == LOG else 16 if method == MODEL or content == 2 else 0)
    tokenizer = stored if len(stored) == 16 else (bytes([method]) + stored).ljust(16, b"\0")
    bundle, target = fields.take(16), fields.take(16) if what & 64 else NONE
    domain, root = (fields.take(16), fields.take(8)) if sealed else (b"", bytes(8))
    name = b"" if sealed else fields.take(fields.varint())
    domain = domain or digest("pltz domain", bytes([base]), name)
    kind = 2 + writing if writing else content
    return Context(base, domain, tokenizer, bundle, method, target, kind, sealed, root, name)


def records_of(data: bytes, archive: bytes, name: bytes, keys: Keyring | None) -> Iterator[Record]:
    """Yield the records of a pack. ``name``: its digest."""
    count, size, own, check, end = struct.unpack("<IQ16sI4s", data[-36:].rjust(36, b"\0"))
    if (own, end) != (name, b"pTLP") or crc32(data[-36:-8]) != check or digest("pltz pack", data[:-24]) != name:
        raise Damaged("a pack that differs from its name")
    fields = Fields(data)
    magic, version, reserved, begin, salt, of, table, check = fields.unpack("4sB11sQ16s16sII")
    if magic != b"PLTp" or version != PACK_VERSION or any(reserved):
        raise Newer(f"a pack of version {version}")
    at, stop = 64 + table, 64 + table + size
    if of != archive or crc32(data[:60] + data[64:at]) != check:
        raise Damaged("a header that differs from its check, or of another archive")
    if data[stop:-36] != (data[64:at] + data[:64] if len(data) > COPIED else b""):
        raise Damaged("the second table or header differs")
    contexts = [context_of(fields) for _ in range(fields.varint())]
    parents = [fields.take(10) for _ in range(fields.varint())]
    if fields.at != at:
        raise Damaged("a table of another size")
    while at < stop:
        found = block(data[:stop], at, salt, COLUMNS)
        count, at = count - len(found.bitstrings), found.end
        yield from _records(found, contexts, parents, begin, keys)
    if count:
        raise Damaged("a pack of more or fewer records")


def _records(
    found: Block, contexts: list[Context], table: list[bytes], begin: int, keys: Keyring | None
) -> Iterator[Record]:
    columns, parts, n = found.columns, found.parts, range(len(found.bitstrings))
    kinds = columns[0]
    if not set(kinds) <= {SEGMENT, SESSION, BOTH, MARK}:
        raise Newer("a record of a newer kind")
    segments = [parts.take(10) if kind in (SEGMENT, BOTH) else ROOT for kind in kinds]
    marks = [parts.take(16) if kind == MARK else NONE for kind in kinds]
    parents = []
    for row, (how, number) in enumerate(zip(columns[2], columns[3], strict=True)):
        inline = parts.take(10) if how == 3 else ROOT
        parents.append(inline if how in (0, 3) else table[number] if how == 1 else segments[row - number])
    names = [parts.take(size) for size in columns[6]]
    abouts = [parts.take(size) for size in columns[9]]
    parts.end()
    for row in n:
        (_, number, _, _, tokens, _, _, seconds, apart, _, mode, ticks, later, part) = (
            columns[c][row] for c in COLUMNS
        )
        moment = begin + (seconds << 20 | ticks)
        time = (moment >> 20) + (apart | later >> 1 << 32) * (1 if later & 1 else -1)
        context, name = contexts[number], names[row]
        record = Record(
            context, kinds[row], segments[row], parents[row], tokens, found.bitstrings[row],
            digest("pltz session", context.domain, name) if kinds[row] in (SESSION, BOTH) else NONE, name,
            about_of(abouts[row]), moment, time, (marks[row], tokens, mode), part, mode if kinds[row] != MARK else 0,
        )  # fmt: skip
        if bool(context.cipher) != (keys is not None):
            raise Damaged("a record in the clear in a sealed archive, or the other way round")
        if keys and kinds[row] != MARK:
            record = opened(record, keys)
        of_path = partial(digest, "pltz part", record.key, size=4)
        if not context.cipher and part != part_of(record.about.part, of_path):
            raise Damaged("a record of another part")
        yield record


def about_of(data: bytes) -> About:
    """Return what is known about a session beside its name."""
    fields = Fields(data)
    there = fields.number(1) if data else 0
    words = [fields.take(fields.varint()) if there >> bit & 1 else b"" for bit in range(7)]
    numbers = [int.from_bytes(word, "little") for word in words[2:]]
    return About(words[0].decode(), words[1].decode(), numbers, json.loads(fields.rest() if there >> 7 else b"{}"))


def part_of(path: str, key: Callable[[bytes], bytes]) -> int:
    """Return the key of a part. ``key``: gives the digest of its path."""
    return max(1, int.from_bytes(key(path.encode()), "little")) if path else 0


def opened(record: Record, keys: Keyring) -> Record:
    """Return a sealed record in the clear; one that was erased without its segment or session."""
    c, own = record.context, keys.domain(record.context.domain)
    about = c.domain + c.root + c.tokenizer
    if record.kind in (SEGMENT, BOTH):
        head = run_of(record).size if record.mode & RUN else 0
        key = own.key(c.root, record.segment)
        what = about + c.bundle + struct.pack("<BBQ", c.method, record.mode, record.tokens)
        more = [what, record.segment, record.parent] + ([record.data[:head]] if head else [])
        plain = unseal(key, record.data[head:], b"segment", *more) if key else b""
        record = record._replace(data=record.data[:head] + plain, kind=record.kind if key else record.kind & SESSION)
    if record.kind in (SESSION, BOTH):
        unit, box = record.name[:8], record.name[8:]
        what = about + c.target + struct.pack("<BQQI", c.kind, record.moment, record.time, record.part)
        leaf = record.parent if record.segment == ROOT else record.segment
        if (key := own.key(c.root, unit)) is None:
            return record._replace(kind=record.kind & SEGMENT, key=NONE)
        fields = Fields(unseal(key, box, b"session", what, unit, leaf))
        name, known = fields.take(fields.varint()), about_of(fields.rest())
        record = record._replace(name=name, about=known, key=unit + bytes(8))
        if keyed(own.id, "pltz session", c.domain, name, size=8) != unit:
            raise Damaged("a session of another key")
        if record.part != part_of(known.part, partial(keyed, own.id, "pltz part", record.key, size=4)):
            raise Damaged("a record of another part")
    return record


def run_of(record: Record) -> Run:
    """Return what a run has in front of its bitstring."""
    fields = Fields(record.data)
    lengths = _numbers(fields, fields.varint())
    older = fields.varint()
    lacking, moments, times = (list(map(signed, _numbers(fields, older))) for _ in range(3))
    if sum(lengths) != record.tokens:
        raise Damaged("a run of other tokens")
    versions, lacks, moment = [], 0, record.moment
    for more, earlier, apart in zip(lacking, moments, times, strict=True):
        lacks, moment = lacks + more, moment - earlier
        versions.append((lacks, moment, (moment >> 20) - apart, fields.take(4)))
        if not 0 <= lacks < len(lengths):
            raise Damaged("a version outside its run")
    return Run(lengths, versions, fields.at)


def _numbers(fields: Fields, count: int) -> list[int]:
    if not count:
        return []
    least, width = fields.varint(), fields.number(1)
    bits = Bits(Fields(fields.take(count * width + 7 >> 3)))
    return [least + bits.take(width) for _ in range(count)]


# ---- archives


class Archive:
    """An archive. ``damage``: what could not be read, a line each.

    Args:
        files: by name.
        bundles: those that records name.
        secret: of a sealed archive.
        bridges: by fingerprint of their tokenizer.
    """

    def __init__(
        self, files: Files, bundles: Sequence[Bundle] = (), secret: bytes = b"", bridges: Mapping[bytes, Bridge] = {}
    ) -> None:
        self._state = state_of(files)
        self.keys = Keyring(files, self._state.archive, secret) if self._state.sealed else None
        self._bundles, self._bridges = {bundle.id: bundle for bundle in bundles}, bridges
        self._towers = dict[bytes, list[tuple[bytes, list[int]]]]()
        self._tables = dict[bytes, list[log.Table]]()  # of logs, above what stands behind a segment
        self._segments, self.versions = dict[bytes, list[Record]](), dict[bytes, dict[bytes, Version]]()
        self._marks = dict[bytes, tuple[int, bool]]()
        self.damage = [f"pack {pack.hex()} is lost" for pack in self._state.lost]
        for pack in self._state.packs:
            try:
                for record in self._pack(files, pack):
                    self._add(record)
            except (Damaged, Newer) as error:
                self.damage.append(f"pack {pack.hex()}: {error}")

    def _pack(self, files: Files, pack: bytes) -> list[Record]:
        """Return the records of a pack, which parity restores where it is damaged."""
        data = files.get(f"packs/{pack.hex()}", b"")
        if digest("pltz pack", data[:-24]) != pack:
            data = restored(files.get(f"parity/{pack.hex()}", b""), pack, data)
        return list(records_of(data, self._state.archive, pack, self.keys))

    def _add(self, record: Record) -> None:
        if record.kind == MARK:
            of, counter, verb = record.mark
            self._marks[of] = max(self._marks.get(of, (-1, False)), (counter, verb == 0))
        run = run_of(record) if record.mode & RUN else None
        if record.kind in (SEGMENT, BOTH):
            self._segments.setdefault(record.segment, []).insert(0 if run else 1 << 30, record)
        if record.kind in (SESSION, BOTH):
            leaf = record.parent if record.segment == ROOT else record.segment
            rows = [(0, record.moment, record.time, leaf[:4]), *(run.versions if run else ())]
            for lacks, moment, time, leaf in rows:
                number = digest("pltz version", record.key, struct.pack("<Q4sQI", moment, leaf, time, record.part))
                version = Version(record, number, moment, time, leaf, lacks)
                known = self.versions.setdefault(record.key, {}).get(number)
                if known is None or _counts(version) > _counts(known):
                    self.versions[record.key][number] = version

    def session_key(self, name: str, tenant: str = "default") -> bytes:
        """Return the key of a session."""
        if self.keys is None:
            return digest("pltz session", digest("pltz domain", b"\0" + tenant.encode()), name.encode())
        domain = self.keys.domain_id(0, tenant.encode())
        return keyed(self.keys.domain(domain).id, "pltz session", domain, name.encode(), size=8) + bytes(8)

    def history(self, name: str, tenant: str = "default") -> list[Version]:
        """Return the versions of a session, the oldest first, forgotten ones too."""
        found = self.versions.get(self.session_key(name, tenant), {}).values()
        return sorted(found, key=lambda version: (version.moment, version.id))

    def state(self, history: list[Version], moment: int) -> dict[str, Version]:
        """Return the newest version of each part up to a moment. Where one of that moment is forgotten, of all."""
        own = any(self.forgotten(version) for version in history if version.moment == moment)
        rows = (version for version in history if version.moment <= moment)
        return {row.record.about.part: row for row in rows if own or not self.forgotten(row)}

    def forgotten(self, version: Version) -> bool:
        """Return whether a mark forgets a version."""
        return not self._marks.get(version.id, (0, True))[1]

    def tokens(self, version: Version) -> list[int]:
        """Return the tokens of a version."""
        record = version.record
        tower = self._tower(record.parent if record.segment == ROOT else record.segment)
        tower = tower[: len(tower) - version.lacks]
        if (tower[-1][0] if tower else ROOT)[:4] != version.leaf:
            raise Damaged("a version that ends in another segment")
        return [token for _, tokens in tower for token in tokens]

    def value(self, version: Version) -> Any:
        """Return a session: the value of a chat, the bytes of a text, or a list of ids."""
        context, tokens = version.record.context, self.tokens(version)
        found: Any = bytes(tokens) if _of_bytes(context) else tokens
        return chat.session(context.kind if context.kind <= 2 else 0, found, self._bundles.get(context.bundle))

    def _tower(self, leaf: bytes) -> list[tuple[bytes, list[int]]]:
        """Return the segments of a tower from the root on: ids and tokens."""
        if leaf == ROOT:
            return []
        if leaf not in self._towers:
            failed = Damaged(f"segment {leaf.hex()} is not there")
            for record in self._segments.get(leaf, []):
                try:
                    self._towers[leaf] = self._read(record)
                    break
                except Damaged as error:
                    failed = error
            else:
                raise failed
        return self._towers[leaf]

    def _read(self, record: Record) -> list[tuple[bytes, list[int]]]:
        above, c = self._tower(record.parent), record.context
        run = run_of(record) if record.mode & RUN else Run([record.tokens], [], 0)
        tokens = self._decoded(record, record.data[run.size :], [token for _, part in above for token in part])
        tower, parent = list(above), record.parent
        for length in run.lengths:
            part, tokens = tokens[:length], tokens[length:]
            what = c.domain, c.tokenizer, parent, u32(part)
            parent = (
                keyed(self.keys.domain(c.domain).id, "pltz segment", *what)
                if self.keys
                else digest("pltz segment", *what, size=32)
            )
            parent = parent[:10]
            tower.append((parent, part))
        if parent != record.segment:
            raise Damaged("a segment that differs from its id")
        return tower

    def _decoded(self, record: Record, data: bytes, above: list[int]) -> list[int]:
        c, count = record.context, record.tokens
        if not count:
            self._tables[record.segment] = self._tables.get(record.parent, [])
            return []
        if c.method == BYTES and not _of_bytes(c):
            return list(struct.unpack(f"<{count}I", fallback(data, 4 * count)))
        if any(c.bundle) and c.bundle not in self._bundles:
            raise LookupError(f"bundle {c.bundle.hex()}")
        if c.method == BYTES:
            return list(fallback(data, count, self._bundles[c.bundle].dictionary if any(c.bundle) else b""))
        bundle, past = self._bundles[c.bundle], above if record.mode & ABOVE else []
        if c.method == LOG:
            tables = self._tables.get(record.parent, []) if record.mode & ABOVE else []
            content, self._tables[record.segment] = log.decoded(data, count, tables, bundle)
            return list(content)
        fields, patch = Fields(data), b""
        if c.tokenizer != bundle.fingerprint:
            past = self._bridges[c.tokenizer].context(past[-bundle.model.memory :])
            count = fields.varint()
            patch = fields.take(fields.varint()) if count & 1 else b""
            count >>= 1
        found = sequence_of(bundle.model, fields.rest(), count, bool(record.mode & FAST), past)
        return found if c.tokenizer == bundle.fingerprint else self._bridges[c.tokenizer].ids(found, patch)


def _of_bytes(context: Context) -> bool:
    return context.tokenizer[0] in (LOG, BYTES) and not any(context.tokenizer[2:])


def _counts(version: Version) -> tuple[bool, bool, int]:
    """Return what makes one of several records of a version count."""
    run = bool(version.record.mode & RUN)
    return run and version.leaf != version.record.segment[:4], run, version.record.tokens
