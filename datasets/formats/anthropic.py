"""Anthropic: messages with content blocks, tool use and tool results, and the objects that the API returns.

    {"system": "...", "messages": [{"role": "user", "content": [{"type": "tool_result", ...}]}]}
    {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "stop_reason": ...}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat

BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")


def _is_request(value: Any) -> bool:
    if not isinstance(value, dict) or not is_messages(value.get("messages")):
        return False
    return isinstance(value.get("system"), str | list) or any(map(_has_blocks, value["messages"]))


def _has_blocks(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in BLOCKS for block in content
    )


def _is_reply(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("type") == "message"
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), list)
    )


FORMATS = (
    InputFormat("anthropic", "chat", "messages with content blocks, tool use and results", of_value=_is_request),
    InputFormat("anthropic-reply", "chat", "messages that the API returned", of_value=_is_reply),
)
