"""Erases of single sessions of one tenant: the size of its key file, and the time of an access and of an erase.

    python -m pltz.benchmarks.archive.measure_erases --erases 2000
    python -m pltz.benchmarks.archive.measure_erases --erases 100000 --keys-alone

Each round puts sessions in one commit and erases as many one by one. An access reads the tenant's keys as a process
does that meets it for the first time.

In an archive the sessions of the round are erased, in random order, and `collect` runs now and then. Others were put
before and stay. They are read back at the end and compared, and the archive is verified.

With ``--keys-alone`` there is no archive. The units of records are kept in memory, and each erase makes, encodes,
seals, opens and decodes the keys as an eraser does. Any of a thousand sessions is erased next, old or new.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.box import KEY, seal, unseal
from pltz.archive.encryption.domain_keys import DomainKeys
from pltz.archive.encryption.key_files import LINEAGE
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import TENANT
from pltz.archive.format.object_names import key_copies
from pltz.archive.maintenance.verify import Verifier
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec

OWNER = "acme"
ROUND = 20  # sessions put and erased per round
STAYING = 20  # sessions that are never erased
COLLECT = 1000  # erases after which an archive is collected
AT_ONCE = 1000  # sessions of keys alone, any of which is erased next


class Figures(NamedTuple):
    """The figures measured after so many erases.

    Attributes:
        key_file: bytes of the newest key file.
        rows: keys in it.
        access_ms: milliseconds until the tenant's keys are read, median of 5, or of the round.
        erase_ms: milliseconds per erase, median of the round.
        moved: records put again under other keys so far.
    """

    erases: int
    key_file: int
    rows: int
    access_ms: float
    erase_ms: float
    moved: int


def measure(place: Path, erases: int, step: int, *, seed: int = 0) -> Iterator[Figures]:
    """Erase sessions in a new archive at a path, and yield the figures after each ``step`` erases and at the end.

    Raises ArchiveError where the archive is not sound at the end or a session that stays came back changed.
    """
    key, codec, dice = Secret(os.urandom(32), 0), BytesCodec(), random.Random(seed)
    archive = opener.create(place, [codec], key=key)
    archive.writer.put([_session(f"staying {n}") for n in range(STAYING)])
    done = moved = 0
    while done < erases:
        names = [f"session {n}" for n in range(done, min(done + ROUND, erases))]
        archive.writer.put([_session(name) for name in names])
        dice.shuffle(names)
        spent: list[float] = []
        for name in names:
            start = time.perf_counter()
            moved += Archive(archive).erase(name, tenant=OWNER).moved
            spent.append(1e3 * (time.perf_counter() - start))
            done += 1
            if done % step == 0 or done == erases:
                yield Figures(done, *_key_file(place, archive.settings.archive, key), round(median(spent), 1), moved)
        for _ in range(2 if done % COLLECT == 0 else 0):
            Archive(archive).collect()
    _check(place, key)


def measure_keys(erases: int, step: int, *, seed: int = 0) -> Iterator[Figures]:
    """Destroy the keys of a segment and a session per erase, without an archive, and yield the same figures.

    Raises ArchiveError where a key that is destroyed is there, or one that is not has gone or changed.
    """
    dice, wrap, lineage = random.Random(seed), os.urandom(KEY), os.urandom(LINEAGE)
    keys = DomainKeys(bytes(16), 0, TENANT, OWNER, os.urandom(KEY), ((0, os.urandom(KEY)),), lineages=(lineage,))
    sessions = [{dice.getrandbits(64), dice.getrandbits(64)} for _ in range(AT_ONCE)]
    records = {keys.newest: set[int]().union(*sessions)}
    done = moved = 0
    while done < erases:
        fresh = [{dice.getrandbits(64), dice.getrandbits(64)} for _ in range(min(ROUND, erases - done))]
        records.setdefault(keys.newest, set()).update(*fresh)
        sessions += fresh
        spent, accesses = list[float](), list[float]()
        for _ in fresh:
            units = sessions.pop(dice.randrange(len(sessions)))
            start = time.perf_counter()
            # As an erase does it: doom the units, then leave out the older keys of their slots.
            live = set[int]().union(*records.values())
            begun = keys.begin(os.urandom, units, live)
            keys = begun.finish(live)
            moves = begun.moves(keys, units, records)
            box = seal(wrap, keys.encode(), [b"head"])
            spent.append(1e3 * (time.perf_counter() - start))
            start = time.perf_counter()
            keys = DomainKeys.decode(bytes(16), keys.generation, unseal(wrap, box, [b"head"], "keys"), (lineage,))
            accesses.append(1e3 * (time.perf_counter() - start))
            # Records that lose the key of their slot are sealed anew.
            had = {root for root, found in records.items() if units & found}
            records = {root: found - units - moves[root] for root, found in records.items()}
            records = {root: found for root, found in records.items() if found}
            for some in moves.values():
                records.setdefault(keys.newest, set()).update(some)
                moved += len(some)
            done += 1
            if done % step == 0 or done == erases:
                # The proof: what was destroyed opens nothing, and all the rest still opens.
                there = {unit for root, found in records.items() for unit in found if keys.has(root, unit)}
                opens = any(keys.has(root, unit) for root in had for unit in units)
                if opens or not set[int]().union(*sessions) <= there:
                    raise ArchiveError("the keys are not those of the records that stay")
                access_ms, erase_ms = round(median(accesses), 2), round(median(spent), 1)
                yield Figures(done, len(box), keys.rows, access_ms, erase_ms, moved)


def _session(name: str) -> NewSession:
    return NewSession(name, [np.frombuffer(f"what was said in {name}".encode(), np.uint8)], OWNER)


def _key_file(place: Path, archive: bytes, key: Secret) -> tuple[int, int, float]:
    """Return bytes, keys and milliseconds of an access, by a process that has seen nothing yet."""
    spent = []
    for _ in range(5):
        store = opener.open_at(place, key=key).store
        keyring = Keyring(store, archive, key)
        start = time.perf_counter()
        keys = keyring.of(keyring.domain(TENANT, OWNER))
        spent.append(1e3 * (time.perf_counter() - start))
    if keys is None:
        raise ArchiveError("the keys of the tenant are gone")
    size = (place / key_copies(keys.domain, keys.generation)[0]).stat().st_size
    return size, keys.rows, round(median(spent), 2)


def _check(place: Path, key: Secret) -> None:
    archive = opener.open_at(place, [BytesCodec()], key=key)
    for n in range(STAYING):
        name = f"staying {n}"
        tower = archive.reader.tower(archive.directory.version(name, OWNER))
        if not np.array_equal(tower.tokens, _session(name).segments[0]):
            raise ArchiveError(f"{name} came back changed")
    if [v.name for v in archive.directory.ls(history=True, forgotten=True) if not v.name.startswith("staying")]:
        raise ArchiveError("an erased session is listed")
    if not Verifier(Catalog(archive.store, archive.keys), archive.codecs, archive.settings).run(decode=True).sound:
        raise ArchiveError("the archive is not sound")


def main() -> None:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--erases", type=int, default=2000, help="number of sessions to erase (2000)")
    parser.add_argument("--steps", type=int, default=10, help="number of rows (10)")
    parser.add_argument("--keys-alone", action="store_true", help="no archive, only its keys")
    parser.add_argument("--folder", help="folder for the archive, which is removed at the end (the system's)")
    given = parser.parse_args()
    print("| erases | key file, bytes | keys | access, ms | erase, ms | records moved |")
    print("|---|---|---|---|---|---|")
    step = max(1, given.erases // given.steps)
    with tempfile.TemporaryDirectory(prefix="pltz-bench-", dir=given.folder) as folder:
        place = Path(folder) / "archive"
        rows = measure_keys(given.erases, step) if given.keys_alone else measure(place, given.erases, step)
        for row in rows:
            print("|", " | ".join(f"{value:,}" for value in row), "|", flush=True)


if __name__ == "__main__":
    main()
