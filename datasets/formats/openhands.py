"""OpenHands: a trajectory, which is a list of actions and observations, or a document that holds one as its history.

    [{"id": 0, "timestamp": "...", "source": "user", "action": "message", "args": {...}}, ...]
    {"instance_id": "...", "history": [...], "metadata": {...}}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        return False
    return any(isinstance(value.get(key), str) for key in ("action", "observation")) or "kind" in value


def _is_trajectory(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.get("history", value.get("trajectory"))
    return bool(value) and is_messages(value, _is_event)


FORMAT = InputFormat("openhands", "agent log", "trajectories of OpenHands", of_value=_is_trajectory)
