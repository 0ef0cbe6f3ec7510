"""OpenHands: a trajectory, which is a list of actions and observations, or a document that holds one as its history.

    [{"id": 0, "timestamp": "...", "source": "user", "action": "message", "args": {...}}, ...]
    {"instance_id": "...", "history": [...], "metadata": {...}}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, called, said


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        return False
    return any(isinstance(value.get(key), str) for key in ("action", "observation")) or "kind" in value


def _is_trajectory(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.get("history", value.get("trajectory"))
    return bool(value) and is_messages(value, _is_event)


GIVEN = ("command", "code", "path", "url", "content", "task")  # arguments that the model gave
QUIET = ("change_agent_state", "agent_state_changed", "recall", "null", "think", "condensation")


def conversation(value: Any) -> list[Message]:
    """Return the messages of a trajectory: of user and agent, actions as calls, observations as results."""
    if isinstance(value, dict):
        value = value.get("history", value.get("trajectory"))
    return [message for event in value for message in at(event, _messages(event))]


def _messages(event: dict[str, Any]) -> list[Message]:
    source = "user" if event["source"] == "user" else "assistant"
    if isinstance(message := event.get("llm_message"), dict):
        return said(message.get("role", source), message.get("content"))
    if event.get("kind") == "SystemPromptEvent":
        return said("system", event.get("system_prompt"))
    if "tool_name" in event and "observation" in event:
        return [answered(event["observation"])]
    if "tool_name" in event:
        action = event.get("action")
        arguments = {k: v for k, v in action.items() if k != "kind"} if isinstance(action, dict) else None
        return [*said("assistant", event.get("thought")), called(event["tool_name"], arguments)]
    action, arguments = event.get("action"), event.get("args")
    if isinstance(event.get("observation"), str):
        return [] if event["observation"] in QUIET else [answered(event.get("content", event.get("message", "")))]
    if not isinstance(arguments, dict) or action in QUIET:
        return []
    if action in ("message", "system"):
        return said("system" if action == "system" else source, arguments.get("content"))
    if action == "finish":
        return said("assistant", arguments.get("final_thought") or event.get("message"))
    given = {key: item for key, item in arguments.items() if key in GIVEN}
    return [*said("assistant", arguments.get("thought")), called(action, given)]


FORMAT = InputFormat(
    "openhands", "agent log", "trajectories of OpenHands", of_value=_is_trajectory, conversation=conversation
)
