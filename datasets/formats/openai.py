"""OpenAI: chats, logged requests and responses, batch files, the Responses API.

    chat         {"messages": [{"role": "user", "content": "Hi"}, ...], ...}
    completion   {"object": "chat.completion", "choices": [{"message": {...}}], ...}
    log          {"request": {"messages": [...]}, "response": {"choices": [...]}}
    batch        {"custom_id": "7", "method": "POST", "url": "/v1/...", "body": {...}}, and its results
    responses    {"object": "response", "output": [{"type": "message", ...}], ...}, or a request with "input"
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.formats.messages import is_messages
from pltz.datasets.input_format import InputFormat


def _is_chat(value: Any) -> bool:
    return isinstance(value, dict) and is_messages(value.get("messages"))


def _is_completion(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("choices"), list):
        return False
    return bool(value["choices"]) and all(
        isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in value["choices"]
    )


def _is_response(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if value.get("object") == "response" or is_items(value.get("output")):
        return isinstance(value.get("output"), list)
    return "model" in value and is_items(value.get("input"))


def is_items(value: Any) -> bool:
    """Return whether a value is a list of items of the Responses API: messages, calls and their outputs."""
    return isinstance(value, list) and bool(value) and all(map(_is_item, value))


def _is_item(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind = value.get("type", "message")
    if kind == "message":
        return isinstance(value.get("role"), str) and "content" in value
    return isinstance(kind, str) and (kind.endswith(("_call", "_call_output")) or kind == "reasoning")


def _is_log(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("request"), dict):
        return False
    return _is_chat(value["request"]) or _is_response(value["request"])


def _is_batch(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str):
        return False
    asked, answer = value.get("body", value.get("params")), value.get("response", value.get("result"))
    return isinstance(asked, dict) or isinstance(answer, dict) or "error" in value


FORMATS = (
    InputFormat("openai-batch", "chat", "batch requests and results of OpenAI and Anthropic", of_value=_is_batch),
    InputFormat("openai-log", "chat", "logged pairs of a request and its response", of_value=_is_log),
    InputFormat("openai-responses", "chat", "requests and results of the Responses API", of_value=_is_response),
    InputFormat("openai-completion", "chat", "chat completions", of_value=_is_completion),
    InputFormat("openai", "chat", 'chats: objects with a list "messages"', of_value=_is_chat),
)
MESSAGES = InputFormat(
    "messages", "chat", "a list of messages", of_value=lambda value: bool(value) and is_messages(value)
)
