"""The configuration of a nightly job: a TOML file, checked completely before anything is done.

Every table is a frozen dataclass, checked by its annotations. An unknown key is an error. Relative paths are relative
to the configuration's own folder.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pltz.archive import Policy, seconds
from pltz.plt_codec import LayoutName, UsageError, named_file
from pltz.serving.eviction.checked import Limits, Word, check, checked
from pltz.serving.nightly.naming import Naming
from pltz.serving.nightly.sources.registry import SOURCES
from pltz.serving.nightly.sources.source import Source
from pltz.serving.nightly.state import check_place
from pltz.serving.nightly.watch import NightWatch

if TYPE_CHECKING:
    from pltz.archive import KeySource

MAX_CONFIG = 1 << 24  # bytes
MANY = 1 << 31

EXAMPLE = """\
# pltz nightly --config nightly.toml
# Relative paths are those below this file's folder.

archive = "/data/cold"            # or "s3://bucket/prefix"; make it first: pltz archive init -r /data/cold
state = "/var/lib/pltz/nightly"   # a folder: receipts, quarantine, reports, the lock
# key_file = "/etc/pltz/key"      # of a sealed archive; or key_command = "my-vault print pltz"
# bundles = ["mini"]              # the first one codes; default: the one that ships with pltz
# threads = 1                     # cores that it uses; default: all
# layout = "fast"                 # long sessions and turns thaw sooner on a GPU and take a few per cent more bytes
# merge_turns = false             # do not join turns as a session grows: freezing takes less time, reading more
# keep_opaque = true              # keep sessions with images or audio, as plain bytes
# words = true                    # bring this user's index of words up to date, for pltz search

[[source]]                        # JSONL: a file, or every .jsonl, .ndjson (and .gz, .zst of them) below a folder
kind = "jsonl"
path = "chats"
tenant = "acme"                   # or tenant_key = "customer": a key of each session's object
name_key = "id"                   # without it a session is called FILE/LINE
# time_key = "updated"            # seconds since 1970, or 2026-01-31T12:00
# tags = { from = "chats" }
# base = "support"                # share system prompts under this name with all tenants
# new_version = true              # a line that does not continue the stored one of its name is taken, not refused

# [[source]]                      # logs of coding agents, a session per file: Claude Code, Codex, Gemini CLI, pi, ...
# kind = "agent-logs"             # and all other files below the folder, as pltz archive put has them
# path = "~/.claude/projects"
# exclude = ["*-wal", "*.lock"]   # files that are left out and counted; default: those of pltz archive put --exclude
# exact = true                    # keep the bytes of logs whose JSON is spelt in another way than pltz would.
                                  # Or drop = "signatures" drops those of thinking, and ciphertext, for good
# new_version = true              # a chat that does not continue the stored one of its name is taken, not refused

[[source]]                        # SQLite, a row per session: columns name and session, perhaps tenant and time
kind = "sqlite"
path = "app.db"
query = "SELECT id AS name, body AS session, tenant, updated AS time FROM chats"

# [[source]]                      # PostgreSQL (pip install 'pltz[postgres]')
# kind = "postgres"
# dsn = "service=chats"           # passwords: ~/.pgpass or the environment
# query = "SELECT id AS name, body AS session, updated AS time FROM chats"

# [[source]]                      # slot files of llama.cpp's server
# kind = "slots"
# path = "/data/slots"
# tokenizer = "tokenizer.json"    # of the model that the server has; or "bundle"

# [[source]]                      # the journal of the eviction hook
# kind = "journal"
# path = "/var/lib/pltz/journal"

[[retention]]                     # a version stays if any rule keeps it; several tables: each for its tenant
keep_last = 3
keep_within = "90d"
# tenant = "acme"                 # default: all tenants
# tags = { trial = "yes" }        # only versions with these tags may go
# drop_last = true                # a session's last version may go too
# keep_at_least = "180d"          # younger ones stay, whatever any of these tables says
# keep_at_most = "2y"             # older ones go, a session's last version too

[shrink]                          # what was put the fast way is coded again by the model, also without this table
budget = "1h"                     # nothing more is begun after so long; "0s": nothing at all

[collect]                         # frees what was forgotten, in two runs
grace = "7d"                      # what was forgotten can be undeleted for so long at least

[verify]                          # a part of the packs is read and decoded every night
runs = 30                         # in which all of them are, but not fewer than 8 packs a night

[watch]                           # exit code 11, and a line in the report, where
# new_session = "3d"              # nothing new came for so long
# space = "14d"                   # at the growth of the last runs the disk does not last for so long

[report]
keep = 400                        # of the last reports
"""


@dataclass(frozen=True)
class Retention:
    """A policy and the tenant whose versions it covers; None for all."""

    keep_last: Annotated[int, Limits(1, MANY)] | None = None
    keep_within: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    drop_last: bool = False
    keep_at_least: str | None = None
    keep_at_most: str | None = None
    tenant: Word | None = None

    def __post_init__(self) -> None:
        check(self)
        _ = self.policy

    @property
    def policy(self) -> Policy:
        """Return the policy. Raises UsageError."""
        ages = (self.keep_within, self.keep_at_least, self.keep_at_most)
        within, least, most = (None if age is None else seconds(age) for age in ages)
        return Policy(self.keep_last, within, dict(self.tags), self.drop_last, least, most)

    def covers(self, tenant: str) -> bool:
        """Return whether it is of the versions of a tenant."""
        return self.tenant in (None, tenant)

    def __str__(self) -> str:
        """Return it as words."""
        rules = [f"{name} {value}" for name, value in vars(self).items() if value and name not in ("tenant", "tags")]
        of = [] if self.tenant is None else [f"tenant {self.tenant}"]
        return ", ".join([*of, *(f"{key}={value}" for key, value in self.tags.items()), *rules])


@dataclass(frozen=True)
class VerifySample:
    """A check of a part of the packs. ``runs``: in which all are checked."""

    runs: Annotated[int, Limits(1, 1 << 20)] = 30


@dataclass(frozen=True)
class ShrinkSettings:
    """Coding again by the model what is in a fast form. ``budget``: for how long, a duration; of no seconds: not."""

    budget: str = "1h"

    def __post_init__(self) -> None:
        check(self)
        seconds(self.budget)


@dataclass(frozen=True)
class CollectSettings:
    """Garbage collection. ``grace``: how long what was forgotten stays, a duration."""

    grace: str = "1d"

    def __post_init__(self) -> None:
        check(self)
        seconds(self.grace)


@dataclass(frozen=True)
class ReportFiles:
    """Reports in the state folder. ``keep``: how many."""

    keep: Annotated[int, Limits(1, 1 << 20)] = 400


TABLES = {
    "shrink": ShrinkSettings,
    "collect": CollectSettings,
    "verify": VerifySample,
    "watch": NightWatch,
    "report": ReportFiles,
}


@dataclass(frozen=True)
class Config:
    """A job, its fields as the file names them. Make one with `load` or `parse`. A table that is None is not done."""

    archive: Word
    state: Word
    source: tuple[Source, ...]
    bundles: tuple[str, ...] = ()
    key_file: Word | None = None
    key_command: Word | None = None
    threads: Annotated[int, Limits(1, 1024)] | None = None
    device: Word = "cpu"
    layout: LayoutName = "default"
    keep_opaque: bool = False
    words: bool = False
    merge_turns: bool = True
    retention: tuple[Retention, ...] = ()
    shrink: ShrinkSettings = ShrinkSettings()
    collect: CollectSettings | None = None
    verify: VerifySample | None = None
    watch: NightWatch = field(default_factory=NightWatch)
    report: ReportFiles = ReportFiles()

    def __post_init__(self) -> None:
        check(self)
        check_place(self.state, self.archive)
        if not self.source:
            raise UsageError("expected at least one [[source]]")
        names = [source.name for source in self.source]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two sources are called {min(twice)!r}: give them different names")
        if self.key_file and self.key_command:
            raise UsageError("key_file and key_command exclude each other")

    def secret(self) -> KeySource | None:
        """Return the secret that opens a sealed archive, or None. Raises UsageError."""
        from pltz.archive import Secret

        return Secret.chosen(key_file=self.key_file, key_command=self.key_command)


def load(path: str | os.PathLike[str]) -> Config:
    """Return the configuration in a file. Raises UsageError, which names the place."""
    try:
        data = named_file(path, MAX_CONFIG)
        text = data.decode()
    except OSError as exc:
        raise UsageError(f"cannot read the configuration {os.fspath(path)}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{os.fspath(path)}: expected UTF-8, found byte 0x{data[exc.start]:02x}") from exc
    try:
        return parse(text, Path(path).resolve().parent)
    except UsageError as exc:
        raise UsageError(f"{os.fspath(path)}: {exc}") from exc


def parse(text: str, folder: Path) -> Config:
    """Return a configuration from TOML. ``folder``: of relative paths. Raises UsageError."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # bad TOML, a number with too many digits, nested brackets
        raise UsageError(f"expected TOML: {exc}") from exc
    where = "the top level"
    values = _resolved(table, {"archive": (), "state": (), "key_file": ()}, folder, where)
    for key, kind in TABLES.items():
        if key in values:
            values[key] = checked(kind, _tables([values[key]], key)[0], f"[{key}]")
    rules = enumerate(_tables(values.get("retention", []), "retention"), 1)
    values["retention"] = tuple(checked(Retention, rule, f"[[retention]] {n}") for n, rule in rules)
    sources = enumerate(_tables(values.get("source", []), "source"), 1)
    values["source"] = tuple(_source(source, n, folder) for n, source in sources)
    return checked(Config, values, where)


def _source(values: dict[str, Any], number: int, folder: Path) -> Source:
    """Return the source of a [[source]] table, by the fields of its class. Raises UsageError."""
    where, kind = f"[[source]] {number}", values.pop("kind", None)
    source = SOURCES.get(kind) if isinstance(kind, str) else None
    if source is None:
        raise UsageError(f"{where}: expected a kind of {', '.join(SOURCES)}, found {kind!r}")
    if "naming" in values:
        raise UsageError(f"{where}: nothing is called 'naming' here")
    values.setdefault("name", f"{kind}-{number}")
    if source.naming_keys:
        named = {key: values.pop(key) for key in source.naming_keys & values.keys()}
        values["naming"] = checked(Naming, named, where)
    paths = {one.name: one.metadata["words"] for one in dataclasses.fields(source) if "path" in one.metadata}
    return typing.cast(Source, checked(source, _resolved(values, paths, folder, where), where))


def _tables(found: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UsageError(f"expected tables as {key}, found {found!r}"[:200])
    return [dict(one) for one in found]


def _resolved(
    values: Mapping[str, Any], paths: Mapping[str, tuple[str, ...]], folder: Path, where: str
) -> dict[str, Any]:
    """Return values whose paths are absolute, but for URLs and the words that each may be. Raises UsageError."""
    found = dict(values)
    for key, words in paths.items():
        value = found.get(key)
        if not isinstance(value, str) or "://" in value or value in words:
            continue  # another type is refused by name when it is checked
        if not value or "\0" in value:
            raise UsageError(f"{where}: expected a path as {key}, found {value!r}"[:200])
        try:
            found[key] = str(folder / Path(value).expanduser())
        except RuntimeError as exc:
            raise UsageError(f"{where}: expected a path as {key}, found {value!r}: whose home is that?") from exc
    return found
