"""Logs of coding agents: every log below a folder is one session, as `pltz archive put FOLDER` makes it.

A log is named by its path below the folder, with one folder at least (``./-home-me-shop/4f35e220``). The logs in the
lines of one file, or in one list, are named as chats are (``output/0``). Files that are no logs of an agent are left
out. A log that grew is a new version, and an unchanged one is known by a digest of its bytes: it is read, and neither
parsed nor coded. A log that another one replaced is refused, unless ``new_version`` is set.

Files below a folder that is named as a log beside it are parts of the session of that log: logs of sub-agents, results
of tools. They are kept whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pltz.archive import Archive, PutRequest, facts_of
from pltz.datasets import (
    ReadOptions,
    below,
    log_name,
    logs_of,
    part_of,
    stem_of,
    tags_of,
    tags_of_file,
    without,
)
from pltz.models import Session
from pltz.plt_codec import MAX_BYTES, PltzError, UsageError
from pltz.serving.eviction.checked import Limits, Word
from pltz.serving.nightly.naming import BY_ENTRY, Naming
from pltz.serving.nightly.sources.files import files_of
from pltz.serving.nightly.sources.source import (
    SHARD_BYTES,
    SHARD_SESSIONS,
    SourceEntry,
    SourceShard,
    Unreadable,
    path_setting,
)

if TYPE_CHECKING:
    from pltz.models import Bundle
    from pltz.serving.nightly.sources.source import Sink


LOGS = (".jsonl", ".jsonl.zst", ".jsonl.gz")  # names of logs beside whose folders their parts lie


@dataclass(frozen=True)
class AgentLogSource:
    """A folder of logs, or one log (see the top of this file).

    ``max_bytes``: of a log. ``exact``: keep the bytes of JSON where its values would not give them back.
    ``drop``: what is dropped from logs: "signatures".
    ``new_version``: let a log that does not continue the stored one of its name be its next version.
    """

    name: Word
    path: str = path_setting()
    naming: Naming = field(default_factory=Naming)
    max_bytes: Annotated[int, Limits(1, MAX_BYTES)] = MAX_BYTES
    exact: bool = False
    drop: str = ""
    new_version: bool = False
    kind = "agent-logs"
    naming_keys = BY_ENTRY
    repeats = False

    def settings(self) -> list[Any]:
        """Return the settings that decide how logs are stored. See `EntrySource.settings`."""
        return [self.kind, self.exact, *([self.drop] if self.drop else []), *self.naming.settings()]

    def __post_init__(self) -> None:
        self._options()  # raises UsageError

    def _options(self) -> ReadOptions:
        drop = (self.drop,) if self.drop else ()
        return ReadOptions(max_bytes=self.max_bytes, exact=self.exact, drop=drop)

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield groups of files. Raises UsageError where there is nothing at the path."""
        root = Path(self.path)
        if not root.exists():
            raise UsageError(f"expected a log or a folder of logs, found nothing at {self.path}")
        row: list[str] = []
        total, stem = 0, ""
        for path, size in files_of(root):
            full = total + size > SHARD_BYTES or len(row) >= SHARD_SESSIONS
            if not path.startswith(f"{stem}/"):  # the parts of a log go with it
                stem = str(PurePosixPath(path).with_name(stem_of(path)))
                if row and full:
                    yield self._shard(number, row)
                    row, total = [], 0
            row.append(path)
            total += size
        if row:
            yield self._shard(number, row)

    def _shard(self, number: int, row: list[str]) -> SourceShard:
        return SourceShard(number, row[0] + (f" and {len(row) - 1} more" if len(row) > 1 else ""), tuple(row))

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable]:
        """Yield the logs of a shard as their bytes, unpacked. Files that cannot be read are `Unreadable`."""
        root, logs = Path(self.path), dict[str, str | None]()
        for inside in shard.parts:
            path = root / inside if root.is_dir() else root
            log, part = self._part_of(inside, logs)
            name = self._name_of(log)
            try:
                at = path.stat()
                since, mtime = at.st_mtime, at.st_mtime_ns
                if part:
                    data = part_of(path, self.max_bytes)
                    raw = next(raw for _, raw in logs_of(path, self.max_bytes)) if data is None else data
                    yield SourceEntry(inside, name, raw, since=since, part=part, mtime=mtime)
                    continue
                for number, raw in logs_of(path, self.max_bytes, exact=self.exact):
                    if number is None:
                        yield SourceEntry(inside, name, raw, since=since, mtime=mtime)
                    else:
                        row = f"{below(str(root), str(path))}/{number}"
                        yield SourceEntry(f"{inside}: session {number}", row, raw, since=since)
            except FileNotFoundError:
                continue  # moved since it was listed: the next run finds it in its new place
            except OSError as exc:
                yield Unreadable(inside, f"cannot be read: {exc.strerror or exc}", name)
            except PltzError as exc:
                yield Unreadable(inside, str(exc), name)

    def _part_of(self, inside: str, logs: dict[str, str | None]) -> tuple[str, str]:
        """Return the file of the log that a file belongs to, and its path as a part of that; itself and "" for a log.

        ``logs``: of folders that were looked at, the log that is named as each is.
        """
        for folder in map(str, list(PurePosixPath(inside).parents)[-2::-1]):
            if folder not in logs:
                logs[folder] = self._log_beside(folder)
            if log := logs[folder]:
                return log, inside.removeprefix(f"{folder}/")
        return inside, ""

    def _log_beside(self, folder: str) -> str | None:
        """Return the file beside a folder that has its name and is one log; None without."""
        for suffix in LOGS:
            path = Path(self.path, folder + suffix)
            with suppress(OSError, PltzError):
                if path.is_file() and [number for number, _ in logs_of(path, self.max_bytes)] == [None]:
                    return folder + suffix
        return None

    def _name_of(self, inside: str) -> str:
        """Return the name of the log that a file is, by its path below the folder."""
        root = Path(self.path)
        return log_name(self.path, str(root / inside if root.is_dir() else root))

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return a log or a part as a session to put. Raises UsageError."""
        alone = entry.name is not None and entry.name == self._name_of(entry.where)  # the log is all of its file
        session, size = without(Session("text", entry.raw), [self.drop] if self.drop else [])
        request = replace(self.naming.item(entry, session), continues=not self.new_version, part=entry.part)
        request = replace(request, content=facts_of(session, len(entry.raw), entry.mtime))
        tags = tags_of((self.drop,), size)
        if alone and not entry.part:
            tags |= tags_of_file(entry.name or "", entry.where, session, numbered=False)
        return replace(request, tags={**request.tags, **tags})

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the archive itself. See `EntrySource.sink`."""
        return cold
