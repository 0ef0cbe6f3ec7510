"""A real decoder bundle, small and with random weights, behind the archive's codec interface."""

from pathlib import Path

import numpy as np
import pytest

from pltz.archive.format.pack import Builder, Pack
from pltz.archive.format.record import Context, Record
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BundleCodec, BytesCodec, Coded, IdsCodec, Plain, PpmdCodec
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec import repeats
from pltz.plt_codec.container.frame import ALONE, COPIES, FAST, TOWER
from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.plt_codec.lanes import LAYOUTS, Layout, LayoutName
from tests.archive.peek import peek
from tests.archive.towers import TowerArchive

NOTHING = np.zeros(0, np.int64)


def test_towers_of_a_real_bundle(bundle: Bundle, tmp_path: Path) -> None:
    archive = TowerArchive.create(tmp_path / "cold", [BundleCodec(bundle), BytesCodec()])
    dice = np.random.default_rng(1)
    prompt = dice.integers(0, 1024, 60)
    turns = [dice.integers(0, 1024, size) for size in (0, 1, 40, 300)]
    receipts = archive.put([NewSession(f"s{n}", [prompt, *turns[: n + 1]], kind="chat", shared=1) for n in range(4)])
    assert [r.new for r in receipts] == [2, 1, 1, 1]
    fresh = TowerArchive.open(tmp_path / "cold", [BundleCodec(bundle)])
    for n in range(4):
        assert fresh.get(f"s{n}").tokens.tolist() == np.concatenate([prompt, *turns[: n + 1]]).tolist()
    assert fresh.verify(decode=True).decoded == 5
    with pytest.raises(ContentError):
        archive.put([NewSession("out of range", [np.array([1024])])])


def test_a_segment_is_coded_after_the_last_tokens_above(bundle: Bundle) -> None:
    codec, coder = BundleCodec(bundle), bundle.coder()
    dice = np.random.default_rng(2)
    tokens, above = dice.integers(0, 1024, 50), dice.integers(0, 1024, 90)
    [alone, after, last] = codec.encode([Plain(tokens, a) for a in (NOTHING, above, above[-codec.reach :])])
    assert codec.reach == 32 and after == last != alone and alone == coder.encode([tokens])[0].data
    assert after == coder.encode([tokens], contexts=[above])[0].data
    assert codec.decode([Coded(after, 50, above)])[0].tolist() == tokens.tolist()
    with pytest.raises(CorruptError, match="tokenizer"):
        codec.decode([Coded(after, 50, np.array([5, 1024]))])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_of_tokens_above_are_taken_out(bundle: Bundle, layout: LayoutName) -> None:
    codec, dice = BundleCodec(bundle, layout=layout), np.random.default_rng(4)
    above, own = dice.integers(0, 1024, 32), dice.integers(0, 1024, 60)
    tokens = np.concatenate([own, above, own[:40]])
    copies = repeats.find(tokens, above)
    assert copies == [repeats.Copy(60, 72, 92)]
    [plain, cut] = codec.encode([Plain(tokens, above), Plain(tokens, above, copies)])
    mode = TOWER | codec.fast * FAST
    assert cut == repeats.pack(copies) + codec.encode([Plain(own, above)])[0] and len(cut) < len(plain)
    assert codec.decode([Coded(cut, 132, above, mode | COPIES)])[0].tolist() == tokens.tolist()
    with pytest.raises(CorruptError, match="goes beyond its sequence"):
        codec.decode([Coded(cut, 132, above[1:], mode | COPIES)])
    with pytest.raises(CorruptError):
        codec.decode([Coded(cut, 71, above, mode | COPIES)])
    claimed = repeats.pack([repeats.Copy(60, 1 << 20, 1)]) + cut[len(repeats.pack(copies)) :]
    with pytest.raises(CorruptError, match="claim 1048636 tokens"):
        codec.decode([Coded(claimed, 60 + (1 << 20), above, mode | COPIES)])
    for end in range(len(repeats.pack(copies))):
        with pytest.raises(CorruptError):
            codec.decode([Coded(cut[:end], 132, above, mode | COPIES)])


def test_bytes_codec_refuses_what_is_no_byte_and_what_lies() -> None:
    codec = BytesCodec()
    with pytest.raises(ContentError):
        codec.encode([Plain(np.array([256]), NOTHING)])
    for data, count in ((b"abc", 2), (b"abc", 500), (b"", 1), (b"\xff" * 9, 1 << 30)):
        with pytest.raises(CorruptError):
            codec.decode([Coded(data, count, NOTHING)])


@pytest.mark.parametrize("most", [0, 1, 255, 256, 1 << 16, (1 << 24) - 1, 1 << 24, (1 << 32) - 1])
def test_ids_of_any_width_come_back_and_damage_is_refused(most: int) -> None:
    codec, ids = IdsCodec(bytes(16)), np.array([0, most, most // 2, most] * 9, np.int64)
    for rows in (ids, ids[:1], ids[:0]):
        [data] = codec.encode([Plain(rows, NOTHING)])
        assert codec.decode([Coded(data, len(rows), NOTHING)])[0].tolist() == rows.tolist()
        assert len(data) <= 2 + len(rows) * max(1, (most.bit_length() + 7) // 8)
    [data] = codec.encode([Plain(ids, NOTHING)])
    wrong = (b"", b"\0" + data[1:], b"\5" + data[1:], data[:1], data[:1] + b"\3" + data[2:], data + b"\1\2\3")
    for bad, count in (*((bad, len(ids)) for bad in wrong), (data, 0), (data, 1 << 40)):
        with pytest.raises(CorruptError):
            codec.decode([Coded(bad, count, NOTHING)])
    for out in (-1, 1 << 32):
        with pytest.raises(ContentError):
            codec.encode([Plain(np.array([out]), NOTHING)])


def test_tokens_by_ppmd_come_back_after_what_stands_above_and_damage_is_an_error(bundle: Bundle) -> None:
    codec, above = PpmdCodec(bundle, threads=2), np.arange(90, dtype=np.int64) * 7
    rows = [above[:0], above[:1], np.tile(above, 3), np.array([0, 65_535, 256])]
    plain = [Plain(ids, before) for ids in rows for before in (NOTHING, above)]
    coded = [Coded(d, len(p.tokens), p.above) for d, p in zip(codec.encode(plain), plain, strict=True)]
    assert all(map(np.array_equal, codec.decode(coded), [p.tokens for p in plain]))
    assert not coded[0].data and len(coded[5].data) < len(coded[4].data) < 250  # the past tells
    assert any(len(one.data) == 2 * one.count for one in coded if one.count)  # as it is, where it does not shrink
    good, refused = coded[5], 0
    for at in range(8 * len(good.data)):
        hurt = bytearray(good.data)
        hurt[at // 8] ^= 1 << at % 8
        for data, count in ((bytes(hurt), good.count), (good.data[: at // 8], good.count), (good.data, at)):
            try:
                [found] = codec.decode([Coded(data, count, above)])
                assert found.shape == (count,)  # the id of a segment tells that it is another
            except CorruptError:
                refused += 1
    assert refused > 8 * len(good.data)
    with pytest.raises(CorruptError):
        codec.decode([Coded(good.data, 1 << 40, above)])
    for out in (-1, 1 << 16):
        with pytest.raises(ContentError):
            codec.encode([Plain(np.array([out]), NOTHING)])


def test_the_fast_layout(bundle: Bundle, tmp_path: Path) -> None:
    """Put long segments into 32 lanes, alone and after a prompt. Any archive object reads and shares them."""
    dice = np.random.default_rng(3)
    turns = [dice.integers(0, 1024, size) for size in (2049, 2048, 2500)]
    place = tmp_path / "cold"
    TowerArchive.create(place, []).put([])
    assert TowerArchive.open(place, [BundleCodec(bundle, layout="fast")]).put([NewSession("long", turns)])[0].new == 3
    plain = TowerArchive.open(place, [BundleCodec(bundle)])
    assert plain.get("long").tokens.tolist() == np.concatenate(turns).tolist()
    assert plain.verify(decode=True).decoded == 3
    found = {item.record.tokens: item for item in peek(plain, "long")}
    assert all(item.record.mode & FAST for item in found.values())
    coder = bundle.coder()
    assert found[2049].record.bitstring == coder.encode(turns[:1], layouts=Layout(32, 128))[0].data
    assert found[2500].record.mode & TOWER or found[2500].record.bitstring == (
        coder.encode([turns[2]], layouts=Layout(32, 128))[0].data
    )
    assert plain.put([NewSession("again", turns)])[0].new == 0  # the same tokens are the same segment, however coded
    assert plain.put([NewSession("other", [turns[0][::-1]])])[0].new == 1
    assert [item.record.mode for item in peek(plain, "other")] == [ALONE]


def test_a_mode_that_is_not_known_is_refused_by_name() -> None:
    b = Builder(moment=0, salt=bytes(8))
    n = b.context(Context(0, bytes(16), "acme", bytes(16), bytes(16)))
    pack = Pack.of(b.add(Record(n, id=bytes(10), mode=8)).finish())
    with pytest.raises(VersionError, match="mark or mode of a newer"):
        pack.footer(), list(pack.scan())
