"""Input and output of a writer: sessions as towers of token ids, and receipts. Neither is a format.

NewSession("chat-7", [prompt_ids, turn_ids], tenant="acme", shared=1) --put--> CommitReceipt(version=1, new=2, ...)

The segments of a log are read from its content one by one, so that its length costs no memory:

    Slices(content, 0, [1048600, 2097300])[1]          # bytes 1,048,600 to 2,097,300, (T,) uint8
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, overload

import numpy as np

from pltz.archive.format.ids import Tokens
from pltz.archive.format.record import NOTHING, ContentFacts
from pltz.archive.writing.segments import Beginning
from pltz.coding.codecs.codec import SegmentCodec
from pltz.coding.log.recall import Passages
from pltz.models.session.session import Kind


class Sliced(Protocol):
    """Bytes, in memory or in a file (`LongText`)."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...

    def find(self, byte: bytes, begin: int, end: int, /) -> int:
        """Return where a byte stands first from ``begin`` to before ``end``, -1 where it does not."""


class Slices(Sequence[Tokens]):
    """The segments of a text from ``begin`` to each of ``ends``, (T,) uint8 each, read when they are asked for.

    ``seen``: the passages of the text up to ``begin``; None: nothing is recalled.
    """

    def __init__(self, content: Sliced, begin: int, ends: Sequence[int], seen: Passages | None = None) -> None:
        self._content, self._ends, self.seen = content, [begin, *ends], seen

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> Tokens: ...

    @overload
    def __getitem__(self, number: slice) -> Slices: ...

    def __getitem__(self, number: int | slice) -> Tokens | Slices:
        if isinstance(number, slice):
            begin, end, _ = number.indices(len(self))
            return Slices(self._content, self._ends[begin], self._ends[begin + 1 : end + 1], self.seen)
        if not 0 <= number < len(self):
            raise IndexError(number)
        return np.frombuffer(self._content[self._ends[number] : self._ends[number + 1]], np.uint8)

    @property
    def begin(self) -> int:
        """Return where the first one begins in the text."""
        return self._ends[0]

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each."""
        return [end - begin for begin, end in itertools.pairwise(self._ends)]


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
        codec: the codec that codes it, which the caller knows to be one of the archive's; None: the first of them.
        begins: these are the first segments of a session that is put later. They are put without a version.
        after: of a log, the stored segments that these stand below.
        part: path of the part of the session that this is, empty for the main one.
        content: what is known of it, or what tells it once it is stored.
        unerased: neither it nor its tenant may have been erased after this moment, in ticks; None: it may.
        begun: of a session of one segment what gives its bitstring, proved; empty: nothing codes it meanwhile.
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
    begins: bool = False
    after: Beginning | None = None
    part: str = ""
    content: ContentFacts | Callable[[], ContentFacts] = NOTHING
    unerased: int | None = None
    begun: list[Callable[[], bytes]] = field(default_factory=list)


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
