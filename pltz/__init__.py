"""LLM sessions, frozen to about a kilobyte and thawed bit for bit.

    import pltz

    data = pltz.compress("chats.jsonl")          # bytes of a .pltz file, every session decoded back and compared
    sessions = pltz.decompress(data)             # value for value
    with pltz.open("chats.pltz") as file:        # single sessions, without the others
        print(len(file), file[7].value)
    thawed = pltz.thaw("chats.pltz", "mini-llama", 7)   # the target's KV cache, after one prefill

    cold = pltz.Archive.open("/data/cold", create=True)
    cold.put("chat-7", {"messages": [...]}, tenant="acme")
    cold.get("chat-7", tenant="acme").value

Names are loaded when they are first used: ``import pltz`` costs no torch and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pltz.api import compress, decompress, open
    from pltz.archive.archive import Archive, ArchivedSession, SessionVersion
    from pltz.archive.encryption.keys import Secret
    from pltz.archive.errors import (
        ArchiveError,
        Erased,
        Fenced,
        ForeignPack,
        FullError,
        KeyMismatch,
        LostError,
        MissingKeys,
        MissingPack,
        NotFound,
        RolledBack,
        StoreError,
        UnreadableError,
        WriterFailed,
    )
    from pltz.archive.writing.put_request import PutReceipt, PutRequest
    from pltz.coding.codec import Codec
    from pltz.coding.session_file import SessionFile
    from pltz.datasets.loaders import sample_sessions
    from pltz.kv.errors import MemoryFailed, MemoryMismatch, PoolFull
    from pltz.kv.kv_forms import kv_forms
    from pltz.kv.memory.agent_memory import AgentMemory
    from pltz.kv.pool.batch_cache import BatchKVCache
    from pltz.kv.pool.block_pool import BlockPool
    from pltz.kv.pool.packed_session import PackedSession
    from pltz.kv.pool.page_attention import use_pages
    from pltz.kv.pool.prefix_tree import PrefixTree
    from pltz.kv.store.store import HotStore
    from pltz.kv.thaw.file import thaw
    from pltz.kv.thaw.thawed import Thawed
    from pltz.kv.thaw.thawer import Thawer, Wanted
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.session.session import Session
    from pltz.models.target.checkpoint import fingerprint_of
    from pltz.models.target.target import Target
    from pltz.plt_codec.errors import (
        BundleMismatch,
        ContentError,
        CorruptError,
        FormatError,
        LimitError,
        MismatchError,
        ModelError,
        OpaqueContentError,
        PltzError,
        TargetMismatch,
        TokenizerMismatch,
        UsageError,
        VersionError,
    )
    from pltz.serving.engines.llama_server import LlamaServer
    from pltz.serving.engines.slot_archiver import SlotArchiver
    from pltz.serving.engines.vllm_request import VllmEngine
    from pltz.serving.eviction.eviction import EvictionRequest
    from pltz.serving.eviction.hook import EvictionHook
    from pltz.serving.eviction.worker import drain

    __version__: str

# Where each public name lives. `__all__` below says the same to type checkers, which read no dictionaries.
_HOMES = {
    "pltz.api": ("compress", "decompress", "open"),
    "pltz.kv.thaw.file": ("thaw",),
    "pltz.archive.archive": ("Archive", "ArchivedSession", "SessionVersion"),
    "pltz.archive.encryption.keys": ("Secret",),
    "pltz.serving.engines.llama_server": ("LlamaServer",),
    "pltz.serving.engines.slot_archiver": ("SlotArchiver",),
    "pltz.serving.engines.vllm_request": ("VllmEngine",),
    "pltz.archive.errors": (
        "ArchiveError",
        "Erased",
        "Fenced",
        "ForeignPack",
        "FullError",
        "KeyMismatch",
        "LostError",
        "MissingKeys",
        "MissingPack",
        "NotFound",
        "RolledBack",
        "StoreError",
        "UnreadableError",
        "WriterFailed",
    ),
    "pltz.serving.eviction.eviction": ("EvictionRequest",),
    "pltz.serving.eviction.hook": ("EvictionHook",),
    "pltz.serving.eviction.worker": ("drain",),
    "pltz.kv.errors": ("MemoryFailed", "MemoryMismatch", "PoolFull"),
    "pltz.kv.memory.agent_memory": ("AgentMemory",),
    "pltz.kv.pool.batch_cache": ("BatchKVCache",),
    "pltz.kv.pool.block_pool": ("BlockPool",),
    "pltz.kv.pool.packed_session": ("PackedSession",),
    "pltz.kv.pool.page_attention": ("use_pages",),
    "pltz.kv.pool.prefix_tree": ("PrefixTree",),
    "pltz.kv.store.store": ("HotStore",),
    "pltz.kv.thaw.thawer": ("Thawer", "Wanted"),
    "pltz.archive.writing.put_request": ("PutReceipt", "PutRequest"),
    "pltz.kv.thaw.thawed": ("Thawed",),
    "pltz.datasets.loaders": ("sample_sessions",),
    "pltz.models.bundle.bundle": ("Bundle",),
    "pltz.kv.kv_forms": ("kv_forms",),
    "pltz.coding.codec": ("Codec",),
    "pltz.models.session.session": ("Session",),
    "pltz.coding.session_file": ("SessionFile",),
    "pltz.models.target.checkpoint": ("fingerprint_of",),
    "pltz.models.target.target": ("Target",),
    "pltz.plt_codec.errors": (
        "BundleMismatch",
        "ContentError",
        "CorruptError",
        "FormatError",
        "LimitError",
        "MismatchError",
        "ModelError",
        "OpaqueContentError",
        "PltzError",
        "TargetMismatch",
        "TokenizerMismatch",
        "UsageError",
        "VersionError",
    ),
}

__all__ = [
    "AgentMemory",
    "Archive",
    "ArchiveError",
    "ArchivedSession",
    "BatchKVCache",
    "BlockPool",
    "Bundle",
    "BundleMismatch",
    "Codec",
    "ContentError",
    "CorruptError",
    "Erased",
    "EvictionHook",
    "EvictionRequest",
    "Fenced",
    "ForeignPack",
    "FormatError",
    "FullError",
    "HotStore",
    "KeyMismatch",
    "LimitError",
    "LlamaServer",
    "LostError",
    "MemoryFailed",
    "MemoryMismatch",
    "MismatchError",
    "MissingKeys",
    "MissingPack",
    "ModelError",
    "NotFound",
    "OpaqueContentError",
    "PackedSession",
    "PltzError",
    "PoolFull",
    "PrefixTree",
    "PutReceipt",
    "PutRequest",
    "RolledBack",
    "Secret",
    "Session",
    "SessionFile",
    "SessionVersion",
    "SlotArchiver",
    "StoreError",
    "Target",
    "TargetMismatch",
    "Thawed",
    "Thawer",
    "TokenizerMismatch",
    "UnreadableError",
    "UsageError",
    "VersionError",
    "VllmEngine",
    "Wanted",
    "WriterFailed",
    "__version__",
    "compress",
    "decompress",
    "drain",
    "fingerprint_of",
    "kv_forms",
    "open",
    "sample_sessions",
    "thaw",
    "use_pages",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home, once (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pltz")
    else:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'pltz' has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, and nothing else."""
    return list(__all__)
