"""Bundles: written, loaded, identified, and refused when damaged (models/bundle/bundle.py)."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle.bundle import Bundle, bundle_id, write_bundle
from pltz.models.bundle.folder import BundleFolder
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError, VersionError
from pltz.plt_codec.weights import Weights
from tests.watch import memory_below


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> Path:
    write_bundle(
        tmp_path / "b", "tiny", random_weights(1, vocab=1024), tiny_tokenizer_json(1024), b"dictionary", {"note": "x"}
    )
    return tmp_path / "b"


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


@pytest.mark.parametrize("change, error", [
    (lambda h: h.update(contract=99), VersionError), (lambda h: h.update(format=3), VersionError),
    (lambda h: h.update(format=2), VersionError), (lambda h: h.pop("shape"), ModelError),
    (lambda h: h["shape"].update(d=10**9), ModelError), (lambda h: h["shape"].update(layers="2"), ModelError),
    (lambda h: h.update(id="00" * 16), ModelError), (lambda h: h["files"].pop("dictionary.zst"), ModelError),
    (lambda h: h["files"].update({"../x": {"size": 1, "blake2b": ""}}), ModelError),
    (lambda h: h.update(files=[1]), ModelError),
])
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
    with pytest.raises(BundleMismatch, match="bundle add"):
        Bundle.find(b"\0" * 16)


def test_vocabulary_and_model_must_agree(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> None:
    write_bundle(tmp_path / "b", "tiny", random_weights(1, vocab=512), tiny_tokenizer_json(1024), b"", {})
    with pytest.raises(ModelError, match="1024 ids, the model 512"):
        Bundle.load(tmp_path / "b")


def _repacked(folder: Path, name: str, data: bytes, **shape: int) -> None:
    """One weight file that holds `data`, named and digested in bundle.json as a forger would."""
    head = json.loads((folder / "bundle.json").read_text())
    for old in [n for n in head["files"] if n.startswith("weights")]:
        (folder / old).unlink(missing_ok=True)
        del head["files"][old]
    (folder / name).write_bytes(data)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    head["files"][name] = {"size": len(data), "blake2b": digest}
    head["shape"].update(shape)
    (folder / "bundle.json").write_text(json.dumps(head))


def _bomb(size: int) -> bytes:
    """A zstd frame of zeros, some 30,000 times smaller than what it holds."""
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    piece = bytes(1 << 20)
    return b"".join([*(packer.compress(piece) for _ in range(size >> 20)), packer.flush()])


def _tensor(name: str, dtype: str, shape: str, end: int, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file of one tensor."""
    head = f'{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode()
    return len(head).to_bytes(8, "little") + head + data


PACKED, PLAIN = "weights-00.safetensors.zst", "weights-0.safetensors"
UNSIZED = zstandard.ZstdCompressor(write_content_size=False)


@pytest.mark.parametrize(
    "name, data, message",
    [
        (PACKED, _bomb(1 << 28), "claims 268435456 bytes"),
        (PACKED, UNSIZED.compress(bytes(1 << 20)), "claims"),
        (PACKED, zstandard.compress(bytes(5000))[:-20], "does not unpack"),
        (PACKED, bytes(1000), "does not unpack"),
        (PLAIN, bytes(3 << 20), "claims 3145728 bytes"),
        (PLAIN, ((1 << 20) + 1).to_bytes(8, "little") + bytes(1 << 20), "a head of"),
        (PLAIN, (1 << 19).to_bytes(8, "little") + bytes(9), "damaged"),  # a head beyond the file
        (PLAIN, b"\1", "damaged"),
        (PLAIN, _tensor("embed.w", "I8", "[1024,64]", 65536, bytes(9)), "damaged"),  # offsets beyond the file
        (PLAIN, _tensor("embed.w", "I8", "[0,9223372036854775807,4]", 0), "damaged|tensors"),
        (PLAIN, _tensor("embed.w", "F8_E4M3", "[1]", 1, b"\0"), "damaged|tensors"),  # numpy has no such type
        (PLAIN, _tensor("x", "I8", "[1]", 1, b"\0"), "unknown"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_hostile_weights_are_refused_and_take_no_memory(folder: Path, name: str, data: bytes, message: str) -> None:
    _repacked(folder, name, data)
    # the tiny bundle's own weights are a quarter of a megabyte
    with memory_below(12 << 20), pytest.raises(ModelError, match=message):
        Bundle.load(folder)


def test_packed_weights_are_the_same(folder: Path, tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> None:
    weights = random_weights(1, vocab=1024)
    write_bundle(tmp_path / "p", "tiny", weights, tiny_tokenizer_json(1024), b"dictionary", {}, packed=True)
    assert Bundle.load(tmp_path / "p").id == Bundle.load(folder).id
    assert "weights-00.safetensors.zst" in BundleFolder.open(Bundle.load(tmp_path / "p").path).files


def test_a_tensor_given_twice_is_refused(folder: Path) -> None:
    head = json.loads((folder / "bundle.json").read_text())
    head["files"]["weights-1.safetensors"] = head["files"]["weights-0.safetensors"]
    shutil.copy(folder / "weights-0.safetensors", folder / "weights-1.safetensors")
    (folder / "bundle.json").write_text(json.dumps(head))
    with pytest.raises(ModelError, match=r"weights-1\.safetensors"):
        Bundle.load(folder)


def test_a_shape_of_too_many_bytes_is_refused(folder: Path) -> None:
    sizes = {"d": 512, "layers": 64, "hidden": 8192, "heads": 64, "kv_heads": 64, "head_dim": 64}
    _repacked(folder, "weights-0.safetensors", b"", **sizes)
    with pytest.raises(ModelError, match="1073741824 are allowed"):
        Bundle.load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json.zst", "weights-0.safetensors", "card.json", "bundle.json"])
def test_what_is_no_plain_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)  # reading it would wait for ever
    with pytest.raises((ModelError, UsageError)):
        Bundle.load(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "7", '{"a"'])
def test_a_broken_card_is_refused(folder: Path, text: str) -> None:
    (folder / "card.json").write_text(text)
    with pytest.raises(ModelError, match="is not a card"):
        Bundle.load(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": {"x": {"size": Infinity}}}', "\xff", " " * (1 << 21)])
def test_a_broken_head_is_refused(folder: Path, text: str) -> None:
    (folder / "bundle.json").write_text(text)
    with pytest.raises(ModelError, match=r"bundle\.json"):
        Bundle.load(folder)


@pytest.mark.parametrize("name", Bundle.names())
def test_every_embedded_bundle_is_whole_small_and_found_by_its_id(name: str) -> None:
    bundle = Bundle.load(name)
    size = BundleFolder.open(bundle.path).size()
    assert Bundle.find(bundle.id).name == name
    assert name != "mini" or (bundle.weights.shape.macs <= 15_000_000 and size <= 20_000_000)
    assert bundle.card["licence"] and bundle.card["data"] and (bundle.path / "CARD.md").is_file()
    assert max(p.stat().st_size for p in bundle.path.iterdir()) <= 16_000_000 and size <= 64_000_000
