"""Archives: packs, runs, versions and towers, as archive/format/FORMAT.md describes them.

All packs that the manifest names are read; indexes are read only for the packs that they name. What is damaged is told,
and the rest is given.
"""

import json
import struct
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from tests.second_reader import chat, log
from tests.second_reader.bridge import Bridge
from tests.second_reader.fields import Damaged, Fields, Newer, block, column, fallback, first, refuse, signed
from tests.second_reader.model import Bundle, digest, sequence_of
from tests.second_reader.ppmd import by_ppmd
from tests.second_reader.sealed import Keyring, unseal
from tests.second_reader.state import Files, restored, state_of

PACK_VERSION, COLUMNS, NONE, ROOT = 1, range(14), bytes(16), bytes(10)
SEGMENT, SESSION, MARK = 1, 2, 4  # kinds of records; 3 is a segment and a session
ABOVE, FAST, RUN = 1, 2, 4  # bits of a mode
MODEL, LOG, BYTES, PPMD = range(4)  # methods

# What many records share. Raw: their tokens are bytes.
Context = namedtuple("Context", "content method writing sealed raw tokenizer bundle target domain root")

# What is known about a session. Numbers: turns, size, file time, first, and seconds to last.
About = namedtuple("About", "part title numbers tags")

# A record of a pack. The mode, tokens and key of a mark are its verb, its counter, and the id of its version. A run has
# several lengths, perhaps versions, and its head.
Record = namedtuple(
    "Record", "context kind segment parent leaf mode tokens data key name about moment time part lengths versions head"
)

# A version of a session. Rank: of several records of a version that of the highest counts. Leaf: the first 4 bytes.
# Lacks: how many of the last segments of its record's run it has not.
Version = namedtuple("Version", "rank record id moment time leaf lacks")


def context_of(fields: Fields) -> Context:
    """Return the next context of a table."""
    what = fields.number(1)
    content, method, base, sealed = what & 3, what >> 2 & 3, what >> 4 & 1, what >> 5 & 1
    writing = (fields.number(1) or 255) if what >> 7 else 0
    refuse(content > 2 or writing > (0 if content else chat.WRITINGS), "a context of a newer version", Newer)
    whole = method in (MODEL, PPMD) or (method == BYTES and content == 2)
    tokenizer = fields.take(16) if whole else bytes([method]) + fields.take(method == LOG).ljust(15, b"\0")
    raw = tokenizer[0] in (LOG, BYTES) and not any(tokenizer[2:])
    bundle, target = fields.take(16), fields.take(16) if what >> 6 & 1 else NONE
    domain, root = fields.unpack("16s8s") if sealed else (NONE, bytes(8))
    domain = domain if sealed else digest("pltz domain", bytes([base]), fields.sized())
    return Context(content, method, writing, sealed, raw, tokenizer, bundle, target, domain, root)


def records_of(data: bytes, archive: bytes, name: bytes, keys: Keyring | None) -> Iterator[Record]:
    """Yield the records of a pack. ``name``: its digest."""
    count, own, check = Fields(data[-24:]).unpack("I16sI")
    refuse((own, check) != (name, crc32(data[-24:-4])), "a pack with another footer")
    refuse(digest("pltz pack", data[:-20]) != name, "a pack that differs from its name")
    fields = Fields(data)
    magic, version, begin, salt, of, table, _ = fields.unpack("4sBQ8s16sII")
    refuse(magic != b"PLTp" or version != PACK_VERSION, f"a pack of version {version}", Newer)
    refuse(of != archive, "a pack of another archive")
    contexts = [context_of(fields) for _ in range(fields.varint())]
    parents = [fields.take(10) for _ in range(fields.varint())]
    at, copy = fields.at, (data[45 : fields.at] + data[:45]) * (len(data) > 4096)  # of table and header
    stop = len(data) - 24 - len(copy)
    while at < stop:
        found = block(data[:stop], at, salt, COLUMNS)
        count, at = count - len(found.bitstrings), found.end
        yield from _records(found, contexts, parents, begin, keys)
    refuse(count, "a pack of more or fewer records")
    refuse(data[stop:-24] != copy or fields.at != 45 + table, "a second table or header that differs")


def _records(
    found: Any, contexts: list[Context], table: list[bytes], begin: int, keys: Keyring | None
) -> Iterator[Record]:
    """Yield the records of a block."""
    columns, parts, bitstrings, _ = found
    kinds = columns[0]
    refuse(not {*kinds} <= {SEGMENT, SESSION, SEGMENT | SESSION, MARK}, "a record of a newer kind", Newer)
    segments = [parts.take(10) if kind & SEGMENT else ROOT for kind in kinds]
    marks = [parts.take(16) if kind == MARK else NONE for kind in kinds]
    parents = []
    for row, (how, number) in enumerate(zip(columns[2], columns[3], strict=True)):
        inline = parts.take(10) if how == 3 else ROOT
        parents.append(inline if how in (0, 3) else table[number] if how == 1 else segments[row - number])
    names, abouts = ([parts.take(size) for size in columns[column]] for column in (6, 9))
    parts.end()
    rows = zip(*(columns[number] for number in (0, 1, 4, 7, 8, 10, 11, 12, 13)), strict=True)
    for row, (kind, number, tokens, seconds, apart, mode, ticks, later, part) in enumerate(rows):
        moment, context, data = begin + (seconds << 20 | ticks), contexts[number], bitstrings[row]
        time = (moment >> 20) + (apart | later >> 1 << 32) * (1 if later & 1 else -1)
        refuse(bool(context.sealed) != bool(keys), "a record in the clear in a sealed archive, or the other way round")
        run = run_of(data, tokens, moment) if kind & SEGMENT and mode & RUN else ([tokens], [], 0)
        record = Record(
            context, kind, segments[row], parents[row], segments[row] if kind & SEGMENT else parents[row], mode, tokens,
            data[run[2] :], marks[row], names[row], abouts[row], moment, time, part, *run[:2], data[: run[2]],
        )  # fmt: skip
        yield named(opened(record, keys) if keys and kind != MARK else record, keys)


def run_of(data: bytes, tokens: int, moment: int) -> tuple[list[int], list[tuple[int, int, int, bytes]], int]:
    """Return what a run has before its bitstring: lengths, older versions (as in `Version`), and how many bytes."""
    fields, versions, lacks = Fields(data), [], 0
    lengths = column(fields, fields.varint())
    refuse(sum(lengths) != tokens, "a run of other tokens")
    older = fields.varint()
    moves = [[*map(signed, column(fields, older))] for _ in range(3) if older]
    for more, earlier, apart in [*zip(*moves, strict=True)]:
        lacks, moment = lacks + more, moment - earlier
        refuse(not 0 <= lacks < len(lengths), "a version outside its run")
        versions.append((lacks, moment, (moment >> 20) - apart, fields.take(4)))
    return lengths, versions, fields.at


def opened(record: Record, keys: Keyring) -> Record:
    """Return a sealed record in the clear; one that was erased without its segment or session."""
    c, own = record.context, keys.domain(record.context.domain)
    about = c.domain + c.root + c.tokenizer
    if record.kind & SEGMENT:
        what = about + c.bundle + struct.pack("<BBQ", c.method, record.mode, record.tokens)
        bound = [what, record.segment, record.parent] + ([record.head] if record.head else [])
        if key := own.key(c.root, record.segment):
            record = record._replace(data=unseal(key, record.data, b"segment", *bound))
        else:
            record = record._replace(kind=record.kind & SESSION, versions=[], head=b"")
    if record.kind & SESSION:
        unit, box, kind = record.name[:8], record.name[8:], c.writing + 2 if c.writing else c.content
        what = about + c.target + struct.pack("<BQQI", kind, record.moment, record.time, record.part)
        if (key := own.key(c.root, unit)) is None:
            return record._replace(kind=record.kind & SEGMENT)
        fields = Fields(unseal(key, box, b"session", what, unit, record.leaf))
        record = record._replace(name=fields.sized(), about=fields.rest())
        refuse(session_key(c.domain, record.name, keys)[:8] != unit, "a session of another key")
    return record


def named(record: Record, keys: Keyring | None) -> Record:
    """Return a record with the key of its session, if it has one, and what is known about it."""
    if not record.kind & SESSION:
        return record
    fields, domain = Fields(record.about or b"\0"), record.context.domain
    there = fields.number(1)
    words = [fields.sized() if there >> bit & 1 else b"" for bit in range(7)]
    tags = json.loads(fields.rest() if there >> 7 else b"{}")
    about = About(words[0].decode(), words[1].decode(), [int.from_bytes(word, "little") for word in words[2:]], tags)
    return record._replace(key=session_key(domain, record.name, keys), about=about)


def session_key(domain: bytes, name: bytes, keys: Keyring | None) -> bytes:
    """Return the key of a session."""
    size, key = (8, keys.domain(domain).id) if keys else (16, b"")
    return digest("pltz session", domain, name, size=size, key=key).ljust(16, b"\0")


class Archive:
    """An archive: files by name. ``damage``: what could not be read, a line each.

    It needs the bundles that records name, bridges by fingerprints of tokenizers, and the secret of a sealed one.
    """

    def __init__(
        self, files: Files, bundles: Sequence[Bundle] = (), secret: bytes = b"", bridges: Mapping[bytes, Bridge] = {}
    ) -> None:
        state = state_of(files)
        self.keys = Keyring(files, state.archive, secret) if state.sealed else None
        self._bundles, self._bridges = {bundle.id: bundle for bundle in bundles}, bridges
        self._towers: dict[bytes, list[tuple[bytes, list[int]]]] = {ROOT: []}
        self._tables: dict[bytes, list[log.Table]] = {ROOT: []}  # of logs, above what stands behind a segment
        self._segments, self.versions = dict[bytes, list[Record]](), dict[bytes, dict[bytes, Version]]()
        self._marks = dict[bytes, tuple[int, bool]]()
        self.damage = [f"pack {pack.hex()} is lost" for pack in state.lost]
        for pack in state.packs:
            data = files.get(f"packs/{pack.hex()}", b"")
            try:
                if digest("pltz pack", data[:-20]) != pack:
                    data = restored(files.get(f"parity/{pack.hex()}", b""), pack, data)
                for record in records_of(data, state.archive, pack, self.keys):
                    self._add(record)
            except (Damaged, Newer) as error:
                self.damage.append(f"pack {pack.hex()}: {error}")

    def _add(self, record: Record) -> None:
        if record.kind == MARK:
            state = record.tokens, record.mode == 0
            self._marks[record.key] = max(self._marks.get(record.key, (-1, False)), state)
        if record.kind & SEGMENT:
            self._segments.setdefault(record.segment, []).insert(0 if record.head else 1 << 30, record)
        if record.kind & SESSION:
            found = self.versions.setdefault(record.key, {})
            for lacks, moment, time, leaf in [(0, record.moment, record.time, record.leaf[:4]), *record.versions]:
                number = digest("pltz version", record.key, struct.pack("<Q4sQI", moment, leaf, time, record.part))
                rank = lacks > 0, record.head != b"", record.tokens
                version = Version(rank, record, number, moment, time, leaf, lacks)
                found[number] = max(found.get(number, version), version, key=lambda one: one.rank)

    def history(self, name: str, tenant: str = "default") -> list[Version]:
        """Return the versions of a session, the oldest first, forgotten ones too."""
        domain = digest("pltz domain", b"\0", tenant.encode(), key=self.keys.names if self.keys else b"")
        found = self.versions.get(session_key(domain, name.encode(), self.keys), {}).values()
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
        tower = self._tower(version.record.leaf)[: -version.lacks or None]
        last = tower[-1][0] if tower else ROOT
        refuse(last[:4] != version.leaf, "a version that ends in another segment")
        return [token for _, tokens in tower for token in tokens]

    def value(self, version: Version) -> Any:
        """Return a session: the value of a chat, the bytes of a text, or a list of ids."""
        context, tokens = version.record.context, self.tokens(version)
        found: Any = bytes(tokens) if context.raw else tokens
        return chat.session(context.content, found, self._bundles.get(context.bundle))

    def _tower(self, leaf: bytes) -> list[tuple[bytes, list[int]]]:
        """Return the segments of a tower from the root on: ids and tokens."""
        if leaf not in self._towers:
            self._towers[leaf] = first(self._read, self._segments.get(leaf, []))
        return self._towers[leaf]

    def _read(self, record: Record) -> list[tuple[bytes, list[int]]]:
        tower, c, parent = [*self._tower(record.parent)], record.context, record.parent
        tokens = self._decoded(record, [token for _, part in tower for token in part])
        key = self.keys.domain(c.domain).id if self.keys else b""
        for length in record.lengths:
            part, tokens = tokens[:length], tokens[length:]
            what = c.domain, c.tokenizer, parent, bytes(part) if c.raw else struct.pack(f"<{length}I", *part)
            parent = digest("pltz segment", *what, size=32, key=key)[:10]
            tower.append((parent, part))
        refuse(parent != record.segment, "a segment that differs from its id")
        return tower

    def _decoded(self, record: Record, above: list[int]) -> list[int]:
        c, count, data, past = record.context, record.tokens, record.data, above if record.mode & ABOVE else []
        tables = self._tables[record.segment] = self._tables.get(record.parent, [])
        if not count:
            return []
        if c.method == BYTES and not c.raw:
            width = Fields(data).number(1)
            refuse(not 0 < width <= 4, "ids of no width")
            rows = by_ppmd(data[1:], width * count, primer=b"")
            return [int.from_bytes(rows[at : at + width]) for at in range(0, len(rows), width)]
        bundle = self._bundles[c.bundle] if any(c.bundle) else None
        if c.method == BYTES:
            return list(fallback(data, count, bundle.dictionary if bundle else b""))
        if c.method == LOG:
            before = [bytes(tokens) for _, tokens in self._tower(record.parent)]
            found, self._tables[record.segment] = log.decoded(
                data, count, tables if record.mode & ABOVE else [], bundle, before
            )
            return list(found)
        if bundle is None:
            raise LookupError("tokens without a bundle")
        if c.method == PPMD:
            last = struct.pack(f">{len(past[-4096:])}H", *past[-4096:])
            return [*struct.unpack(f">{count}H", by_ppmd(data, 2 * count, last, bundle.primer))]
        layout = bool(record.mode & FAST)
        if c.tokenizer == bundle.fingerprint:
            return sequence_of(bundle.model, data, count, layout, past)
        fields = Fields(data)
        count, patched = divmod(fields.varint(), 2)
        patch = fields.sized() if patched else b""
        return self._bridges[c.tokenizer].ids(sequence_of(bundle.model, fields.rest(), count, layout), patch)
