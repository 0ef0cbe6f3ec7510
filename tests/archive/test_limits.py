"""The limits of one session in an archive: every way in refuses more, and larger claims are refused undecoded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutRequest
from pltz.archive.catalog.chain import Chains
from pltz.archive.maintenance import join
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec import limits
from pltz.plt_codec.errors import LimitError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.limits import MAX_BYTES, MAX_IDS, MAX_TOKENS
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.worker import drain
from tests.archive.kit import NewSession, SimDisk, TowerArchive, ZlibCodec, create
from tests.archive.peek import peek
from tests.archive.towers import SessionArchive


def test_a_put_of_too_many_tokens_is_refused(archive: TowerArchive) -> None:
    piece = np.zeros(1 << 20, np.uint32)
    tower = [piece] * (MAX_TOKENS // len(piece) + 1)
    with pytest.raises(LimitError, match=f"at most {MAX_TOKENS} tokens, found {len(tower) << 20} in 'big': split"):
        archive.put([NewSession("small", [piece[:5]]), NewSession("big", tower)])
    assert not list(archive.ls())


def test_a_tower_that_claims_more_is_never_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    archive = create(disk)
    [receipt] = archive.put([NewSession("a", [np.arange(60), np.arange(50)])])

    class Never(ZlibCodec):
        def decode(self, batch: Any) -> Any:
            raise AssertionError("it was decoded")

    monkeypatch.setattr("pltz.archive.catalog.chain.MAX_TOKENS", 110)
    assert len(Chains(archive.catalog, CodecRegistry([ZlibCodec()])).tower(receipt.leaf)) == 2
    monkeypatch.setattr("pltz.archive.catalog.chain.MAX_TOKENS", 109)
    with pytest.raises(LimitError, match="at most 109 tokens to decode at once, found 110"):
        Chains(archive.catalog, CodecRegistry([Never()])).tower(receipt.leaf)


def test_the_hook_counts_an_eviction_of_too_many_ids(tmp_path: Path) -> None:
    with EvictionHook.open(tmp_path / "journal") as hook:
        assert hook.on_evict(EvictionRequest("most", np.zeros(MAX_IDS, np.int32)))
        assert not hook.on_evict(EvictionRequest("more", np.zeros(MAX_IDS + 1, np.int32)))
        assert hook.flush(20) and hook.status()["refused"] == {"too long": 1}


def test_large_sessions_are_coded_by_ppmd(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 599)
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    large = Session("chat", {"messages": [{"role": "user", "content": "large " * 100}]})
    ids = Session("ids", np.arange(150))
    [one, two] = cold.put([PutRequest("large", large), PutRequest("ids", ids)])
    assert (one.method, two.method) == ("log + ppmd", "ppmd") and cold.get("large") == large and cold.get("ids") == ids


def test_a_session_archive_refuses_a_session_over_the_limit(bundle: Bundle, tmp_path: Path) -> None:
    cold = SessionArchive.create(tmp_path / "cold", [bundle])
    with pytest.raises(LimitError, match=f"session 'big': .* at most {MAX_BYTES} bytes, found {MAX_BYTES + 1}"):
        list(cold.put([PutRequest("big", Session("text", bytes(MAX_BYTES + 1)))]))
    with pytest.raises(LimitError, match=f"at most {MAX_IDS} token ids, found {MAX_IDS + 1}: split"):
        ids = Session("ids", np.zeros(MAX_IDS + 1, np.int32))
        list(cold.put([PutRequest("big", ids, tokenizer=NONE)]))
    assert not list(cold.archive.ls())


@pytest.mark.parametrize("foreign", [False, True], ids=["the bundle's ids", "ids of another tokenizer"])
def test_a_token_archive_sends_large_sessions_to_ppmd(
    bundle: Bundle, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes], foreign: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read large sessions again in a new process. Their next version builds on them, and the model's on theirs."""
    tokenizers = [tiny_tokenizer_json(384)] if foreign else []
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 4 * 250)
    cold = SessionArchive.open(tmp_path / "cold", [bundle], tokenizers=tokenizers, create=True)
    tokenizer = cold.add(tokenizers[0]) if foreign else bundle.tokenizer.fingerprint
    ids = np.random.default_rng(1).integers(40, 300, 600)
    requests = [PutRequest("s", Session("ids", ids[:n]), tokenizer=tokenizer) for n in (200, 400, 600)]
    assert [put.by_model for put in cold.put(requests)] == [True, False, False]
    monkeypatch.setattr(limits, "ZSTD_ABOVE", 1 << 22)
    again = SessionArchive.open(tmp_path / "cold", [bundle], tokenizers=tokenizers)
    assert [len(again.get_ids("s", version=n).ids) for n in (1, 2, 3)] == [200, 400, 600]
    found = again.get_ids("s")
    assert (found.ids == ids).all() and len(found.segments) == 3 and found.version.tokenizer == tokenizer
    assert next(again.put(requests[2:])).unchanged


@pytest.mark.parametrize("merge_turns", [True, False])
def test_hooks_join_turns(bundle: Bundle, tmp_path: Path, merge_turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "FEW", 0)
    cold = SessionArchive.open(tmp_path / "cold", [bundle], create=True)
    for end in range(4, 21, 4):
        with EvictionHook.open(tmp_path / "journal") as hook:
            hook.on_evict(EvictionRequest("a", [*range(end)]))
            assert hook.flush(20)
        drain(tmp_path / "journal", tmp_path / "cold", bundle=bundle, model_ids=True, merge_turns=merge_turns)
    assert cold.get_ids("a").ids.tolist() == [*range(20)] and len(peek(cold, "a")) == (2 if merge_turns else 5)
