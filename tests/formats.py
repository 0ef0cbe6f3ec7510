"""The formats that are kept on a disk, but those of an archive: a sound file of each, and how it is read.

`test_damage.py` damages each of them. A new format is a function here, and has its tests of damage by that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.benchmarks.random_weights import random_weights
from pltz.coding.codec import Codec
from pltz.kv.forms.q4 import Q4Codec
from pltz.kv.forms.q8 import Q8Codec
from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.predictive.calibration import Calibration, KVShape
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store import warm_file
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.tier import StoredBlock
from pltz.models.bundle.bundle import write_bundle
from pltz.models.bundle.folder import BundleFolder
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError
from pltz.serving.engines.llama_slots import read_slot_ids
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.nightly.receipt import ReceiptFile, encode
from pltz.training.run import snapshot
from tests.kv.engines.test_streams import drawn
from tests.kv.memory.test_golden_memory import FILES, NAMES, anything, kind_of
from tests.kv.pool.pages import HEADS, LAYERS, random_kv, rotary

SPACE, SEGMENT, PARENT = b"space...........", b"segment...", b"parent...."
CHECKSUM = 16  # bytes of a checksum of safetensors files
LOG = [{"type": "user", "sessionId": "s", "message": {"role": "user", "content": f"{n} words"}} for n in range(4)]
VOCAB = 16384  # ids of the target whose slot file was recorded


@dataclass(frozen=True)
class SoundFile:
    """A file and how it is read: ``read()`` returns what it says, or raises an error of pltz.

    ``seal``: puts the checksums right in bytes that were changed, where the format has any.
    ``may_be``: whether a value may come of a damaged file, of a format that has no checksum.
    ``goes``: whether a damaged file is removed.
    """

    path: Path
    read: Callable[[], Any]
    seal: Callable[[bytes], bytes] | None = None
    may_be: Callable[[Any], bool] | None = None
    goes: bool = False


def packed(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


# ---- kv


def sealed_warm(data: bytes) -> bytes:
    """Put both checksums of a warm file of one chunk right, of its header and of what follows them."""
    end = 8 + int.from_bytes(data[:8], "little")
    sums = xxhash.xxh3_128_digest(data[:end]) + xxhash.xxh3_128_digest(data[end + 2 * CHECKSUM :])
    return data[:end] + sums + data[end + 2 * CHECKSUM :]


def sealed_kind(data: bytes) -> bytes:
    """Put the checksum of a memory or a shadow right."""
    end = 8 + int.from_bytes(data[:8], "little")
    return data[:end] + xxhash.xxh3_128_digest(data[:end] + data[end + CHECKSUM :]) + data[end + CHECKSUM :]


def predictive() -> KVCodec:
    calibration = random_calibration(bytes(16), KVShape(LAYERS, HEADS, 32, 12), 0, drawn(1, LAYERS, 128)[2])
    embedding = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 12), np.float32))
    return PredictiveCodec(calibration, rotary(16), embedding, -8)


def warm(make: Callable[[], KVCodec], chunk: int, folder: Path, tokenizer: bytes) -> SoundFile:
    """Write a warm file. What is damaged is a miss, at once or when its chunk is read, and the file goes."""
    warm_file.CHUNK = chunk
    codec, ids = make(), np.arange(40, dtype=np.int32)
    tier = DiskTier(folder, 1 << 26, codec)
    block = KVBlock.raw(random_kv(40), ids, ids, 0, torch.randn(7))
    object.__setattr__(block, "mass", np.ones(40, np.float32))
    assert tier.write(SPACE, SEGMENT, StoredBlock(block, PARENT, 5))
    path = tier.path(SPACE, SEGMENT, codec.name)

    def read() -> Any:
        found = tier.read(SPACE, SEGMENT, [codec])
        if found is None:
            raise CorruptError("a miss")
        kv = found.block.kv
        assert kv.shape[3] == len(found.block.ids)
        return packed(kv), found.block.ids.tolist(), found.parent, found.born, found.block.start

    return SoundFile(path, read, sealed_warm, goes=True)


def golden(name: str, folder: Path, tokenizer: bytes) -> SoundFile:
    """Copy a golden file of a memory or of a shadow."""
    kind, tensors = kind_of(name)
    path = folder / "file.safetensors"
    path.write_bytes((FILES / name).read_bytes())

    def read() -> Any:
        found = kind.read(path, tensors, anything)
        assert found is not None
        return {key: packed(tensor) for key, tensor in found[1].items()}

    return SoundFile(path, read, sealed_kind)


def calibration(folder: Path, tokenizer: bytes) -> SoundFile:
    path = random_calibration(bytes(16), KVShape(1, 1, 8, 12), 0, drawn(1, 1, 16)[2]).save(folder)
    return SoundFile(path, lambda: Calibration.load(path).digest)


# ---- serving


def receipt(folder: Path, tokenizer: bytes) -> SoundFile:
    name, data = encode(3, {bytes([n]) * 16: bytes([n + 1]) * 16 for n in range(9)})
    path = folder / name
    path.write_bytes(data)

    def read() -> Any:
        found = ReceiptFile.decode(path.read_bytes(), name)
        return found.run, found.columns.tolist()

    return SoundFile(path, read)


def journal_entry(folder: Path, tokenizer: bytes) -> SoundFile:
    path = folder / "body"
    one = JournalEntry("chat-7", np.arange(9), 5, "acme", tags={"a": "b"}, prefixes=(2, 9), base="b", parent="p")
    path.write_bytes(one.encode())

    def may_be(found: JournalEntry) -> bool:
        return all(0 < end <= len(found.ids) for end in found.prefixes) and len(found.ids) < 1000

    return SoundFile(path, lambda: JournalEntry.decode(path.read_bytes()), may_be=may_be)


def slot(folder: Path, tokenizer: bytes) -> SoundFile:
    """Copy a slot file of llama-server: a wrong id cannot be told, a wrong length or an id that is none can."""
    path = folder / "slot.bin"
    path.write_bytes((Path(__file__).parent / "serving/engines/recorded/slot.bin").read_bytes()[:200])

    def may_be(found: Any) -> bool:
        return 0 < len(found) <= path.stat().st_size // 4 and found.min() >= 0 and found.max() < VOCAB

    return SoundFile(path, lambda: read_slot_ids(path, vocab_size=VOCAB), may_be=may_be)


# ---- models and training


def bundle(name: str, folder: Path, tokenizer: bytes) -> SoundFile:
    """Write a bundle, of which one file is damaged."""
    write_bundle(folder / "b", "tiny", random_weights(1, vocab=1024), tokenizer, b"dictionary" * 20, {"note": "x"})

    def read() -> Any:
        found = BundleFolder.open(folder / "b")
        weights = {key: tensor.tobytes() for key, tensor in found.weights().tensors.items()}
        return found.tokenizer(), found.dictionary(), weights

    return SoundFile(folder / "b" / name, read)


def pltz_file(folder: Path, tokenizer: bytes) -> SoundFile:
    """Write a file of four sessions, coded by a model, by zstd and as a log."""
    write_bundle(folder / "b", "tiny", random_weights(1, vocab=1024, block=128, memory=32), tokenizer, b"", {})
    codec, path = Codec.load(folder / "b"), folder / "a.pltz"
    values = [{"messages": [{"role": "user", "content": "Hello, how are you?"}]}, LOG]
    sessions = [*(Session("chat", value) for value in values), Session("text", b"\xff " * 9), Session("ids", [5, 99])]
    path.write_bytes(codec.compress(sessions))
    return SoundFile(path, lambda: codec.decompress(path.read_bytes()))


def run_state(name: str, folder: Path, tokenizer: bytes) -> SoundFile:
    """Write the snapshot of a training run."""
    snapshot.save(folder, 3, {"net": torch.arange(100)})
    return SoundFile(folder / "resume-000000003" / name, lambda: packed(snapshot.load(folder, "cpu")["net"]))  # type: ignore[index]


FORMS: dict[str, Callable[[], KVCodec]] = {
    "raw": lambda: RAW, "q8": lambda: Q8Codec(rotary(16)), "q4": lambda: Q4Codec(rotary(16)), "predictive": predictive,
}  # fmt: skip
FORMATS: dict[str, Callable[[Path, bytes], SoundFile]] = {
    **{f"warm, {name}": partial(warm, make, 1 << 20) for name, make in FORMS.items()},
    **{f"warm of many chunks, {name}": partial(warm, make, 512) for name, make in FORMS.items()},
    **{f"memory, {name}": partial(golden, name) for name in NAMES},
    "calibration": calibration, "receipt": receipt, "journal entry": journal_entry, "slot": slot,
    "pltz file": pltz_file,
    **{f"bundle, {name}": partial(bundle, name)
       for name in ("weights-0.safetensors", "tokenizer.json.zst", "dictionary.zst", "bundle.json")},
    **{f"snapshot, {name}": partial(run_state, name) for name in ("000", "parts.json")},
}  # fmt: skip
