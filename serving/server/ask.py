"""Ask: the body of a completion or chat completion of OpenAI's API, checked, with the fields that pltz adds.

    {"prompt": "Once", "max_tokens": 40, "session": "story/7"}
    {"messages": [{"role": "user", "content": "Hi"}], "stream": true, "session": "chat/7", "session_tokens": 120}

A field that would change the answer and is not known here is refused, not ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pltz.serving.server.errors import Refused
from pltz.serving.server.turn import Sampling

NAME = 128  # characters of a session's name
STOPS, STOP = 4, 64  # stop strings, characters of each
ANSWERS = 16  # to one request
BIASED = 1024  # ids with a bias
TOOLS = 128
ROLES = ("system", "developer", "user", "assistant", "tool")
# Fields that this server reads, and those of OpenAI's API that leave the answer as it is.
TAKEN = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop",
    "stream", "stream_options", "session", "append", "session_tokens",
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "parallel_tool_calls", "prediction",
    "n", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "logit_bias", "tools",
}  # fmt: skip
# Fields that are taken only with a value that changes nothing, the last of them of other servers.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "tool_choice": ("none", "auto"),
    "functions": ([],), "function_call": ("none", "auto"), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "store": (False,), "verbosity": ("medium",), "service_tier": ("auto", "default"),
    "reasoning_effort": ("none",),
    "top_k": (-1, 0), "min_p": (0,), "repetition_penalty": (1,), "min_tokens": (0,), "ignore_eos": (False,),
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A checked request.

    ``prompt``: text or ids of a completion, None for a chat. ``messages``: of a chat. ``tools``: that it may call, as
    they were given. ``limit``: new tokens at most; None where nothing is asked for. ``session``: None for a request
    that stands alone. ``append``: whether the prompt goes after the session's tokens, or takes their place.
    ``session_tokens``: that the client thinks it has. ``answers``: drawn, each on its own. ``top``: likeliest tokens to
    tell of beside each; None tells of none. ``parent``: the session that this one, or what stands alone, goes on from.
    ``system``: instructions that a chat begins with.
    """

    prompt: str | tuple[int, ...] | None
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    limit: int | None
    temperature: float
    top_p: float
    seed: int | None
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    session: str | None
    append: bool
    session_tokens: int | None
    answers: int
    presence: float
    frequency: float
    bias: tuple[tuple[int, float], ...]
    top: int | None
    parent: str | None
    system: str

    @classmethod
    def of(
        cls,
        body: Any,
        *,
        chat: bool,
        model: str,
        session: str | None = None,
        parent: str | None = None,
        system: str = "",
    ) -> Ask:
        """Check a body. ``session``: of the header, where the body names none. Raises Refused and UsageError."""
        if not isinstance(body, Mapping):
            raise Refused(400, "expected a JSON object as body")
        for name, value in body.items():
            same = [one for one in NEUTRAL.get(name, ()) if value == one]
            plain = bool(same) and isinstance(value, bool) == isinstance(same[0], bool)  # True is 1 to Python
            if name not in TAKEN and value is not None and not plain:
                raise Refused(400, f"{name[:NAME]} is not supported here: leave it out")
        if (asked := body.get("model")) not in (None, model):
            raise Refused(404, f"this server has the model {model!r}, not {str(asked)[:NAME]!r}")
        options = body.get("stream_options")
        limit = _number(body, "max_completion_tokens", int, _number(body, "max_tokens", int, None))
        if limit is not None and limit < 1:
            raise Refused(400, f"expected max_tokens of at least 1, got {limit}")
        found = cls(
            prompt=None if chat else _prompt(body.get("prompt")),
            messages=messages_of(body.get("messages")) if chat else (),
            tools=() if body.get("tool_choice") == "none" else _tools(body.get("tools"), chat),
            limit=limit,
            temperature=_number(body, "temperature", float, 1.0),
            top_p=_number(body, "top_p", float, 1.0),
            seed=_number(body, "seed", int, None),
            stops=_stops(body.get("stop")),
            stream=_flag(body, "stream", False),
            usage=isinstance(options, Mapping) and options.get("include_usage") is True,
            session=name_of(body["session"]) if body.get("session") is not None else session,
            append=_flag(body, "append", True),
            session_tokens=_number(body, "session_tokens", int, None),
            answers=_number(body, "n", int, 1),
            presence=_number(body, "presence_penalty", float, 0.0),
            frequency=_number(body, "frequency_penalty", float, 0.0),
            bias=_bias(body.get("logit_bias")),
            top=_top(body, chat),
            parent=None if parent is None else name_of(parent),
            system=system,
        )
        found.sampling(1)
        if not 1 <= found.answers <= ANSWERS or (found.answers > 1 and found.session is not None):
            raise Refused(400, f"expected n from 1 to {ANSWERS}, and 1 with a session")
        if found.session is None and found.session_tokens is not None:
            raise Refused(400, "session_tokens needs a session")
        return found

    @property
    def tool_names(self) -> list[str]:
        """Return the names of the tools."""
        return [tool["function"]["name"] for tool in self.tools]

    def each(self) -> list[Ask]:
        """Return a request for each answer, whose seeds differ."""
        seeds = [None if self.seed is None else (self.seed + n) % (1 << 63) for n in range(self.answers)]
        return [replace(self, answers=1, seed=seed) for seed in seeds]

    def sampling(self, limit: int) -> Sampling:
        """Return how new ids are chosen. Raises UsageError for values out of range."""
        return Sampling(
            limit, self.temperature, self.top_p, self.seed, self.presence, self.frequency, self.bias, self.top
        )


def name_of(name: Any) -> str:
    """Return the name of a session. Raises Refused for one that is not printable, empty, or too long."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME or not name.isprintable() or name != name.strip():
        raise Refused(400, f"expected a session's name of 1 to {NAME} printable characters, no space around it")
    return name


def messages_of(messages: Any) -> tuple[dict[str, Any], ...]:
    """Return the messages of a chat, as templates take them: role, content, calls of tools, and whose result it is.

    Raises Refused for all that is not text.
    """
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "expected a list of messages, at least one")
    found: list[dict[str, Any]] = []
    called: dict[Any, str] = {}
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            raise Refused(400, f"message {number}: expected a role of {', '.join(ROLES)}")
        more: dict[str, Any] = {}
        if role == "tool":  # some templates want the name of what was called
            of = message.get("tool_call_id")
            if not isinstance(of, str | None):
                raise Refused(400, f"message {number}: expected tool_call_id as text")
            more = {"tool_call_id": of, "name": message.get("name") or called.get(of) or "tool"}
        if role == "assistant" and message.get("tool_calls"):
            more = {"tool_calls": _calls(message["tool_calls"], number)}
            called |= {call["id"]: call["function"]["name"] for call in more["tool_calls"]}
        content = message.get("content") or ("" if "tool_calls" in more else message.get("content"))
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [
            part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts
        ]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise Refused(400, f"message {number}: expected text as content")
        if others := [key for key in set(message) - {"role", "content", "name", "refusal", *more} if message[key]]:
            raise Refused(400, f"message {number}: {min(others)[:NAME]} is not supported here: leave it out")
        found.append({"role": role, "content": "".join(map(str, texts)), **more})
    return tuple(found)


def _calls(calls: Any, number: int) -> list[dict[str, Any]]:
    """Return calls of tools with their arguments as objects, for templates that write them as JSON."""
    found = []
    call: Any
    for call in calls if isinstance(calls, list) else [None]:
        try:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
        except (KeyError, TypeError, ValueError, RecursionError):
            name = arguments = None
        if not isinstance(name, str) or not isinstance(arguments, dict) or not isinstance(call.get("id"), str | None):
            raise Refused(400, f"message {number}: expected tool_calls of functions, with their arguments as JSON")
        found.append({"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": arguments}})
    return found


def _tools(tools: Any, chat: bool) -> tuple[dict[str, Any], ...]:
    """Return the tools of a chat. Raises Refused for what is no function with a name."""
    names = [
        one["function"].get("name") if isinstance(one, dict) and isinstance(one.get("function"), dict) else None
        for one in (tools if isinstance(tools, list) else () if tools is None else [None])
    ]
    if not all(isinstance(name, str) and name for name in names) or len(names) > TOOLS or (names and not chat):
        raise Refused(400, f"expected at most {TOOLS} tools of a chat, each a function with a name")
    return tuple(tools or ())


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        return _prompt(prompt[0])
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(one) is int and 0 <= one < 1 << 31 for one in prompt):
        return tuple(prompt)
    raise Refused(400, "expected a prompt: one text, or a list of token ids, and not an empty one")


def _stops(stop: Any) -> tuple[str, ...]:
    stops: Sequence[Any] = [stop] if isinstance(stop, str) else stop or ()
    if (
        not isinstance(stops, list | tuple)
        or len(stops) > STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= STOP for one in stops)
    ):
        raise Refused(400, f"expected at most {STOPS} stop strings of 1 to {STOP} characters")
    return tuple(stops)


def _number(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    found = body.get(name)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, (int, float) if kind is float else int):
        raise Refused(400, f"expected {name} as a {'number' if kind is float else 'whole number'}")
    if abs(found) >= 1 << 63:
        raise Refused(400, f"expected {name} below 2**63")
    return found


def _top(body: Mapping[str, Any], chat: bool) -> int | None:
    """Return how many likeliest tokens are asked for."""
    if not chat:
        told: int | None = None if body.get("logprobs") is False else _number(body, "logprobs", int, None)
        return told
    top = _number(body, "top_logprobs", int, 0)
    if _flag(body, "logprobs", False):
        return int(top)
    if top:
        raise Refused(400, "top_logprobs needs logprobs")
    return None


def _bias(found: Any) -> tuple[tuple[int, float], ...]:
    """Return ids and what is added to their scores."""
    if found is None:
        return ()
    right = isinstance(found, Mapping) and len(found) <= BIASED
    if not right or not all(key.isascii() and key.isdigit() and len(key) < 10 for key in found):
        raise Refused(400, f"expected logit_bias as an object of at most {BIASED} token ids")
    return tuple((int(key), float(_number(found, key, float, 0.0))) for key in found)


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    found = body.get(name)
    if found is not None and not isinstance(found, bool):
        raise Refused(400, f"expected {name} as true or false")
    return default if found is None else found
