"""Sessions in slot files of llama.cpp's ``llama-server`` (``POST /slots/ID?action=save``).

Only their token ids are read. A session is named by its file, and each file holds one. The file does not name
the tokenizer of its ids, so the configuration must. ``tokenizer`` is the tokenizer.json of the server's
model, or "bundle" for ids of the bundle itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive import Archive, PutReceipt, PutRequest
from pltz.models import Session
from pltz.plt_codec import MAX_TOKENIZER, PltzError, UsageError, named_file
from pltz.serving.eviction.checked import Word
from pltz.serving.nightly.naming import BY_ENTRY, Naming
from pltz.serving.nightly.sources.source import SHARD_SESSIONS, SourceEntry, SourceShard, Unreadable, path_setting

if TYPE_CHECKING:
    from pltz.models import Bundle
    from pltz.serving.nightly.sources.source import Sink

BUNDLE = "bundle"
COMMIT = 256  # sessions per put


@dataclass(frozen=True)
class SlotSource:
    """A folder of slot files (see the top of this file). ``suffix``: of the slot files; "" for all files."""

    name: Word
    path: str = path_setting()
    tokenizer: str = path_setting(BUNDLE)
    naming: Naming = field(default_factory=Naming)
    suffix: str = ".bin"
    kind = "slots"
    naming_keys = BY_ENTRY
    repeats = False

    def settings(self) -> list[Any]:
        """Return the settings that decide how ids are stored. See `EntrySource.settings`."""
        return [self.kind, self.tokenizer, *self.naming.settings()]

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield groups of files. Raises UsageError where there is no such folder."""
        root = Path(self.path)
        if not root.is_dir():
            raise UsageError(f"expected a folder of slot files, found none at {self.path}")
        with os.scandir(root) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(self.suffix) and _is_file(e))
        for start in range(0, len(names), SHARD_SESSIONS):
            row = names[start : start + SHARD_SESSIONS]
            yield SourceShard(number, row[0] + (f" and {len(row) - 1} more" if len(row) > 1 else ""), tuple(row))

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable]:
        """Yield the ids of each file, as 4-byte little-endian integers. Files that cannot be read are
        `Unreadable`."""
        from pltz.serving.engines.llama_slots import read_slot_ids

        for name in shard.parts:
            path = Path(self.path, name)
            try:
                since = path.stat().st_mtime
                ids = read_slot_ids(path)
            except FileNotFoundError:
                continue
            except (PltzError, OSError) as exc:
                yield Unreadable(name, str(exc), name.removesuffix(self.suffix))
                continue
            yield SourceEntry(name, name.removesuffix(self.suffix), ids.astype("<i4").tobytes(), since=since)

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return a file's ids as a session to put. Raises ContentError."""
        return self.naming.item(entry, Session("ids", np.frombuffer(entry.raw, "<i4")))

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the destination: the archive itself for the bundle's own ids, else a bridge to it.

        Raises UsageError and ModelError.
        """
        if self.tokenizer == BUNDLE:
            return cold
        try:
            data = named_file(self.tokenizer, MAX_TOKENIZER)
        except OSError as exc:
            why = f"cannot read the tokenizer {self.tokenizer}: {exc.strerror or exc}"
            raise UsageError(why) from exc
        return _Bridged(cold, data)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a file or a link to one.

    A circular link is no file, and does not fail the whole folder.
    """
    try:
        return entry.is_file()
    except OSError:
        return False


class _Bridged:
    """An archive that accepts ids of another tokenizer."""

    def __init__(self, cold: Archive, tokenizer_json: bytes) -> None:
        self._cold, self._tokenizer = cold, cold.codecs.add(tokenizer_json)

    def put_many(self, requests: Iterable[PutRequest], *, keep_opaque: bool = False) -> Iterator[PutReceipt]:
        """Put sessions as `Archive.put_many` does: yielded ones are durable."""
        named = (replace(request, tokenizer=self._tokenizer) for request in requests)
        return self._cold.put_many(named, keep_opaque=keep_opaque)
