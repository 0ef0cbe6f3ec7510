"""Input and output of a writer: sessions as towers of token ids, and receipts. Neither is a format.

NewSession("chat-7", [prompt_ids, turn_ids], tenant="acme", shared=1) --put--> CommitReceipt(version=1, new=2, ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pltz.archive.catalog.chain import MAX_SEGMENTS
from pltz.archive.format.ids import Tokens
from pltz.archive.format.record import MAX_NAME, MAX_TIME, NOTHING, ContentFacts, pack_about
from pltz.archive.writing.beginning import Beginning
from pltz.archive.writing.pending_segment import PendingSegment
from pltz.archive.writing.slices import Slices
from pltz.coding.codecs.codec import SegmentCodec
from pltz.coding.codecs.registry import CodecRegistry
from pltz.models.session.session import KINDS, Kind
from pltz.plt_codec.errors import ContentError, LimitError, UsageError
from pltz.plt_codec.identity import SIZE
from pltz.plt_codec.limits import MAX_TOKENS


@dataclass(frozen=True)
class NewSession:
    """A session to freeze.

    Attributes:
        segments: token ids from the root to the leaf, each (T,); empty for a session without tokens.
        shared: number of segments, from the root, that belong to the domain ``base`` and not to the tenant's.
            Prompts that many tenants have go there.
        time: seconds since 1970; None is now.
        moment: when it was put, in ticks since 1970, of a copy; None is now, and after all versions of the session.
        target: fingerprint of the weights it was made with, 16 bytes, or None.
        codec: the codec that codes it, one of the archive's; None: the first of them.
        otherwise: other ways to store the same session, each a whole NewSession with another codec or other segments.
            The writer takes the way with the fewest new bytes; of equal ones the first.
        begins: these are the first segments of a session that is put later. They are put without a version.
        after: of a log, the stored segments that these stand below.
        part: path of the part of the session that this is, empty for the main one. ``content``: what is known of it.
    """

    name: str
    segments: Sequence[Tokens]
    tenant: str = "default"
    shared: int = 0
    base: str = "base"
    tags: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "ids"
    writing: int = 0
    target: bytes | None = None
    time: int | None = None
    moment: int | None = None
    codec: SegmentCodec | None = None
    otherwise: Sequence[NewSession] = ()
    begins: bool = False
    after: Beginning | None = None
    part: str = ""
    content: ContentFacts = NOTHING

    @property
    def last(self) -> PendingSegment | None:
        """Return the stored segment that these stand below; None: they begin with a root."""
        return self.after.last if self.after else None


class CommitReceipt(NamedTuple):
    """The result of a put.

    Attributes:
        new: number of segments that were not stored before.
        size: bytes of their bitstrings.
        version: number of the version, as a listing would give it now.
        moment: when it was put, in ticks since 1970.
        unchanged: no version was added because the session's last version is the same.
        codec: the codec of the way that the writer chose.
        segments, tokens: numbers in the session's tower, new and stored ones.
        coded: of each segment that was coded for it its method and its opaque bytes (`logs.method_of`), of a log.
        after: of the first segments of a log, what the others stand below.

    ``new`` and ``size`` reveal to a tenant whether a prompt is in a shared base domain already. Keep prompts
    that others must not guess out of shared bases (WRITING.md, "Threat model").
    """

    tenant: str
    name: str
    part: str
    id: bytes
    version: int
    moment: int
    leaf: bytes
    new: int
    size: int
    unchanged: bool
    codec: SegmentCodec
    segments: int
    tokens: int
    coded: Sequence[tuple[str, int]] = ()
    after: Beginning | None = None


def check(sessions: Sequence[NewSession], codecs: CodecRegistry) -> None:
    """Check that sessions can be put by these codecs. Raises ContentError, LimitError, UsageError."""
    for tenant, base, codec, kind, target in {
        (s.tenant, s.base, s.codec, s.kind, s.target) for s in sessions
    }:
        _check_name(tenant)
        _check_name(base)
        if codec is None and not codecs:
            raise UsageError("expected an archive with a codec to code sessions, found one without")
        if codec is not None and not codecs.knows(codec):
            raise UsageError(f"expected one of the archive's {len(codecs)} codecs, got another {type(codec).__name__}")
        if kind not in KINDS:
            raise UsageError(f"expected a kind among {', '.join(KINDS)}, got {kind!r}")
        if target is not None and len(target) != SIZE:
            raise UsageError(f"expected a target fingerprint of 16 bytes, got {len(target)}")
    for s in sessions:
        _check_name(s.name)
        pack_about(s.part, s.content, s.tags)
        if not 0 <= s.shared <= len(s.segments):
            raise UsageError(f"{s.shared} shared of {len(s.segments)} segments: not valid")
        count = len(s.segments) + (s.after.count if s.after else 0)
        if count > MAX_SEGMENTS:
            raise ContentError(f"a tower has at most {MAX_SEGMENTS} segments, not {count}")
        if not isinstance(s.segments, Slices) and (tokens := sum(map(len, s.segments))) > MAX_TOKENS:
            raise LimitError(
                f"expected a session of at most {MAX_TOKENS} tokens, found {tokens} in {s.name!r}: split it"
            )
        if s.time is not None and not 0 <= s.time < MAX_TIME:
            raise UsageError(f"expected a time in seconds since 1970, got {s.time}")


def _check_name(name: str) -> None:
    if not name:
        raise UsageError("expected a name, found nothing")
    if name.isascii() and len(name) <= MAX_NAME:
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise ContentError("a name is not valid Unicode (a lone surrogate)") from exc
    if size > MAX_NAME:
        raise ContentError(f"a name has {size} bytes, at most {MAX_NAME} are allowed")
