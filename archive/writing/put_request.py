"""Requests and receipts of a put: `PutRequest`, `PutReceipt`, and the request prepared between them.

    PutRequest("support/7", {"messages": [...]}) --prepare--> PreparedRequest --put--> PutReceipt(version=1, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pltz.archive import arguments
from pltz.archive.catalog.reader import Tower
from pltz.archive.format.ids import tenant_of
from pltz.archive.format.record import NOTHING, ContentFacts, check_name, pack_about
from pltz.archive.writing.new_session import CommitReceipt, NewSession, Sliced
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import BytesCodec, IdsCodec, PpmdCodec
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.log.log_look import LEAST_ESCAPED, is_log
from pltz.coding.partners import as_target, tokenizer_json
from pltz.datasets.dropped import dropped_of
from pltz.datasets.given import as_session
from pltz.datasets.log_lines import ODD
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec import limits
from pltz.plt_codec.errors import ContentError, PltzError, UsageError
from pltz.plt_codec.identity import SIZE

if TYPE_CHECKING:
    from pltz.coding.partners import Path_
    from pltz.datasets.given import SessionLike
    from pltz.models.target.target import Target

ID_BYTES = 4  # bytes per id, as in `Session.to_bytes`


@dataclass(frozen=True, eq=False)
class PutRequest:
    """A session to put into an archive. The fields are the arguments of `Archive.put`.

    Immutable: any thread may use it.

    ``continues``: refuse it where it does not continue the last version of its name (`datasets.continuation`): one of
    another file may not. No log of an agent is refused: it is a new version, and none where it is an older state.
    ``content``: what a list shows of it, and ``about`` tells more, where it is stored and not before. ``erased_too``:
    put it also where it was erased; a number: if that was no later than the moment, in ticks.
    """

    name: str
    session: SessionLike
    tenant: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None
    target: Path_ | Target | bytes | None = None
    tokenizer: Path_ | bytes | None = None
    time: int | None = None
    prefixes: Sequence[int] = ()
    parent: str | None = None
    salt: str | bytes | None = None
    continues: bool = False
    part: str = ""
    content: ContentFacts = NOTHING
    about: Callable[[], ContentFacts] | None = None
    erased_too: bool | int = False


@dataclass(frozen=True)
class PutReceipt:
    """The result of a put.

    Immutable: any thread may use it.

    Attributes:
        version: number of the version, from 1, as a listing would give it now.
        id: 16 bytes that name this version for ever.
        segments: number of new segments.
        size: bytes of the new segments.
        by_model: coded by the bundle, not by zstd.
        method: name of what coded its new segments: "model", "zstd", "ppmd", or of a log "log + model",
            "log + ppmd". Of an unchanged log "log".
        opaque: bytes among ``size`` of ids, hashes and signatures, which no coder shrinks, where known.
        unchanged: the archive had it already, and nothing was added.
        kind: chat, log, text or ids, as of a listing.
        tokens: tokens of the session, in the vocabulary of its codec.
        tower: segments of the session, new and stored ones.
        target: fingerprint, 16 bytes, of the weights it belongs to; None: not known.
        dropped: names of what was left out of it, as its tags say: "signatures". Empty: nothing was.
        dropped_bytes: bytes of that.
        odd: lines of a log that are no JSON and kept as bytes, as its tags say.
        part: path of the part of the session, empty for the main one.
    """

    tenant: str
    name: str
    version: int
    id: bytes
    segments: int
    size: int
    by_model: bool
    unchanged: bool
    kind: str
    tokens: int
    tower: int
    target: bytes | None
    method: str = ""
    opaque: int | None = None
    dropped: str = ""
    dropped_bytes: int = 0
    odd: int = 0
    part: str = ""


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """A request that was checked, with all that cutting it asks for, each made once.

    Attributes:
        request: as it was given.
        session: what it is about; of a target the ids that it would see.
        tenant: with its salt, as `tenant_of` gives it.
        target: fingerprint of the weights, 16 bytes, or None.
        tokenizer: fingerprint of the tokenizer of token ids; None: the bundle's.
        part: path of the part of the session, empty for the main one.
        as_ids: whether these are token ids that a served model saw.
    """

    request: PutRequest
    session: Session
    tenant: str
    target: bytes | None
    tokenizer: bytes | None
    name: str
    part: str
    as_ids: bool

    @cached_property
    def content(self) -> bytes:
        """Return the session as bytes. Raises ContentError, which names the session, where it is over a limit."""
        try:
            return self.session.to_bytes()
        except ContentError as exc:
            raise type(exc)(f"session {self.name!r}: {exc}") from exc

    def facts(self) -> ContentFacts:
        """Return what a list shows of it."""
        return self.request.about() if self.request.about else self.request.content

    @cached_property
    def is_log(self) -> bool:
        """Return whether it is coded as the log of an agent. Raises the errors of ``content``."""
        return coded_as_log(self.session, self.text)

    @property
    def text(self) -> Sliced:
        """Return the bytes of a log, which may be too many for memory. Raises the errors of ``content``."""
        return self.session.value if isinstance(self.session.value, LongText) else self.content

    @property
    def size(self) -> int:
        """Return about the bytes of its content, 0 where it cannot be put."""
        if self.as_ids:
            return ID_BYTES * len(self.session.value)
        try:
            return len(self.text)
        except (PltzError, UnicodeError, TypeError, ValueError, AttributeError):  # `put` tells why
            return 0


def coded_as_log(session: Session, content: Sliced) -> bool:
    """Return whether a session is coded as the log of an agent, as all long ones are. ``content``: its bytes."""
    if isinstance(content, LongText) or (session.kind != "ids" and len(content) > limits.ZSTD_ABOVE):
        return True
    return len(content) > LEAST_ESCAPED and is_log(session, content[:])


def prepare(request: PutRequest, add_tokenizer: Callable[[bytes], bytes]) -> PreparedRequest:
    """Check a request, and return it with a session, fingerprints and a salted tenant.

    ``add_tokenizer``: as `BundleCodecs.add`. Raises the errors of `Archive.put`.
    """
    arguments.text(name=request.name, tenant=request.tenant, part=request.part)
    arguments.text_or_none(base=request.base, parent=request.parent)
    arguments.number_or_none(time=request.time)
    arguments.tags(request.tags)
    tenant = tenant_of(request.tenant, request.salt)
    for name in (request.name, tenant, *([] if request.base is None else [request.base])):
        check_name(name)
    pack_about(request.part, request.content, request.tags)  # what cannot be stored is no fault of others
    session = as_session(request.session)
    target, tokenizer = request.target, request.tokenizer
    if target is not None and not isinstance(target, bytes):
        from pltz.datasets.conversation import seen_by

        if tokenizer is not None:
            raise UsageError("a target brings its own tokenizer: leave tokenizer out")
        model = as_target(target)
        session, target, tokenizer = seen_by(model, session), model.fingerprint, model.tokenizer_json
    if request.salt and request.base is not None:
        raise UsageError("a base is shared with all tenants, and a salt with none: leave one of them out")
    if session.kind != "ids" and (request.prefixes or request.parent is not None):
        raise UsageError(f"prefixes and parent belong to token ids, and session {request.name!r} is a {session.kind}")
    # a tokenizer is given by its file, or by its fingerprint where the archive has it already
    known = None
    if tokenizer is not None and session.kind == "ids":
        given = tokenizer_json(tokenizer)
        known = given if len(given) == SIZE else add_tokenizer(given)
    return PreparedRequest(
        request=request,
        session=session,
        tenant=tenant,
        target=target or None,
        tokenizer=known,
        name=request.name,
        part=request.part,
        as_ids=known is not None or bool(request.prefixes) or bool(request.parent),
    )


def put_receipt(request: PreparedRequest, cut: NewSession, committed: CommitReceipt) -> PutReceipt:
    """Return the receipt of a session that was put."""
    method, opaque = _method(committed)
    return _receipt(
        request,
        version=committed.version,
        id=committed.id,
        segments=committed.new,
        size=committed.size,
        by_model=method.endswith("model") or method == "log",
        unchanged=committed.unchanged,
        kind="log" if method.startswith("log") else cut.kind,
        tokens=committed.tokens,
        tower=committed.segments,
        method=method,
        opaque=opaque,
    )


def repeated(request: PreparedRequest, tower: Tower, codecs: BundleCodecs) -> PutReceipt:
    """Return the receipt of what the archive has already, such as token ids or an older state of a log."""
    kind = request.session.kind if len(tower.tokens) else "log"
    tokens = len(tower.tokens) or len(request.text)
    by_model = kind == "log" or codecs.by_model(ID_BYTES * tokens, grows=True)
    return _receipt(
        request,
        version=tower.version.version,
        id=tower.version.id,
        segments=0,
        size=0,
        by_model=by_model,
        unchanged=True,
        kind=kind,
        tokens=tokens,
        tower=len(tower.segments),
        method="log" if kind == "log" else "model" if by_model else "ppmd",
    )


def _receipt(request: PreparedRequest, **of_what_is_stored: Any) -> PutReceipt:
    """Return a receipt: the names of a request, what was left out of it, and what is stored of it."""
    tags = request.request.tags
    dropped, size = dropped_of(tags) if tags else ("", 0)
    odd = tags.get(ODD, "0")
    return PutReceipt(
        request.tenant,
        request.name,
        target=request.target,
        part=request.part,
        dropped=dropped,
        dropped_bytes=size,
        odd=int(odd) if odd.isascii() and odd.isdigit() else 0,
        **of_what_is_stored,
    )


def _method(committed: CommitReceipt) -> tuple[str, int | None]:
    """Return the method and the opaque bytes of what a put stored, as in `PutReceipt`."""
    if not isinstance(committed.codec, LogCodec):
        by = {BytesCodec: "zstd", IdsCodec: "ppmd", PpmdCodec: "ppmd"}
        return by.get(type(committed.codec), "model"), None
    if not committed.coded:
        return "log", None
    methods, opaque = zip(*committed.coded, strict=True)
    return min(methods), sum(opaque)  # the model, where it coded any
