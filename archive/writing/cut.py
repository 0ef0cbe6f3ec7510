"""SessionCutter: cuts a session into segments, each stored once however many sessions have it.

    <|system|>You are ...  |  <|user|>Hi<|assistant|>Hello  |  <|user|>And ...  |  <|meta|>{...}
    base                      the last version's turns         new turns           the rest of the object

* base: the part of a chat before the first user message, where it has BASE_TOKENS or more. It belongs to the
  tenant, or to a domain of its own where ``PutRequest.base`` names one: then all tenants that name it share it.
* the last version: as many of its segments as the new tokens begin with. So a longer version of a session adds
  only its new turns. A tower of more than MAX_TOWER segments is cut anew.
* <|meta|>, a chat's other keys, comes last. After META_AFTER tokens it is a segment of its own, so that new
  turns can follow the old ones.

A session goes to the writer as tokens of the bundle, for the model or PPMd. What the model would code in vain, such as
base64 and machine code, goes as plain bytes under zstd (`codec.BytesCodec`, with the bundle's dictionary), as what has
no tokens does, and what follows a version that went so. The tokenizer fingerprint of a version shows which codec it
was, and its kind whether it is chat, text or ids.

The log of an agent (`log_look.is_log`), and whatever is too long for the model, goes as plain bytes alone, by
`logs.LogCodec`: the segments that it begins with, told by their ids, then all that is new as one. So a log that grows
adds its new lines, in a time like theirs, and one that did not change is not coded.

**Token ids that a served model saw** come with a tokenizer, prefixes or a parent. They keep to their tokenizer:
ids of the bundle are coded directly, others through a bridge (`bridged.BridgedCodec`). They are cut where the last
version (or that of the parent) was cut, as far as they begin with the same ids, then at the prefixes. A session
that is stored with the same ids, tags and target is not put again. This holds for its last version and for any
version of the same second, so replaying a journal after a crash does no harm.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.directory import history_of
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import SessionReader, Tower, TowerReader
from pltz.archive.errors import LostError, NotFound
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.writing.last_towers import LastTowers
from pltz.archive.writing.new_session import NewSession, Sliced, Slices
from pltz.archive.writing.put_request import ID_BYTES, PreparedRequest
from pltz.archive.writing.segments import Beginning
from pltz.coding import look
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import NO_MARK, BundleCodec, BytesCodec, Plain, SegmentCodec
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.coding.host_work import tokens_to_store
from pltz.coding.log.above import REACH
from pltz.coding.log.recall import Passages
from pltz.datasets.continuation import continues
from pltz.models.bundle.tokenizer import SPECIALS, Ids
from pltz.models.session import transcript
from pltz.models.session.session import Session, kind_number, kind_of
from pltz.plt_codec import limits
from pltz.plt_codec.container.frame import is_bytewise
from pltz.plt_codec.errors import BundleMismatch, ContentError, FormatError, OpaqueContentError, TokenizerMismatch
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.limits import check_ids

BASE_TOKENS = 64  # a shorter base is not worth a record of its own
META_AFTER = 512  # tokens before a chat's other keys from which these get a segment of their own, so turns can follow
MAX_TOWER = 1024  # segments above which a session is cut anew
MAX_SEGMENT = 65536  # token ids per segment: so many may take one byte (FORMAT.md, "Limits")
PPMD_SEGMENT = 1 << 20  # token ids per segment by PPMd, which finds repeats only within a segment
LOG_PART = 1 << 20  # bytes after which a log is cut at a line end: a part is coded in half a minute by a CPU, and kept
PACKED_PART = 3 << 22  # the same of a log that is too long for the model: with more to look back on
USER, META = SPECIALS.index("user"), SPECIALS.index("meta")
Tokenised = Callable[[], Ids | None]
UNREADABLE = (NotFound, FormatError, BundleMismatch)  # errors of a last version that a put does not build on


@dataclass(frozen=True)
class _LastVersion:
    """The last version of a session, which the next one may build on.

    ``shared``: number of its segments shared with all tenants; ``base``: name under which they are.
    """

    tower: Tower
    shared: int
    base: str | None


class SessionCutter:
    """Cuts sessions for one archive, after what it has of them."""

    def __init__(
        self, catalog: Catalog, reader: TowerReader, last: LastTowers, sessions: SessionReader, codecs: BundleCodecs
    ) -> None:
        self._catalog, self._reader, self._last = catalog, reader, last
        self._sessions, self._codecs = sessions, codecs

    def cut(
        self, request: PreparedRequest, *, keep_opaque: bool = False, begun: Tokenised | None = None, new: bool = False
    ) -> NewSession | Tower:
        """Return a session cut into segments; of what is stored alike and need not be put again, the stored version.

        ``begun``: gives its tokens, where that was begun; errors as `tokens_to_store`. ``new``: none has its name.

        Raises ContentError, TokenizerMismatch, and StoreError where the archive cannot be read.
        """
        if request.as_ids:
            return self._cut_ids(request)
        if request.is_log:
            if not keep_opaque:
                transcript.refuse_opaque(request.session)
            found = self._cut_log(request)
        else:
            found = self._cut_session(request, keep_opaque, begun, new)
        return found if new or isinstance(found, Tower) else self._as_moved(request, found) or found

    def _as_moved(self, request: PreparedRequest, found: NewSession) -> Tower | None:
        """Return the last version where a put would only repeat it, in a pack that is condemned; None else.

        Nothing may rely on that pack. But the version is live, so a collector moves it.
        """
        condemned, own = self._catalog.listing.condemned, found.codec.tokenizer if found.codec else None
        may_be = bool(condemned) and request.request.base is None
        history = history_of(self._catalog, request.tenant, request.name) if may_be else None
        version = self.last_version(request.tenant, request.name, request.part) if history else None
        if not (history and history.has_newest and version and version.location.pack in condemned):
            return None
        kind = kind_number(found.kind, found.writing)
        asked = own, kind, request.target or NONE, dict(request.request.tags), request.request.time or version.time
        if asked != (version.tokenizer, version.kind, version.target, version.tags, version.time):
            return None
        if own == LOG_TOKENIZER:
            same = self._last.vouches(version, request.text)
            tower = Tower(version, [(version.leaf, np.zeros(0, np.uint8))])
        elif (decoded := self._tower(version)) is not None:
            same = np.array_equal(decoded.tokens, np.concatenate([decoded.tokens[:0], *found.segments]))
            tower = decoded
        else:
            return None
        return tower if same and self._last.stands(version) else None

    def last_version(self, tenant: str, name: str, part: str = "") -> Version | None:
        """Return the last version of a part of a session that is not forgotten; None where there is none."""
        versions = self._catalog.lookup.versions(self._catalog.keys.domain(TENANT, tenant), name)
        return next((v for v in reversed(versions) if not v.forgotten and v.part == part), None)

    # ---- chats and texts

    def _cut_session(
        self, request: PreparedRequest, keep_opaque: bool, begun: Tokenised | None, new: bool
    ) -> NewSession | Tower:
        """Return a session cut as tokens, for the model or PPMd, or as plain bytes.

        Of the short beginning of a log it is the version that has all of it, as of `_cut_log`.
        """
        session, content = request.session, request.content
        # the bytes of the session, cut where the stored version has its segments
        version = None if new else self.last_version(request.tenant, request.name, request.part)
        tower = self._tower(version)
        is_log = version and (version.tokenizer, kind_of(version.kind)) == (LOG_TOKENIZER, session.kind)
        if version and is_log and (known_as := self._state_of(request, version, Beginning())):
            return Tower(known_as, [(known_as.leaf, np.zeros(0, np.uint8))])
        if request.request.continues and tower:
            self._want_continuation(request, tower)
        last = self._to_build_on(tower, session)
        data = np.frombuffer(content, np.uint8)
        by_bytes = partial(self._segmented, self._codecs.plain, request, data, last)
        if last and _adds_nothing(last.tower, plain := by_bytes()):
            if session.kind == "chat" and not keep_opaque:
                transcript.refuse_opaque(session)
            return plain
        # its tokens, unless it holds what the model does not code
        try:
            tokens = begun() if begun else tokens_to_store(session, self._codecs.tokenizer, keep_opaque=keep_opaque)
        except OpaqueContentError:
            raise
        except (ContentError, TokenizerMismatch) as exc:
            raise type(exc)(f"session {request.name!r}: {exc}") from exc
        by_model = self._codecs.by_model(len(content), grows=last is not None)
        begun_so = last is not None and last.tower.version.tokenizer == BytesCodec.tokenizer
        goes_on = last is not None and begun_so and common(last.tower, data)
        if tokens is None or goes_on or (by_model and last is None and self._in_vain(session, tokens, content)):
            return by_bytes()
        codec = self._codecs.model if by_model else self._codecs.fast
        return self._segmented(codec, request, tokens.astype(identity.U32, copy=False), last)

    def _in_vain(self, session: Session, tokens: Tokens, content: bytes) -> bool:
        """Return whether zstd takes fewer bytes than the model, of bytes that are no text, or as samples tell.

        ``tokens``: (T,), ``content``: of the session. Nearly all sessions are in no doubt, at a cheap look.
        """
        model, plain = self._codecs.model, self._codecs.plain
        if session.kind == "text" and b"\0" in content:
            return True
        if len(tokens) < look.LEAST or not isinstance(model, BundleCodec):
            return False
        if not (samples := look.doubtful(len(tokens), content, plain.fast_size(content))):
            return False
        [size] = look.expected_sizes(model.coder, [(tokens, samples)])
        return len(plain.encode([Plain(np.frombuffer(content, np.uint8), NO_MARK)])[0]) <= size

    def _segmented(
        self, codec: SegmentCodec, request: PreparedRequest, tokens: Tokens, last: _LastVersion | None
    ) -> NewSession:
        """Cut tokens, (T,), where the last version, the base and the rest of the object begin or end."""
        kind, wanted = request.session.kind, request.request.base
        chat = codec is not self._codecs.plain and kind == "chat"
        start, end = _ends(tokens) if chat else (0, len(tokens))
        base = wanted if wanted is not None or last is None else last.base
        shared = int(chat and start > 0 and base is not None)
        known: list[int] = []
        if last and last.tower.version.tokenizer == codec.tokenizer:
            same = base == last.base or not (shared or last.shared)
            known = common(last.tower, tokens) if same else []  # else the base's domain and all ids change
            if len(known) < last.shared:
                known = []
            elif last.shared:
                shared = last.shared
        cuts = [*known, *(cut for cut in (start, end) if not known or cut > known[-1])]
        ends = sorted({*cuts, len(tokens)} - {0})
        segments = [tokens[a:b] for a, b in itertools.pairwise([0, *ends])]
        return _new_session(request, segments, codec, shared=shared, base=base)

    def _tower(self, version: Version | None) -> Tower | None:
        try:
            return None if version is None or self._reader.is_long(version) else self._last.of(version)
        except UNREADABLE:
            return None

    def _to_build_on(self, tower: Tower | None, session: Session) -> _LastVersion | None:
        """Return the last version of a session if a new one can build on it."""
        if tower is None or len(tower.segments) > MAX_TOWER or kind_of(tower.version.kind) != session.kind:
            return None
        try:
            return _LastVersion(tower, *self._reader.base_of(tower))  # remembered, and its base damaged since
        except UNREADABLE:
            return None

    def _want_continuation(self, request: PreparedRequest, tower: Tower) -> None:
        """Raise ContentError where a session does not continue the last version of its name."""
        version = tower.version
        own = is_bytewise(version.tokenizer) and kind_of(version.kind) == request.session.kind
        if own and np.array_equal(tower.tokens, np.frombuffer(request.content, np.uint8)):
            return
        if not continues(self._sessions.session(tower), request.session):
            raise ContentError(
                f"session {request.name!r} does not continue version {version.version}, which is stored under this "
                "name: put it under another name (--name), or let it be the next version all the same (--new-version; "
                "new_version = true in a nightly source)"
            )

    # ---- logs

    def _cut_log(self, request: PreparedRequest) -> NewSession | Tower:
        """Cut a log at the ends of the stored segments that it begins with, or return the version that has all of it.

        That is an older version which is equal, or the last one where that begins with it.
        """
        content, codec = request.text, self._codecs.log
        version = self.last_version(request.tenant, request.name, request.part)
        begun, ends, whole = Beginning(), list[int](), version is None
        long = len(content) > REACH  # it may recall what stands far above
        seen = Passages(content) if long else None
        if version and (version.tokenizer, kind_of(version.kind)) == (LOG_TOKENIZER, request.session.kind):
            grown = seen if len(content) > version.content.size else None
            begun, ends, whole = self._last.beginning(version, content, grown)
        if version and not whole and (known_as := self._state_of(request, version, begun)):
            return Tower(known_as, [(known_as.leaf, np.zeros(0, np.uint8))])
        if begun.count + len(ends) > MAX_TOWER + len(content) // (4 * LOG_PART):
            begun, ends, seen = Beginning(), [], Passages(content) if long else None
        least = PACKED_PART if len(content) > limits.ZSTD_ABOVE else LOG_PART
        ends += line_ends(content, ends[-1] if ends else begun.size, least)
        ends += [len(content)] if len(content) > (ends[-1] if ends else begun.size) else []
        return _new_session(request, Slices(content, begun.size, ends, seen), codec, after=begun)

    def _state_of(self, request: PreparedRequest, last: Version, begun: Beginning) -> Version | None:
        """Return the version of which a log that does not go on where the last one ended is an older state.

        ``begun``: what it has in common with the last one.
        """
        content, size = request.text, request.request.content.size
        for v in history_of(self._catalog, request.tenant, request.name).versions:
            own = (v.part, v.tokenizer, v.forgotten) == (request.part, LOG_TOKENIZER, False) and v.id != last.id
            if own and (not size or v.content.size in (0, size)) and v.tags == request.request.tags:
                found, ends, whole = self._last.beginning(v, content)
                if whole and (ends[-1] if ends else found.size) == len(content) and self._last.stands(v):
                    return v
        if last.tokenizer != LOG_TOKENIZER:
            return None
        if begun.size == len(content) > 0:
            return last
        at = 0
        with suppress(*UNREADABLE):  # it is put anew
            for tokens in () if self._reader.is_long(last) else self._reader.pieces(last):
                part = content[at : at + len(tokens)]
                if tokens[: len(part)].astype(np.uint8).tobytes() != part:
                    break
                at += len(part)
                if at == len(content):
                    return last
        return None

    # ---- token ids that a served model saw

    def _cut_ids(self, request: PreparedRequest) -> NewSession | Tower:
        """Return token ids cut into segments, or the stored version that is the same."""
        session, tokenizer = request.session, request.tokenizer
        if tokenizer is None or tokenizer == NONE:
            tokenizer = self._codecs.tokenizer.fingerprint
        codec = self._codecs.of_ids(tokenizer)
        if codec is None:
            raise TokenizerMismatch(
                f"session {request.name!r} has ids of tokenizer {tokenizer.hex()}: "
                "open the archive with it (--tokenizer)"
            )
        check_ids(len(session.value))
        ids = identity.checked(session.value)
        last = self._last_ids(request.tenant, request.name, codec, request.part)
        for tower in self._alike(request, codec, last):
            if self._has(tower, request, ids):
                return tower
        before = last or self._last_ids(request.tenant, request.request.parent or "", codec)
        by_model = self._codecs.by_model(ID_BYTES * len(ids), grows=before is not None)
        rows, shared, base = self._id_segments(request, ids, before, MAX_SEGMENT if by_model else PPMD_SEGMENT)
        own = codec if by_model else self._codecs.of_many_ids(codec.tokenizer)
        return _new_session(request, rows, own, shared=shared, base=base)

    def _alike(self, request: PreparedRequest, codec: SegmentCodec, last: Tower | None) -> Iterator[Tower]:
        """Yield versions that a request may repeat: the last one, if it surely is, and those of the same second."""
        history = history_of(self._catalog, request.tenant, request.name)
        if last and history.has_newest:
            yield last
        for version in (v for v in history.versions if v.part == request.part):
            known = last is not None and version.id == last.version.id and history.has_newest
            if version.time == request.request.time and not known and (tower := self._ids_of(version, codec)):
                yield tower

    def _has(self, tower: Tower, request: PreparedRequest, ids: Tokens) -> bool:
        version = tower.version
        same = version.target == (request.target or NONE) and version.tags == dict(request.request.tags)
        return same and np.array_equal(tower.tokens, ids) and self._last.is_sound(tower)

    def _id_segments(
        self, request: PreparedRequest, ids: Tokens, before: Tower | None, step: int
    ) -> tuple[list[Tokens], int, str | None]:
        """Cut ids, (T,), into the segments of ``before`` that they begin with, then at each prefix.

        Returns the segments, the number of them that are in a base, and its name. ``step``: most ids of a new one.
        """
        wanted = request.request.base or None
        shared, base, known = 0, wanted, list[int]()
        if before and len(before.segments) <= MAX_TOWER:
            known = common(before, ids)
            try:
                shared, name = self._reader.base_of(before)
            except LostError:  # the tower is remembered, and its base was damaged since
                shared, name = MAX_TOWER, None
            base = wanted or name
            if len(known) < shared or (wanted and name != wanted):
                known, shared = [], 0
        # new segments begin where the caller said, behind those that are stored
        ends = [end for end in request.request.prefixes if 0 < end <= len(ids)]
        if not shared and base and ends and not known:
            shared = 1
        cuts = sorted({*known, *(end for end in ends if not known or end > known[-1]), len(ids)} - {0})
        rows = _short(ids, cuts, exact=len(known), step=step)
        return rows, _count(rows, cuts[shared - 1]) if shared else 0, base

    def _last_ids(self, tenant: str, name: str, codec: SegmentCodec, part: str = "") -> Tower | None:
        """Return the last version of a part of a session if a new one can build on it."""
        version = self.last_version(tenant, name, part) if name else None
        return self._ids_of(version, codec) if version else None

    def _ids_of(self, version: Version, codec: SegmentCodec) -> Tower | None:
        if (version.tokenizer, kind_of(version.kind)) != (codec.tokenizer, "ids"):
            return None
        return self._tower(version)


def size_of(cut: NewSession) -> int:
    """Return the bytes of content of a session."""
    if isinstance(cut.segments, Slices):
        return sum(cut.segments.sizes)
    return sum(len(tokens) * (1 if tokens.dtype == np.uint8 else ID_BYTES) for tokens in cut.segments)


def line_ends(content: Sliced, begin: int, least: int = LOG_PART) -> list[int]:
    """Return where the new part of a log is cut, so that a put that is cut off goes on there.

    The bytes up to there alone decide it, so that a log that grew meanwhile is cut in the same places. The last part
    has half the bytes of another, at least. Parts far behind are larger, so that there are not too many.

    ``least``: bytes of a part, at least.
    """
    ends = list[int]()
    while True:
        part = max(least, min(begin >> 7, PACKED_PART))
        line = content.find(b"\n", begin + part, begin + 2 * part)
        begin = line + 1 if line >= 0 else begin + 2 * part  # within a line that has no end in sight
        if len(content) - begin < part // 2:
            return ends
        ends.append(begin)


def common(tower: Tower, tokens: Tokens) -> list[int]:
    """Return the ends, in tokens, of the segments of a tower with which ``tokens``, (T,), begin."""
    cuts: list[int] = []
    at = 0
    for _, segment in tower.segments:
        if not np.array_equal(tokens[at : at + len(segment)], segment):
            break
        at += len(segment)
        cuts.append(at)
    return cuts


def _new_session(
    request: PreparedRequest,
    segments: Sequence[Tokens],
    codec: SegmentCodec,
    *,
    shared: int = 0,
    base: str | None = None,
    after: Beginning | None = None,
) -> NewSession:
    too = request.request.erased_too
    return NewSession(
        request.name,
        segments,
        tenant=request.tenant,
        shared=shared,
        base=base or "base",
        tags=request.request.tags,
        kind=request.session.kind,
        writing=request.session.writing,
        target=request.target,
        time=request.request.time,
        codec=codec,
        part=request.part,
        content=request.facts,  # of an unchanged one nothing is looked at
        unerased=too if type(too) is int else None,
        after=after,
    )


def _adds_nothing(tower: Tower, plain: NewSession) -> bool:
    """Return whether a session as plain bytes is the last version itself, so that no other way has to be looked at."""
    stored = [tokens for _, tokens in tower.segments]
    same = tower.version.tokenizer == BytesCodec.tokenizer and len(stored) == len(plain.segments)
    return same and all(map(np.array_equal, stored, plain.segments))


def _ends(tokens: Tokens) -> tuple[int, int]:
    """Return the ends of a chat's base and of its turns, in tokens.

    The base ends at 0 where there is none, the turns at T where nothing follows them.

    >>> _ends(np.array([1, *[99] * 70, USER, *[50] * 500, 3, 51, META, 40]))
    (71, 574)
    """
    marks = np.flatnonzero(tokens < len(SPECIALS))
    names = tokens[marks].tolist()
    start = int(marks[names.index(USER)]) if USER in names else 0
    end = len(tokens)
    if META in names and (last := int(marks[len(names) - 1 - names[::-1].index(META)])) >= META_AFTER:
        end = last
    return (start if start >= BASE_TOKENS else 0), end


def _short(ids: Tokens, cuts: Sequence[int], exact: int, step: int = MAX_SEGMENT) -> list[Tokens]:
    """Return the segments, (t,) each, that end at the cuts.

    Those after the first ``exact`` are in pieces of at most ``step`` tokens.
    """
    rows: list[Tokens] = []
    for number, (start, end) in enumerate(itertools.pairwise([0, *cuts])):
        most = end - start if number < exact else step
        rows += [ids[at : min(at + most, end)] for at in range(start, end, most)]
    return rows


def _count(rows: Sequence[Tokens], end: int) -> int:
    """Return the number of segments, from the root, up to token ``end``."""
    ends = list(itertools.accumulate(len(row) for row in rows))
    return ends.index(end) + 1
