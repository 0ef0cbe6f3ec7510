"""The sources that a configuration may name. A new one is a class and a line here; EXTENDING.md has an example.

The class says all that the job must know of it: its settings are the fields of a frozen dataclass.

    name             str: its name in reports
    a field          a setting of that name; needed where it has no default
    path_setting     a path, relative to the configuration's folder
    Annotated        a number within `checked.Limits`
    naming           a `Naming`, where ``naming_keys`` says which of its fields may be set
"""

from __future__ import annotations

from typing import Any

from pltz.serving.nightly.sources.agent_logs import AgentLogSource
from pltz.serving.nightly.sources.database import PostgresSource, SqliteSource
from pltz.serving.nightly.sources.journal import JournalSource
from pltz.serving.nightly.sources.jsonl import JsonlSource
from pltz.serving.nightly.sources.slots import SlotSource

KINDS = (JsonlSource, AgentLogSource, SqliteSource, PostgresSource, SlotSource, JournalSource)
SOURCES: dict[str, Any] = {source.kind: source for source in KINDS}  # by the word in the configuration
