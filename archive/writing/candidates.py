"""Candidates: the segments of each tenant after which new ones may be coded, found by their sketches.

    tower --first tokens--> sketch --> index of its domain and tokenizer
    new segment --sketches--> the nearest candidate of the same domain

A candidate is a hint. A writer reads its tower, proves it, and codes the new segment after it; the shorter record is
put. Candidates of one domain are never offered to another: the size of a record would tell one tenant of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import LAST
from pltz.archive.encryption.keys import Encryption, Plaintext
from pltz.archive.errors import Erased
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import MAX_FILE, CandidateBoxes, CandidateGroup, unpack_candidates
from pltz.archive.format.context import Context
from pltz.archive.format.ids import Tokens
from pltz.archive.format.record import Record
from pltz.coding.neighbour_rule import NeighbourRule
from pltz.coding.sketch import Hashes, NearestItems, Sketch, hashes_of
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.identity import NONE

MOST = 4096  # candidates per domain and tokenizer
RULE = NeighbourRule(LAST, least_grams=32)


class Place(NamedTuple):
    """The domain of candidates, and the fingerprint of the tokenizer of their tokens; 16 bytes each."""

    domain: bytes
    tokenizer: bytes


class Candidate(NamedTuple):
    """A segment, the leaf of a tower with this sketch."""

    place: Place
    segment: bytes
    sketch: Sketch


class Candidates:
    """The candidates that one process knows. Not for several threads.

    Those of a file are read where their domain is first asked for: until then they take their bytes there.
    """

    def __init__(self, keys: Encryption | None = None) -> None:
        self._keys = keys or Plaintext()
        self._indexes: dict[Place, NearestItems[bytes]] = {}
        self._known: set[bytes] = set()
        self._unread: dict[Place, list[tuple[CandidateGroup, CandidateBoxes]]] = {}

    def add(self, place: Place, segment: bytes, sketch: Sketch) -> None:
        """Add a segment, the leaf of a tower with this sketch; nothing where it is known or the domain is full."""
        if segment in self._known or len(self._indexes.get(place, ())) >= MOST or sketch.grams < RULE.least_grams:
            return
        self._known.add(segment)
        self._indexes.setdefault(place, NearestItems()).add(segment, sketch)

    def add_group(self, group: CandidateGroup, boxes: CandidateBoxes) -> None:
        """Add the candidates of a group of a file."""
        self._unread.setdefault(Place(group.domain, group.tokenizer), []).append((group, boxes))

    def nearest_to(
        self, place: Place, wanted: Hashes, least: float, count: int = 1
    ) -> list[tuple[float, bytes]]:
        """Return the nearest candidates of a domain by their ids, as `NearestItems.nearest_to`."""
        for group, boxes in self._unread.pop(place, ()):
            with suppress(FormatError):  # the digest of the file was right, so a sketch that does not open is gone
                for segment, sketch in open_sketches(self._keys, group, boxes):
                    self.add(place, segment, sketch)
        index = self._indexes.get(place)
        return index.nearest_to(wanted, least, count) if index else []

    def clear(self) -> None:
        """Forget all candidates."""
        self._indexes.clear()
        self._known.clear()
        self._unread.clear()


def seal_sketch(keys: Encryption, context: Context, segment: bytes, sketch: Sketch) -> bytes:
    """Return a segment's sketch for a candidate file, in a box where the archive is sealed.

    ``context``: that of the segment's record. Raises Erased, CorruptError.
    """
    return keys.seal(_about(context), Record(0, id=segment, bitstring=sketch.encode())).bitstring


def open_sketches(keys: Encryption, group: CandidateGroup, boxes: CandidateBoxes) -> Iterator[tuple[bytes, Sketch]]:
    """Yield the segments of a group and their sketches, without those erased. Raises CorruptError, KeyMismatch."""
    context = Context(group.kind, group.domain, "", group.tokenizer, NONE, 0, cipher=keys.cipher, root=group.root)
    for segment, box in boxes.read():
        with suppress(Erased):
            yield segment, Sketch.decode(keys.bits(_about(context), Record(0, id=segment, bitstring=box)))


def read_groups(catalog: Catalog, archive: bytes) -> list[tuple[CandidateGroup, CandidateBoxes]]:
    """Return the groups of all candidate files that are sound. ``archive``: id of the archive. Raises StoreError."""
    found: list[tuple[CandidateGroup, CandidateBoxes]] = []
    for digest in sorted(object_names.candidates_among(catalog.store.list(object_names.INDEXES))):
        try:
            data = catalog.store.read(object_names.candidates(digest), 0, MAX_FILE)
            found += list(unpack_candidates(data, archive))
        except FileNotFoundError:  # a newer one replaces it
            continue
        except FormatError as exc:
            catalog.damage.note("candidates", digest, str(exc))
    return found


def read_candidates(catalog: Catalog, archive: bytes) -> Candidates:
    """Return the candidates of all candidate files that are sound.

    ``archive``: id of the archive. Raises StoreError.
    """
    found = Candidates(catalog.keys)
    for group, boxes in read_groups(catalog, archive):
        found.add_group(group, boxes)
    return found


def _about(context: Context) -> Context:
    """Return the context that a sketch's box is sealed with: of no bundle and contract 0, as no record is."""
    return replace(context, bundle=NONE, contract=0, mode=0, target=NONE, kind=2)


def tower_sketch(segments: Sequence[tuple[bytes, Tokens]], reach: int) -> tuple[bytes, Sketch]:
    """Return the segment of a tower up to which it is read as a context, and the sketch of what is read.

    The sketch is empty where that takes too long. ``reach``: most tokens that a codec uses.
    """
    count, read = RULE.read_of([tokens for _, tokens in segments], reach)
    return segments[count - 1][0], RULE.sketch(hashes_of(read))
