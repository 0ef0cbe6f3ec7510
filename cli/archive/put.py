"""``pltz archive init`` and ``put``: make an archive and put sessions from files into it."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz import api
from pltz.archive.errors import StaysErased
from pltz.archive.humanize import counted, size
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.parts import PartCommand, parted, report_of
from pltz.cli.archive.put_meter import PutMeter
from pltz.cli.archive.shared import open_archive, seconds_of, show, tags_of, tokenizer_json
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import ArchiveCommand, archive_place, key_words
from pltz.cli.ui.options import nonempty
from pltz.cli.ui.output import printable, say_if_interrupted
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.session_input import (
    INPUT_FORMAT,
    InputFiles,
    content_alone,
    drops,
    input_options,
    left_out,
    want_there,
)
from pltz.datasets.dropped import tags_of as tags_of_dropped
from pltz.datasets.file_names import FileOfName, heads_of, stem_of
from pltz.datasets.given import as_session
from pltz.datasets.input_format import Recognised
from pltz.datasets.log_lines import tags_of_odd
from pltz.datasets.named_sessions import NamedSession, named
from pltz.plt_codec.errors import ContentError, PltzError, TokenizerMismatch, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.writing.put_request import PutReceipt, PutRequest
    from pltz.models.target.target import Target


@click.command(
    cls=ArchiveCommand,
    short_help="Make an empty archive.",
    examples=[
        "pltz archive init -r /data/cold",
        "pltz archive init -r s3://bucket/cold --json",
        "pltz archive init -r /data/sealed --key-file key",
        "pltz archive init -r s3://bucket/cold --append-only",
    ],
)
@click.option("--append-only", is_flag=True, help="Let put delete nothing, so that it needs no right to: collect does.")
@shared.JSON_LINES
def init(append_only: bool, as_json: bool) -> None:
    """Make an empty archive, in a folder that holds nothing else, or in a bucket.

    With a key (--key-file, --key-command, --passphrase-env, --passphrase) the archive is sealed: everything in it is
    encrypted, and sessions, tenants and shared base prompts can be erased for good. Keep the key: without it nothing in
    the archive can ever be read again.
    """
    from pltz.archive import opener
    from pltz.archive.encryption.keys import Secret

    place = archive_place()
    want_own_folder(place)
    key = Secret.chosen(**key_words(confirm=True))
    made = opener.create(place, key=key, append_only=append_only)
    identity = made.settings.archive.hex()
    kind = "sealed" if key else "open"
    kind += ", append-only" * append_only
    facts = {"archive": identity, "place": place, "sealed": key is not None, "append_only": append_only}
    show(facts, f"{place}: archive {identity}, empty, {kind}", as_json)


OF_FILE_SYSTEMS = ("lost+found", ".snapshot", ".zfs", ".fseventsd", ".Trashes", ".Spotlight-V100")
"""Folders that a file system makes, in which no user keeps files."""


def want_own_folder(place: str) -> None:
    """Refuse a folder that holds files of others: backups and clean-ups of either would meet the other's.

    Raises UsageError.
    """
    from pltz.archive.format.object_names import FOLDERS, SETTINGS

    folder = Path(place)
    if not place or "://" in place or not folder.is_dir():
        return
    known = {*FOLDERS, SETTINGS, *OF_FILE_SYSTEMS}
    strange = sorted(p.name for p in folder.iterdir() if p.name not in known and not _is_mark(p))
    if strange:
        more = f" and {len(strange) - 3:,} more" if len(strange) > 3 else ""
        raise UsageError(f"{place} holds other files ({', '.join(strange[:3])}{more}): name an empty or a new folder")


def _is_mark(path: Path) -> bool:
    """Return whether a path is a hidden file, such as .gitkeep or .DS_Store, and no folder."""
    return path.name.startswith(".") and not path.is_dir()


@click.command(
    cls=PartCommand,
    short_help="Freeze the sessions of INPUT... into the archive.",
    examples=[
        "pltz archive put -r /data/cold ~/.claude/projects",
        "pltz archive put chats.jsonl --tenant acme --level 4",
        "pltz archive put chat.json --name support/7 --tag channel=web",
        "pltz archive put old.pltz --dry-run --json",
        "pltz archive put ids.jsonl --tokenizer qwen/tokenizer.json",
        "pltz archive put -r s3://bucket/cold history/ --ray ray://head:10001",
    ],
)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--name", type=nonempty, metavar="NAME", help="Name of the session, where INPUT holds only one.")
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
    "--new-version",
    is_flag=True,
    help="Let a chat that does not continue the stored one of its name be its next version, not refused.",
)
@click.option(
    "--erased-too",
    is_flag=True,
    help="Put sessions that were erased, too, from now on.  [default: they are left out and counted]",
)
@click.option("--keep-opaque", is_flag=True, help="Keep sessions with image, audio or file parts, as plain bytes.")
@options.TARGET
@options.TOKENIZER
@options.LEVEL
@options.BUNDLE
@shared.DRY_RUN
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
@parted("sessions")
def put(
    inputs: tuple[str, ...],
    name: str | None,
    tenant: str,
    tags: tuple[str, ...],
    base: str | None,
    when: str | None,
    form: str,
    new_version: bool,
    erased_too: bool,
    keep_opaque: bool,
    target: str | None,
    tokenizer: str | None,
    level: int | None,
    bundle: str | None,
    dry_run: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Freeze the sessions of INPUT... into the archive: session files as for compress, or .pltz files.

    A session is named STEM/NUMBER after its file (stdin/NUMBER for -) unless --name says otherwise, and an agent log
    FOLDER/STEM, with ./ before a dash. A row of a query or table with the columns name, session (JSON) and perhaps
    tenant and time says these itself. A session that is in the archive gets a new version, which stores only the new
    part; an unchanged one adds nothing. A chat that does not continue the stored one of its name is refused, and
    the others are put (exit code 5), unless --new-version is given. One of several files that cannot be read is refused
    in the same way. The last line counts what was refused or left out, and by which rule.

    A printed line means that the session is durable, decoded back and compared, whatever happens next. An interrupted
    put goes on when it is run again.

    With --target the ids that model would see are kept instead of the chat, for a thaw into that model. Where its
    tokenizer is not the bundle's, get needs it again (get --tokenizer MODEL). thaw names it anyway.
    """
    chosen, time = tags_of(tags), seconds_of(when)
    bundle, how = options.level_of(level, bundle, options.PUT_LEVEL)
    coding: dict[str, Any] = {"layout": how.layout, "model_logs": how.model_logs, "model_ids": how.model_ids}
    cold = open_archive(bundle=bundle, device=device, threads=threads, **coding)
    source = PutInputs(inputs, form, target, tokenizer, device, threads)
    extra: dict[str, Any] = {"tenant": tenant, "tags": chosen, "base": base, "time": time, "erased_too": erased_too}
    code = put_all(cold, source, name, extra, new_version, keep_opaque, dry_run, progress, as_json, part)
    click.get_current_context().exit(code)


def put_all(
    cold: "Archive",
    source: "PutInputs",
    name: str | None,
    extra: Mapping[str, Any],
    new_version: bool,
    keep_opaque: bool,
    dry_run: bool,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None = None,
) -> int:
    """Put the sessions, report each when it is durable, then report the totals. Return the exit code.

    ``name``: of the only session. ``extra``: what all requests have.
    """
    if dry_run:
        return look_at_all(cold, source, name, extra, keep_opaque, as_json, part)
    changed = False
    with Progress("read", unit="bytes", shown=wanted(progress)) as bar:
        meter = PutMeter(bar, None if part else source.total)
        source.passed_over = meter.pass_over

        def refuse(request: "PutRequest", error: PltzError) -> None:
            if name is None and isinstance(error, StaysErased):
                source.left["erased before"] += 1
                meter.leave_out(request)
            else:
                meter.refuse(request, error)

        found = requests(source, name, extra, new_version)
        own = (item for item in found if part is None or part.has_session(item[0].tenant, item[0].name))
        receipts = cold.put_many(meter.reading(own), coding=meter.coding, refused=refuse, keep_opaque=keep_opaque)
        for stored in receipts:
            meter.stored(stored)
            changed = changed or not stored.unchanged
            with bar.hidden():
                record = facts(stored) | ({"token": cold.token()} if changed else {}) if as_json else {}
                show(record, "" if as_json else sentence(stored), as_json)
    not_stored = source.not_stored(meter.refused)
    dropped = f"; {size(source.dropped)} of signatures dropped" if drops() else ""
    if as_json and part:
        # each part reads all files, so the first alone counts those that it could not
        unread, left_here = (source.refused, source.left.total()) if part.number == 1 else (0, 0)
        counts = {"sessions": meter.sessions, "unchanged": meter.unchanged, "bytes": meter.frozen}
        show(report_of(part, counts | {"refused": meter.refused + unread, "left_out": left_here}), "", as_json)
    elif as_json and any(not_stored.values()):
        show({"not_stored": not_stored}, "", as_json)
    if bare := [p for p in cold.parts.catalog.problems if p.kind == "parity"]:
        click.echo(f"warning: {counted(len(bare), 'pack')} without parity: {printable(bare[0].what)}", err=True)
    if not as_json:
        new = f"{size(meter.frozen)} new, stored, decoded back and compared" if meter.unchanged < meter.sessions else ""
        same = f"{meter.unchanged:,} unchanged" if meter.unchanged else ""
        parts = f" with {counted(meter.parts, 'other part')}" if meter.parts else ""
        told = ", ".join(filter(None, (counted(meter.sessions - meter.parts, "session") + parts, same, new)))
        if not meter.sessions:
            told = "nothing is stored" + ("" if any(not_stored.values()) else ": no sessions found")
        click.echo(f"{told}{dropped}{in_words(not_stored)}", err=True)
        if changed:
            click.echo(f"token for pltz archive verify --expect: {cold.token()}", err=True)
    return ContentError.exit_code if meter.refused or source.refused else 0


def look_at_all(
    cold: "Archive",
    source: "PutInputs",
    name: str | None,
    extra: Mapping[str, Any],
    keep_opaque: bool,
    as_json: bool,
    part: WorkPart | None,
) -> int:
    """Show what a put would do with each session, by names and ids, then the totals. Return the exit code."""
    from pltz.models.session import transcript

    say_if_interrupted("interrupted, nothing was written")
    counts, total, refused = Counter[str](), 0, 0
    found = (request for request, _ in requests(source, name, extra, True, known=False))
    for seen in cold.preview(r for r in found if part is None or part.has_session(r.tenant, r.name)):
        request = seen.request
        try:
            if not keep_opaque:
                transcript.refuse_opaque(as_session(request.session))
        except ContentError as error:
            refused += 1
            click.echo(f"refused: {printable(f'session {request.name!r}: {error}')}", err=True)
            continue
        counts[seen.state] += 1
        total += seen.size
        row = {"tenant": request.tenant, "name": request.name, "kind": seen.kind, "bytes": seen.size}
        row |= ({"part": request.part} if request.part else {}) | {"state": seen.state}
        row |= {"version": seen.version} if seen.version else {}
        head = f"{request.tenant}  {request.name}" + (f"  {request.part}" if request.part else "")
        of = f" (version {seen.version})" if seen.version else ""
        show(row, f"{head}  {seen.state}{of}, {size(seen.size)}", as_json)
    not_stored = source.not_stored(refused)
    if as_json and part:
        show(report_of(part, {"sessions": counts.total(), "refused": refused, "bytes": total}), "", as_json)
    elif as_json and any(not_stored.values()):
        show({"not_stored": not_stored}, "", as_json)
    if not as_json:
        states = ", ".join(f"{count:,} {state}" for state, count in counts.items()) or "no sessions found"
        told = f"{counted(counts.total(), 'session')}, {size(total)} of content: {states}; nothing was written"
        click.echo(f"{told}{in_words(not_stored)}", err=True)
    return ContentError.exit_code if refused or source.refused else 0


def in_words(not_stored: Mapping[str, Any]) -> str:
    """Return what was not stored in words, each after a semicolon."""
    nouns = {"session": not_stored["sessions_refused"], "file": not_stored["files_refused"]}
    told = [f"{counted(count, noun)} refused" for noun, count in nouns.items() if count]
    told += [left_out(not_stored["left_out"]), content_alone(not_stored["packings"])]
    return "".join(f"; {words}" for words in told if words)


def requests(
    source: "PutInputs", name: str | None, extra: Mapping[str, Any], new_version: bool, *, known: bool = True
) -> "Iterator[tuple[PutRequest, int]]":
    """Yield the sessions as requests, each with the bytes that it was read from.

    ``name``: of the only session, which may have parts. ``new_version``: none has to continue what is stored.
    ``known``: with the lines that are odd. Raises UsageError for a second session.
    """
    from pltz.archive.format.record import ContentFacts
    from pltz.archive.writing.content_facts import facts_of
    from pltz.archive.writing.put_request import PutRequest

    if name is None:
        source.heads = heads_of(source.paths)
    rows, first = iter(source), list[Any]()
    for row in rows if name is not None else ():  # all parts of one session
        first.append(row)
        parts = {(one.found.file, one.found.part) for one, *_ in first}
        if len(parts) < len(first) or len({file for file, _ in parts}) > 1:
            raise UsageError("--name is for one session, and there are more: leave it out")
    files, dropping = FileOfName(), drops()
    for session, target, tokenizer in itertools.chain(first, rows):
        found = session.found
        given = found.given if name is None else None
        if name is None and given is None and not found.is_log and not found.part:
            try:
                files.want(session.head, found.file)
            except UsageError as error:  # of this file alone
                source.refuse(found.file, str(error))
                continue
        own = name or (given.name if given else session.name)
        form = session.tags() if own == session.name and target is None else {}
        odd = tags_of_odd(found.session) if known and found.noun == "agent log" else {}
        fields = dict(extra)
        if given:
            fields["tenant"] = given.tenant or fields["tenant"]
            fields["time"] = fields["time"] if given.time is None else given.time
        fields["tags"] = {**fields.get("tags", {}), **form, **tags_of_dropped(dropping, found.dropped), **odd}
        request = PutRequest(
            own,
            found.session,
            target=target,
            tokenizer=tokenizer,
            part=found.part,
            content=ContentFacts(size=found.size, mtime=session.mtime),
            about=partial(facts_of, found.session, found.size, session.mtime, is_chat=found.noun == "chat"),
            continues=session.continues and not (new_version or given),
            **fields,
        )
        yield request, found.size


@dataclass
class PutInputs:
    """The sessions of all inputs, in order. ``device``, ``threads``: where .pltz files are decoded.

    ``dropped``: bytes dropped so far. ``refused``: files that could not be read so far, of several. ``left``: files
    that were left out so far, by what does it. ``packings``: packed logs and texts, of which only the content is kept.
    ``heads``: what the names of an input's sessions begin with, where that is not its stem.
    """

    paths: Sequence[str]
    form: str
    target: str | None
    tokenizer: str | None
    device: str
    threads: int | None
    heads: Mapping[str, str] = field(default_factory=dict)
    dropped: int = 0
    refused: int = 0
    left: Counter[str] = field(default_factory=Counter)
    packings: set[str] = field(default_factory=set)
    clashing: set[str] = field(default_factory=set)
    passed_over: Callable[[int], None] = lambda size: None  # called with the bytes of a refused file

    def __post_init__(self) -> None:
        want_there(self.paths)
        if self.target is not None and self.tokenizer is not None:
            raise UsageError("--target brings its own tokenizer: leave --tokenizer out")
        named = self.target or self.tokenizer
        self._json = None if named is None else tokenizer_json(named)
        self._model = self._load_target()

    @property
    def total(self) -> int | None:
        """Return the bytes of all inputs, None where some are packed or a stream."""
        return None if any(map(is_pltz, self.paths)) else InputFiles(self.paths, self.form).total

    def __iter__(self) -> "Iterator[tuple[NamedSession, Target | bytes | None, bytes | None]]":
        """Yield sessions, each with the target it was frozen for or is to be seen by, and the tokenizer of its ids."""
        for path in self.paths:
            if is_pltz(path):
                yield from ((row, self._model or target, self._tokenizer_of(row)) for row, target in self._pltz(path))
            else:
                yield from ((row, self._model, self._tokenizer_of(row)) for row in self._files(path))

    def _tokenizer_of(self, row: NamedSession) -> bytes | None:
        """Return the tokenizer.json that its ids belong to; None for the bundle's, and where a target brings it."""
        return self._json if self._model is None and row.found.session.kind == "ids" else None

    def _files(self, path: str) -> Iterator[NamedSession]:
        """Yield the sessions of an input."""
        files = InputFiles([path], self.form, refusing=True, several=len(self.paths) > 1, parts=True)
        files.passed_over = self.passed_over
        for row in named(files.recognised(), path, self.heads.get(path, "")):
            self.dropped += row.found.dropped
            yield row
        self.packings |= files.packings
        self.refused += len(files.refused)
        self.left += files.left

    def not_stored(self, refused: int) -> dict[str, Any]:
        """Return what was not stored, packings by files. ``refused``: sessions that the archive refused."""
        counts = {"sessions_refused": refused, "files_refused": self.refused, "left_out": dict(self.left)}
        return {**counts, "packings": sorted(self.packings)}

    def refuse(self, file: str, why: str) -> None:
        """Print why a file is refused, and count it once."""
        if file not in self.clashing:
            self.clashing.add(file)
            self.refused += 1
            click.echo(f"refused: {printable(why)}", err=True)

    def _load_target(self) -> "Target | None":
        from pltz.models.target.target import Target

        return None if self.target is None else Target.load(self.target)

    def _pltz(self, path: str) -> Iterator[tuple[NamedSession, bytes | None]]:
        """Yield the sessions of a .pltz file, with the target it was frozen for.

        Raises TokenizerMismatch for ids of another tokenizer.
        """
        from pltz.coding.partners import bridge_between

        with options.open_reader(path) as reader:
            codec = options.load_codec_for(reader, self.device, self.threads)
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
                head, kind = self.heads.get(path) or stem_of(path), session.kind
                found = Recognised(session, kind, kind, path, f"{path}: session {number}")
                yield NamedSession(found, head, number), reader.header.target_fingerprint


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
    found |= {"part": stored.part} if stored.part else {}
    found |= {"method": stored.method, "tokens": stored.tokens}
    found |= {} if stored.opaque is None else {"opaque_bytes": stored.opaque}
    found |= {"dropped": stored.dropped.split(), "dropped_bytes": stored.dropped_bytes} if stored.dropped else {}
    found |= {"odd_lines": stored.odd} if stored.odd else {}
    known = stored.tower - stored.segments
    found |= {"segments": stored.tower, "known": known, "bytes": stored.size}
    found |= {"version": stored.version, "new": stored.segments, "unchanged": stored.unchanged}
    return found | {"id": stored.id.hex()}


def sentence(stored: "PutReceipt") -> str:
    """Return a stored session in one line."""
    head = f"{stored.tenant}  {stored.name}" + (f"  {stored.part}" if stored.part else "")
    head += f"  version {stored.version}"
    if stored.unchanged:
        return f"{head}, unchanged"
    dropped = f", {size(stored.dropped_bytes)} of {stored.dropped} dropped" if stored.dropped else ""
    odd = f", {counted(stored.odd, 'line')} kept as bytes" if stored.odd else ""
    return f"{head}, {counted(stored.segments, 'new segment')}, {size(stored.size)}{odd}{dropped}"
