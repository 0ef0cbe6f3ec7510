"""LangChain and LangGraph: dumps of messages, and states that hold them.

    messages_to_dict   [{"type": "human", "data": {"content": "Hi", ...}}, ...]
    model_dump         {"messages": [{"type": "human", "content": "Hi", ...}, ...]}
    dumpd              {"lc": 1, "type": "constructor", "id": [..., "HumanMessage"], "kwargs": {"content": "Hi"}}
    checkpoint         {"values": {"messages": [...]}, ...}, or "channel_values"
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat

TYPES = (
    *("human", "ai", "system", "tool", "function", "chat", "remove"),
    *("HumanMessageChunk", "AIMessageChunk", "SystemMessageChunk", "ToolMessageChunk"),
)
STATES = ("values", "channel_values", "state", "input", "output", "kwargs")


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if value.get("lc") == 1:
        name = value.get("id")
        return isinstance(name, list) and bool(name) and str(name[-1]).removesuffix("Chunk").endswith("Message")
    return value.get("type") in TYPES and ("content" in value or isinstance(value.get("data"), dict))


def _is_dump(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and is_messages(value, _is_message)
    if not isinstance(value, dict):
        return False
    if _is_message(value) or (value.get("messages") and is_messages(value["messages"], _is_message)):
        return True
    return any(isinstance(value.get(key), dict) and _is_dump(value[key]) for key in STATES)


FORMAT = InputFormat("langchain", "chat", "dumps of messages of LangChain and LangGraph", of_value=_is_dump)
