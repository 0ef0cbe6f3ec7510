"""Collections of shared chats: ShareGPT, WildChat and LMSYS.

    ShareGPT   {"conversations": [{"from": "human", "value": "Hi"}, ...]}
    WildChat   {"conversation_hash": "...", "conversation": [{"role": "user", "content": "Hi", ...}, ...]}
    LMSYS      {"conversation_id": "...", "conversation": [{"role": "user", "content": "Hi"}, ...]}
    arena      {"conversation_a": [...], "conversation_b": [...], "winner": "model_a"}
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _holds(*keys: str) -> Any:
    def test(value: Any) -> bool:
        return isinstance(value, dict) and all(is_messages(value.get(key)) for key in keys)

    return test


def _is_wildchat(value: Any) -> bool:
    return isinstance(value, dict) and "conversation_hash" in value and is_messages(value.get("conversation"))


FORMATS = (
    InputFormat("sharegpt", "chat", 'chats: objects with a list "conversations"', of_value=_holds("conversations")),
    InputFormat("wildchat", "chat", "rows of WildChat", of_value=_is_wildchat),
    InputFormat("lmsys", "chat", "rows of LMSYS-Chat", of_value=_holds("conversation")),
    InputFormat(
        "lmsys-arena", "chat", "pairs of chats that people judged", of_value=_holds("conversation_a", "conversation_b")
    ),
)
