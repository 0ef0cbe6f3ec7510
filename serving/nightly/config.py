"""The configuration of a nightly job: a TOML file, checked completely before anything is done.

Every table is a frozen dataclass. An unknown key is an error, and so is a value of another type. Relative
paths are relative to the configuration's own folder.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.archive.maintenance.cluster import MEDOIDS
from pltz.archive.retention import Policy, seconds
from pltz.archive.writing.candidates import MOST
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.lanes import LAYOUTS, LayoutName
from pltz.plt_codec.limits import MAX_BYTES, ZSTD_ABOVE
from pltz.plt_codec.named_file import named_file
from pltz.serving.nightly.naming import Naming
from pltz.serving.nightly.sources.registry import SOURCES
from pltz.serving.nightly.sources.source import Source
from pltz.serving.nightly.state import check_place

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret

MAX_CONFIG = 1 << 24  # bytes
TYPES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}

EXAMPLE = """\
# pltz nightly --config nightly.toml
# Relative paths are those below this file's folder.

archive = "/data/cold"            # or "s3://bucket/prefix"; make it first: pltz archive init /data/cold
state = "/var/lib/pltz/nightly"   # a folder: receipts, quarantine, reports, the lock
# key_file = "/etc/pltz/key"      # of a sealed archive; or key_command = "my-vault print pltz"
# bundles = ["mini"]              # the first one codes; default: the one that ships with pltz
# threads = 1                     # cores that it uses; default: all
# layout = "fast"                 # long sessions and turns thaw sooner on a GPU and take a few per cent more bytes
# zstd_above = 1048576            # larger sessions (bytes) go to zstd, not to the model; default: 4194304
# merge_turns = false             # do not join turns as a session grows: freezing takes less time, reading more
# keep_opaque = true              # keep sessions with images or audio, as plain bytes

[[source]]                        # JSONL: a file, or every .jsonl, .ndjson (and .gz, .zst of them) below a folder
kind = "jsonl"
path = "chats"
tenant = "acme"                   # or tenant_key = "customer": a key of each session's object
name_key = "id"                   # without it a session is called FILE/LINE
# time_key = "updated"            # seconds since 1970, or 2026-01-31T12:00
# tags = { from = "chats" }
# base = "support"                # share system prompts under this name with all tenants
# new_version = true              # a line that does not continue the stored one of its name, as with agent-logs

# [[source]]                      # logs of coding agents, a session per file: Claude Code, Codex, Gemini CLI, pi, ...
# kind = "agent-logs"
# path = "~/.claude/projects"
# exact = true                    # keep the bytes of logs whose JSON is spelt in another way than pltz would.
                                  # Or drop = "signatures" drops those of thinking, and ciphertext, for good
# new_version = true              # a log that does not continue the stored one of its name is taken, not refused

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

[collect]                         # frees what was forgotten, in two runs
grace = "7d"                      # what was forgotten can be undeleted for so long at least

[merge]                           # sessions that grew are rewritten, so that they are read sooner
cold = "7d"                       # after their newest version

[cluster]                         # new sessions are coded after earlier ones of their tenant where that is shorter
medoids = 64                      # per tenant: sessions that serve the others so, chosen anew as these change

[verify]                          # a sample is read and decoded every night
share = 0.02                      # of the packs, but 8 at least
max_seconds = 600

[report]
keep = 400                        # of the last reports
"""


@dataclass(frozen=True)
class Retention:
    """A policy and the tenant whose versions it covers; None for all."""

    policy: Policy
    tenant: str | None = None


@dataclass(frozen=True)
class VerifySample:
    """A check of a sample. ``share``: of the packs, 0 to 1."""

    share: float = 0.02
    max_seconds: int = 600


@dataclass(frozen=True)
class Config:
    """A job. Make one with `load` or `parse`."""

    archive: str
    state: str
    sources: tuple[Source, ...]
    bundles: tuple[str, ...] = ()
    key_file: str | None = None
    key_command: str | None = None
    threads: int | None = None
    device: str = "cpu"
    layout: LayoutName = "default"
    keep_opaque: bool = False
    zstd_above: int = ZSTD_ABOVE
    retention: tuple[Retention, ...] = ()
    grace: int | None = None  # seconds; None: no garbage collection
    verify: VerifySample | None = None
    cold: int | None = None  # seconds; None: no merge
    medoids: int | None = None  # per tenant; None: sessions are coded without neighbours
    keep_reports: int = 400
    merge_turns: bool = True

    def secret(self) -> Secret | None:
        """Return the secret that opens a sealed archive, or None. Raises UsageError."""
        from pltz.archive.encryption.keys import Secret

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
    top = _TomlTable(table, "the top level", folder)
    archive, state = top.path("archive"), top.path("state")
    check_place(state, archive)
    sources = tuple(_source(t, n) for n, t in enumerate(top.tables("source"), 1))
    if not sources:
        raise UsageError("expected at least one [[source]]")
    names = [source.name for source in sources]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two sources are called {min(twice)!r}: give them different names")
    collect, verify, report = top.table("collect"), top.table("verify"), top.table("report")
    merge, cluster = top.table("merge"), top.table("cluster")
    key_file = top.path("key_file", None)
    config = Config(
        archive,
        state,
        sources,
        tuple(top.strings("bundles")),
        key_file,
        top.get("key_command", str, None),
        top.number("threads", None, 1, 1024),
        top.get("device", str, "cpu"),
        _layout(top),
        top.get("keep_opaque", bool, False),
        top.number("zstd_above", ZSTD_ABOVE, 0, MAX_BYTES),
        tuple(_retention(t) for t in top.tables("retention")),
        seconds(collect.get("grace", str, "1d")) if collect else None,
        _verify(verify) if verify else None,
        seconds(merge.get("cold", str, "7d")) if merge else None,
        cluster.number("medoids", MEDOIDS, 1, MOST) if cluster else None,
        report.number("keep", 400, 1, 1 << 20) if report else 400,
        top.get("merge_turns", bool, True),
    )
    if config.key_file and config.key_command:
        raise UsageError("key_file and key_command exclude each other")
    for part in (top, collect, merge, cluster, verify, report):
        if part:
            part.end()
    return config


def _layout(table: _TomlTable) -> LayoutName:
    """Return the layout of long sessions. Raises UsageError."""
    name = table.get("layout", str, "default")
    for known in LAYOUTS:
        if known == name:
            return known
    raise UsageError(f"{table.where}: expected layout = {' or '.join(LAYOUTS)}, found {name!r}")


def _source(table: _TomlTable, number: int) -> Source:
    """Return the source of a [[source]] table, by the fields of its class. Raises UsageError."""
    kind = table.get("kind", str)
    if kind not in SOURCES:
        raise UsageError(f"{table.where}: expected a kind of {', '.join(SOURCES)}, found {kind!r}")
    source = SOURCES[kind]
    settings = {f.name: f for f in dataclasses.fields(source) if f.name not in ("name", "naming")}
    optional = {
        name
        for name, setting in settings.items()
        if setting.default is not dataclasses.MISSING or setting.default_factory is not dataclasses.MISSING
    }
    if missing := sorted(settings.keys() - optional - table.values.keys()):
        raise UsageError(f"{table.where}: a source of kind {kind} needs {missing[0]!r}")
    types = typing.get_type_hints(source)
    values: dict[str, Any] = {"name": table.word("name", f"{kind}-{number}")}
    for key in settings.keys() & table.values.keys():
        about = settings[key].metadata
        is_path = "path" in about and table.get(key, str) not in about["words"]
        values[key] = table.path(key) if is_path else table.get(key, types[key])
        least, most = about.get("limits", (None, None))
        if least is not None and not least <= values[key] <= most:
            raise UsageError(f"{table.where}: expected {key} of {least} to {most}, found {values[key]}")
    if source.naming_keys:
        words = {key: table.word(key) for key in (source.naming_keys - {"tags"}) & table.values.keys()}
        values["naming"] = Naming(**words, tags=table.words("tags"))
    table.end()
    return typing.cast(Source, source(**values))


def _retention(table: _TomlTable) -> Retention:
    within = table.get("keep_within", str, None)
    policy = Policy(
        table.number("keep_last", None, 1, 1 << 31),
        None if within is None else seconds(within),
        table.words("tags"),
        table.get("drop_last", bool, False),
    )
    tenant = table.word("tenant", None)
    table.end()
    return Retention(policy, tenant)


def _verify(table: _TomlTable) -> VerifySample:
    share = table.get("share", float, VerifySample.share)
    if not 0 <= share <= 1:
        raise UsageError(f"{table.where}: expected a share of 0 to 1, found {share}")
    return VerifySample(share, table.number("max_seconds", VerifySample.max_seconds, 1, 1 << 31))


NEEDED: Any = object()


class _TomlTable:
    """A table of the file whose keys are read one by one, so that an unused key can be named."""

    def __init__(self, values: Mapping[str, Any], where: str, folder: Path) -> None:
        self.values, self.where, self.folder = values, where, folder
        self._taken: set[str] = set()

    def get(self, key: str, kind: type, default: Any = NEEDED) -> Any:
        """Return a value of a type. Raises UsageError."""
        self._taken.add(key)
        if key not in self.values:
            if default is NEEDED:
                raise UsageError(f"{self.where}: expected {key} = {TYPES[kind]}, found none")
            return default
        value = self.values[key]
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"{self.where}: expected {TYPES[kind]} as {key}, found {value!r}"[:200])
        return value

    def word(self, key: str, default: Any = NEEDED) -> Any:
        """Return a string that is not empty. Raises UsageError."""
        value = self.get(key, str, default)
        if value == "":
            raise UsageError(
                f"{self.where}: expected a name as {key}, found nothing: leave it out, or fill it in"
            )
        return value

    def number(self, key: str, default: int | None, least: int, most: int) -> Any:
        """Return a whole number within limits. Raises UsageError."""
        value = self.get(key, int, default)
        if value is not None and not least <= value <= most:
            raise UsageError(f"{self.where}: expected {key} of {least} to {most}, found {value}")
        return value

    def path(self, key: str, default: Any = NEEDED) -> Any:
        """Return a path, or a URL unchanged. Raises UsageError."""
        value = self.get(key, str, default)
        if value is default or "://" in value:
            return value
        if not value or "\0" in value:
            raise UsageError(f"{self.where}: expected a path as {key}, found {value!r}"[:200])
        try:
            return str(self.folder / Path(value).expanduser())
        except RuntimeError as exc:
            raise UsageError(
                f"{self.where}: expected a path as {key}, found {value!r}: whose home is that?"
            ) from exc

    def strings(self, key: str) -> list[str]:
        """Return a list of strings, empty where there is none. Raises UsageError."""
        values = self.get(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise UsageError(f"{self.where}: expected a list of strings as {key}, found {values!r}"[:200])
        return typing.cast(list[str], values)

    def words(self, key: str) -> dict[str, str]:
        """Return a table of strings. Raises UsageError."""
        values = self.get(key, dict, {})
        if not all(isinstance(value, str) for value in values.values()):
            raise UsageError(f"{self.where}: expected strings in {key}, found {values!r}"[:200])
        return dict(values)

    def table(self, key: str) -> _TomlTable | None:
        """Return a table, None where there is none. Raises UsageError."""
        value = self.get(key, dict, None)
        return None if value is None else _TomlTable(value, f"[{key}]", self.folder)

    def tables(self, key: str) -> list[_TomlTable]:
        """Return an array of tables, empty where there is none. Raises UsageError."""
        values = self.get(key, list, [])
        if not all(isinstance(value, dict) for value in values):
            raise UsageError(f"expected tables [[{key}]]")
        return [_TomlTable(v, f"[[{key}]] {n}", self.folder) for n, v in enumerate(values, 1)]

    def end(self) -> None:
        """Check that every key was read. Raises UsageError that names one left over."""
        if left := sorted(set(self.values) - self._taken):
            known = ", ".join(sorted(self._taken))
            raise UsageError(f"{self.where}: nothing is called {left[0]!r} here; there is {known}")
