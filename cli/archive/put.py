"""``pltz archive init`` and ``put``: make an archive and put sessions from files into it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from pltz import api
from pltz.archive.humanize import counted, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive, seconds_of, show, tags_of, tokenizer_json
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command, NamingCommand
from pltz.cli.ui.key_options import key_options, secret
from pltz.cli.ui.options import nonempty
from pltz.cli.ui.output import say_if_interrupted
from pltz.cli.ui.progress import Progress, say_expected, wanted
from pltz.cli.ui.session_input import INPUT_FORMAT, InputFiles, input_options
from pltz.plt_codec.errors import ContentError, TokenizerMismatch, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.sessions import PutReceipt, PutRequest
    from pltz.models.session.session import Session
    from pltz.models.target.target import Target
    from pltz.plt_codec.lanes import LayoutName


@click.command(
    cls=Command,
    short_help="Make an empty archive.",
    examples=[
        "pltz archive init /data/cold",
        "pltz archive init s3://bucket/cold --json",
        "pltz archive init /data/sealed --key-file key --parity 10",
    ],
)
@shared.DIR
@click.option(
    "--parity",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Parity for repair. Segments that many sessions need are also kept twice.  [default: 5]",
)
@shared.JSON_LINES
@key_options
def init(place: str, parity: float | None, as_json: bool) -> None:
    """Make an empty archive in DIR. DIR may exist, but must hold no archive.

    With a key (--key-file, --key-command, --passphrase-env, --passphrase) the archive is sealed: everything in it is
    encrypted, and sessions, tenants and shared base prompts can be erased for good. Keep the key: without it nothing in
    the archive can ever be read again.
    """
    from pltz.archive.format.parity import SHARE, SHARED
    from pltz.archive.tower_archive import TowerArchive

    shares = (SHARE, SHARED) if parity is None else (round(10 * parity), SHARED if parity else 0)
    want_own_folder(place)
    key = secret(confirm=True)
    made = TowerArchive.create(place, [], key=key, parity=shares)
    identity = made.settings.archive.hex()
    kind = "sealed" if key else "open"
    facts = {"archive": identity, "place": place, "sealed": key is not None, "parity": list(shares)}
    show(facts, f"{place}: archive {identity}, empty, {kind}", as_json)


OF_FILE_SYSTEMS = ("lost+found", ".snapshot", ".zfs", ".fseventsd", ".Trashes", ".Spotlight-V100")
"""Folders that a file system makes, in which no user keeps files."""


def want_own_folder(place: str) -> None:
    """Refuse a folder that holds files of others: backups and clean-ups of either would meet the other's.

    Raises UsageError.
    """
    from pltz.archive.format.object_names import FOLDERS, RESERVE, RESERVE_COLLECT, SETTINGS

    folder = Path(place)
    if not place or "://" in place or not folder.is_dir():
        return
    known = {*FOLDERS, SETTINGS, RESERVE, RESERVE_COLLECT, *OF_FILE_SYSTEMS}
    strange = sorted(p.name for p in folder.iterdir() if p.name not in known and not _is_mark(p))
    if strange:
        more = f" and {len(strange) - 3:,} more" if len(strange) > 3 else ""
        raise UsageError(f"{place} holds other files ({', '.join(strange[:3])}{more}): name an empty or a new folder")


def _is_mark(path: Path) -> bool:
    """Return whether a path is a hidden file, such as .gitkeep or .DS_Store, and no folder."""
    return path.name.startswith(".") and not path.is_dir()


@click.command(
    cls=NamingCommand,
    short_help="Freeze the sessions of INPUT... into the archive.",
    examples=[
        "pltz archive put /data/cold chats.jsonl --tenant acme",
        "pltz archive put /data/cold chat.json --name support/7 --tag channel=web",
        "pltz archive put /data/cold old.pltz --dry-run --json",
        "pltz archive put /data/cold chats.jsonl --layout fast",
        "pltz archive put /data/cold chats.jsonl --neighbours",
        "pltz archive put /data/cold ids.jsonl --tokenizer qwen/tokenizer.json",
        "pltz archive put /data/cold - --name-key id < chats.jsonl",
    ],
)
@shared.DIR
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option(
    "--name", type=nonempty, metavar="NAME", help="Name of the session, where INPUT holds only one."
)
@click.option("--name-key", type=nonempty, metavar="KEY", help="Name each chat by this key of its object.")
@shared.TENANT
@click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help="Tag the sessions (repeatable).")
@click.option(
    "--share-base",
    "base",
    type=nonempty,
    metavar="BASE",
    help="Share system prompts with all tenants under this name. They are erased by it, not with a session.  "
    "[default: within the tenant]",
)
@click.option(
    "--time",
    "when",
    metavar="DATE",
    help="Time of the sessions, such as 2026-01-31T12:00. UTC without a zone.  [default: now]",
)
@INPUT_FORMAT
@input_options
@click.option(
    "--keep-opaque", is_flag=True, help="Keep sessions with image, audio or file parts, as plain bytes."
)
@options.TARGET
@options.TOKENIZER
@options.LAYOUT
@options.ZSTD_ABOVE
@click.option(
    "--neighbours",
    is_flag=True,
    help="Code new sessions after the nearest earlier one of their tenant, where that takes fewer bytes "
    "(see archive cluster).",
)
@shared.BUNDLES
@shared.DRY_RUN
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
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
    tokenizer: str | None,
    layout: "LayoutName",
    zstd_above: int | None,
    neighbours: bool,
    bundles: tuple[str, ...],
    dry_run: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Freeze the sessions of INPUT... into the archive in DIR: session files as for compress, or .pltz files.

    A session is named STEM/NUMBER after its file (stdin/NUMBER for -) unless --name or --name-key says otherwise. An
    agent log is named after its file alone. A session that is in the archive gets a new version, which stores only the
    new part; an unchanged one adds nothing. A printed line means that the session is durable, decoded back and
    compared, whatever happens next.

    With --target the ids that model would see are kept instead of the chat, for a thaw into that model. Where its
    tokenizer is not the bundle's, get needs it again (get --tokenizer MODEL). thaw names it anyway.
    """
    names = SessionNames(name, name_key)
    chosen, time = tags_of(tags), seconds_of(when)
    cold = open_archive(
        place,
        bundles,
        device=device,
        threads=threads,
        layout=layout,
        zstd_above=zstd_above,
        neighbours=neighbours,
    )
    source = PutInputs(inputs, form, target, tokenizer, device, threads)
    extra: dict[str, Any] = {"tenant": tenant, "tags": chosen, "base": base, "time": time}
    put_all(cold, names.items(source, extra), keep_opaque, dry_run, progress, as_json)


def put_all(
    cold: "Archive",
    items: "Iterator[PutRequest]",
    keep_opaque: bool,
    dry_run: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Put the sessions, report each when it is durable, then report the totals."""
    sessions = frozen = 0
    stored_before = "the sessions printed above are stored, the others are not"
    say_if_interrupted("interrupted, nothing was written" if dry_run else f"interrupted: {stored_before}")
    token = ""
    with Progress("read", unit="sessions", shown=wanted(progress)) as bar:
        requests = _reading(items, bar)
        for stored in cold.put_many(requests, keep_opaque=keep_opaque, dry_run=dry_run, expect=say_expected):
            if bar.label == "read":  # more is read later: how many there will be is not known yet
                bar.begin("store", unit="sessions")
                bar.add(sessions)
            sessions += 1
            frozen += stored.size
            bar.add(1)
            if not (dry_run or stored.unchanged):
                token = cold.token()
            show(facts(stored) | ({"token": token} if token else {}), sentence(stored), as_json)
    if not as_json:
        verb = "would be stored" if dry_run else "stored, decoded back and compared"
        click.echo(f"{counted(sessions, 'session')}, {size(frozen)} new, {verb}", err=True)
        if token:
            click.echo(f"token for pltz archive verify --expect: {token}", err=True)


def _reading(items: "Iterator[PutRequest]", bar: Progress) -> "Iterator[PutRequest]":
    """Yield items and count them in the phase ``read``. When all are read, the phase ``store`` begins."""
    count = 0
    for item in items:
        if bar.label != "read":
            bar.begin("read", unit="sessions")
            bar.add(count)
        count += 1
        bar.add(1)
        yield item
    done = bar.count if bar.label == "store" else 0
    bar.begin("store", count, "sessions")
    bar.add(done)


@dataclass
class SessionNames:
    """The rule that names sessions: one name, a key of each chat, or neither. Raises UsageError for both."""

    name: str | None
    key: str | None

    def __post_init__(self) -> None:
        if self.name is not None and self.key is not None:
            raise UsageError("--name and --name-key exclude each other")

    def items(self, source: "PutInputs", extra: dict[str, Any]) -> "Iterator[PutRequest]":
        """Yield the sessions as items.

        Raises UsageError where --name meets a second session, ContentError where the key is missing.
        """
        from pltz.archive.sessions import PutRequest

        if self.name is None and self.key is None:
            check_stems(source.paths)
        rows = iter(source)
        first = next(rows, None)
        if first is None:
            return
        second = next(rows, None) if self.name is not None else None
        if second is not None:
            raise UsageError("--name is for one session, and there are more: leave it out or use --name-key")
        for row in (first, *rows) if self.name is not None else _chain(first, rows):
            yield PutRequest(self._name(row), row.session, target=row.target, tokenizer=row.tokenizer, **extra)

    def _name(self, row: "NamedSession") -> str:
        if self.name is not None:
            return self.name
        if self.key is None:
            return row.default
        value = row.session.value
        found = value.get(self.key) if row.session.kind == "chat" and isinstance(value, dict) else None
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise ContentError(
                f"session {row.default} has no name: expected a string or number under the key of --name-key"
            )
        return str(found)


def _chain(first: "NamedSession", rest: "Iterator[NamedSession]") -> "Iterator[NamedSession]":
    yield first
    yield from rest


@dataclass(frozen=True)
class NamedSession:
    """A session of an input, with its default name and the target it was frozen for, or is to be seen by.

    ``tokenizer``: tokenizer.json that its ids belong to, None for the bundle's.
    """

    default: str
    session: "Session"
    target: "Target | bytes | None"
    tokenizer: bytes | None


@dataclass
class PutInputs:
    """The sessions of all inputs, in order. ``device``, ``threads``: where .pltz files are decoded."""

    paths: Sequence[str]
    form: str
    target: str | None
    tokenizer: str | None
    device: str
    threads: int | None

    def __post_init__(self) -> None:
        if self.paths.count("-") > 1:
            raise UsageError("stdin (-) can be read only once")
        if self.target is not None and self.tokenizer is not None:
            raise UsageError("--target brings its own tokenizer: leave --tokenizer out")
        named = self.target or self.tokenizer
        self._json = None if named is None else tokenizer_json(named)
        self._model = self._load_target()

    def __iter__(self) -> Iterator[NamedSession]:
        for path in self.paths:
            for name, session, target in self._pltz(path) if is_pltz(path) else self._files(path):
                if self._model is not None:  # it brings its tokenizer
                    yield NamedSession(name, session, self._model, None)
                else:
                    yield NamedSession(name, session, target, self._json if session.kind == "ids" else None)

    def _files(self, path: str) -> "Iterator[tuple[str, Session, bytes | None]]":
        """Yield the sessions of an input with their default names, and no target."""
        for number, found in enumerate(InputFiles([path], self.form).recognised()):
            log = found.noun == "agent log"
            yield log_name(path, found.file) if log else f"{stem_of(path)}/{number}", found.session, None

    def _load_target(self) -> "Target | None":
        from pltz.models.target.target import Target

        return None if self.target is None else Target.load(self.target)

    def _pltz(self, path: str) -> "Iterator[tuple[str, Session, bytes | None]]":
        """Yield the sessions of a .pltz file with their default names, and the target it was frozen for.

        Raises TokenizerMismatch for ids of another tokenizer.
        """
        from pltz.coding.partners import bridge_between

        with options.open_reader(path) as reader:
            codec = options.load_codec_for(reader, None, self.device, self.threads)
            bridge = None if self._json is None else bridge_between(self._json, codec)
            foreign = None if bridge is None or bridge.identity else bridge.fingerprint
            theirs = reader.header.tokenizer_fingerprint
            if theirs is not None and theirs != foreign:
                raise TokenizerMismatch(
                    f"the ids in {path} do not belong to the bundle's tokenizer: name theirs with --tokenizer"
                )
            named = None if theirs is None else self._json
            for number, session in enumerate(api.open(reader, bundle=codec, tokenizer=named)):
                if session.kind == "ids" and theirs != foreign:
                    raise TokenizerMismatch(
                        f"the ids in {path} belong to the bundle's tokenizer: leave --target and --tokenizer out"
                    )
                yield f"{stem_of(path)}/{number}", session, reader.header.target_fingerprint


def stem_of(path: str) -> str:
    """Return the part of a session's name that comes from its input, before the number.

    >>> stem_of("logs/monday.v2.jsonl.gz"), stem_of("-")
    ('monday.v2', 'stdin')
    """
    name = Path(path).name
    return "stdin" if path == "-" else name.removesuffix(".zst").removesuffix(".gz").rsplit(".", 1)[0] or path


def log_name(path: str, file: str) -> str:
    """Return the name of an agent log: its file, below the input that holds it.

    A log that grew is put under the same name, however many others there are now.

    >>> log_name("/home/ada/.claude/projects", "/home/ada/.claude/projects/-home-ada-shop/4f35e220.jsonl")
    '-home-ada-shop/4f35e220'
    >>> log_name("4f35e220.jsonl.gz", "4f35e220.jsonl.gz"), log_name("-", "standard input")
    ('4f35e220', 'stdin')
    """
    inside = PurePath(file).relative_to(path) if path != "-" and PurePath(file) != PurePath(path) else None
    if inside is None:
        return stem_of(path)
    return (inside.parent / stem_of(inside.name)).as_posix()


def check_stems(paths: Sequence[str]) -> None:
    """Refuse inputs that would give their sessions the same names, as one would look like new versions of the other.

    Raises UsageError.
    """
    known: dict[str, str] = {}
    for path in paths:
        if (other := known.setdefault(stem_of(path), path)) != path or paths.count(path) > 1:
            raise UsageError(
                f"the sessions of {other} and {path} would both be named {stem_of(path)}/0 and so on: "
                "put them in two runs, or name them by a key of theirs (--name-key)"
            )


def is_pltz(path: str) -> bool:
    """Return whether a file begins with the magic of .pltz files. Never reads stdin."""
    from pltz.plt_codec.container.header import MAGIC

    file = Path(path)
    if path == "-" or not file.is_file():
        return False
    with file.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def facts(stored: "PutReceipt") -> dict[str, Any]:
    """Return a stored session as JSON. ``bytes`` counts its new segments."""
    found: dict[str, Any] = {"tenant": stored.tenant, "name": stored.name, "kind": stored.kind}
    found |= {"method": "model" if stored.by_model else "zstd", "tokens": stored.tokens}
    known = stored.tower - stored.segments
    found |= {"segments": stored.tower, "known": known, "bytes": stored.size}
    if stored.id:
        found |= {"version": stored.version, "new": stored.segments, "unchanged": stored.unchanged}
        found["id"] = stored.id.hex()
    return found


def sentence(stored: "PutReceipt") -> str:
    """Return a stored session in one line."""
    head = f"{stored.tenant}  {stored.name}"
    if not stored.id:
        segments = counted(stored.segments, "segment")
        return f"{head}  would add {segments}, at most {size(stored.size)}"
    head += f"  version {stored.version}"
    if stored.unchanged:
        return f"{head}, unchanged"
    return f"{head}, {counted(stored.segments, 'new segment')}, {size(stored.size)}"
