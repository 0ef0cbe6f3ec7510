"""Calls of tools, read out of a reply: its text is shown as it comes, but for what may be a call.

    <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>     Qwen, Hermes
    {"name": "weather", "parameters": {"city": "Rome"}}                           Llama 3, where this is all it says
    [{"name": "weather", "arguments": {"city": "Rome"}}]                          Mistral, Granite 3, Phi 4

Text from a tag on, or all of a reply that begins like JSON, is held back to its end. It is a call, or calls, where each
names a tool of the request and has arguments. Else it is shown as what it is, text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterator
from typing import Any

TAG = "<tool_call>"
BLOCK = re.compile(rf"{TAG}(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class CallReader:
    """The text of one reply, and the calls in it. ``names``: of the tools that it may call."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._shown, self._held = names, False, ""

    def add(self, text: str) -> str:
        """Return the text to show, now that more has come."""
        if not self._names:
            return text
        self._held += text
        at = self._held.find(TAG)
        if at < 0:
            if not self._shown and self._held.lstrip()[:1] in ("", "{", "["):
                return ""
            at = len(self._held) - max((n for n in range(1, len(TAG)) if self._held.endswith(TAG[:n])), default=0)
        found, self._held = self._held[:at], self._held[at:]
        self._shown = self._shown or bool(found.strip())
        return found

    def end(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the text that is left to show, and the calls, as a message of OpenAI's API has them."""
        held, self._held = self._held, ""
        tagged = held.startswith(TAG)
        calls = [self._call(one) for part in (BLOCK.findall(held) if tagged else [held]) for one in _values(part)]
        if not all(calls):
            return held, []
        return BLOCK.sub("", held).strip() if tagged else "" if calls else held, [call for call in calls if call]

    def _call(self, found: Any) -> dict[str, Any] | None:
        """Return the call that a value is, None for none."""
        given = found.get("arguments", found.get("parameters")) if isinstance(found, dict) else None
        if not isinstance(given, dict) or found.get("name") not in self._names:
            return None
        function = {"name": found["name"], "arguments": json.dumps(given, ensure_ascii=False)}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, the items of lists apart, and None where it is something else."""
    text = text.strip()
    while text:
        try:
            found, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            yield None
            return
        yield from found if isinstance(found, list) else (found,)
        text = text[end:].lstrip("; \n")
