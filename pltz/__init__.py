"""pltz: LLM sessions, frozen to about a kilobyte and thawed bit for bit.

    import pltz

    data = pltz.compress("chats.jsonl")          # bytes of a .pltz file, every session decoded back and compared
    sessions = pltz.decompress(data)             # value for value
    with pltz.open("chats.pltz") as file:        # single sessions, without the others
        print(len(file), file[7].value)
    thawed = pltz.thaw("chats.pltz", "mini-llama", 7)   # the target's KV cache, after one prefill

Names are loaded when they are first used: ``import pltz`` costs no torch and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pltz.api import (
        compress,
        compress_many,
        decompress,
        decompress_many,
        open,
        thaw,
    )
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.session.codec import Codec
    from pltz.models.session.session import Session
    from pltz.models.session_file import SessionFile
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

    __version__: str

_HOMES = {
    "pltz.api": (
        "compress",
        "compress_many",
        "decompress",
        "decompress_many",
        "open",
        "thaw",
    ),
    "pltz.models.bundle.bundle": ("Bundle",),
    "pltz.models.session.codec": ("Codec",),
    "pltz.models.session.session": ("Session",),
    "pltz.models.session_file": ("SessionFile",),
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
    "Bundle",
    "BundleMismatch",
    "Codec",
    "ContentError",
    "CorruptError",
    "FormatError",
    "LimitError",
    "MismatchError",
    "ModelError",
    "OpaqueContentError",
    "PltzError",
    "Session",
    "SessionFile",
    "TargetMismatch",
    "TokenizerMismatch",
    "UsageError",
    "VersionError",
    "__version__",
    "compress",
    "compress_many",
    "decompress",
    "decompress_many",
    "open",
    "thaw",
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
    return sorted({*globals(), *__all__})
