"""BulkJournal: the results of finished shards in a folder, so that bulk work that was stopped goes on where it was.

    journal = BulkJournal(open_store(folder))
    journal.keep(shard, {"records": 12, "ids": array})
    journal.find(shard)                    # None: not finished in the last day, or its file is damaged

A shard is known by its name, which is a digest of the work, of the things in it and of their state. A changed shard
has another name and is done again. A result has JSON values and numpy arrays and is read without pickle.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pltz.archive.format.object_names import BULK, TEMPORARY
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.places import open_store
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.plt_codec.identity import SIZE, digest

SHARDS = "shards"
PERSON = b"pltz bulk shard"
FACTS, KEPT = "facts", "kept"  # KEPT: seconds since 1970
LASTS = 86400  # seconds for which a result counts: what was sound then may be damaged since
MOST_BYTES = 1 << 30  # of a result

Result = dict[str, Any]  # JSON values and arrays


class BulkJournal:
    """The finished shards of one piece of work."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._there = set(store.list(SHARDS))

    @classmethod
    def at(cls, place: str) -> BulkJournal:
        """Return the journal in a folder, which is made where there is none, or at ``s3://bucket/prefix``.

        Raises StoreError, UsageError.
        """
        if place.startswith("s3://"):
            return cls(open_store(place))
        os.makedirs(place, mode=0o700, exist_ok=True)
        disk = OsDisk(place)
        for folder in (SHARDS, BULK, TEMPORARY):
            disk.make_directory(folder)
        return cls(DirectoryStore(disk, reserve=False))

    def find(self, shard: str) -> Result | None:
        """Return the result of a shard; None where it is not there, not whole, or a day old. Raises StoreError."""
        if shard not in self._there:
            return None
        try:
            data = self.store.read(f"{SHARDS}/{shard}", 0, MOST_BYTES)
        except FileNotFoundError:
            return None
        body = data[SIZE:]
        if digest(PERSON, shard.encode(), body) != data[:SIZE]:
            return None
        found = _unpacked(body)
        kept = found.pop(KEPT, None) if found else None
        return found if isinstance(kept, int) and 0 <= self.store.now() - kept <= LASTS else None

    def keep(self, shard: str, result: Result) -> None:
        """Keep the result of a shard. One that is too large is not kept. Raises StoreError, WriterFailed."""
        body = _packed({**result, KEPT: self.store.now()})
        if len(body) + SIZE > MOST_BYTES:
            return
        data = digest(PERSON, shard.encode(), body) + body
        if not self.store.put(f"{SHARDS}/{shard}", data):  # another result, or a damaged one
            self.store.delete(f"{SHARDS}/{shard}")
            self.store.put(f"{SHARDS}/{shard}", data)
        self._there.add(shard)

    def clear(self) -> None:
        """Remove all that is in it, as the work is done. Raises StoreError."""
        for shard in self.store.list(SHARDS):
            self.store.delete(f"{SHARDS}/{shard}")
        self._there.clear()


def journal_folder(work: bytes) -> str:
    """Return the folder where the journal of a piece of work is kept by default. ``work``: its id."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return str(Path(state) / "pltz" / "bulk" / work.hex())


def _packed(result: Result) -> bytes:
    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    facts = json.dumps({name: value for name, value in result.items() if name not in arrays})
    arrays[FACTS] = np.frombuffer(facts.encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)
    return out.getvalue()


def _unpacked(data: bytes) -> Result | None:
    """Return a result; None where these are no bytes of one, though their digest is right."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        facts = json.loads(arrays.pop(FACTS).tobytes())
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile, RecursionError):
        return None
    return facts | arrays if isinstance(facts, dict) else None
