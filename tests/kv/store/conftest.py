"""Fixtures of the store's tests: KV that tells its ids, and a small archive with a target."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.archive.writing.cut import SessionCutter
from pltz.archive.writing.put_request import PutRequest
from pltz.benchmarks.random_weights import random_weights
from pltz.coding.codecs.codec import BytesCodec
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.store.kv_folder import KVFolder
from pltz.kv.store.store import KVStore
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from tests.archive.towers import SessionArchive
from tests.kv.pool.pages import HEADS, LAYERS, form

SPACE = b"space..........."
DIM = 4


def kv_of(ids: Sequence[int]) -> torch.Tensor:
    """Return KV (LAYERS, 2, HEADS, T, DIM) whose numbers tell each id, its place, and the ids before it."""
    sums = np.cumsum(np.asarray(ids, np.int64) * 31 + 7) % 1009
    return torch.from_numpy(sums).float()[None, None, None, :, None].expand(LAYERS, 2, HEADS, -1, DIM).contiguous()


def cut_of(ids: Sequence[int]) -> Callable[[int, int], torch.Tensor]:
    return lambda start, stop: kv_of(ids)[:, :, :, start:stop]


def store_of(
    folder: Path | None = None, blocks: int = 12, host: int = 0, disk: int = 1 << 20, **options: Any
) -> KVStore:
    """Return a store of raw pages, of so many blocks."""
    pages = form("raw", DIM)
    pool = BlockPool(pages, blocks * 16, host_tokens=host * 16) if blocks else None
    files = None if folder is None else KVFolder(folder, SPACE, disk, rank=options.get("rank"))
    return KVStore(pages, pool, files, **options)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionCutter, "_in_vain", lambda *_: True)
        list(archive.put([PutRequest("plain", chat("And rope?", "Rope. " * 50))]))
    assert archive.archive.version("plain").tokenizer == BytesCodec.tokenizer
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
