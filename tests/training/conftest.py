"""Token streams that the tests of training share."""

from pathlib import Path

import pytest

from pltz.datasets import sample_sessions
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.training.data import records


@pytest.fixture
def streams(tmp_path: Path, tiny_tokenizer: BundleTokenizer) -> Path:
    """Token streams of a few sample sessions."""
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer.json)
    out = records.TokenStreams(tmp_path, tiny_tokenizer)
    out.add("train", [records.record(s, "sample.jsonl") for s in sample_sessions()[:20]])
    out.finish()
    return tmp_path
