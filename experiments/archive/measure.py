"""The measurements of `pltz.experiments archive`, one function per question: it takes sizes and returns figures.

The archive is measured, not a model. `ReadyCodec` returns bitstrings made beforehand and knows the tokens of each. So
all work of the archive itself is timed: naming, looking up, laying out, reading back, decoding and comparing, fsync.
Peers run in the same process: plain appends of the same bitstrings with the same fsyncs, the hash alone, reading alone.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.stat import stat_of
from pltz.archive.encryption.keys import Secret
from pltz.archive.format import index_file
from pltz.archive.format.ids import Tokens
from pltz.archive.format.index_file import SEGMENTS, SESSIONS, FileIndex
from pltz.archive.format.pack import MAX_SIZE
from pltz.archive.maintenance.collect import Collector
from pltz.archive.maintenance.verify import Verifier
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.put_request import PutRequest
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.transcript import to_tokens_many
from pltz.plt_codec.child_python import command, environment
from pltz.plt_codec.errors import CorruptError, ModelError
from pltz.plt_codec.identity import SIZE

SHORT, LONG = (530, 200), (4000, 1500)  # tokens and bytes: a mean chat, a session of 4000 tokens
PROMPT = 1000, 375  # a shared prompt
COMMIT = 16384  # sessions
PROMPTS = 50
APART = "turn by turn, apart"  # turns that puts do not join
HEAD = struct.Struct("<II")
LOOKUPS = 20_000
U64 = index_file.U64


class ReadyCodec(SegmentCodec):
    """A codec of random tokens and random bitstrings. The first bytes of either are its number, which pairs them."""

    fast = False
    reach = 0
    mode, contract, bundle_id, tokenizer = 0, 1, b"bench of archive", b"ready tokenizer."

    def __init__(self, seed: int = 0) -> None:
        self._dice = np.random.default_rng(seed)
        self._first = 0
        self._known: list[tuple[Tokens, bytes]] = []
        self.sealed = 0  # the number of segments that `drop` keeps

    def make(self, tokens: int, size: int) -> Tokens:
        """Make a new segment (tokens,) that is coded in ``size`` bytes."""
        number = self._first + len(self._known)
        ids = self._dice.integers(0, 1 << 16, tokens, dtype=np.uint32)
        ids[0], ids[1] = number & 0xFFFF, number >> 16
        self._known.append((ids, number.to_bytes(4, "little") + self._dice.bytes(size - 4)))
        return ids

    def keep(self) -> None:
        """Keep the segments made so far when `drop` forgets the rest."""
        self.sealed = len(self._known)

    def drop(self) -> None:
        """Forget all segments but the kept ones."""
        self._first += len(self._known) - self.sealed
        del self._known[self.sealed :]

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        """Return the bitstrings that were made for these segments."""
        heads = [HEAD.unpack_from(p.tokens.data) for p in batch]
        return [self._at(low | high << 16)[1] for low, high in heads]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        """Return the tokens (T,) of each bitstring.

        Raises:
            CorruptError: a bitstring is not one that was made.
        """
        found = [self._at(int.from_bytes(c.data[:4], "little")) for c in batch]
        if [data for _, data in found] != [c.data for c in batch]:
            raise CorruptError("not one of the bitstrings that were made: damaged")
        return [tokens for tokens, _ in found]

    def _at(self, number: int) -> tuple[Tokens, bytes]:
        at = number if number < self.sealed else number - self._first
        if not 0 <= at < len(self._known):
            raise CorruptError("not one of the bitstrings that were made: damaged")
        return self._known[at]


def put(folder: Path, sessions: int, writers: int, key: Secret | None = None) -> dict[str, Any]:
    """Put sessions of one new segment each below a shared prompt, by several processes, in commits of `COMMIT`.

    ``key``: secret of a sealed archive, None for one without encryption.
    """
    place = folder / f"put-{writers}"
    opener.create(place, [ReadyCodec()], key=key)
    share = -(-sessions // writers)
    context = multiprocessing.get_context("spawn")
    with context.Pool(writers) as pool:
        done = pool.starmap(_write, [(place, share, who, key) for who in range(writers)], chunksize=1)
    appended = [_append(folder / "log", share)] if writers == 1 else []
    names = sum(d["name_bytes"] for d in done)
    return {
        "writers": writers,
        "sessions": share * writers,
        "bitstring_bytes": sum(d["bytes"] for d in done),
        "name_bytes": names,
        "per_s": round(sum(share / d["wall_s"] for d in done)),
        "per_cpu_s": round(sum(share / d["cpu_s"] for d in done)),
        "commit": COMMIT,
        "plain_appends_per_s": round(share / appended[0]) if appended else None,
        "place": str(place),
    }


def _write(place: Path, sessions: int, who: int, key: Secret | None) -> dict[str, Any]:
    """Run one writer. Only `put` is timed, not the making of its input."""
    codec = ReadyCodec(who)
    prompts = [codec.make(*PROMPT) for _ in range(PROMPTS)]
    codec.keep()
    archive = opener.open_at(place, [codec], key=key)
    wall = cpu = 0.0
    total = names = 0
    for begin in range(0, sessions, COMMIT):
        batch = list(_sessions(codec, prompts, f"{who}-", begin, min(COMMIT, sessions - begin)))
        codec_bytes = [LONG[1] if n % 2 else SHORT[1] for n in range(len(batch))]
        start, spent = time.perf_counter(), time.process_time()
        receipts = archive.writer.put(batch)
        wall, cpu = wall + time.perf_counter() - start, cpu + time.process_time() - spent
        assert len(receipts) == len(batch)
        total, names = total + sum(codec_bytes), names + sum(len(s.name) for s in batch)
        codec.drop()
    return {"wall_s": wall, "cpu_s": cpu, "bytes": total + PROMPTS * PROMPT[1], "name_bytes": names}


def _sessions(
    codec: ReadyCodec, prompts: list[Tokens], prefix: str, begin: int, count: int
) -> Iterator[NewSession]:
    for n in range(count):
        turn = codec.make(*(LONG if n % 2 else SHORT))
        yield NewSession(f"{prefix}{begin + n}", [prompts[n % len(prompts)], turn], "acme", 1)


def _append(folder: Path, sessions: int) -> float:
    """Return the seconds to append the same bitstrings to files one by one, with the same fsyncs.

    These are one file and two folders per commit.
    """
    folder.mkdir()
    seconds = 0.0
    dice = np.random.default_rng(0)
    for begin in range(0, sessions, COMMIT):
        count = min(COMMIT, sessions - begin)
        rows = [dice.bytes((LONG if n % 2 else SHORT)[1]) for n in range(count)]
        start = time.perf_counter()
        with (folder / str(begin)).open("xb") as file:
            for row in rows:
                file.write(row)
            file.flush()
            os.fsync(file.fileno())
        for at in (folder, folder.parent):
            handle = os.open(at, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        seconds += time.perf_counter() - start
    return seconds


def overhead(place: Path, figures: dict[str, Any], key: Secret | None = None) -> dict[str, Any]:
    """Return the bytes per session beside bitstrings and names, after one index over all, and after collection too."""
    archive = opener.open_at(place, [ReadyCodec()], key=key)
    archive.indexes.write()
    before = _overhead(archive, figures)
    for _ in range(2):  # condemn, then delete
        Collector(archive.catalog, archive.writer, archive.indexes).run(small=MAX_SIZE)
    archive.indexes.write()
    return {**before, "collected": _overhead(archive, figures)}


def _overhead(archive: opener.OpenArchive, figures: dict[str, Any]) -> dict[str, Any]:
    stat = stat_of(archive.catalog, archive.settings.archive)
    n = figures["sessions"]
    packs = (stat.pack_bytes - figures["bitstring_bytes"] - figures["name_bytes"]) / n
    return {
        "packs_bytes_per_session": round(packs, 2),
        "index_bytes_per_session": round(stat.index_bytes / n, 2),
        "bytes_per_session": round(packs + stat.index_bytes / n, 2),
        "index_bytes_per_entry": round(stat.index_bytes / (stat.segments + stat.sessions), 2),
        "packs": stat.packs,
    }


def reading(place: Path, key: Secret | None = None) -> dict[str, Any]:
    """Measure warm lookups of records through the index, and verify next to reading and hashing the same bytes."""
    archive = opener.open_at(place, [ReadyCodec()], key=key)
    catalog = archive.catalog
    keys, numbers, offsets = next(iter(catalog.listing.indexes.values())).columns(SEGMENTS)
    names = next(iter(catalog.listing.indexes.values())).names
    chosen = np.random.default_rng(1).integers(0, len(keys), LOOKUPS).tolist()
    ids = []
    for n in chosen:
        _, block = catalog.lookup.block(index_file.Location(names[int(numbers[n])], int(offsets[n])))
        there = [i for i in block.ids() if i is not None]
        ids.append(there[n % len(there)])
    found = _spans(lambda i: catalog.lookup.find(SEGMENTS, i), ids)
    absent = _spans(lambda i: catalog.lookup.find(SEGMENTS, i), [os.urandom(SIZE) for _ in range(LOOKUPS)])
    start = time.perf_counter()
    report = Verifier(Catalog(archive.store, archive.keys), archive.codecs, archive.settings).run()
    spent = time.perf_counter() - start
    size = sum(catalog.listing.packs.values())
    read, hashed = _rates(place / "packs")
    return {
        "lookups": LOOKUPS,
        "found_p50_us": found[0],
        "found_p99_us": found[1],
        "found_cpu_p99_us": found[2],
        "absent_p50_us": absent[0],
        "absent_p99_us": absent[1],
        "verify_mb_s": round(size / spent / 1e6, 1),
        "verify_sound": report.sound,
        "read_mb_s": read,
        "hash_mb_s": hashed,
    }


def _rates(folder: Path) -> tuple[float, float]:
    """Return the MB/s of reading files that are not in the page cache, and of hashing them when they are."""
    paths = sorted(folder.iterdir())
    size = sum(p.stat().st_size for p in paths)
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    for path in paths:
        path.read_bytes()
    read = time.perf_counter() - start
    spent = 0.0
    for path in paths:
        data = path.read_bytes()
        start = time.perf_counter()
        hashlib.blake2b(data, digest_size=SIZE).digest()
        spent += time.perf_counter() - start
    return round(size / read / 1e6, 1), round(size / spent / 1e6, 1)


def _spans(call: Any, arguments: Sequence[bytes]) -> tuple[float, float, float]:
    """Return microseconds of one call, after each call was made once: median, 99th percentile, that of processor time.

    The processor time does not count what other processes take from this one, the interruption itself aside.
    """
    spans: list[tuple[int, int]] = []
    for _ in range(2):
        spans.clear()
        for argument in arguments:
            start, spent = time.perf_counter_ns(), time.thread_time_ns()
            call(argument)
            spans.append((time.perf_counter_ns() - start, time.thread_time_ns() - spent))
    wall, cpu = np.array(spans).T / 1000
    return tuple(np.round([*np.percentile(wall, [50, 99]), np.percentile(cpu, 99)], 1).tolist())


class _Synthetic:
    """Entries for `index_file.build`: half segments, half sessions, in random blocks of 128 KiB of packs of 64 MiB."""

    def __init__(self, entries: int):
        dice = np.random.default_rng(2)
        self.packs = {dice.bytes(SIZE): 64 << 20 for _ in range(max(1, entries // 200_000))}
        self.names = list(self.packs)
        half = entries // 2
        self._columns = [
            (
                dice.integers(0, 1 << index_file.KEY_BITS, half, dtype=np.uint64),
                dice.integers(0, len(self.names), half, dtype=np.uint64),
                dice.integers(0, 512, half, dtype=np.uint64) << np.uint64(17),
            )
            for _ in (SEGMENTS, SESSIONS)
        ]

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return keys, packs and places of a section, (entries,) each."""
        return self._columns[section] if section < 2 else (np.zeros(0, np.uint64),) * 3


OPENER = """
import json, os, sys, time
import numpy as np
from pltz.archive.format.index_file import KEY_BITS, FileIndex, SEGMENTS
from pltz.archive.storage.disk import OsFile
def resident(kind):
    lines = open("/proc/self/status").read().splitlines()
    return next((int(l.split()[1]) / 1024 for l in lines if l.startswith(kind + ":")), None)
path, keys = sys.argv[1], np.load(sys.argv[2])
FileIndex  # loaded before the clock starts
before = resident("VmRSS")
start = time.perf_counter()
found = FileIndex(OsFile(path))
opened = time.perf_counter() - start
out = {"entries": len(found), "open_ms": round(1000 * opened, 3)}
out |= {"resident_before_mb": before, "resident_opened_mb": resident("VmRSS")}
ids = [(int(k) << 64 - KEY_BITS).to_bytes(8, "big") + bytes(8) for k in keys]
for kind, chosen in (("found", ids), ("absent", [os.urandom(16) for _ in ids])):
    for turn in range(2):
        spans, hits = [], 0
        for i in chosen:
            begin = time.perf_counter_ns()
            places = found.find(SEGMENTS, i)
            spans.append(time.perf_counter_ns() - begin)
            hits += bool(places)
    p50, p99 = np.percentile(spans, [50, 99]) / 1000
    out |= {kind + "_p50_us": round(p50, 1), kind + "_p99_us": round(p99, 1), kind + "_hits": hits}
out |= {"resident_after_mb": resident("VmRSS"), "of_which_private_mb": resident("RssAnon")}
print(json.dumps(out))
"""


def opening(folder: Path, entries: int) -> dict[str, Any]:
    """Open an index of so many entries in a process of its own, and measure time, memory and lookups."""
    made = _Synthetic(entries)
    start = time.perf_counter()
    data = index_file.build([made], made.packs)  # type: ignore[list-item]
    built = time.perf_counter() - start
    (folder / "index").write_bytes(data)
    assert len(FileIndex.of(data)) <= entries
    np.save(folder / "keys.npy", made.columns(SEGMENTS)[0][:LOOKUPS])
    done = subprocess.run(
        command(OPENER, folder / "index", folder / "keys.npy"),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        **json.loads(done.stdout),
        "bytes_per_entry": round(len(data) / entries, 2),
        "build_s": round(built, 2),
    }


def growing(folder: Path, bundle: Bundle, turns: int, tokens: int, together: int) -> list[dict[str, Any]]:
    """Measure sessions that grow by `tokens` tokens in each of `turns` puts, coded by a bundle on the CPU.

    Four rows, the favourable case first: one session in one put, one turn by turn whose turns the puts join, one whose
    turns stay apart, and `together` sessions side by side, the turns of all in one commit. Seconds and bytes are
    cumulative after each put. Bytes are those of all files beside the ones of an archive with one short session. At the
    end they are counted after a collection too, which joins what lies apart. Each session is read back after that.

    Raises:
        ModelError: a session came back changed.
    """
    from pltz.datasets import sample_sessions

    stream = np.concatenate(to_tokens_many(list(sample_sessions()), bundle.tokenizer)).astype(np.int32)
    whole = turns * tokens
    ids = [np.take(stream, np.arange(n * whole, (n + 1) * whole), mode="wrap") for n in range(together)]
    ends = [tokens * n for n in range(1, turns + 1)]
    one = ids[:1]
    cases = (("one put", [whole], one), ("turn by turn", ends, one), (APART, ends, one), ("side by side", ends, ids))
    return [_grown(folder / way.replace(" ", "-"), bundle, way, steps, sessions) for way, steps, sessions in cases]


def _grown(
    place: Path, bundle: Bundle, way: str, ends: Sequence[int], sessions: Sequence[npt.NDArray[np.int32]]
) -> dict[str, Any]:
    archive = Archive.open(place, create=True, bundle=bundle, model_ids=True, merge_turns=way != APART)
    # The first put loads the bundle, and is not timed.
    archive.put("warm", sessions[0][::-1][:100].copy(), tenant="another")
    empty = _bytes_of(place)
    seconds, stored, spent = [], [], 0.0
    for end in ends:
        requests = [PutRequest(str(n), ids[:end]) for n, ids in enumerate(sessions)]
        start = time.perf_counter()
        list(archive.put_many(requests))
        spent += time.perf_counter() - start
        seconds.append(round(spent, 6))
        stored.append(round((_bytes_of(place) - empty) / len(sessions), 1))
    collected, read = _collected(place, archive, sessions)
    return {
        "way": way,
        "sessions": len(sessions),
        "puts": len(ends),
        "tokens": ends[-1],
        "tokens_after_put": list(ends),
        "seconds_after_put": seconds,
        "bytes_per_session_after_put": stored,
        "bytes_per_session": stored[-1],
        "bytes_per_session_collected": round((collected - empty) / len(sessions), 1),
        "puts_per_s": round(len(ends) * len(sessions) / spent, 2),
        "tokens_per_s": round(ends[-1] * len(sessions) / spent, 1),
        "read_s_per_session": round(read / len(sessions), 3),
    }


def _collected(place: Path, archive: Archive, sessions: Sequence[npt.NDArray[np.int32]]) -> tuple[int, float]:
    """Collect an archive; return its bytes, and the seconds to read its sessions back. Raises ModelError."""
    for _ in range(2):  # condemn, then delete
        archive.collect()
    archive.parts.indexes.write()
    start = time.perf_counter()
    back = [archive.get(str(n)).ids for n in range(len(sessions))]
    read = time.perf_counter() - start
    if not all(np.array_equal(a, b) for a, b in zip(back, sessions, strict=True)):
        raise ModelError("a session came back changed from the archive: no figure of this run is valid")
    return _bytes_of(place), read


def _bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def sharing(folder: Path, most: int, prompts: Sequence[int]) -> list[dict[str, Any]]:
    """Measure the paper's Table 1 with frozen sessions: bytes per session, all files counted, as the sessions grow.

    A tower is the platform's prompt, one of ``prompts`` below it, and the session's own turns. Flat (``prompts`` None)
    stores the same tokens as one segment per session.
    """
    steps = [n for n in (500, 5_000, 50_000, 500_000) if n <= most]
    return [row for p in (None, *prompts) for row in _grow(folder / f"share-{p}", steps, p)]


def _grow(place: Path, steps: Sequence[int], prompts: int | None) -> Iterator[dict[str, Any]]:
    codec = ReadyCodec()
    platform = codec.make(*PROMPT)
    shared = [codec.make(*PROMPT) for _ in range(prompts or 0)]
    codec.keep()
    archive = opener.create(place, [codec])
    count = 0
    for step in steps:
        while count < step:
            batch = []
            for n in range(count, min(step, count + COMMIT)):
                if prompts:
                    batch.append(
                        NewSession(f"s{n}", [platform, shared[n % prompts], codec.make(*SHORT)], "acme", 2)
                    )
                else:
                    tokens, size = (2 * p + s for p, s in zip(PROMPT, SHORT, strict=True))
                    batch.append(NewSession(f"s{n}", [codec.make(tokens, size)], "acme"))
            archive.writer.put(batch)
            count += len(batch)
            codec.drop()
        archive.indexes.write()
        stat = stat_of(archive.catalog, archive.settings.archive)
        size = stat.pack_bytes + stat.index_bytes
        yield {
            "prompts": prompts,
            "sessions": count,
            "bytes": size,
            "bytes_per_session": round(size / count, 1),
        }
