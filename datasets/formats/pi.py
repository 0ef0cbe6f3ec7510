"""Logs of pi: one JSONL file per session below ~/.pi/agent/sessions, one entry per line. Oh My Pi writes the same.

    {"type": "session", "version": 3, "id": "...", "timestamp": "...", "cwd": "/home/ada/shop"}
    {"type": "message", "id": "0a826f1c", "parentId": null, "timestamp": "...", "message": {"role": "user", ...}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.datasets.input_format import InputFormat


def _is_head(event: dict[str, Any]) -> bool:
    return event.get("type") == "session" and {"id", "timestamp", "cwd"} <= event.keys()


def _are_events(events: Sequence[dict[str, Any]]) -> bool:
    return any(map(_is_head, events)) and all(isinstance(event.get("type"), str) for event in events)


FORMAT = InputFormat("pi", "agent log", "session files of pi", of_events=_are_events)
