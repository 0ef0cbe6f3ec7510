"""SWE-agent and mini-swe-agent: a .traj file, one JSON document per attempt.

    {"trajectory": [{"action": "ls", "observation": "...", "thought": "..."}], "history": [...], "info": {...}}
    {"info": {"model_stats": {...}}, "messages": [...], "trajectory_format": "mini-swe-agent-1"}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, called, said, spoken


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and "action" in value and "observation" in value


def _is_trajectory(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("info"), dict):
        return False
    if isinstance(value.get("trajectory"), list):
        return is_messages(value["trajectory"], _is_step)
    return is_messages(value.get("messages")) and ("trajectory_format" in value or "model_stats" in value["info"])


def conversation(value: dict[str, Any]) -> list[Message]:
    """Return the messages that the model was shown, or where none are kept the steps of the trajectory."""
    messages = value.get("messages") or value.get("history")
    if not messages:
        return [message for step in value["trajectory"] for message in _step(step)]
    found: list[Message] = []
    for message in messages:
        role = message.get("role", "user")
        if role == "tool":
            found.append(answered(message.get("content")))
            continue
        if role not in ("system", "user", "assistant"):  # how the run ended
            continue
        found += spoken(role, message.get("content"))
        calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
        found += [called(call.get("name"), call.get("arguments")) for call in calls]
    return found


def _step(step: dict[str, Any]) -> list[Message]:
    return [
        *said("assistant", step.get("thought")),
        called("shell", {"command": step.get("action")}),
        answered(step.get("observation")),
    ]


FORMAT = InputFormat(
    "swe-agent",
    "agent log",
    "trajectories of SWE-agent",
    of_value=_is_trajectory,
    suffix=".traj",
    conversation=conversation,
)
