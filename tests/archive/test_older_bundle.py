"""Sessions frozen with an installed bundle that is not the default are read without naming it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz import PutRequest
from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle import locations
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.session.session import Session
from tests.archive.towers import SessionArchive
from tests.models.target_tokenizers import target

SHIPPED = True  # `mini` is another bundle here, and `nano` is not there

CHAT = Session("chat", {"messages": [{"role": "user", "content": "an older one"}]})
LATER = Session("chat", {"messages": [{"role": "user", "content": "a later one"}]})


@pytest.fixture
def shipped(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make three embedded bundles: two of one vocabulary, one of another."""
    root = tmp_path / "bundles"
    for name, seed, vocabulary in (("mini", 1, 1024), ("older", 2, 1024), ("strange", 3, 512)):
        weights = random_weights(seed, vocab=vocabulary, block=128, memory=32)
        write_bundle(root / name, name, weights, tiny_tokenizer_json(vocabulary), b"", {})
    monkeypatch.setattr(locations, "EMBEDDED", root)
    return root


def test_sessions(shipped: Path, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    [stored] = SessionArchive.create(place, [Bundle.load("older")]).put([PutRequest("a", CHAT)])
    assert stored.by_model
    archive = SessionArchive.open(place)
    list(archive.put([PutRequest("b", LATER)]))
    assert archive.get("a") == CHAT and archive.get("b") == LATER and archive.archive.verify(decode=True).problems == []


def test_token_ids_by_the_bridge(shipped: Path, tmp_path: Path) -> None:
    place, tokenizer = tmp_path / "archive", target("llama3").to_str().encode()
    old = SessionArchive.open(place, ["older"], tokenizers=[tokenizer], create=True)
    fingerprint = Bridge(tokenizer, old.bundle.tokenizer).fingerprint
    ids = np.array([5, 300, 7, 9, 11], np.int64)
    list(old.put([PutRequest("a", Session("ids", ids), tokenizer=fingerprint)]))
    assert SessionArchive.open(place, tokenizers=[tokenizer]).get_ids("a").ids.tolist() == ids.tolist()


def test_another_vocabulary(shipped: Path, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    list(SessionArchive.create(place, [Bundle.load("strange")]).put([PutRequest("a", CHAT)]))
    assert SessionArchive.open(place).get("a") == CHAT
