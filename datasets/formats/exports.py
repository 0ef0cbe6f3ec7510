"""What ChatGPT and claude.ai export: a zip of conversations.json, a list of conversations, and of attachments.

    {"id": ..., "title": ..., "current_node": ..., "mapping": {NODE: {"id": NODE, "parent": ..., "message": {...}}}}
    {"uuid": ..., "name": ..., "chat_messages": [{"uuid": ..., "sender": "human", "content": [...], "files": [...]}]}

A conversation is a session, named by its id. Files that were attached are named in its messages.
"""

from __future__ import annotations

from typing import Any

from pltz.datasets.input_format import InputFormat
from pltz.datasets.turns import Message, answered, at, branch, called, said, spoken, text_of

THOUGHTS = ("thoughts", "reasoning_recap")  # types of contents that a later request leaves out


def _is_chatgpt(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict) and "current_node" in value


def chatgpt(value: dict[str, Any]) -> list[Message]:
    """Return the messages from the root of the tree to the last answer that was shown."""
    nodes = value["mapping"]
    leaf = nodes.get(value["current_node"])
    path = branch(list(nodes.values()), leaf, parent="parent") if leaf else []
    messages = [node["message"] for node in path if isinstance(node.get("message"), dict)]
    return [one for message in messages for one in at(message, _chatgpt(message))]


def _chatgpt(message: dict[str, Any]) -> list[Message]:
    role, content = message["author"]["role"], message.get("content") or {}
    about = message.get("metadata") or {}
    if content.get("content_type") in THOUGHTS or about.get("is_visually_hidden_from_conversation"):
        return []
    text = content.get("parts", content.get("text", content.get("result")))
    if role == "tool":
        return [answered(text)]
    if role == "assistant" and message.get("recipient", "all") != "all":
        return [called(message["recipient"], text_of(text))]
    return said(role, [*([text] if isinstance(text, str) else text or ()), *_named(about.get("attachments"), "name")])


def _named(files: Any, key: str) -> list[str]:
    """Return the names of what was attached, as text."""
    return [f"[{file[key]}]" for file in files or () if isinstance(file.get(key), str)]


def _is_claude(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list) and "uuid" in value


def claude(value: dict[str, Any]) -> list[Message]:
    """Return the messages of a conversation, of one with branches the last."""
    messages = value["chat_messages"]
    if messages and "parent_message_uuid" in messages[-1]:
        messages = branch(messages, messages[-1], "uuid", "parent_message_uuid")
    found: list[Message] = []
    for message in messages:
        role, before = "user" if message.get("sender") == "human" else "assistant", len(found)
        for attached in message.get("attachments") or ():
            found += said(role, [*_named([attached], "file_name"), attached.get("extracted_content") or ""])
        found += [one for name in _named(message.get("files"), "file_name") for one in said(role, name)]
        found += spoken(role, message.get("content") or message.get("text"))
        at(message, found[before:])
    return found


FORMATS = (
    InputFormat(
        "chatgpt",
        "agent log",
        "conversations that ChatGPT exports",
        of_value=_is_chatgpt,
        conversation=chatgpt,
        id_of=lambda value: value.get("conversation_id") or value.get("id"),
    ),
    InputFormat(
        "claude-ai",
        "agent log",
        "conversations that claude.ai exports",
        of_value=_is_claude,
        conversation=claude,
        id_of=lambda value: value["uuid"],
    ),
)
