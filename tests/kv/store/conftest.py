"""Fixtures of the hot store's tests: blocks whose content identifies them, and a small archive with a target."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.archive import NO_SEGMENT
from pltz.archive.writing.cut import Tokenised
from pltz.archive.writing.new_session import NewSession
from pltz.archive.writing.put_request import PreparedRequest, PutRequest
from pltz.benchmarks.random_weights import random_weights
from pltz.coding.codecs.codec import BytesCodec
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from tests.archive.towers import SessionArchive

SPACE = b"space..........."


@dataclass
class Blocks:
    """Makes blocks of 2 layers, 1 head, D = 4, float32: 64 bytes of KV a token, 8 of ids and tokens."""

    def __call__(self, number: int, tokens: int = 4, start: int = 0, logits: bool = False) -> KVBlock:
        ids = np.full(tokens, number, np.int32)
        known = torch.full((3,), float(number)) if logits else None
        return KVBlock.raw(torch.full((2, 2, 1, tokens, 4), float(number)), ids, ids, start, known)

    def name(self, number: int) -> bytes:
        return number.to_bytes(10, "big")


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


def put(store: HotStore, blocks: Blocks, clock: Any, *numbers: int, drain: bool = False) -> list[bool]:
    """Insert segments without parents, one after the other, and return which were taken."""
    found = []
    for number in numbers:
        found.append(store.insert(SPACE, blocks.name(number), NO_SEGMENT, blocks(number)))
        if drain:
            store.drain()
        clock.now += 1000
    return found


def held(store: HotStore, blocks: Blocks, number: int, max_kl: float = 0.0) -> tuple[list[str], list[str]]:
    """Return tier and form of a segment, whose content is checked."""
    with store.hold(SPACE, [blocks.name(number)], max_kl=max_kl) as lease:
        for block in lease.blocks:
            assert bool((block.kv == number).all()) and bool((block.ids == number).all())
        return lease.tiers, [block.codec.name for block in lease.blocks]


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def small(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes], save_model: Callable[..., Path]
) -> Path:
    """Folders ``bundle``, and ``kin`` and ``stranger``: targets with the bundle's tokenizer and with another."""
    root = tmp_path_factory.mktemp("small")
    weights = random_weights(1, vocab=1024, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    write_bundle(root / "bundle", "mini", weights, tiny_tokenizer_json(), b"a dictionary of words", {"licence": "none"})
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    shape |= {"bos_token_id": None, "eos_token_id": None}
    for name, vocab in (("kin", 1024), ("stranger", 900)):
        save_model(root / name, transformers.LlamaConfig(vocab_size=vocab, **shape), 2048)
    return root


@pytest.fixture(scope="session")
def bundle(small: Path) -> Bundle:
    return Bundle.load(small / "bundle")


@pytest.fixture(scope="session")
def kin(small: Path) -> Target:
    return Target.load(small / "kin")


@pytest.fixture(scope="session")
def stranger(small: Path) -> Target:
    return Target.load(small / "stranger")


def by_model(archive: SessionArchive) -> None:
    """Code sessions by the bundle, which untrained as it is would lose to plain bytes under zstd."""
    cutter = archive.cold.commits.cutter
    cut = cutter._cut_session

    def alone(request: PreparedRequest, keep_opaque: bool, begun: Tokenised | None) -> NewSession:
        found = cut(request, keep_opaque, begun)
        assert isinstance(found, NewSession)
        return replace(found, otherwise=())

    cutter._cut_session = alone  # type: ignore[method-assign]


PROMPT = "You answer questions about string, rope, thread and yarn, at length and with care. " * 6


def chat(*turns: str, prompt: str = PROMPT, **more: Any) -> Session:
    """Return a chat with a base prompt, in which user and assistant take turns."""
    messages = [{"role": "system", "content": prompt}]
    for number, turn in enumerate(turns):
        messages.append({"role": "assistant" if number % 2 else "user", "content": turn})
    return Session("chat", {"messages": messages, **more})


@pytest.fixture
def cold(tmp_path: Path, bundle: Bundle) -> SessionArchive:
    """Put sessions a/0 to a/4 on one base prompt, a/0 in two versions, a text, ids, and a chat with another key.

    The session "plain" is kept as bytes.
    """
    archive = SessionArchive.create(tmp_path / "cold", [bundle])
    list(archive.put([PutRequest("plain", chat("And rope?", "Rope. " * 50))]))
    assert archive.archive.version("plain").tokenizer == BytesCodec.tokenizer
    by_model(archive)
    items = [
        PutRequest(f"a/{n}", chat(f"Question {n} about rope.", "Yes. " * (5 + 7 * n)), base="helpers", time=1000 + n)
        for n in range(5)
    ]
    items.append(PutRequest("a/0", chat("Question 0 about rope.", "Yes. " * 5, "And why?", "Because."), time=5000))
    items.append(PutRequest("text", Session("text", b"Just some words, a few of them twice, of them twice.")))
    items.append(PutRequest("ids", Session("ids", np.arange(100, 180))))
    items.append(PutRequest("meta", chat("What else?", "Nothing. " * 200, source={"from": "a test"})))
    assert len(list(archive.put(items))) == len(items)
    return archive
