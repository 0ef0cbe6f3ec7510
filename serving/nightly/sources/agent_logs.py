"""Logs of coding agents, and what lies beside them: the files below a folder, as `pltz archive put FOLDER` has them.

A log is one session, named by its path below the folder, with one folder at least (``./-home-me-shop/4f35e220``). Files
below a folder that is named as a log beside it are parts of the session of that log: logs of sub-agents, results of
tools. Other files are sessions named by their path and the number of each in its file (``notes/0``).

Every file is stored, or refused with a reason, or counted with what leaves it out (`datasets/file_walk.py`). A log that
changed is a new version, and what is unchanged is known by a digest of its bytes: it is read, and not coded. A chat
that does not continue the stored one of its name is refused, unless ``new_version`` is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pltz.archive import Archive, ContentFacts, PutRequest, facts_of
from pltz.datasets import (
    EXCLUDE,
    NamedSession,
    ReadOptions,
    WalkedFile,
    named,
    recognise_files,
    stem_of,
    tags_of,
    tags_of_odd,
    walk,
)
from pltz.plt_codec import MAX_BYTES, UsageError
from pltz.serving.eviction.checked import Limits, Word
from pltz.serving.nightly.naming import BY_ENTRY, Naming
from pltz.serving.nightly.sources.source import (
    SHARD_BYTES,
    SHARD_SESSIONS,
    LeftOut,
    SourceEntry,
    SourceShard,
    Unreadable,
    path_setting,
)

if TYPE_CHECKING:
    from pltz.models import Bundle
    from pltz.serving.nightly.sources.source import Sink


@dataclass(frozen=True)
class AgentLogSource:
    """A folder of logs and other files, or one of them (see the top of this file).

    ``max_bytes``: of a file that is one session. ``exact``: keep the bytes of JSON where its values would not give them
    back. ``drop``: what is dropped from logs: "signatures". ``exclude``: patterns of files that are left out.
    ``new_version``: let a chat that does not continue the stored one of its name be its next version.
    """

    name: Word
    path: str = path_setting()
    naming: Naming = field(default_factory=Naming)
    max_bytes: Annotated[int, Limits(1, MAX_BYTES)] = MAX_BYTES
    exact: bool = False
    drop: str = ""
    exclude: tuple[str, ...] = EXCLUDE
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
        return ReadOptions(max_bytes=self.max_bytes, exact=self.exact, drop=drop, parts=True, long=True)

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield groups of files. Raises UsageError where there is nothing at the path."""
        root = Path(self.path)
        if not root.exists():
            raise UsageError(f"expected a log or a folder of logs, found nothing at {self.path}")
        row: list[WalkedFile] = []
        total, stem = 0, ""
        for file in walk(root, self.exclude):
            full = total + file.size > SHARD_BYTES or len(row) >= SHARD_SESSIONS
            if not file.inside.startswith(f"{stem}/"):  # the parts of a log go with it
                stem = str(PurePosixPath(file.inside).with_name(stem_of(file.inside)))
                if row and full:
                    yield self._shard(number, row)
                    row, total = [], 0
            row.append(file)
            total += file.size
        if row:
            yield self._shard(number, row)

    def _shard(self, number: int, row: list[WalkedFile]) -> SourceShard:
        return SourceShard(number, row[0].inside + (f" and {len(row) - 1} more" if len(row) > 1 else ""), tuple(row))

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable | LeftOut]:
        """Yield the sessions of a shard. Files that cannot be read are `Unreadable`, others that are left `LeftOut`."""
        told: list[Unreadable | LeftOut] = []

        def refused(why: str, file: WalkedFile) -> None:
            if Path(file.path).exists() or Path(file.path).is_symlink():  # else moved: the next run finds it
                reason = why.removeprefix(f"{file.path}: ")
                told.append(Unreadable(self._inside(file.path), reason, size=file.size or None))

        def left(file: WalkedFile) -> None:
            told.append(LeftOut(self._inside(file.path), file.rule if file.fate == "left" else "", file.why))

        options = replace(self._options(), refused=refused, left=left)
        for session in named(recognise_files(shard.parts, options, Path(self.path)), self.path):
            yield from told
            told.clear()
            yield self._entry(session)
        yield from told

    def _entry(self, session: NamedSession) -> SourceEntry:
        found = session.found
        given = found.given
        where = self._inside(found.place)
        since = found.mtime / 1e9 if found.mtime else None
        how: dict[str, Any] = {"since": since, "named": session}
        how["packing"] = found.packing and self._inside(found.packing)
        if given is not None:
            return SourceEntry(where, given.name, b"", given.tenant, given.time, **how)
        return SourceEntry(where, session.name, b"", part=found.part, **how)

    def _inside(self, path: str) -> str:
        """Return the path of a file below the folder, with the place in it that may follow."""
        inside = path.removeprefix(self.path).lstrip("/")
        return inside if inside and path != inside and inside[0] != ":" else PurePosixPath(path).name

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return a session to put. Raises UsageError."""
        session = entry.named
        assert session is not None
        found = session.found
        request = self.naming.item(entry, found.session)
        form = {} if found.given else session.tags()
        odd = tags_of_odd(found.session) if found.noun == "agent log" else {}
        return replace(
            request,
            continues=session.continues and not (self.new_version or found.given),
            part=found.part,
            content=ContentFacts(size=found.size, mtime=session.mtime),
            about=partial(facts_of, found.session, found.size, session.mtime),
            tags={**request.tags, **form, **tags_of((self.drop,), found.dropped), **odd},
        )

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the archive itself. See `EntrySource.sink`."""
        return cold
