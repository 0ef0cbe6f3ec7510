"""SWE-agent and mini-swe-agent: a .traj file, one JSON document per attempt.

    {"trajectory": [{"action": "ls", "observation": "...", "thought": "..."}], "history": [...], "info": {...}}
    {"info": {"model_stats": {...}}, "messages": [...], "trajectory_format": "mini-swe-agent-1"}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and "action" in value and "observation" in value


def _is_trajectory(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    if isinstance(value.get("trajectory"), list):
        return is_messages(value["trajectory"], _is_step)
    return is_messages(value.get("messages")) and ("trajectory_format" in value or "model_stats" in value["info"])


FORMAT = InputFormat(
    "swe-agent", "agent log", "trajectories of SWE-agent", of_value=_is_trajectory, suffix=".traj"
)
