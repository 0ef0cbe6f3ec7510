"""Archive: one object for an archive of sessions, in the words of the command line. It is `pltz.Archive`.

    cold = Archive.open("/data/cold", create=True)
    cold.put("support/7", {"messages": [...]}, tenant="acme", tags={"channel": "web"})
    cold.get("support/7", tenant="acme").value        # the same chat

It owns each call from arguments to receipt. Below it are parts with one job each (`opener.OpenArchive`): the catalogue
and its directory, readers, the cutter, the writer, the store. The bundle is loaded at the first coding, so listing and
forgetting do not wait for it.
"""

from __future__ import annotations

import itertools
import os
import re
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from pltz.archive import arguments, opener
from pltz.archive.author import Author
from pltz.archive.catalog import stat
from pltz.archive.catalog.directory import SessionDirectory
from pltz.archive.catalog.freshness import Token, token_of
from pltz.archive.catalog.lookup import as_sessions
from pltz.archive.catalog.reader import SessionReader, Tower
from pltz.archive.encryption.keys import KeySource, Secret
from pltz.archive.errors import ArchiveError, KeyMismatch, LostError, NotFound, Outdated, StaysErased, stays_erased
from pltz.archive.format.audit import Verb
from pltz.archive.format.clock import DAY
from pltz.archive.format.ids import TENANT, tenant_of
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.format.record import FORGET, NOTHING, UNDELETE, ContentFacts
from pltz.archive.humanize import counted, moment
from pltz.archive.opener import OpenArchive
from pltz.archive.retention import Policy, expired
from pltz.archive.work_part import WorkPart
from pltz.archive.writing.batch import is_erased
from pltz.archive.writing.commits import (
    COMMIT_BYTES,
    COMMIT_SECONDS,
    Commits,
    CutRequest,
    Pace,
    Refused,
    is_begun,
    put_parts,
    with_parts,
)
from pltz.archive.writing.cut import SessionCutter
from pltz.archive.writing.new_session import CommitReceipt
from pltz.archive.writing.put_request import PreparedRequest, PutReceipt, PutRequest, prepare, put_receipt, repeated
from pltz.coding.codecs.bundle_codecs import BundleCodecs, EngineOptions
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.coding.host_work import HostWork
from pltz.coding.partners import tokenizer_json
from pltz.coding.workers import Workers, helpers
from pltz.models.session.session import Session, kind_of
from pltz.plt_codec import ppmd
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError, UsageError, refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.archive.catalog.audit import AuditEntry
    from pltz.archive.catalog.holds import LegalHold
    from pltz.archive.catalog.lookup import Blocks, Version, VersionName
    from pltz.archive.catalog.stat import Stat
    from pltz.archive.encryption.rekey import Rekeyed
    from pltz.archive.maintenance.collect import Collected
    from pltz.archive.maintenance.erase import Erasure
    from pltz.archive.maintenance.join import TurnJoiner
    from pltz.archive.maintenance.shrink import Shrunk
    from pltz.archive.maintenance.verify import Report
    from pltz.archive.search import SearchHit
    from pltz.archive.word_index import FoundPart, WordIndex
    from pltz.archive.writing.preview import Preview
    from pltz.coding.partners import Path_
    from pltz.datasets.conversation import Place
    from pltz.datasets.given import SessionLike
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.target.target import Target
    from pltz.plt_codec.lanes import LayoutName


QUICK_BYTES = 1 << 16  # content cut within milliseconds: what others put in that time is not looked for


@dataclass(frozen=True)
class SessionVersion:
    """One version of a session, as an archive lists it.

    Immutable: any thread may use it.

    Attributes:
        version: its number: its rank among the session's versions that are there, the oldest is 1. Forgotten ones count
            until they are freed. All that was put at one moment is one version.
        moment: when it was put, in units of 2^-20 seconds since 1970. A session's versions are ordered by it.
        time: its own, in seconds since 1970: as it was given, or when it was put.
        kind: chat, log, text or ids. A log, as of an agent, is a text.
        target: fingerprint, 16 bytes, of the weights it was frozen for; None for any.
        id: 16 bytes that name this version for ever.
        part: path of the part that it is of, empty for the main one and for the session as a whole.
        parts: paths of the parts that the session has at this version, of which the first is told of.
        content: title, turns, bytes, and times of the file and of what was said, as far as they are known.
    """

    tenant: str
    name: str
    version: int
    moment: int
    time: int
    kind: str
    tags: dict[str, str]
    target: bytes | None
    forgotten: bool
    id: bytes
    part: str
    parts: tuple[str, ...]
    content: ContentFacts

    @classmethod
    def of(cls, version: Version, **content: Session) -> Self:
        """Return a version of the catalogue as it is listed. ``content``: the session, where the class has one."""
        target = version.target if any(version.target) else None
        return cls(
            tenant=version.tenant,
            name=version.name,
            version=version.version,
            moment=version.moment,
            time=version.time,
            kind="log" if version.tokenizer == LOG_TOKENIZER else kind_of(version.kind),
            tags=dict(version.tags),
            target=target,
            forgotten=version.forgotten,
            id=version.id,
            part=version.part,
            parts=tuple(part.part for part in version.each),
            content=version.content,
            **content,
        )


@dataclass(frozen=True, eq=False)
class ArchivedSession(SessionVersion):
    """A version of a session with its content. ``session``: as it was put. Immutable: any thread may use it."""

    session: Session

    @property
    def value(self) -> Any:
        """Return the chat, the bytes of the text, or the ids, (T,) int32."""
        return self.session.value

    @property
    def ids(self) -> NDArray[Any]:
        """Return the token ids, (T,) int32. Raises ContentError where it is a chat or a text."""
        if self.kind != "ids":
            raise ContentError(f"session {self.name!r} is a {self.kind}, not token ids: take its value")
        return self.session.value  # type: ignore[no-any-return]


class Archive:
    """An open archive of sessions. Make one with `open`.

    Several processes may use one archive at once, each with an object of its own. One thread uses it at a time.
    ``with`` closes it; so does `close`.
    """

    def __init__(
        self,
        opened: OpenArchive,
        *,
        name: str = "",
        bundle: Path_ | Bundle | Sequence[Path_ | Bundle] | None = None,
        tokenizers: Iterable[Path_ | bytes] = (),
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        model_logs: bool = False,
        model_ids: bool | None = None,
        merge_turns: bool = True,
    ) -> None:
        """Make an archive of parts that `opener` returned. If they have codecs, these are used as they are.

        ``name``: folder or URL, for people. The other arguments are those of `open`.
        """
        self.parts = opened
        self._name = name
        self._bundle = bundle
        self._tokenizers = [tokenizer_json(tokenizer) for tokenizer in tokenizers]
        self._engine: EngineOptions = {"device": device, "threads": threads, "layout": layout}
        self._by_model = model_logs, model_ids
        self._merge_turns = merge_turns

    @classmethod
    def open(
        cls,
        place: Path_,
        *,
        create: bool = False,
        key_file: Path_ | None = None,
        key_command: str | None = None,
        passphrase: str | None = None,
        passphrase_env: str | None = None,
        key: KeySource | None = None,
        bundle: Path_ | Bundle | Sequence[Path_ | Bundle] | None = None,
        tokenizers: Iterable[Path_ | bytes] = (),
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        model_logs: bool = False,
        model_ids: bool | None = None,
        merge_turns: bool = True,
        max_age: float = 0.0,
        actor: str | None = None,
        reason: str | None = None,
        force_time: bool = False,
    ) -> Archive:
        """Open an archive, or make one.

        Args:
            place: its folder, or ``s3://bucket/prefix``.
            create: make it where there is none; with a key it is made sealed.
            key_file, key_command, passphrase, passphrase_env, key: the key of a sealed archive, at most one of them: a
                file, a shell command that prints it, a passphrase, the environment variable with the passphrase, or
                what makes keys by a service (`KeySource`).
            bundle: by name or folder, or loaded. The first of several codes new sessions, the others are for reading.
                None: the one that ships with pltz.
            tokenizers: tokenizer.json (path or bytes) of targets whose ids are read. Those named by a put are added.
            device, threads: device of the bundle and number of cores.
            layout: "fast": sessions over 2048 tokens thaw sooner on a GPU and take a few per cent more bytes.
            model_logs, model_ids: let the model code the text of logs, and the tokens of all else. Else PPMd does, at
                once, for more bytes, until `shrink`. None: the model codes new sessions of a put of up to 32 KiB in
                all, about a second of a core, and what is put on a GPU.
            merge_turns: join the last turns of a session that grows after some puts, so that it is not decoded turn by
                turn. False: a put costs less, and `collect` does it later.
            max_age: seconds for which a read may rely on what this object saw. 0: every read sees all that any process
                had acknowledged before. More saves a look at the store per call. What was erased is refused at once.
            actor, reason: who makes changes through this object, and why, for holds and the audit. Without an actor the
                system's user and host.
            force_time: this clock is right, though the archive's last change is more than a day later, or long ago.

        Raises:
            UsageError: there is no archive, a key is given for one that is not sealed, or more than one key is given.
            KeyMismatch: the archive is sealed with another key. Without a key it opens, and put and get raise this.
            CorruptError, VersionError: archive.json is damaged or newer.
            StoreError: the folder cannot be written.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True, passphrase="correct horse")
        ...     _ = cold.put("greeting", "hello")
        ...     pltz.Archive.open(folder, passphrase="correct horse").get("greeting").value
        b'hello'
        """
        arguments.path(place=place)
        arguments.text(device=device, layout=layout)
        arguments.number_or_none(threads=threads)
        secret = Secret.chosen(
            key_file=key_file, key_command=key_command, passphrase=passphrase, passphrase_env=passphrase_env, key=key
        )
        age = arguments.seconds(max_age=max_age)
        arguments.text_or_none(actor=actor, reason=reason)
        author = Author.of(actor, reason)
        opened = opener.open_or_create(place, key=secret) if create else opener.open_at(place, key=secret)
        opened.catalog.max_age = age
        opened.catalog.author, opened.catalog.force_time = author, force_time
        return cls(
            opened,
            name=os.fspath(place),
            bundle=bundle,
            tokenizers=tokenizers,
            device=device,
            threads=threads,
            layout=layout,
            model_logs=model_logs,
            model_ids=model_ids,
            merge_turns=merge_turns,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop bundle, caches and keys. A later call raises UsageError.

        Nothing is waiting to be written: what was acknowledged is durable already.
        """
        for made in ("codecs", "sessions", "commits"):  # cached properties
            self.__dict__.pop(made, None)
        self.parts = cast("OpenArchive", _Closed(self._name))

    def __repr__(self) -> str:
        if isinstance(self.parts, _Closed):
            return f"<pltz.Archive {self._name}, closed>"
        return f"<pltz.Archive {self._name}>"

    # ---- in

    def put(
        self,
        name: str,
        session: SessionLike,
        *,
        tenant: str = "default",
        tags: Mapping[str, str] | None = None,
        base: str | None = None,
        target: Path_ | Target | bytes | None = None,
        tokenizer: Path_ | bytes | None = None,
        time: int | None = None,
        prefixes: Sequence[int] = (),
        parent: str | None = None,
        salt: str | bytes | None = None,
        continues: bool = False,
        keep_opaque: bool = False,
        part: str = "",
        content: ContentFacts = NOTHING,
        erased_too: bool = False,
    ) -> PutReceipt:
        """Freeze a session under a name. On return it is durable, and was decoded back and compared.

        A name that exists already gets a new version, which adds only its new content.

        Args:
            session: a `Session`, a chat as a dict or a list of messages, a text as str or bytes, or token ids, (T,).
            tags: keys and values to find it by.
            base: share its system prompt (of ids: the first prefix) under this name with all tenants. None: within the
                tenant.
            target: a model, by name or folder or loaded: keep the ids that it would see, for a thaw into that model
                alone. As 16 bytes: only the fingerprint to keep with the session.
            tokenizer: tokenizer.json (path or bytes) of the ids, where it is not the bundle's or the target's.
            time: time of the session, in seconds since 1970; None: now.
            prefixes: of ids: token counts at which beginnings end that other sessions share.
            parent: of ids: name of the session that it was forked from.
            salt: separate it from everything under another salt; only `get` and `thaw` with the same salt find it.
            continues: refuse it where it does not continue the last version: where that is not its beginning. A log is
                not refused. Of one that was put before, or that the last version begins with, nothing is added.
            keep_opaque: keep a session with images or audio, as plain bytes, instead of refusing it.
            part: path of a part of the session, such as the log of a sub-agent. Parts are put one by one, or as one
                version by `put_many`. They are listed, forgotten and erased together.
            content: what `list` tells of it, such as its title.
            erased_too: put it also where a session of its name was erased, now and from now on.

        Raises:
            ContentError: the session cannot be coded (OpaqueContentError: it has image, audio or file parts), or does
                not continue the last version, or was erased (StaysErased); nothing was stored.
            TokenizerMismatch: ids that are not ids of their tokenizer.
            UsageError, ModelError: an argument is invalid, or the bundle or target cannot be used.
            KeyMismatch: the archive is sealed and was opened without its key.
            StoreError: the disk is full or fails; nothing was acknowledged.
            WriterFailed: a sync failed; nothing was acknowledged, and this archive object writes no more.
            Fenced: plans or keys changed meanwhile; nothing was acknowledged, put again.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     cold.put("greeting", "hello").version, cold.put("greeting", "hello again").version
        (1, 2)
        """
        request = PutRequest(
            name=name,
            session=session,
            tenant=tenant,
            tags=tags or {},
            base=base,
            target=target,
            tokenizer=tokenizer,
            time=time,
            prefixes=prefixes,
            parent=parent,
            salt=salt,
            continues=continues,
            part=part,
            content=content,
            erased_too=erased_too,
        )
        [receipt] = self.put_many([request], keep_opaque=keep_opaque)
        return receipt

    def put_many(
        self,
        requests: Iterable[PutRequest],
        *,
        keep_opaque: bool = False,
        coding: Callable[[int, int], None] | None = None,
        refused: Refused | None = None,
        commit_bytes: int = COMMIT_BYTES,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> Iterator[PutReceipt]:
        """Freeze many sessions, in commits of a few megabytes, and yield a receipt for each.

        Parts of one session that follow each other are one version of it.

        Yielded receipts are durable whatever is raised later. Nothing is put before the first receipt is requested.

        Args:
            requests: read one by one; the sessions before one that cannot be read or coded are stored.
            keep_opaque: as in `put`.
            coding: called with the sessions of a commit and the bytes of their content, before they are coded.
            refused: called with a session that cannot be coded and its error, which is then not raised.
            commit_bytes: content of a commit, at most, unless a session has more.
            commit_seconds: seconds that coding a commit should take, at most, by those before it.

        Raises the errors of `put`. What a put would do is told by `preview`.
        """
        alone = isinstance(requests, Sequence) and len(requests) == 1
        pace = Pace(commit_bytes, commit_seconds)
        prepared = self._prepared(requests, refused)
        for commit in self.commits.of(prepared, pace, keep_opaque=keep_opaque, refused=refused):
            began = clock.monotonic()
            put = partial(self._put, pace=pace, alone=alone, coding=coding)
            try:
                committed = put(commit)
            except (Outdated, StaysErased):
                commit = list(self._again(commit, refused))
                committed = put(commit)
            receipts = self._receipts(commit, committed)
            took = clock.monotonic() - began
            yield from receipts
            done = zip(commit, receipts, strict=True)
            coded = sum(cut.size for cut, put in done if put.segments)
            pace.took(coded, took)
            if self._merge_turns and any(one.version > 1 for one in committed):
                self.joiner().after(committed)

    def preview(self, requests: Iterable[PutRequest]) -> Iterator[Preview]:
        """Yield what a put of each session would do, by names and ids: nothing is coded, and no bundle loaded.

        Raises StoreError, and ContentError where a session is over a limit.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("a", "one")
        ...     [(found.state, found.version) for found in cold.preview([PutRequest("a", "two"), PutRequest("b", "")])]
        [('stored', 1), ('new', 0)]
        """
        from pltz.archive.writing.preview import preview

        with self.parts.catalog.one_look():
            for request in requests:
                yield preview(self.parts.catalog, self.parts.last, request)

    def _put(
        self, commit: Sequence[CutRequest], *, pace: Pace, alone: bool, coding: Callable[[int, int], None] | None
    ) -> list[CommitReceipt]:
        """Put the new sessions of a commit. Arguments and errors as of `put_many`."""
        writer = self.parts.writer
        # the parts of large logs are durable before the logs are
        new, before, size = put_parts(writer, commit, pace, coding)
        if coding:
            coding(len(new), size)
        # a call that puts nothing else, and is cut quickly, need not look again at what others put
        committed = writer.put(new, refresh=not alone or size > QUICK_BYTES)
        return with_parts(before, committed) if before else committed

    def _prepared(self, requests: Iterable[PutRequest], refused: Refused | None) -> Iterator[PreparedRequest]:
        """Yield requests that were checked, without those that ``refused`` takes. Raises the errors of `prepare`."""
        for request in requests:
            try:
                ready = prepare(request, self.codecs.add)
                self._want_unerased(ready)
                self._want_past(request)
            except Exception as exc:  # noqa: BLE001 - of foreign data
                error = refusal(exc, f"session {request.name!r}", "put it as a text, and report this")
                if refused is None or not isinstance(error, ContentError):
                    raise error from (exc.__cause__ if error is exc else exc)
                refused(request, error)
            else:
                yield ready

    def _again(self, commit: Sequence[CutRequest], refused: Refused | None) -> Iterator[CutRequest]:
        """Yield a commit by what is there now: what logs stood on is going, or sessions were erased since.

        Raises StaysErased.
        """
        for one in commit:
            try:
                self._want_unerased(one.request)
            except StaysErased as exc:
                if refused is None:
                    raise
                refused(one.request.request, exc)
            else:
                yield one._replace(cut=self.commits.cutter.cut(one.request)) if is_begun(one.cut) else one

    def _want_unerased(self, ready: PreparedRequest) -> None:
        """Raise StaysErased for a session that was erased, or let it be put from now on where the request says so."""
        keys, too = self.parts.catalog.keys, ready.request.erased_too
        if not keys.cipher:
            return
        place = keys.domain(TENANT, ready.tenant), ready.name
        if (not too and keys.buried(*place)) or (type(too) is int and is_erased(keys, *place, too)):
            raise stays_erased(ready.tenant, ready.name)
        keys.unbury(*place)

    def _want_past(self, request: PutRequest) -> None:
        """Raise ContentError where a session's time is more than a day ahead of this clock."""
        if request.time is None or self.parts.catalog.force_time:
            return
        if request.time > self.parts.store.now() + DAY:
            raise ContentError(
                f"the time of {request.name!r}, {moment(request.time)}, is in the future: correct it, or say that it "
                "is right (--force-time, from Python force_time=True)"
            )

    def _receipts(self, commit: Sequence[CutRequest], committed: Sequence[CommitReceipt]) -> list[PutReceipt]:
        """Return a receipt for each request of a commit, in their order."""
        if len(committed) < len(commit):
            self.parts.store.settle(MANIFEST)  # the writer of what was there may be between link and fsync
        new = iter(committed)
        return [
            repeated(request, cut, self.codecs) if isinstance(cut, Tower) else put_receipt(request, cut, next(new))
            for request, cut, _ in commit
        ]

    # ---- out

    def get(
        self,
        name: str,
        *,
        tenant: str = "default",
        version: VersionName | None = None,
        part: str = "",
        salt: str | bytes | None = None,
    ) -> ArchivedSession:
        """Return a session as it was put: its main part, or another one.

        Args:
            version: its number, from 1, or its id, of which 4 bytes are enough. None: the last one that is not
                forgotten, including those that other processes have put by now.
            salt: the salt with which it was put.

        Raises:
            NotFound: there is no such session or version (Erased: its key was destroyed).
            LostError: it is damaged (MissingPack: repair may bring it back).
            ArchiveError: damage may hide it.
            BundleMismatch: its bundle or tokenizer is not at hand.
            KeyMismatch: the archive is sealed and was opened without its key.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("ids", [33, 99, 101], tags={"model": "m"})
        ...     found = cold.get("ids")
        ...     found.ids.tolist(), found.version, found.tags
        ([33, 99, 101], 1, {'model': 'm'})
        """
        arguments.text(name=name, tenant=tenant)
        arguments.version_or_none(version)
        sessions = self.sessions
        with self.parts.catalog.lookup.keeping_blocks():
            found = self.parts.directory.version(name, tenant_of(tenant, salt), version, part)
            return ArchivedSession.of(found, session=sessions.read(found))

    def get_parts(
        self, name: str, *, tenant: str = "default", version: VersionName | None = None, salt: str | bytes | None = None
    ) -> Iterator[ArchivedSession]:
        """Yield the parts of a session as they were put, by path, the main one first. Arguments and errors: as `get`.

        Of each part it is what was put last up to this version.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("log", "hello"), cold.put("log", "found it", part="agents/a.txt")
        ...     [(found.part, found.value) for found in cold.get_parts("log")]
        [('', b'hello'), ('agents/a.txt', b'found it')]
        """
        arguments.text(name=name, tenant=tenant)
        arguments.version_or_none(version)
        sessions = self.sessions
        blocks: Blocks = {}
        with self.parts.catalog.lookup.keeping_blocks(blocks):
            each = self.directory.parts(name, tenant_of(tenant, salt), version)
        for found, session in zip(each, sessions.read_many(each, blocks), strict=True):
            yield ArchivedSession.of(found, session=session)

    def get_many(
        self,
        names: Iterable[str],
        *,
        tenant: str = "default",
        version: VersionName | None = None,
        salt: str | bytes | None = None,
    ) -> Iterator[ArchivedSession]:
        """Yield sessions as they were put, in the order of their names, decoded side by side.

        All are looked up before the first is decoded. Memory is bounded by about a million tokens, or by the largest
        session. Arguments and errors: as `get`; nothing of a group of sessions is yielded if one of it is lost.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     receipts = [cold.put(name, f"hello {name}") for name in ("ada", "bob")]
        ...     [found.session.value for found in cold.get_many(["bob", "ada"])]
        [b'hello bob', b'hello ada']
        """
        arguments.text(tenant=tenant)
        arguments.version_or_none(version)
        chosen = list(names)
        for name in chosen:
            arguments.text(names=name)
        sessions = self.sessions
        blocks: Blocks = {}
        with self.parts.catalog.one_look(), self.parts.catalog.lookup.keeping_blocks(blocks):
            versions = [self.directory.version(name, tenant_of(tenant, salt), version) for name in chosen]
        for found, session in zip(versions, sessions.read_many(versions, blocks), strict=True):
            yield ArchivedSession.of(found, session=session)

    # ---- what is there

    def list(
        self,
        tenant: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        history: bool = False,
        forgotten: bool = False,
        parts: bool = False,
        partial: bool = False,
    ) -> Iterator[SessionVersion]:
        """Yield the last version of each session, by tenant and name. Nothing is decoded.

        Args:
            tenant: only sessions of this tenant; None: of all.
            tags: only versions with all of these.
            history: all versions, not only the last ones.
            forgotten: forgotten versions too.
            parts: each part of a version, and not the version as a whole.
            partial: raise nothing where sessions may be missing.

        Raises:
            ArchiveError: after all that could be listed, where damage may hide sessions.
            StoreError: the store failed.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("a", "one"), cold.put("b", "two", tags={"channel": "web"})
        ...     [found.name for found in cold.list()], [found.name for found in cold.list(tags={"channel": "web"})]
        (['a', 'b'], ['b'])
        """
        arguments.text_or_none(tenant=tenant)
        arguments.tags(tags)
        wanted = (tags or {}).items()
        for version in self.directory.ls(tenant, forgotten=forgotten, history=history):
            if wanted <= version.tags.items():
                yield from map(SessionVersion.of, version.each if parts else [version])
        if not partial:
            self.directory.want_whole("listed what is there", tenant)

    def search(
        self,
        words: str,
        *,
        tenant: str | None = None,
        agent: str = "",
        project: str = "",
        since: int = 0,
        role: str | None = None,
        tool: str | None = None,
        regex: bool = False,
        scan: bool = False,
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        mark: Callable[[Session], Session] | None = None,
    ) -> Iterator[SearchHit]:
        """Yield the turns that have all the words, in the last versions of sessions, the best session first.

        An index on this machine tells where the words are. What is not in it yet is decoded and put in before anything
        is yielded. A session has a better place the more of its turns match, in proportion; then the one talked in last
        has. Its best turns come first.

        Args:
            words: looked for in any case, as whole words; "in quotes" a phrase, ``bel*`` a beginning; with ``regex`` a
                pattern.
            tenant: only sessions of this tenant; None: of all.
            agent: only logs of this one, such as claude-code, or "chat".
            project: only sessions with this in their name or in the folder that the agent began in.
            since: seconds since 1970, of what was said.
            role: only what was said by user, assistant, system or tool.
            tool: only turns that call it.
            regex, scan: use no index: decode all sessions, those talked in last first, and yield turns in their order.
            limit: parts of sessions, at most.
            progress: called with the parts of sessions that were decoded, and how many there are.
            mark: what is looked at in place of a session, such as `Redactor.session`.

        Raises:
            UsageError: there are no words, or the pattern is none.
            ArchiveError: after all that could be searched, where damage hides sessions, or some are not in the index.
            KeyMismatch, StoreError: as `get`; also where the index cannot be kept.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("a", [{"role": "user", "content": "Where is the bug?"}]), cold.put("b", "no")
        ...     [(hit.name, hit.role, hit.line) for hit in cold.search("BUG")]
        [('a', 'user', 'Where is the bug?')]
        """
        from pltz.archive.search import SearchQuery, newest_first, read

        arguments.text(words=words, agent=agent, project=project)
        arguments.text_or_none(tenant=tenant)
        arguments.number_or_none(limit=limit)
        query = SearchQuery(words, agent, project, since, role, tool, regex)
        scan, lacking = scan or regex, 0
        places: dict[bytes, Sequence[Place]] = {}
        broken: list[tuple[Version, Exception]] = []
        progress = progress or (lambda done, total: None)
        if scan:
            chosen = [v for v in newest_first(self.directory.ls(tenant)) if not 0 < v.content.last < since]
            looked = map(progress, itertools.count(1), itertools.repeat(len(chosen)))
            found = read(self.sessions, chosen, broken, lambda: next(looked))
        else:
            index = self.word_index()
            lacking = index.catch_up(progress)
            indexed = self._indexed(index.find(query, tenant), places)
            found = read(self.sessions, indexed, broken, parted=mark is None)
        count = 0
        for version, session in found:
            session, only = (mark(session), ()) if mark else (session, places.get(version.id, ()))
            try:
                hits = list(query.hits(version, session, only))
            except (LostError, CorruptError, BundleMismatch) as exc:  # of a part of a long one
                broken.append((version, exc))
                continue
            yield from hits if scan else sorted(hits, key=lambda hit: -hit.score)
            count += bool(hits)
            if count == limit:
                break
        if broken:
            (version, why), *_ = broken
            what = f"{counted(len(broken), 'session')} cannot, such as {version.name!r}: {why}"
            raise ArchiveError(f"searched what can be read: {what}")
        if lacking:
            what = f"{counted(lacking, 'part')} of sessions cannot be read, or another process adds them now"
            raise ArchiveError(f"searched what is in the index of words: {what}")
        self.directory.want_whole("searched what is there", tenant)

    def _indexed(self, parts: Iterable[FoundPart], places: dict[bytes, Sequence[Place]]) -> Iterator[Version]:
        """Yield the versions of parts that an index found, if they are still the last ones, and note their places."""
        for part in parts:
            with suppress(NotFound, LostError):  # it went meanwhile
                version = self.directory.version(part.name, part.tenant, None, part.part)
                if version.id == part.id:
                    places[version.id] = part.places
                    yield version

    def word_index(self) -> WordIndex:
        """Return the index of words that this machine has of the archive, as it is; `search` brings it up to date."""
        from pltz.archive.word_index import WordIndex

        return WordIndex(self.parts, lambda: self.sessions)

    def history(self, name: str, *, tenant: str = "default") -> tuple[SessionVersion, ...]:
        """Return all versions of a session, oldest first, forgotten ones included.

        Raises NotFound where there is none, LostError where some are damaged or gone, ArchiveError where damage may
        hide it.
        """
        return tuple(map(SessionVersion.of, as_sessions(self._versions(name, tenant))))

    def stat(self) -> Stat:
        """Return counts and bytes of the archive. Raises StoreError."""
        return stat.stat_of(self.parts.catalog, self.parts.settings.archive)

    def joiner(self) -> TurnJoiner:
        """Return what joins the last turns of sessions that grow."""
        from pltz.archive.maintenance.join import TurnJoiner

        parts = self.parts
        return TurnJoiner(parts.catalog, parts.writer, parts.codecs, parts.indexes, load=lambda: self.codecs)

    def collect(
        self,
        *,
        dead_share: float | None = None,
        small: int | None = None,
        grace: int = 0,
        forgotten: bool = True,
        dry_run: bool = False,
    ) -> Collected:
        """Free packs condemned by an earlier run, then condemn small packs and packs with many dead bytes.

        Args:
            dead_share: share of dead bytes from which the rest of a pack is copied; None: a fifth.
            small: packs of fewer bytes are merged; None: 16 MiB.
            grace: seconds between condemning a pack and deleting it. For so long after a forget `undelete` works, at
                least.
            forgotten: else what was forgotten stays, and only other dead bytes are freed.
            dry_run: only report the work to do.

        Raises:
            ArchiveError: something in the archive is damaged or missing: then nothing is deleted.
            StoreError: the store failed.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("greeting", "hello")
        ...     cold.collect().live_versions
        1
        """
        from pltz.archive.maintenance.collect import DEAD_SHARE, SMALL, Collector

        arguments.seconds(grace=grace)
        arguments.number_or_none(small=small)
        arguments.share(dead_share=DEAD_SHARE if dead_share is None else dead_share)
        self.parts.catalog.look()
        believed = self.parts.catalog.believed_time(note=not dry_run)
        collected = Collector(self.parts.catalog, self.parts.writer, self.parts.indexes, self.joiner()).run(
            believed=believed,
            dead_share=DEAD_SHARE if dead_share is None else dead_share,
            small=SMALL if small is None else small,
            grace=grace,
            forgotten=forgotten,
            dry_run=dry_run,
        )
        if not dry_run:
            with suppress(KeyMismatch):  # whoever has the key does it
                self.word_index().purge()
        return collected

    def shrink(
        self,
        *,
        budget: float | None = None,
        part: WorkPart | None = None,
        dry_run: bool = False,
        progress: Callable[[Shrunk], None] | None = None,
    ) -> Shrunk:
        """Code again, by the model, what was put in a fast form: by PPMd.

        Nothing else about a session changes. What is coded anew is decoded and compared before it is put beside the
        old form, which `collect` frees. Packs that were put last come first. Those without work are not looked
        at again on this machine (by the user's cache folder).

        Args:
            budget: seconds after which no more is begun; None: until all is done.
            part: do one of several parts, each in a call of its own.
            dry_run: only report what there is.
            progress: called with the result so far, from time to time.

        Raises:
            KeyMismatch: the archive is sealed and was opened without its key.
            ArchiveError, StoreError, WriterFailed, Fenced: as `put`; what was put before stays.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("greeting", "hello")
        ...     cold.shrink().fresh
        0
        """
        from pltz.archive.maintenance.shrink import Shrinker

        shrinker = Shrinker(self.parts.catalog, self.parts.writer, self.codecs, self.parts.indexes)
        return shrinker.run(budget=budget, part=part, dry_run=dry_run, progress=progress)

    def verify(
        self,
        *,
        decode: bool = False,
        expect: str | None = None,
        part: WorkPart | None = None,
        progress: Callable[[Report], None] | None = None,
    ) -> Report:
        """Read the archive and report all damage and the sessions it costs. Change nothing.

        Args:
            decode: also decode every segment, and prove it by its id.
            expect: the ``token`` of an earlier report. An archive older than that is not sound.
            part: check one of several parts, each in a call of its own. The archive is sound if all reports are.
            progress: called with the report so far, from time to time.

        Raises UsageError for an invalid ``expect``, StoreError. Damage is in the report, whose ``sound`` is False then.
        """
        from pltz.archive.catalog.catalog import Catalog
        from pltz.archive.maintenance.verify import Verifier

        arguments.text_or_none(expect=expect)
        codecs = self.codecs.registry if decode else self.parts.codecs
        catalog = Catalog(self.parts.store, self.parts.keys)
        return Verifier(catalog, codecs, self.parts.settings).run(
            decode=decode, expect=None if expect is None else Token.parse(expect), part=part, progress=progress
        )

    # ---- away

    def forget(
        self,
        names: str | Iterable[str],
        *,
        tenant: str = "default",
        version: VersionName | None = None,
        tags: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> tuple[SessionVersion, ...]:
        """Forget all versions of sessions, or one, and return the versions forgotten by this call.

        What a later version has of one that is forgotten is kept, such as a part that was not put again since.

        `undelete` brings them back until ``pltz archive collect`` has freed them. All are forgotten in one commit.

        Args:
            names: one name, or several.
            version: only this version of each: its number or id, as in `get`.
            tags: only versions with all of these.
            dry_run: only return the versions that would be forgotten.

        Raises:
            NotFound: there is no such session or version; none was forgotten.
            LostError: some of its versions are damaged or gone; none was forgotten. One of those left can be named.
            OnHold: a hold keeps one of them; none was forgotten.
            ArchiveError: damage may hide it.
            StoreError, WriterFailed, Fenced: as `put`.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True)
        ...     _ = cold.put("a", "one")
        ...     forgotten = cold.forget("a")
        ...     len(forgotten), len(list(cold.list())), len(cold.undelete("a")), len(list(cold.list()))
        (1, 0, 1, 1)
        """
        chosen = partial(self._choose, arguments.names(names), tenant, version, tags, forgotten=False)
        return _marked(self._mark(chosen, FORGET, dry_run=dry_run), forgotten=not dry_run)

    def expire(
        self, policy: Policy, names: str | Iterable[str] = (), *, tenant: str | None = None, dry_run: bool = False
    ) -> tuple[SessionVersion, ...]:
        """Forget the versions that a policy does not keep, and return them, oldest first within a session.

        A session of which damage may hide versions, and a version that is held, is refused where it is named, and else
        left as it is.

        An age counts by this clock, but to at most a day and a half after what the archive's changes agreed on. What a
        clock says that went ahead counts once a second call or change agrees, a day later.

        Args:
            policy: rules that keep versions.
            names: only these sessions; empty: all.
            tenant: only sessions of this tenant; None: of all, or of "default" where names are given.
            dry_run: only return the versions that would be forgotten.

        Raises: as `forget`.
        """
        named = arguments.names(names)
        arguments.text_or_none(tenant=tenant)

        self.parts.catalog.look()
        now = self.parts.catalog.believed_time(note=not dry_run)

        def choose() -> Sequence[Version]:
            for name in named:
                self.directory.sight(name, tenant or "default").want_whole()
            if named:
                versions = self._choose(named, tenant or "default", None, None, forgotten=False)
            else:
                versions = self.directory.whole_histories(tenant)
            gone = expired(versions, policy, now, self.parts.catalog.lookup.chain)
            return gone if named else [v for v in gone if not self.parts.catalog.holds.on_version(v)]

        return _marked(self._mark(choose, FORGET, dry_run=dry_run), forgotten=not dry_run)

    def undelete(
        self,
        names: str | Iterable[str],
        *,
        tenant: str = "default",
        version: VersionName | None = None,
        dry_run: bool = False,
    ) -> tuple[SessionVersion, ...]:
        """Bring back all forgotten versions of sessions, or one, and return the versions brought back.

        Args: as `forget`.

        Raises:
            NotFound: a session has no forgotten version, or it was freed; none was brought back.
            ArchiveError: damage may hide them.
            StoreError, WriterFailed, Fenced: as `put`.
        """
        chosen = partial(self._choose, arguments.names(names), tenant, version, None, forgotten=True)
        return _marked(self._mark(chosen, UNDELETE, dry_run=dry_run), forgotten=dry_run)

    def erase(
        self,
        name: str | None = None,
        *,
        tenant: str | None = None,
        everything: bool = False,
        base: str | None = None,
        dry_run: bool = False,
    ) -> Erasure:
        """Destroy the keys of a session, a tenant or a base, and prove that nothing of it opens.

        This cannot be undone.

        Args:
            name, tenant: the session, with all its versions.
            everything: instead of a name: everything of the tenant except base domains.
            base: instead of all these: a base domain that no session uses any more.
            dry_run: only report the content to erase.

        Raises:
            UsageError: the archive is not sealed, was opened without its key, or the arguments name nothing or two
                things.
            NotFound: there is no such session, tenant or base, or it was erased.
            OnHold: a hold keeps something of it.
            ArchiveError: sessions stand on the base, or damage hides which segments other sessions share.
            Fenced, StoreError: others erased in the tenant all the time, or the store failed.
        """
        arguments.text_or_none(name=name, tenant=tenant, base=base)
        if base is not None:
            if name is not None or tenant is not None or everything:
                raise UsageError("a base is erased alone: leave name, tenant and everything out")
        elif tenant is None or (name is None) != everything:
            raise UsageError("expected a tenant with either a name or everything=True, or a base")
        from pltz.archive.maintenance.erase import Eraser, again

        eraser = Eraser(self.parts.catalog, self.parts.writer)
        self.parts.writer.recent.clear()  # the tokens of sessions that are about to be erased
        if base is not None:
            return again(lambda: eraser.base(base, dry_run=dry_run))
        with self.word_index().rekeyed(tenant or ""):
            if name is not None:
                return again(lambda: eraser.session(tenant or "", name, dry_run=dry_run))
            return again(lambda: eraser.tenant(tenant or "", dry_run=dry_run))

    def rekey(
        self,
        *,
        key_file: Path_ | None = None,
        key_command: str | None = None,
        passphrase: str | None = None,
        passphrase_env: str | None = None,
        key: KeySource | None = None,
        add: bool = False,
        drop: bool = False,
        tenant: str | None = None,
    ) -> Rekeyed:
        """Change the key of a sealed archive, or the keys of one tenant. Nothing is coded again.

        Until it is done the old key opens the archive, or the new one does. What was cut off is finished by the next
        call.

        Args:
            key_file, key_command, passphrase, passphrase_env, key: the new key, as of `open`.
            add: it opens the archive beside the others, as a key in escrow does.
            drop: of several keys all others end.
            tenant: put its records, and those under its salts, again under other keys, and destroy those they had;
                without a new key.

        Raises:
            UsageError: the archive is open or was opened without its key, or several keys open it.
            NotFound: there is no such tenant.
            Fenced: somebody else changed keys or erased something at the same time.
            ArchiveError: packs are damaged, or the new key does not open what was put.
            StoreError: the store failed.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True, passphrase="correct horse")
        ...     _ = cold.put("greeting", "hello"), cold.rekey(passphrase="battery staple")
        ...     pltz.Archive.open(folder, passphrase="battery staple").get("greeting").value
        b'hello'
        """
        from pltz.archive.encryption.keyring import Keyring
        from pltz.archive.encryption.rekey import Rekeyed, rekey
        from pltz.archive.maintenance.erase import Eraser, again

        arguments.text_or_none(tenant=tenant)
        self.parts.want_key()
        keys = self.parts.keys
        if not isinstance(keys, Keyring):
            raise UsageError("this archive is not sealed: it has no key to change")
        secret = Secret.chosen(
            key_file=key_file, key_command=key_command, passphrase=passphrase, passphrase_env=passphrase_env, key=key
        )
        if (secret is None) == (tenant is None) or (tenant is not None and (add or drop)):
            raise UsageError("expected a new key for the archive, or a tenant whose keys change by themselves")
        catalog = self.parts.catalog
        if secret is not None:
            how = "add" if add else "drop" if drop else "change"
            catalog.listing.publish(record=catalog.record(Verb.KEY, 1, how=how))  # before: none is without a record
            return rekey(keys, secret, add=add, drop=drop)
        eraser, files, moved = Eraser(catalog, self.parts.writer), 0, 0
        under = self.directory.salted(tenant or "")
        for one in (tenant or "", *under):
            # all may be under salts
            with suppress(NotFound) if under else nullcontext(), self.word_index().rekeyed(one):
                done = again(partial(eraser.renew, one))
                files, moved = files + done.files, moved + done.moved
        return Rekeyed(len(keys.root.secrets), files, moved)

    def hold(
        self, name: str | None = None, *, tenant: str | None = None, tag: tuple[str, str] | None = None
    ) -> LegalHold:
        """Hold a session, what has a tag, or all of a tenant: nothing of it is forgotten, freed or erased any more.

        What is put later counts too, and what was forgotten and is there still. Expiry leaves it as it is.

        Args:
            name: a session of the tenant, by default of "default".
            tenant: without name and tag all of it is held, and what is under its salts.
            tag: key and value, within the tenant or, without one, of all tenants.

        Raises:
            UsageError: both a name and a tag are given, or nothing.
            NotFound: there is no such session.
            KeyMismatch: the archive is sealed and was opened without its key.
            StoreError, WriterFailed: as `put`.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True, actor="alice", reason="case 7")
        ...     _ = cold.put("a", "one")
        ...     held = cold.hold("a")
        ...     try:
        ...         _ = cold.forget("a")
        ...     except pltz.ArchiveError as error:
        ...         print(type(error).__name__, error.hold.actor, error.hold.reason)
        ...     _ = cold.release(held.id)
        ...     len(cold.forget("a"))
        OnHold alice case 7
        1
        """
        arguments.text_or_none(name=name, tenant=tenant)
        catalog, of = self.parts.catalog, "default" if name is not None and tenant is None else tenant
        catalog.look()
        if name is not None:
            self._versions(name, of or "default")
        return catalog.holds.place(catalog.author, tenant=of, name=name, tag=tag)

    def release(self, hold: bytes) -> LegalHold:
        """Release a hold by its id, of which the first bytes are enough, and return it.

        Raises NotFound where there is none, UsageError where the bytes name several, KeyMismatch, StoreError,
        WriterFailed.
        """
        self.parts.catalog.look()
        return self.parts.catalog.holds.release(hold)

    def holds(self) -> tuple[LegalHold, ...]:
        """Return the holds in force, the oldest first. Raises KeyMismatch without the key, StoreError."""
        self.parts.catalog.look()
        return tuple(self.parts.catalog.holds.all())

    def audit(self, *, expect: str | None = None) -> Iterator[AuditEntry]:
        """Yield the records of all changes, the oldest first, each checked against the one before it.

        A record has time, actor, reason, what and how many. Of sessions it has the first bytes of keys, and no names.

        Args:
            expect: digest of a record, in hex, kept elsewhere: it has to be among them.

        Raises CorruptError, after those that are left, where records are gone or changed; StoreError.

        >>> import pltz, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cold = pltz.Archive.open(folder, create=True, actor="alice")
        ...     _ = cold.put("a", "one"), cold.forget("a")
        ...     [(entry.verb, entry.actor, entry.number) for entry in cold.audit()]
        [('put', 'alice', 1), ('forget', 'alice', 1)]
        """
        from pltz.archive.catalog.audit import entries

        arguments.text_or_none(expect=expect)
        if expect is not None and not re.fullmatch("[0-9a-f]{32}", expect):
            raise UsageError(f"expected the digest of a record, 32 hex digits, found {expect!r}")
        self.parts.catalog.look()
        yield from entries(self.parts.catalog, expect)

    def record_reads(self, on: bool) -> None:
        """Record reads from now on as well, whoever reads, or no longer. Each read then changes the manifest first.

        Raises StoreError, WriterFailed.
        """
        catalog = self.parts.catalog
        catalog.look()
        record = catalog.record(Verb.AUDIT, int(on))
        catalog.listing.publish(lambda manifest: replace(manifest, reads=on), record=record)

    def _recorded(self, versions: Iterable[Version]) -> Iterable[Version]:
        """Return versions that are about to be read, once the audit has it, where reads are recorded."""
        catalog = self.parts.catalog
        if catalog.listing.present.reads and (versions := [*versions]):
            keys = [catalog.keys.session_key(catalog.keys.domain(TENANT, v.tenant), v.name) for v in versions]
            catalog.listing.publish(record=catalog.record(Verb.GET, len(versions), keys))
        return versions

    def was_erased(self, name: str, *, tenant: str = "default", salt: str | bytes | None = None) -> bool:
        """Return whether a session was erased by its name, so that a put of it is refused (StaysErased).

        What a tenant erased as a whole had is not remembered. Raises MissingKeys, StoreError.
        """
        keys = self.parts.catalog.keys
        return bool(keys.cipher) and keys.buried(keys.domain(TENANT, tenant_of(tenant, salt)), name)

    def erased_at(self, name: str, *, tenant: str = "default") -> int:
        """Return when a session, or its tenant as a whole, was erased last, in ticks since 1970; below 2: never.

        Raises MissingKeys, StoreError.
        """
        keys = self.parts.catalog.keys
        return keys.erased_at(keys.domain(TENANT, tenant), name) if keys.cipher else 0

    def token(self) -> str:
        """Return the freshness token of the present state, to be kept elsewhere for ``verify(expect=...)``.

        An archive that a token is newer than was rolled back. Raises StoreError.
        """
        return str(token_of(self.parts.catalog))

    # ---- below

    @property
    def directory(self) -> SessionDirectory:
        """Return the directory of the versions that the archive has, as the catalogue lists them."""
        return self.parts.directory

    @cached_property
    def codecs(self) -> BundleCodecs:
        """Return the bundles and the codecs made of them. Loads the bundle. Raises ModelError."""
        from pltz.models.bundle.bundle import Bundle

        named = self._bundle
        given = [named] if named is None or isinstance(named, str | os.PathLike | Bundle) else [*named]
        bundles = [one if isinstance(one, Bundle) else Bundle.load(one) for one in given or [None]]
        first = bundles[0]
        workers = Workers(HostWork(first.tokenizer, first.zstd_dict), helpers(self._engine["threads"]))
        logs, ids = self._by_model
        made = BundleCodecs(self.parts.codecs, bundles, model_logs=logs, model_ids=ids, workers=workers, **self._engine)
        for tokenizer in self._tokenizers:
            made.add(tokenizer)
        return made

    def load(self) -> None:
        """Load the bundle and PPMd's primer now, and not at the first coding. Raises ModelError."""
        assert self.codecs
        ppmd.encode(b" ")

    @cached_property
    def sessions(self) -> SessionReader:
        """Return the reader of sessions. Loads the bundle. Raises ModelError."""
        return SessionReader(self.parts.reader, self.codecs, self._recorded)

    @cached_property
    def commits(self) -> Commits:
        """Return what forms commits of sessions to put. Loads the bundle. Raises ModelError."""
        parts = self.parts
        sessions = SessionReader(parts.reader, self.codecs)
        cutter = SessionCutter(parts.catalog, parts.reader, parts.last, sessions, self.codecs)
        return Commits(parts.catalog, parts.last, cutter, self.codecs)

    def _versions(self, name: str, tenant: str, wanted: VersionName | None = None) -> Sequence[Version]:
        """Return all versions of a session that can be read, of which one has the number or id, where it is given.

        Raises NotFound where there is none, LostError, ArchiveError where damage may hide some.
        """
        arguments.text(name=name, tenant=tenant)
        found = self.directory.sight(name, tenant)
        if wanted is None:
            found.want_named()
        elif not isinstance(wanted, bytes) or not any(v.is_named(wanted) for v in found.versions):
            found.want_counted()
        if not found.versions:
            raise NotFound(f"no session {name!r} of tenant {tenant!r} in this archive: see pltz archive ls")
        return found.versions

    def _mark(self, choose: Callable[[], Sequence[Version]], verb: int, *, dry_run: bool) -> Sequence[Version]:
        """Return those versions of ``choose`` of which something is marked, by one look; a dry run marks none."""

        def work() -> Sequence[Version]:
            chosen, marker = choose(), self.parts.marker
            marking = marker.of(chosen, verb)
            if not dry_run:
                marker.mark(marking)
            marked = {(row.tenant, row.name, row.version) for row in marking.versions}
            return [v for v in chosen if verb == UNDELETE or (v.tenant, v.name, v.version) in marked]

        return self.parts.catalog.decide(work)

    def _choose(
        self,
        names: Iterable[str],
        tenant: str,
        wanted: VersionName | None,
        tags: Mapping[str, str] | None,
        *,
        forgotten: bool,
    ) -> Sequence[Version]:
        """Return the versions that `forget` or `undelete` marks. Raises NotFound, ArchiveError."""
        arguments.version_or_none(wanted)
        arguments.tags(tags)
        chosen: list[Version] = []
        for name in names:
            versions = list(as_sessions(self._versions(name, tenant, wanted)))
            if forgotten and not any(v.forgotten for v in versions):
                self.directory.sight(name, tenant).want_whole()
                raise NotFound(f"session {name!r} of tenant {tenant!r} has no forgotten versions in this archive")
            fitting = [v for v in versions if v.forgotten or not forgotten]
            chosen += [
                v
                for v in _named(fitting, wanted)
                if v.forgotten == forgotten and (tags or {}).items() <= v.tags.items()
            ]
        return chosen


class _Closed:
    """Stands for the parts of an archive that was closed."""

    def __init__(self, place: str) -> None:
        self._name = place

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"the archive {self._name} was closed: open it again")


def _marked(versions: Sequence[Version], *, forgotten: bool) -> tuple[SessionVersion, ...]:
    """Return versions as they are listed with this mark."""
    return tuple(SessionVersion.of(replace(version, forgotten=forgotten)) for version in versions)


def _named(versions: Sequence[Version], wanted: VersionName | None) -> Sequence[Version]:
    """Return all versions, or the one of a number or id. Raises NotFound where none has it."""
    found = [v for v in versions if wanted is None or v.is_named(wanted)]
    if not found:
        there = ", ".join(str(v.version) for v in versions)
        given = wanted.hex() if isinstance(wanted, bytes) else wanted
        raise NotFound(f"expected a version among {there} of session {versions[0].name!r}, found {given}")
    return found
