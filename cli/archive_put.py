"""``pltz archive init`` and ``put``: sessions from files into an archive."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz import api
from pltz.cli import archive_options, options
from pltz.cli.archive_key import key_options, secret
from pltz.cli.archive_options import open_sessions, seconds_of, show, tags_of
from pltz.cli.compress import FORMATS, read_sessions
from pltz.cli.groups import Command
from pltz.cli.progress import Progress, wanted
from pltz.cli.table import size
from pltz.plt_codec.errors import ContentError, TokenizerMismatch, UsageError

if TYPE_CHECKING:
    from pltz.archive.sessions import Item, SessionArchive, Stored
    from pltz.models.session import Session
    from pltz.models.target import Target


@click.command(
    cls=Command,
    short_help="Make an empty archive.",
    examples=[
        "pltz archive init /data/cold",
        "pltz archive init s3://bucket/cold --json",
        "pltz archive init /data/sealed --key-file key --parity 10",
    ],
)
@archive_options.DIR
@click.option(
    "--parity",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Parity for repair; segments that many sessions need are kept twice beside it.  [default: 5]",
)
@archive_options.JSON_LINES
@key_options
def init(place: str, parity: float | None, as_json: bool) -> None:
    """Make an empty archive in DIR, which may exist but holds no archive.

    With a key (--key-file, --key-command, --passphrase) it is sealed: everything in it is encrypted, and sessions and
    tenants can be erased for good. Without the key nothing in it can ever be read again: keep the key.
    """
    from pltz.archive.archive import Archive
    from pltz.archive.parity import SHARE, SHARED

    shares = (SHARE, SHARED) if parity is None else (round(10 * parity), SHARED if parity else 0)
    key = secret(confirm=True)
    made = Archive.create(place, [], key=key, parity=shares)
    identity = made.settings.archive.hex()
    kind = "sealed" if key else "open"
    facts = {"archive": identity, "place": place, "sealed": key is not None, "parity": list(shares)}
    show(facts, f"{place}: archive {identity}, empty, {kind}", as_json)


@click.command(
    cls=Command,
    short_help="Freeze the sessions of INPUT... into the archive.",
    examples=[
        "pltz archive put /data/cold chats.jsonl --tenant acme",
        "pltz archive put /data/cold chat.json --name support/7 --tag channel=web",
        "pltz archive put /data/cold old.pltz --dry-run --json",
        "pltz archive put /data/cold - --name-key id < chats.jsonl",
    ],
)
@archive_options.DIR
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--name", metavar="NAME", help="Name of the session, where INPUT holds just one.")
@click.option("--name-key", metavar="KEY", help="Name each chat by this key of its object.")
@archive_options.TENANT
@click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help="Tag the sessions (repeatable).")
@click.option(
    "--share-base",
    "base",
    metavar="BASE",
    help="Share system prompts, under this name, with all tenants.  [default: within the tenant]",
)
@click.option("--time", "when", metavar="DATE", help="When the sessions were.  [default: now]")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="What the inputs are.",
)
@click.option(
    "--keep-opaque", is_flag=True, help="Keep sessions with image, audio or file parts, as plain bytes."
)
@options.TARGET
@archive_options.BUNDLES
@archive_options.DRY_RUN
@options.THREADS
@options.DEVICE
@options.PROGRESS
@archive_options.JSON_LINES
@key_options
def put(
    place: str,
    inputs: tuple[str, ...],
    name: str | None,
    name_key: str | None,
    tenant: str,
    tags: tuple[str, ...],
    base: str | None,
    when: str | None,
    form: str,
    keep_opaque: bool,
    target: str | None,
    bundles: tuple[str, ...],
    dry_run: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Freeze the sessions of INPUT... into the archive in DIR: session files as for compress, or .pltz files.

    A session is called STEM/NUMBER after its file (stdin/NUMBER for -) unless --name or --name-key says
    otherwise. One that is there already gets a new version, which stores only what is new; one that has
    not changed adds nothing. Each line printed stands for a session that is durable and was decoded back
    and compared, whatever happens after it.

    With --target the ids that model would see are kept instead of the chat, for a thaw into that model.
    """
    names = Naming(name, name_key)
    labels, time = tags_of(tags), seconds_of(when)
    cold = open_sessions(place, bundles, device, threads)
    source = Inputs(inputs, form, target, cold, device, threads)
    extra: dict[str, Any] = {"tenant": tenant, "labels": labels, "base": base, "time": time}
    put_all(cold, names.items(source, extra), keep_opaque, dry_run, progress, as_json)


def put_all(
    cold: "SessionArchive",
    items: "Iterator[Item]",
    keep_opaque: bool,
    dry_run: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Put and report each session when it is durable, then the sum."""
    sessions = frozen = 0
    with Progress("put", unit="sessions", shown=wanted(progress)) as bar:
        for stored in cold.put(items, keep_opaque=keep_opaque, dry_run=dry_run):
            sessions += 1
            frozen += stored.size
            bar.add(1)
            show(facts(stored), sentence(stored), as_json)
    if not as_json:
        verb = "would be stored" if dry_run else "stored, decoded back and compared"
        click.echo(f"{sessions} sessions, {size(frozen)} new, {verb}", err=True)


@dataclass
class Naming:
    """How sessions are called. Raises UsageError where both ways are named."""

    name: str | None
    key: str | None

    def __post_init__(self) -> None:
        if self.name is not None and self.key is not None:
            raise UsageError("--name and --name-key exclude each other")

    def items(self, source: "Inputs", extra: dict[str, Any]) -> "Iterator[Item]":
        """The sessions as items. Raises UsageError where --name meets a second session, ContentError where the key is missing."""
        from pltz.archive.sessions import Item

        rows = iter(source)
        first = next(rows, None)
        if first is None:
            return
        second = next(rows, None) if self.name is not None else None
        if second is not None:
            raise UsageError("--name is for one session, and there are more: leave it out or use --name-key")
        for row in (first, *rows) if self.name is not None else _chain(first, rows):
            yield Item(self._name(row), row.session, target=row.target, **extra)

    def _name(self, row: "Row") -> str:
        if self.name is not None:
            return self.name
        if self.key is None:
            return row.default
        value = row.session.value
        found = value.get(self.key) if row.session.kind == "chat" and isinstance(value, dict) else None
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise ContentError(
                f"session {row.default} has no string or number under the key --name-key names"
            )
        return str(found)


def _chain(first: "Row", rest: "Iterator[Row]") -> "Iterator[Row]":
    yield first
    yield from rest


@dataclass(frozen=True)
class Row:
    """A session of an input, what it is called by default, and the target it was frozen for."""

    default: str
    session: "Session"
    target: bytes | None


@dataclass
class Inputs:
    """The sessions of all inputs, in order."""

    paths: Sequence[str]
    form: str
    target: str | None
    cold: "SessionArchive"
    device: str
    threads: int | None
    _model: "Target | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.paths.count("-") > 1:
            raise UsageError("stdin (-) can be read only once")
        if self.target is not None:
            self._model = self._load_target(self.target)

    def __iter__(self) -> Iterator[Row]:
        from pltz.models.target import as_seen_by

        for path in self.paths:
            stem = "stdin" if path == "-" else Path(path).name.removesuffix(".zst").rsplit(".", 1)[0] or path
            rows = (
                self._pltz(path) if is_pltz(path) else ((s, None) for s in read_sessions([path], self.form))
            )
            for number, (session, target) in enumerate(rows):
                if self._model is not None:
                    session, target = as_seen_by(self._model, session), self._model.fingerprint
                yield Row(f"{stem}/{number}", session, target)

    def _load_target(self, name: str) -> "Target":
        """A target whose ids the archive's bundle codes. Raises TokenizerMismatch, ModelError."""
        from pltz.models.bridge import Bridge
        from pltz.models.target import Target

        model = Target.load(name)
        if not Bridge(model.tokenizer_json, self.cold.tokenizer).identity:
            raise TokenizerMismatch(
                "this target has another tokenizer than the bundle, and an archive codes the bundle's ids: leave --target out"
            )
        return model

    def _pltz(self, path: str) -> "Iterator[tuple[Session, bytes | None]]":
        """Sessions of a .pltz file, with the target it was frozen for. Raises TokenizerMismatch for ids of another tokenizer."""
        with options.open_reader(path) as reader:
            if reader.header.tokenizer_fingerprint is not None:
                raise TokenizerMismatch(
                    "the ids in this file belong to another tokenizer than the bundle's, and an archive codes the bundle's ids: "
                    "keep the .pltz file"
                )
            codec = options.load_codec_for(reader, None, self.device, self.threads)
            for session in api.open(reader, bundle=codec):
                yield session, reader.header.target_fingerprint


def is_pltz(path: str) -> bool:
    """Whether a file begins as .pltz files do; stdin is never looked at."""
    from pltz.plt_codec.container import MAGIC

    file = Path(path)
    if path == "-" or not file.is_file():
        return False
    with file.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def facts(stored: "Stored") -> dict[str, Any]:
    """A stored session as JSON; ``bytes``: of its new segments."""
    item, receipt = stored.item, stored.receipt
    found: dict[str, Any] = {"tenant": item.tenant, "name": item.name, "kind": item.session.kind}
    found |= {"method": "model" if stored.by_model else "zstd", "tokens": stored.tokens}
    found |= {"segments": stored.segments, "known": stored.known, "bytes": stored.size}
    if receipt is not None:
        found |= {"version": receipt.number, "new": receipt.new, "unchanged": receipt.unchanged}
        found["id"] = receipt.version.hex()
    return found


def sentence(stored: "Stored") -> str:
    """A stored session in one line."""
    head = f"{stored.item.tenant}  {stored.item.name}"
    if stored.receipt is None:
        return f"{head}  would add {stored.segments - stored.known} segments, at most {size(stored.size)}"
    if stored.receipt.unchanged:
        return f"{head}  version {stored.receipt.number}, unchanged"
    return f"{head}  version {stored.receipt.number}, {stored.receipt.new} new segments, {size(stored.size)}"
