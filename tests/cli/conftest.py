"""Fixtures of the command-line tests: a tiny untrained bundle and target in place of those that ship.

They are real except for size and training: the same loaders, engine, coder and container run.
No test asserts how small a file gets.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pltz.cli.root import cli
from pltz.datasets import sample_sessions
from tests.cli.commands import Put, Run, lines, ok

POSITIONS = 2048


@pytest.fixture
def run() -> Run:
    """Return a function that runs the command line in this process: ``run("inspect", path, input=b"...")``."""

    def invoke(*args: object, input: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=input, prog_name="pltz")

    return invoke


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Path:
    """Make a folder with ``bundles/mini`` and ``targets/mini-llama``, tiny and untrained."""
    from pltz.benchmarks.random_weights import random_weights
    from pltz.models.bundle.bundle import write_bundle

    root = tmp_path_factory.mktemp("shipped")
    weights = random_weights(1, vocab=1024, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    words = b" ".join(str(session.value).encode() for session in sample_sessions()[:5])
    write_bundle(root / "bundles/mini", "mini", weights, tiny_tokenizer_json(), words, {"licence": "none"})
    make_target(root / "targets/mini-llama", tiny_tokenizer_json())
    return root


def make_target(folder: Path, tokenizer_json: bytes) -> None:
    """Write a llama of two small layers with random weights and the bundle's tokenizer."""
    import torch
    import transformers

    from pltz.benchmarks.kv.tokenizer_files import write_tokenizer

    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=POSITIONS, bos_token_id=None, eos_token_id=None,
    )
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    source = folder / "source.json"
    source.write_bytes(tokenizer_json)
    write_tokenizer(source, folder, POSITIONS)
    source.unlink()


@pytest.fixture
def tiny(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the bundle and target that ship with pltz by the tiny ones."""
    monkeypatch.setattr("pltz.models.bundle.locations.EMBEDDED", shipped / "bundles")
    monkeypatch.setattr("pltz.models.bundle.locations.GROUP", "pltz.bundles.of.the.tests")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path / "user-bundles"))
    monkeypatch.setattr("pltz.models.target.checkpoint.TARGETS", shipped / "targets")
    return shipped


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Write four short chats, one with an extra key, one without ASCII."""
    lines: list[object] = [
        {"messages": [{"role": "user", "content": "What is a KV cache?"}, {"role": "assistant", "content": "A" * 90}]},
        {"messages": [{"role": "user", "content": "Zwölf Boxkämpfer \U0001f94a"}], "source": "test", "n": 1.0},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"messages": []},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf8")
    return path


@pytest.fixture
def frozen(tiny: Path, run: Run, chats: Path, tmp_path: Path) -> Path:
    """Freeze the four chats into a .pltz file."""
    path = tmp_path / "chats.pltz"
    ok(run("compress", chats, "-o", path))
    return path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a bundle that ships: nano, seven times as fast as mini.

    An untrained one loses to zstd, and all sessions are plain bytes.
    """
    monkeypatch.setattr("pltz.models.bundle.bundle.DEFAULT", "nano")


@pytest.fixture
def bundle_at_hand(request: pytest.FixtureRequest) -> None:
    """Use the tiny bundle, unless a test asks for `trained`."""
    if "trained" not in request.fixturenames:
        request.getfixturevalue("tiny")


@pytest.fixture
def cold(run: Run, tmp_path: Path) -> Path:
    """Make an empty archive."""
    place = tmp_path / "cold"
    assert run("archive", "init", "-r", place).exit_code == 0
    return place


@pytest.fixture
def put(run: Run, cold: Path) -> Put:
    """Return a function that puts one session from stdin as JSON: ``put(value, "--name", "x")``."""

    def invoke(value: Any, *words: object) -> list[dict[str, Any]]:
        line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
        return lines(run("archive", "put", "-r", cold, "-", "--format", "jsonl", *words, "--json", input=line))

    return invoke
