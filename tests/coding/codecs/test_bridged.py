"""Sessions in a target's own ids (coding/codecs/bridged.py): exact wherever they are cut, hostile bytes refused."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.bridged import BridgedCodec, _Parts
from pltz.coding.codecs.codec import BundleCodec, Coded, Plain
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError, UsageError
from pltz.plt_codec.varint import write_varint
from tests.archive.towers import TowerArchive
from tests.examples import examples
from tests.models.target_tokenizers import PAGE, target

KINDS = ["byte-level", "llama3", "mistral", "wordpiece"]
NOTHING = np.zeros(0, np.int64)
quick = settings(
    deadline=None,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Codecs = Callable[[str], BridgedCodec]


@pytest.fixture(scope="module")
def codecs(bundle: Bundle) -> Codecs:
    """Return the codecs for each kind of target."""

    @cache
    def make(kind: str) -> BridgedCodec:
        return BridgedCodec(bundle, Bridge(target(kind).to_str().encode(), bundle.tokenizer), threads=1)

    return make


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(data=st.data())
def test_any_ids_cut_anywhere_come_back(codecs: Codecs, kind: str, data: st.DataObject) -> None:
    """Cut text with special tokens and random ids into a tower at any id, in the middle of a word or a character."""
    codec, tokenizer = codecs(kind), target(kind)
    size = tokenizer.get_vocab_size()
    begin = data.draw(st.integers(0, len(PAGE) - 1))
    ids = list(tokenizer.encode(PAGE[begin : begin + data.draw(st.integers(0, 200))]).ids)
    for at, strange in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, size - 1)), max_size=6)):
        ids.insert(at, strange)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    rows = [np.array(ids[a:b], np.int64) for a, b in pairwise([0, *cuts, len(ids)])]
    batch = [Plain(row, NOTHING) for row in rows]
    encoded = codec.encode(batch)
    assert encoded == [codec.encode([p])[0] for p in batch]
    coded = [Coded(e, len(p.tokens), p.above) for e, p in zip(encoded, batch, strict=True)]
    for back, row in zip(codec.decode(coded), rows, strict=True):
        assert np.array_equal(back, row)


def test_an_archive_of_a_targets_ids(bundle: Bundle, codecs: Codecs, tmp_path: Path) -> None:
    """Mix with sessions of bundle tokens under one bundle. The codec of its tokenizer reads each."""
    codec, own = codecs("byte-level"), BundleCodec(bundle)
    archive = TowerArchive.create(tmp_path / "cold", [codec, own])
    ids = np.array(target("byte-level").encode(PAGE[:700]).ids)
    tail = np.random.default_rng(1).integers(0, target("byte-level").get_vocab_size(), 40)
    archive.put([NewSession(f"s{n}", [ids, tail[n:], ids[: 9 * n]], shared=1) for n in range(4)])
    archive.put([NewSession("own", [bundle.tokenizer.encode(PAGE.encode())], codec=own)])
    for n in range(4):
        tower = TowerArchive.open(tmp_path / "cold", [own, codec]).get(f"s{n}")
        assert tower.tokens.tolist() == [*ids, *tail[n:], *ids[: 9 * n]]
    assert archive.verify(decode=True).sound
    stranger = TowerArchive.open(tmp_path / "cold", [own, codecs("llama3")])
    assert bundle.tokenizer.decode(stranger.get("own").tokens.astype(np.int32)) == PAGE.encode()
    with pytest.raises(BundleMismatch, match="tokenizer"):
        stranger.get("s0")


def test_hostile_bitstrings_are_refused(codecs: Codecs) -> None:
    codec = codecs("byte-level")
    hostile = [b"", b"\x80", b"\xff" * 9, b"\x01", b"\x01\x00", b"\x01\x7fab", b"\x02", b"\x00\x01"]
    hostile += [write_varint(2**32 - 2), write_varint(2**32 - 1) + b"\x02\x80\x80", write_varint(2 * 70_000)]
    for data in hostile:
        with pytest.raises(CorruptError):
            codec.decode([Coded(data, 5, NOTHING)])
    for data, count in ((b"\x00", 0), (b"\x00", 3)):
        with pytest.raises(CorruptError):
            codec.decode([Coded(data, count, NOTHING)])
    assert _Parts.decode(_Parts(3, b"pp", b"frame").encode()) == _Parts(3, b"pp", b"frame")


def test_wrong_use_is_refused(bundle: Bundle, codecs: Codecs, tiny_tokenizer_json: Callable[[int], bytes]) -> None:
    with pytest.raises(ContentError, match="vocabulary"):
        codecs("byte-level").encode([Plain(np.array([10**6]), NOTHING)])
    bridge = Bridge(tiny_tokenizer_json(1024), bundle.tokenizer)
    bridge.fingerprint = bundle.tokenizer.fingerprint
    with pytest.raises(UsageError, match="BundleCodec"):
        BridgedCodec(bundle, bridge)
