"""Sessions in an archive: the work that a put gives a model (tests/cli/archive/test_group.py tests the rest)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutRequest
from pltz.archive.writing.cut import SessionCutter
from pltz.coding.codecs.codec import BundleCodec, BytesCodec, Plain
from pltz.datasets.loaders import load
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.lanes import LayoutName
from tests.archive.kit import Secret
from tests.archive.towers import SessionArchive
from tests.watch import noted


def test_a_segment_is_encoded_once_after_its_tower_and_once_alone(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(_: Any, batch: Any) -> list[Any]:
        return [tuple(np.asarray(t, np.int64).tobytes() for t in (plain.tokens, plain.above)) for plain in batch]

    asked = noted(monkeypatch, BundleCodec, "encode", rows, flat=True)
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    ids = np.random.default_rng(1).integers(0, 1024, 300)
    for count in (100, 200, 300):
        asked.clear()
        [stored] = cold.put([PutRequest("s", Session("ids", ids[:count]))])
        assert stored.by_model and (stored.tower, stored.segments) == (count // 100, 1)
        new = ids[count - 100 : count].tobytes()
        after = {(new, ids[count - 132 : count - 100].tobytes())} if count > 100 else set()
        assert sorted(asked) == sorted({(new, b""), *after})
    assert cold.get("s").value.tolist() == ids.tolist()


@pytest.mark.parametrize("plain", [False, True])
def test_a_session_that_has_not_changed_is_coded_by_nobody(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Code nothing for an unchanged session: a nightly put of known sessions was coded by zstd at its slowest level."""
    monkeypatch.setattr(SessionCutter, "_in_vain", lambda *_: plain)
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    item = PutRequest("s", Session("chat", {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}))
    [first] = cold.put([item])
    assert first.by_model != plain

    def refuse(codec: object, batch: Sequence[Plain]) -> list[bytes]:
        assert not batch
        return []

    monkeypatch.setattr(BundleCodec, "encode", refuse)
    monkeypatch.setattr(BytesCodec, "encode", refuse)
    [again] = cold.put([item])
    assert again.unchanged and again.by_model == first.by_model


@pytest.mark.parametrize("key", [None, Secret(b"sixteen bytes or more", 0)])
def test_what_a_session_had_is_decoded_once_to_put_it_again(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Secret | None
) -> None:
    """Grow a session from another process with no caches: reading its end proves that it decodes, then the new part."""
    ids = np.random.default_rng(1).integers(0, 1024, 300)
    first = SessionArchive.create(tmp_path / "cold", [bundle], key=key)
    for count in (100, 200):
        list(first.put([PutRequest("s", Session("ids", ids[:count]))]))
    asked = noted(monkeypatch, BundleCodec, "decode", lambda _, batch: [c.count for c in batch], flat=True)
    for count, decoded in ((200, [100, 100]), (300, [100, 100, 100]), (300, [100, 100, 100])):
        asked.clear()
        cold = SessionArchive.open(tmp_path / "cold", [bundle], key=key)
        [stored] = cold.put([PutRequest("s", Session("ids", ids[:count]))])
        assert stored.tower == count // 100 and asked == decoded
    assert cold.get("s").value.tolist() == ids.tolist()


@pytest.mark.parametrize("layout", ["default", "fast"])
def test_sessions_that_one_list_extends_are_decoded_side_by_side(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: LayoutName
) -> None:
    """Decode the last versions of a night's sessions level by level, not session by session."""
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    rows = np.random.default_rng(1).integers(0, 1024, (5, 240))
    for count in (60, 120, 180):
        list(cold.put([PutRequest(f"s{n}", Session("ids", row[:count])) for n, row in enumerate(rows)]))
    cold.archive.forget([cold.archive.version("s4")])
    batches = noted(monkeypatch, BundleCodec, "decode", lambda _, batch: len(batch))
    cold = SessionArchive.open(tmp_path / "cold", [bundle], layout=layout, merge_turns=False)
    requests = [PutRequest(f"s{n}", Session("ids", row)) for n, row in enumerate(rows)]
    receipts = list(cold.put([*requests, PutRequest("new", Session("ids", rows[0][::-1]))]))
    assert [stored.segments for stored in receipts] == [1] * 6
    assert batches[:3] == [5, 5, 4] and sum(batches) == 20  # the last version of s4 is forgotten; the others are new
    assert [cold.get(f"s{n}").value.tolist() for n in range(5)] == rows.tolist()


def test_random_digits_are_left_to_zstd_after_a_few_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code none of 20,000 random digits by the model, which took seconds before zstd won, but prose beside them."""
    asked = noted(monkeypatch, BundleCodec, "encode", lambda _, batch: [len(p.tokens) for p in batch], flat=True)
    cold = SessionArchive.create(tmp_path / "cold", [Bundle.load("nano")])
    digits = np.random.default_rng(4).bytes(10_000).hex().encode()
    prose = PutRequest("prose", Session("text", b"Why is the sky blue? " * 9))
    first, second = cold.put([PutRequest("digits", Session("text", digits)), prose])
    assert not first.by_model and second.by_model and 0 < sum(asked) < 200 and cold.get("digits").value == digits
    [more] = cold.put([PutRequest("digits", Session("text", digits + digits[:9000:-1]))])
    assert not more.by_model and more.size < len(digits) / 3 and sum(asked) < 200
    [code] = cold.put([PutRequest("code", Session("text", b"\x7fELF" + bytes(300)))])
    assert not code.by_model and sum(asked) < 200


def test_a_chat_keeps_the_writing_of_its_bytes(bundle: Bundle, tmp_path: Path) -> None:
    """Keep who wrote a chat's JSON beside its kind, so that the bytes come back, and another is a new version."""
    value = {"messages": [{"role": "user", "content": "Where is my b\u00edcycle?"}]}
    data = json.dumps(value).encode() + b"\n"
    [session] = load(data, exact=True)
    assert session.kind == "chat" and session.to_input_bytes() == data
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    [first] = cold.put([PutRequest("s", session)])
    [again] = cold.put([PutRequest("s", session)])
    assert again.unchanged and cold.get("s") == session and cold.get("s").to_input_bytes() == data
    [plain] = cold.put([PutRequest("s", Session("chat", value))])
    assert (first.version, plain.version, plain.segments) == (1, 2, 0)  # of the same segments
    opened = SessionArchive.open(tmp_path / "cold", [bundle])
    assert opened.get("s") == Session("chat", value) and opened.get("s", version=1) == session
