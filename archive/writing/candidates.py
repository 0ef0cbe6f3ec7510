"""Candidates: the segments of each tenant after which new ones may be coded, found by their sketches.

    tower --first tokens--> sketch --> index of its domain and tokenizer
    new segment --sketches--> the nearest candidate of the same domain

A candidate is a hint. A writer reads its tower, proves it, and codes the new segment after it; the shorter record is
put. Candidates of one domain are never offered to another: the size of a record would tell one tenant of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import Erased, KeyMismatch
from pltz.archive.format import object_names
from pltz.archive.format.candidate_file import MAX_FILE, CandidateGroup, unpack_candidates
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE, Tokens
from pltz.archive.format.record import Record
from pltz.models.session.sketch import Sketch, SketchIndex, sketch_of
from pltz.plt_codec.errors import FormatError

MOST = 4096  # candidates per domain and tokenizer
LEAST_GRAMS = 32  # distinct 4-grams of a candidate
LEAST_SHARE = 0.1  # share of the 4-grams of a new segment that a candidate has to have


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
    """The candidates that one process knows. Not for several threads."""

    def __init__(self) -> None:
        self._indexes: dict[Place, SketchIndex] = {}
        self._names: dict[Place, list[bytes]] = {}
        self._known: set[bytes] = set()

    def add(self, place: Place, segment: bytes, sketch: Sketch) -> None:
        """Add a segment, the leaf of a tower with this sketch; nothing where it is known or the domain is full."""
        if segment in self._known or len(self._names.get(place, ())) >= MOST or sketch.grams < LEAST_GRAMS:
            return
        self._known.add(segment)
        self._names.setdefault(place, []).append(segment)
        self._indexes.setdefault(place, SketchIndex()).add(sketch)

    def nearest(self, place: Place, tokens: Tokens) -> tuple[float, bytes] | None:
        """Return how many 4-grams the nearest candidate of a domain shares with tokens, (T,), and its id.

        None where it shares too few, or there is no candidate.
        """
        index = self._indexes.get(place)
        found = index.nearest(tokens) if index else []
        if not found or found[0].shared < LEAST_SHARE * len(tokens):
            return None
        return found[0].shared, self._names[place][found[0].number]

    def clear(self) -> None:
        """Forget all candidates."""
        self._indexes.clear()
        self._names.clear()
        self._known.clear()


def seal_sketch(keys: Encryption, context: Context, segment: bytes, sketch: Sketch) -> tuple[CandidateGroup, bytes]:
    """Return a segment's group in a candidate file and its sketch, in a box where the archive is sealed.

    ``context``: that of the segment's record. Raises Erased, CorruptError.
    """
    sealed = keys.seal(_about(context), Record(0, id=segment, bitstring=sketch.encode()))
    return CandidateGroup(context.domain_kind, context.domain, context.tokenizer, context.root), sealed.bitstring


def read_candidates(catalog: Catalog, archive: bytes) -> Candidates:
    """Return the candidates of all candidate files that are sound and that the keys open.

    ``archive``: id of the archive. Raises StoreError.
    """
    found, keys = Candidates(), catalog.keys
    for digest in sorted(object_names.candidates_among(catalog.store.list(object_names.INDEXES))):
        try:
            data = catalog.store.read(object_names.candidates(digest), 0, MAX_FILE)
            for group, segment, box in unpack_candidates(data, archive):
                context = Context(
                    group.kind, group.domain, "", group.tokenizer, NONE, 0, cipher=keys.cipher, root=group.root
                )
                with suppress(Erased):
                    sketch = Sketch.decode(keys.bits(_about(context), Record(0, id=segment, bitstring=box)))
                    found.add(Place(group.domain, group.tokenizer), segment, sketch)
        except FileNotFoundError:  # a newer one replaces it
            continue
        except (FormatError, KeyMismatch) as exc:
            catalog.damage.note("candidates", digest, str(exc))
    return found


def _about(context: Context) -> Context:
    """Return the context that a sketch's box is sealed with: of no bundle and contract 0, as no record is."""
    return replace(context, bundle=NONE, contract=0, mode=0, target=NONE, kind=2)


def tower_sketch(segments: Sequence[tuple[bytes, Tokens]], reach: int) -> tuple[bytes, Sketch]:
    """Return the segment of a tower up to which it is worth reading as a context, and the sketch of these tokens.

    ``reach``: most tokens that a codec uses.
    """
    parts = [NOTHING]
    for _, tokens in segments:
        parts.append(tokens[:reach])
        reach -= len(parts[-1])
        if reach <= 0:
            break
    return segments[len(parts) - 2][0], sketch_of(np.concatenate(parts))
