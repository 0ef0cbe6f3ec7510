"""Bundles: written, loaded, identified, and refused when damaged (models/bundle.py)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz.models.bundle import Bundle, bundle_id, write_bundle
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError, VersionError
from pltz.plt_codec.weights import Weights, random_weights


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> Path:
    write_bundle(
        tmp_path / "b",
        "tiny",
        random_weights(1, vocab=1024),
        tiny_tokenizer_json(1024),
        b"dictionary",
        {"note": "x"},
    )
    return tmp_path / "b"


def test_what_is_written_is_loaded(folder: Path) -> None:
    bundle = Bundle.load(folder)
    assert bundle.name == "tiny" and bundle.zstd_dict == b"dictionary" and bundle.card == {"note": "x"}
    want = random_weights(1, vocab=1024)
    assert all((bundle.weights[k] == v).all() for k, v in want.tensors.items())
    assert bundle.id == bundle_id(want, bundle.tokenizer.fingerprint, b"dictionary")
    assert bundle.verify() == ["dictionary.zst", "tokenizer.json.zst", "weights-0.safetensors"]


def test_the_id_depends_on_everything_that_decides_a_bit() -> None:
    base = random_weights(1)
    ids = {bundle_id(base, b"t", b"d"), bundle_id(base, b"u", b"d"), bundle_id(base, b"t", b"e")}
    for name in base.tensors:
        if name.startswith("table"):
            continue
        changed = base[name].copy()
        changed.reshape(-1)[0] ^= 1
        ids.add(bundle_id(Weights(base.shape, {**base.tensors, name: changed}), b"t", b"d"))
    assert len(ids) == 3 + sum(not n.startswith("table") for n in base.tensors)


@pytest.mark.parametrize("name", ["weights-0.safetensors", "tokenizer.json.zst", "dictionary.zst"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_files_are_refused(folder: Path, name: str, damage: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).unlink()
    if damage != "gone":
        (folder / name).write_bytes(data if damage == "flip" else data[:-1])
    with pytest.raises(ModelError, match=name.split("-")[0]):
        Bundle.load(folder)


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda h: h.update(contract=99), VersionError),
        (lambda h: h.update(format=2), VersionError),
        (lambda h: h.pop("shape"), ModelError),
        (lambda h: h["shape"].update(d=10**9), ModelError),
        (lambda h: h["shape"].update(layers="2"), ModelError),
        (lambda h: h.update(id="00" * 16), ModelError),
        (lambda h: h["files"].pop("dictionary.zst"), ModelError),
        (lambda h: h["files"].update({"../x": {"size": 1, "blake2b": ""}}), ModelError),
        (lambda h: h.update(files=[1]), ModelError),
    ],
)
def test_broken_descriptions_are_refused(folder: Path, change: object, error: type[Exception]) -> None:
    head = json.loads((folder / "bundle.json").read_text())
    change(head)  # type: ignore[operator]
    (folder / "bundle.json").write_text(json.dumps(head))
    with pytest.raises(error):
        Bundle.load(folder)


def test_unknown_bundles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bundle"):
        Bundle.load("nonesuch")
    with pytest.raises(UsageError):
        Bundle.load(tmp_path)
    with pytest.raises(BundleMismatch, match="--bundle"):
        Bundle.find(b"\0" * 16)


def test_vocabulary_and_model_must_agree(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> None:
    write_bundle(tmp_path / "b", "tiny", random_weights(1, vocab=512), tiny_tokenizer_json(1024), b"", {})
    with pytest.raises(ModelError, match="1024 ids, the model 512"):
        Bundle.load(tmp_path / "b")


def test_the_folder_may_be_copied(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "c")
    assert Bundle.load(tmp_path / "c").id == Bundle.load(folder).id
    assert isinstance(Bundle.load(tmp_path / "c").engine().shape.d, int)
    assert np.int8 == Bundle.load(folder).weights["embed.w"].dtype


@pytest.mark.skipif(not Bundle.names(), reason="no embedded bundle in this checkout")
def test_the_embedded_bundle() -> None:
    bundle = Bundle.load()
    assert bundle.name == "mini" and bundle.weights.shape.macs <= 15_000_000 and bundle.size() <= 20_000_000
    assert bundle.verify() and Bundle.find(bundle.id).name == "mini"
    assert bundle.card["licence"] and bundle.card["data"]
