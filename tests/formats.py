"""The formats that are kept on a disk, but those of an archive: a sound file of each, and how it is read.

`test_damage.py` damages each of them. A new format is a function here, and has its tests of damage by that.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
import xxhash

from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.benchmarks.random_weights import random_weights
from pltz.coding.codec import Codec
from pltz.kv.memory.remembered import Remembered
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.predictive.calibration import Calibration, KVShape
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store import kv_file
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import AGENT, KVFolder
from pltz.kv.store.snapshots import Snapshots
from pltz.kv.store.trie import names_of, root_of
from pltz.models.bundle.bundle import write_bundle
from pltz.models.bundle.folder import BundleFolder
from pltz.models.session.session import Session
from pltz.plt_codec.errors import CorruptError
from pltz.serving.engines.llama_slots import read_slot_ids
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.nightly.receipt import ReceiptFile, encode
from pltz.training.run import snapshot
from tests.kv.engines.test_streams import drawn
from tests.kv.pool.pages import HEADS, LAYERS, form, random_kv, rotary
from tests.kv.store.golden import maker

SPACE = b"space..........."
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


def sealed_kv(data: bytes) -> bytes:
    """Put the checksums of a file of KV right: of its header, of what is no part, and of the parts."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
        body = data[end + CHECKSUM * int(header.pop("checksums")["shape"][0]) :]
        own = [entry["data_offsets"] for name, entry in header.items() if not name.startswith(("kv", "__"))]
        before = sum(int(stop) - int(start) for start, stop in own)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
        body, before = data[end + 2 * CHECKSUM :], 0
    groups, step = (body[: max(before, 0)], body[max(before, 0) :]), kv_file.CHUNK
    chunks = [group[at : at + step] for group in groups for at in range(0, len(group), step)]
    return data[:end] + b"".join(map(xxhash.xxh3_128_digest, (data[:end], *chunks))) + body


def predictive() -> KVCodec:
    calibration = random_calibration(bytes(16), KVShape(LAYERS, HEADS, 32, 12), 0, drawn(1, LAYERS, 128)[2])
    embedding = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 12), np.float32))
    return PredictiveCodec(calibration, rotary(16), embedding, -8)


def warm(
    make: Callable[[], KVCodec], chunk: int, folder: Path, tokenizer: bytes, *, encrypted: bool = False
) -> SoundFile:
    """Write a run of blocks. What is damaged is a miss, at once or when its chunk is read, and the file goes.

    An encrypted one stays where it seems to be another's.
    """
    kv_file.CHUNK = chunk
    codec, ids = make(), np.arange(48, dtype=np.int32)
    files, root = KVFolder(folder, SPACE, 1 << 26), root_of("acme")
    keys = SimpleNamespace(domain=lambda kind, name: bytes(16), cache_keys=lambda owner: [bytes(32)])
    settings = SimpleNamespace(archive=b"a" * 16, sealed=encrypted)
    archive: Any = SimpleNamespace(parts=SimpleNamespace(settings=settings, keys=keys))
    files.admit(archive, ["acme"])
    owner, names = files.owner("acme"), names_of(root, ids, 16)
    parts = codec.encode(random_kv(48), Span(ids, 0, np.ones(48, np.float32)))
    assert files.write(KVFile(codec.name, SPACE, names[-1], {"ids": torch.from_numpy(ids)}, parts, owner, root))

    def read() -> Any:
        found = files.read(names[-1], codec.name, owner)
        if found is None:
            raise CorruptError("a miss")
        own = found.head["ids"].numpy()
        if names_of(found.parent, own, 16) != names:
            raise CorruptError("not its name")
        codec.check(found.parts, len(own))
        kv = codec.decode(found.parts, Span(own, found.start))
        assert kv.shape[3] == len(own)
        return packed(kv), own.tolist(), found.parent, found.tenant, found.start

    return SoundFile(files.path(names[-1], codec.name, owner), read, sealed_kv, goes=not encrypted)


def whole(folder: Path, tokenizer: bytes) -> SoundFile:
    """Write the cache of a model with a window. What is damaged is a miss, and the file goes."""
    shape = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1, "sliding_window": 4}
    config = transformers.MistralConfig(vocab_size=9, num_key_value_heads=1, **shape)
    model = SimpleNamespace(config=config, dtype=torch.float32)
    target: Any = SimpleNamespace(fingerprint=bytes(16), model=model)
    store, cache = Snapshots(target, 0, 1 << 26, folder=folder), transformers.DynamicCache(config=config)
    for layer in range(2):
        cache.update(torch.ones(1, 1, 6, 8), torch.ones(1, 1, 6, 8), layer)
    store.keep("acme", range(6), cache, torch.arange(9.0))
    [path] = folder.glob("*/*.safetensors")

    def read() -> Any:
        found = store.read("acme", range(6), torch.device("cpu"))
        if found.cache is None:
            raise CorruptError("a miss")
        assert found.logits is not None
        return [str(sorted(vars(layer).items())) for layer in found.cache.layers], packed(found.logits)

    return SoundFile(path, read, sealed_kv, goes=True)


def memory(kind: str, folder: Path, tokenizer: bytes) -> SoundFile:
    """Write the memory of an agent. It may be all that there is, so it stays, whatever it holds."""
    made = maker()
    files, pages = KVFolder(folder, SPACE, 1 << 26), made.form(kind)
    one = made.remembered(pages, files)
    files.put(one)

    def read() -> Any:
        found = files.get(one.name, AGENT)
        assert found is not None
        back = Remembered.of_file(found, pages, 16, 1 << 20)
        assert back.tail is not None
        return back.text, back.ids.tolist(), back.ends.tolist(), packed(back.tail.exact)

    return SoundFile(files.path(one.name, AGENT), read, sealed_kv)


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
    "raw": lambda: RowForm(form("raw")), "q8": lambda: RowForm(form("q8")), "q4": lambda: RowForm(form("q4")),
    "predictive": predictive,
}  # fmt: skip
FORMATS: dict[str, Callable[[Path, bytes], SoundFile]] = {
    **{f"warm, {name}": partial(warm, make, 1 << 20) for name, make in FORMS.items()},
    "encrypted": partial(warm, FORMS["raw"], 512, encrypted=True),
    **{f"warm of many chunks, {name}": partial(warm, make, 512) for name, make in FORMS.items()},
    "warm, whole": whole,
    **{f"memory, {kind}": partial(memory, kind) for kind in ("raw", "q4")},
    "calibration": calibration, "receipt": receipt, "journal entry": journal_entry, "slot": slot,
    "pltz file": pltz_file,
    **{f"bundle, {name}": partial(bundle, name)
       for name in ("weights-0.safetensors", "tokenizer.json.zst", "dictionary.zst", "bundle.json")},
    **{f"snapshot, {name}": partial(run_state, name) for name in ("000", "parts.json")},
}  # fmt: skip
