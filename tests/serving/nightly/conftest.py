"""Fixtures of the nightly job's tests: jobs of a few sessions, and a tiny bundle.

The bundle is untrained and real except for size and training.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.serving.nightly import config, job
from tests.archive.towers import SessionArchive


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Path:
    from pltz.benchmarks.random_weights import random_weights
    from pltz.models.bundle.bundle import write_bundle

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    weights = random_weights(1, vocab=1024, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    words = b" ".join(str(session.value).encode() for session in sample_sessions()[:5])
    write_bundle(folder, "tiny", weights, tiny_tokenizer_json(), words, {"licence": "none"})
    return folder


def chat(number: int, turns: int = 1) -> dict[str, Any]:
    """Return a chat with a name of its own."""
    turn = [
        {"role": "user", "content": f"Question {number}: what is {number} and {number}?"},
        {"role": "assistant", "content": f"It is {2 * number}."},
    ]
    return {"id": f"chat-{number}", "messages": turn * turns}


def lines(chats: Iterable[object]) -> bytes:
    return b"".join(json.dumps(c, ensure_ascii=False).encode() + b"\n" for c in chats)


class Nightly:
    """A folder with an archive, sources and a configuration, and what comes of running it."""

    def __init__(self, root: Path, bundle: Path | str) -> None:
        self.root, self.bundle, self.bundles = root, str(bundle), [Bundle.load(bundle)]
        self.head = f'archive = "cold"\nstate = "state"\nbundles = ["{bundle}"]\nthreads = 1\n'
        self.sources = '[[source]]\nkind = "jsonl"\npath = "chats"\nname_key = "id"\n'
        self.rest = ""
        (root / "chats").mkdir()
        SessionArchive.create(root / "cold", self.bundles)

    def write(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    @property
    def file(self) -> Path:
        return self.write("nightly.toml", (self.head + self.sources + self.rest).encode())

    def run(self, **how: Any) -> dict[str, Any]:
        return job.run(config.load(self.file), **how)

    def counts(self, **how: Any) -> tuple[int, int, int, int]:
        """Return (frozen, known, refused, exit code) of a run."""
        report = self.run(**how)
        total = report["totals"]
        assert total["seen"] == total["frozen"] + total["known"] + total["refused"]
        return total["frozen"], total["known"], total["refused"], report["exit_code"]

    def content(self) -> dict[tuple[str, str], list[str]]:
        """Return (tenant, name) -> its versions as JSON, oldest first."""
        cold = SessionArchive.open(self.root / "cold", self.bundles)
        found: dict[tuple[str, str], list[str]] = {}
        for version in cold.archive.ls(history=True):
            session = cold.read(version)
            value = session.value.tolist() if session.kind == "ids" else session.value
            text = json.dumps(value) if session.kind != "text" else value.decode("utf-8", "replace")
            found.setdefault((version.tenant, version.name), []).append(text)
        return found


@pytest.fixture
def nightly(tmp_path: Path, bundle_folder: Path) -> Nightly:
    return Nightly(tmp_path, bundle_folder)


@pytest.fixture
def trained_nightly(tmp_path: Path) -> Nightly:
    """Make a job with a bundle that ships: an untrained one loses to zstd, whose segments have no neighbours."""
    return Nightly(tmp_path, "nano")
