"""Cluster: groups of sessions that share most, and a medoid of each. Archives with neighbours: writing/."""

from __future__ import annotations

import numpy as np

from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.codecs.codec import SegmentCodec
from pltz.archive.format.context import Context
from pltz.archive.format.ids import TENANT
from pltz.archive.maintenance.cluster import _medoids, _Session
from pltz.models.session.sketch import Sketch


def session(name: int, codec: SegmentCodec, grams: int, *hashes: range) -> _Session:
    values = np.concatenate([np.array(one, np.uint32) for one in hashes])
    tower: Segments = [(bytes([name]), np.zeros(grams, np.int64))]
    context = Context(TENANT, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1)
    return _Session(tower, Sketch(grams, values), codec, context, False, True)


def test_a_centre_whose_members_went_to_later_ones_is_no_medoid(tower_codec: SegmentCodec) -> None:
    """The first centre serves five sessions, but each of these shares more with one that is chosen later."""
    long = session(0, tower_codec, 640, range(40))
    first = session(1, tower_codec, 60, range(60))
    pairs = []
    for n in range(5):
        own = range(1000 + 100 * n, 1010 + 100 * n)
        pairs += [session(2 + 2 * n, tower_codec, 14, range(40 + 4 * n, 44 + 4 * n), own)]
        pairs += [session(3 + 2 * n, tower_codec, 10, own)]
    names = {one.leaf[0] for one in _medoids([long, first, *pairs], 12)}
    assert 0 in names and 1 not in names and len(names) >= 6
