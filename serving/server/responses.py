"""OpenAI's Responses over the same sessions: each response is a session of its own name, forked from the one before.

    POST /v1/responses  {"input": "Hi"}                                        -> {"id": "resp_7f...", ...}
                        {"input": "More", "previous_response_id": "resp_7f..."}

So any response can be gone on from, after a restart too, and by several. The ids of what was before are the session's
own, and only what is new is rendered. The archive stores what is new, since a fork shares its beginning
(`EvictionRequest.parent`). With `"store": false` nothing is left but KV in memory.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pltz.plt_codec import PltzError
from pltz.serving.server.answer import Answer
from pltz.serving.server.ask import Ask
from pltz.serving.server.errors import Refused, failure
from pltz.serving.server.service import Piece, Reply

if TYPE_CHECKING:
    from pltz.models import Target

# Fields, and what they are called in a chat completion, where that is taken as it is.
SAME = {
    "model": "model", "max_output_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p",
    "stream": "stream", "tool_choice": "tool_choice", "parallel_tool_calls": "parallel_tool_calls",
    "metadata": "metadata", "user": "user", "safety_identifier": "safety_identifier",
    "prompt_cache_key": "prompt_cache_key", "service_tier": "service_tier",
}  # fmt: skip
OWN = {"input", "instructions", "previous_response_id", "store", "tools", "text"}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,), "include": ([],), "truncation": ("disabled",), "reasoning": ({},), "top_logprobs": (0,),
}  # fmt: skip
TEXTS = ("input_text", "output_text")
TEXT: tuple[dict[str, Any], ...] = ({}, {"format": {"type": "text"}})


def ask_of(body: Any, model: str) -> Ask:
    """Return the request of a body. Raises Refused, and what `Ask.of` does."""
    if not isinstance(body, Mapping):
        raise Refused(400, "expected a JSON object as body")
    for name, value in body.items():
        if name not in SAME and name not in OWN and value is not None and value not in NEUTRAL.get(name, ()):
            raise Refused(400, f"{name[:128]} is not supported here: leave it out")
    if body.get("text") not in (None, *TEXT):
        raise Refused(400, "text is supported without a format: leave it out")
    instructions, before, store = (body.get(name) for name in ("instructions", "previous_response_id", "store"))
    if not all(isinstance(text, str | None) for text in (instructions, before)) or not isinstance(store, bool | None):
        raise Refused(400, "expected instructions and previous_response_id as text, and store as true or false")
    fields = {SAME[name]: value for name, value in body.items() if name in SAME}
    tools = body.get("tools") or []
    fields["tools"] = tools if not isinstance(tools, list) else [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        if isinstance(tool, Mapping) and tool.get("type") == "function" else tool
        for tool in tools
    ]  # fmt: skip
    fields["messages"] = _messages(body.get("input"))
    fields["session"] = None if store is False else f"resp_{uuid.uuid4().hex}"
    return Ask.of(fields, chat=True, model=model, parent=before, system=instructions or "")


def _messages(given: Any) -> list[Any]:
    """Return input items as messages of a chat. Raises Refused for those of other kinds."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[Any] = []
    for number, item in enumerate(given if isinstance(given, list) else [None], 1):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            content = item.get("content")
            if isinstance(content, list):
                content = [
                    part | {"type": "text"} if isinstance(part, dict) and part.get("type") in TEXTS else part
                    for part in content
                ]
            found.append({"role": item.get("role"), "content": content})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "function": {key: item.get(key) for key in ("name", "arguments")}}
            if not (found and found[-1]["role"] == "assistant"):
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        else:
            raise Refused(400, f"input {number}: expected text, messages, and calls of functions with their outputs")
    return found


class ResponseAnswer(Answer):
    """A reply in the form of a response, whole or as events."""

    def __init__(self, ask: Ask, body: Mapping[str, Any], model: str, target: Target, replies: Sequence[Reply]) -> None:
        super().__init__(True, model, target, replies, ask.tool_names)
        self._body, self._ask = body, ask
        self._id = ask.session or f"resp_{uuid.uuid4().hex}"
        self._message, self._made = f"msg_{uuid.uuid4().hex}", int(time.time())

    def whole(self) -> dict[str, Any]:
        """Return the response, once `pieces` has ended."""
        done = self._replies[0].done
        assert done is not None
        cut = done.reason == "length"
        usage = {
            "input_tokens": done.prompt_tokens, "output_tokens": done.new_tokens,
            "input_tokens_details": {"cached_tokens": sum(done.cached.values()), "cached_from": done.cached},
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": done.prompt_tokens + done.new_tokens,
        }  # fmt: skip
        more = {"output": self._output("incomplete" if cut else "completed"), "usage": usage} | self._session()
        if cut:
            return self._response("incomplete", incomplete_details={"reason": "max_output_tokens"}, **more)
        return self._response("completed", **more)

    async def stream(self, usage: bool = True) -> AsyncIterator[bytes]:
        """Yield server-sent events, the last with the response of a durable turn. Or an error, and no end."""
        number, begun = 0, False

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            said = {"type": f"response.{kind}", "sequence_number": number, **fields}
            number += 1
            return f"event: {said['type']}\ndata: {json.dumps(said)}\n\n".encode()

        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        for kind in ("created", "in_progress"):
            yield event(kind, response=self._response("in_progress"))
        try:
            async for _, found in self.pieces():
                if isinstance(found, Piece) and found.text:
                    if not begun:
                        begun = True
                        yield event("output_item.added", output_index=0, item=self._item("in_progress", []))
                        yield event("content_part.added", **place, part=_part(""))
                    yield event("output_text.delta", **place, delta=found.text, logprobs=[])
                elif isinstance(found, Piece):
                    yield b": waiting\n\n"
        except PltzError as exc:
            error = failure(exc)["error"]
            yield event("failed", response=self._response("failed", error={k: error[k] for k in ("code", "message")}))
            return
        whole = self.whole()
        for index, item in enumerate(whole["output"]):
            if item["type"] == "message":
                [part] = item["content"]
                yield event("output_text.done", **place, text=part["text"], logprobs=[])
                yield event("content_part.done", **place, part=part)
            else:
                at = {"item_id": item["id"], "output_index": index}
                bare = item | {"status": "in_progress", "arguments": ""}
                yield event("output_item.added", output_index=index, item=bare)
                yield event("function_call_arguments.delta", **at, delta=item["arguments"])
                yield event("function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
            yield event("output_item.done", output_index=index, item=item)
        yield event(whole["status"], response=whole)

    def _output(self, status: str) -> list[dict[str, Any]]:
        text = "".join(piece.text for piece in self._pieces[0])
        message = [self._item(status, [_part(text)])] if text or not self._calls[0] else []
        return message + [
            {"id": f"fc_{call['id']}", "type": "function_call", "status": "completed", "call_id": call["id"]}
            | call["function"]
            for call in self._calls[0]
        ]

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": self._message, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        body, ask = self._body, self._ask
        return {
            "id": self._id, "object": "response", "created_at": self._made, "status": status, "error": None,
            "incomplete_details": None, "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {}, "max_output_tokens": ask.limit, "model": self._head["model"],
            "output": [], "parallel_tool_calls": True,
            "previous_response_id": ask.parent, "store": ask.session is not None, "temperature": ask.temperature,
            "text": TEXT[1], "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [],
            "top_p": ask.top_p, "truncation": "disabled", "usage": None,
        } | more  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
