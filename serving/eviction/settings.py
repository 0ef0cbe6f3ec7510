"""Settings of the eviction hook, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pltz.plt_codec import LayoutName
from pltz.serving.eviction.checked import Limits, Positive, check
from pltz.serving.eviction.journal.writer import SEGMENT
from pltz.serving.eviction.worker import BATCH_TOKENS


@dataclass(frozen=True)
class HookSettings:
    """The settings of a hook. Raises UsageError for a value out of range or of another type.

    ``flush_seconds``: longest time an eviction waits before its group is written. ``flush_bytes``: a group of
    this size is written at once. ``memory_bytes``: most memory for evictions not yet durable.
    ``journal_bytes``: most bytes of all journal files, None for no limit but the disk. ``when_full``: which
    evictions are lost when memory is full. ``segment_bytes``: size of a journal file. ``batch_tokens``:
    tokens per commit. ``nice``: priority of the worker. ``threads``: threads of its coder. ``layout``: of
    long sessions. ``model_ids``, ``merge_turns``: as of `Archive.open`.
    """

    flush_seconds: Annotated[float, Limits(0.001, 60)] = 0.05
    flush_bytes: Positive = 64 << 20
    memory_bytes: Positive = 256 << 20
    journal_bytes: Positive | None = None
    when_full: Literal["refuse", "drop-oldest"] = "refuse"
    segment_bytes: Positive = SEGMENT
    batch_tokens: Positive = BATCH_TOKENS
    nice: Annotated[int, Limits(0, 19)] = 19
    threads: Positive = 1
    layout: LayoutName = "default"
    model_ids: bool | None = None
    merge_turns: bool = True

    def __post_init__(self) -> None:
        check(self)
