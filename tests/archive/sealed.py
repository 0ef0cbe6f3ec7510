"""Helpers of the tests of sealed archives: a key, sessions below one prompt, and opening again with the key."""

import numpy as np

from pltz.archive.encryption.keys import KeySource
from pltz.archive.format.pack import Damage, Pack, RecordPlace
from tests.archive import kit
from tests.archive.kit import RAW, NewSession, SegmentCodec, SimDisk, TowerArchive

__all__ = ["PROMPT", "RAW", "chat", "records_of", "reopen", "tokens"]

PROMPT = np.arange(30)


def reopen(disk: SimDisk, codec: SegmentCodec | None = None, key: KeySource | None = RAW) -> TowerArchive:
    return kit.reopen(disk, codec, key)


def chat(name: str, *turns: list[int], tenant: str = "acme") -> NewSession:
    return NewSession(name, [PROMPT, *map(np.array, turns)], tenant, shared=1, tags={"topic": name + "-tag"})


def tokens(archive: TowerArchive, name: str, tenant: str = "acme") -> list[int]:
    return list(archive.get(name, tenant).tokens[30:].tolist())


def records_of(disk: SimDisk) -> list[tuple[str, Pack, RecordPlace]]:
    found = []
    for path, data in disk.seen.files().items():
        if path.startswith("packs/"):
            pack = Pack.of(data)
            found += [(path, pack, i[0]) for i in pack.scan() if not isinstance(i, Damage)]
    return found
