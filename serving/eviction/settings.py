"""Settings of the eviction hook, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE
from pltz.plt_codec.lanes import LAYOUTS, LayoutName
from pltz.plt_codec.limits import ZSTD_ABOVE
from pltz.serving.eviction.journal.writer import SEGMENT
from pltz.serving.eviction.worker import BATCH_TOKENS

WorkerKind = Literal["process", "thread", "none"]
WORKERS: tuple[str, ...] = get_args(WorkerKind)
WHOLE = ("flush_bytes", "memory_bytes", "segment_bytes", "batch_tokens", "threads", "nice")
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclass(frozen=True)
class HookSettings:
    """The settings of a hook. Raises UsageError for a value out of range or of another type.

    ``flush_seconds``: longest time an eviction waits before its group is written. ``flush_bytes``: a group of
    this size is written at once. ``memory_bytes``: most memory for evictions not yet durable.
    ``journal_bytes``: most bytes of all journal files, None for no limit but the disk. ``when_full``: which
    evictions are lost when memory is full. ``segment_bytes``: size of a journal file. ``batch_tokens``:
    tokens per commit. ``nice``: priority of the worker. ``threads``: threads of its coder. ``layout``: of
    long sessions. ``zstd_above``: bytes from which sessions are coded by zstd, as in `Archive.open`. ``merge_turns``:
    join the last turns of sessions that grow, as there.
    """

    flush_seconds: float = 0.05
    flush_bytes: int = 64 << 20
    memory_bytes: int = 256 << 20
    journal_bytes: int | None = None
    when_full: Literal["refuse", "drop-oldest"] = "refuse"
    segment_bytes: int = SEGMENT
    batch_tokens: int = BATCH_TOKENS
    nice: int = 19
    threads: int = 1
    layout: LayoutName = "default"
    zstd_above: int | None = ZSTD_ABOVE
    merge_turns: bool = True

    def __post_init__(self) -> None:
        check_type("flush_seconds", self.flush_seconds, float)
        check_type("merge_turns", self.merge_turns, bool)
        for name in WHOLE:
            check_type(name, getattr(self, name), int)
            if name != "nice" and getattr(self, name) < 1:
                raise UsageError(f"expected {name} of at least 1, got {getattr(self, name)}")
        if not 0 < self.flush_seconds <= 60:
            raise UsageError(f"expected flush_seconds over 0 and at most 60, got {self.flush_seconds}")
        if self.journal_bytes is not None:
            check_type("journal_bytes", self.journal_bytes, int)
            if self.journal_bytes < 1:
                raise UsageError(f"expected journal_bytes of at least 1, or None, got {self.journal_bytes}")
        if self.zstd_above is not None:
            check_type("zstd_above", self.zstd_above, int)
            if self.zstd_above < 0:
                raise UsageError(f"expected zstd_above of at least 0, or None, got {self.zstd_above}")
        if self.when_full not in ("refuse", "drop-oldest"):
            raise UsageError(f"expected when_full as refuse or drop-oldest, got {self.when_full!r}")
        if self.layout not in LAYOUTS:
            raise UsageError(f"expected layout as {' or '.join(LAYOUTS)}, got {self.layout!r}")
        if not 0 <= self.nice <= 19:
            raise UsageError(f"expected nice from 0 to 19, got {self.nice}")


def check_type(name: str, value: Any, wanted: type) -> None:
    """Refuse a setting of another type. Raises UsageError.

    "false" is no boolean, and true is no number. A whole number is accepted where a number is expected.
    """
    numbers = (int, float) if wanted is float else (wanted,)
    if not isinstance(value, numbers) or (isinstance(value, bool) and wanted is not bool):
        raise UsageError(f"expected {name} as {TYPES[wanted]}, found {value!r}, a {type(value).__name__}")


def check_fingerprint(name: str, value: Any) -> None:
    """Refuse what is no fingerprint of 16 bytes in hexadecimal. Raises UsageError."""
    check_type(name, value, str)
    try:
        right = len(bytes.fromhex(value)) == SIZE
    except ValueError:
        right = False
    if not right:
        raise UsageError(f"expected 32 hex digits as {name}, found {value!r}")
