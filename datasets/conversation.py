"""The conversation that an agent had, from its log: instructions, user, assistant, calls of tools and their results.

    [{"type": "user", "uuid": ..., "message": {...}}, {"type": "progress", ...}, ...]
    [{"role": "user", "content": "Where is the bug?"}, {"role": "assistant", "content": "", "tool_calls": [...]}, ...]

It is what a model is shown, by its own chat template: without ids, times and counters, and of a log with branches the
last one alone. Each format says how (`InputFormat.conversation`). Who reads it, or searches it, takes it as a
`Conversation` of turns, each with its time, and learns what is left out:

    conversation_of(session).note      "shows 5 of 40 messages, because the parent of one is not in the log"
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pltz.datasets import registry
from pltz.datasets.formats import codex, events
from pltz.datasets.input_format import EVENTS, HEAD, InputFormat
from pltz.datasets.log_lines import narrow, values, values_of
from pltz.datasets.turns import BESIDE, Message, joined, without_tools
from pltz.datasets.usage import NOT_KNOWN, Usage, usage_of
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.limits import MAX_BYTES

if TYPE_CHECKING:
    from pltz.models.target.target import Target

PLAIN = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", "from", "value", "reasoning_content"))
LISTS = "messages", "conversations", "conversation", "input", "output"  # keys of the messages of a chat
WITHIN = "request", "body", "values", "kwargs", "response"  # keys of what holds a chat, as logged requests do
FAR = 1 << 24  # bytes of a text after which it is looked at in parts: parsed, it has some seven times as many
NEAR = 1 << 22  # bytes of a part
FIRST = 1 << 16  # bytes of a long log by which its format is known
Place = tuple[int, int]
REMARK = "{:,} line{} cannot be read"


@dataclass(frozen=True)
class ConversationTurn:
    """A turn: the words of one side without a break, or the result of one tool.

    Attributes:
        number: from 1, its place in all that was said; where that is not all there, back from -1, the last.
        role: system, user, assistant or tool, as far as the log has these.
        time: in seconds since 1970; 0: not known.
        calls: name and arguments of each tool that was called.
        pictures: data: URLs, as the log has them: nobody has looked at what they hold.
    """

    number: int
    role: str
    text: str
    time: int = 0
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """The turns of a session, and what they leave out.

    Attributes:
        agent: name of the format of its log; "chat" for a chat; "" where it has no conversation, and no turns.
        messages: as many as the log has, as far as it was looked at.
        because: why the turns are not all, and what could not be read; empty where nothing is left out.
        usage: what the log tells of its project, models, tokens and money, where all of it is looked at.
        place: of a part of a long log, its first byte and how many turns are before it.
    """

    agent: str
    turns: tuple[ConversationTurn, ...]
    messages: int
    because: str = ""
    usage: Usage = NOT_KNOWN
    place: Place = (0, 0)

    @property
    def note(self) -> str:
        """Return what is left out in a sentence, empty where nothing is."""
        if not self.because:
            return ""
        if len(self.turns) < self.messages:
            return f"shows {len(self.turns):,} of {self.messages:,} messages, because {self.because}"
        return f"shows {self.messages:,} messages, though {self.because}"


def conversation_of(session: Session, *, every: bool = False, least: int = 1) -> Conversation:
    """Return the conversation of a session: of a log the last branch, or with ``every`` all that was said.

    Of a text that `is_long` it is the end, and the note says so: with more than ``least`` turns, where `FAR` bytes have
    these.

    >>> found = conversation_of(Session("chat", {"messages": [{"role": "user", "content": "Hi"}]}))
    >>> found.agent, [(turn.role, turn.text) for turn in found.turns], found.note
    ('chat', [('user', 'Hi')], '')
    """
    if session.kind == "ids":
        return Conversation("", (), 0)
    if not is_long(session):
        return _conversation(*_whole(session), every)
    size = NEAR
    while True:
        tail = session.value[-size:]
        begin = tail.find(b"\n") + 1 if size < len(session.value) else 0
        known, value, odd = _of_lines(tail[begin:])
        if known in (None, events.FORMAT):  # as of some the first event tells
            known = _format_of(session.value[:FIRST]) or known
        found = _conversation(known, value, odd, every)
        if len(found.turns) > least or size >= min(FAR, len(session.value)):
            break
        size *= 4
    bound = f"of its {len(session.value):,} bytes the last {len(tail):,} are looked at"
    turns = tuple(replace(turn, number=turn.number - len(found.turns) - 1) for turn in found.turns)
    because = "; ".join(filter(None, (bound, found.because)))
    if not turns and len(session.value) <= MAX_BYTES:  # a document
        return _conversation(*_whole(session), every)
    return replace(found, turns=turns, because=because) if turns else found


def is_long(session: Session) -> bool:
    """Return whether a session is looked at in parts."""
    return session.kind == "text" and len(session.value) > FAR


def left_out(session: Session) -> str:
    """Return what the last branch of a log leaves out, as `Conversation.note`; empty of a log too long to tell.

    >>> def event(role: str, uuid: str, above: str | None) -> dict[str, object]:
    ...     return {"type": role, "message": {"role": role, "content": "Hi"}, "uuid": uuid, "parentUuid": above}
    >>> left_out(Session("chat", [event("user", "1", None), event("assistant", "3", "2")]))
    'shows 1 of 2 messages, because the parent of one is not in the log'
    """
    return "" if is_long(session) else conversation_of(session).note


def conversations_of(session: Session, only: Sequence[Place] = ()) -> Iterator[Conversation]:
    """Yield all that was said in a session, of a long log in parts. Turns are numbered through.

    ``only``: the places of parts that are wanted; none: all.
    """
    if not is_long(session):
        yield conversation_of(session, every=True)
        return
    text, coming, project = session.value, deque(only or [(0, 0)]), ""
    known = _format_of(text[:FIRST])
    while coming and coming[0][0] < len(text):
        begin, before = place = coming.popleft()
        end = min(begin + NEAR, len(text))
        end = text.find(b"\n", end, end + FAR) + 1 or end  # a line that is longer is cut, and cannot be read
        found = _conversation(*_of_lines(text[begin:end], known), True)
        turns = tuple(replace(turn, number=turn.number + before) for turn in found.turns)
        if not (turns or begin) and len(text) <= MAX_BYTES:  # a document
            yield _conversation(*_whole(session), True)
            return
        project = found.usage.project or project
        yield replace(found, turns=turns, usage=found.usage._replace(project=project), place=place)
        coming += [] if only else [(end, before + len(turns))]


def numbered(session: Session, chosen: slice) -> Conversation:
    """Return turns of a session by their places, of all that was said. What is behind them is not looked at."""
    first, found, last = next(each := conversations_of(session)), list[ConversationTurn](), 0
    for turn in (turn for talk in itertools.chain([first], each) for turn in talk.turns):
        last = turn.number
        found += [turn] if last > chosen.start else []
        if last == chosen.stop:
            break
    return Conversation(first.agent, tuple(found), last)


def log_of(session: Session) -> tuple[str, Any]:
    """Return the agent of a log, by the name of its format, and its events or its document; empty of another session.

    Of a long log they are the first ones. Lines that cannot be read are left out.
    """
    text = session.value
    if session.kind == "ids":
        return "", None
    known, value = _format_of(text[:FIRST]) if is_long(session) else None, None
    if known:
        _, value, _ = _of_lines(text[:FAR], known)
    elif not is_long(session) or len(text) <= MAX_BYTES:
        known, value, _ = _whole(session)
    return (known.name, value) if known and known.noun == "agent log" else ("", None)


def messages_of(session: Session) -> list[Message] | None:
    """Return the messages of an agent's log in the form that chat templates take; None of any other session.

    >>> said = {"role": "user", "content": "Hi"}
    >>> messages_of(Session("chat", [{"type": "user", "sessionId": "s", "uuid": "0f3a", "message": said}]))
    [{'role': 'user', 'content': 'Hi'}]
    """
    if session.kind == "ids":
        return None
    try:
        known, value, _ = _parsed(session.value) if session.kind == "text" else _given(session.value)
        if known is None or known.conversation is None:
            return None
        messages = joined(known.conversation(value))
        messages = [{key: item for key, item in m.items() if key not in BESIDE} for m in messages]
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # an agent's log may hold anything
        return None
    return messages if messages and all(isinstance(message["role"], str) for message in messages) else None


def seen_by(model: Target, session: Session) -> Session:
    """Return a session as the ids that a target would prefill: of a log, those of the conversation that the agent had.

    Raises the errors of `models.target.target.as_seen_by`.
    """
    from pltz.models.target.target import as_seen_by

    messages = messages_of(session)
    return as_seen_by(model, session) if messages is None else rendered(model, messages)


def rendered(model: Target, messages: list[Message]) -> Session:
    """Return messages of a conversation as the ids that a target would prefill. Raises the errors of `seen_by`."""
    return Session("ids", model.render(messages if model.takes_tools else without_tools(messages)))


Parsed = tuple[InputFormat | None, Any, int]  # format, value, and lines that cannot be read


def _whole(session: Session) -> Parsed:
    """Return the format and the value of a session."""
    value = session.value[:] if isinstance(session.value, LongText) else session.value
    return _parsed(value) if session.kind == "text" else _events(value)


def _given(value: Any) -> Parsed:
    return _known(value), value, 0


def _events(value: Any) -> Parsed:
    """Return the format and the value of a chat; of a log what is no event is counted, and left out."""
    events = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    if not events:
        return _given(value)
    return _known(events), events, len(value) - len(events)


def _parsed(text: bytes) -> Parsed:
    """Return the format and the value of a text: JSON, JSON lines, or the text itself."""
    if head := registry.of_head(text[:HEAD]):
        return head, text, 0
    try:
        value: Any = json.loads(narrow(text))
        if isinstance(value, dict) and registry.of_value(value) is None:
            value = [value]  # a log of one line
        return _given(value)
    except (ValueError, RecursionError):
        return _of_lines(text)


def _of_lines(text: bytes, known: InputFormat | None = None) -> Parsed:
    """Return the format and the events of JSON lines. ``known``: their format, where it is known already."""
    found, odd = list[dict[str, Any]](), 0
    for line in narrow(text).split(b"\n"):
        each, broken = values_of(line)
        found += (whole := [one for one in each if isinstance(one, dict)])
        odd += broken or len(whole) < len(each)
    return known or _known(found), found, odd


def _format_of(first: bytes) -> InputFormat | None:
    """Return the format of a long log, by its first bytes."""
    return _known([one for one in values(first[: first.rfind(b"\n") + 1]) if isinstance(one, dict)])


def _conversation(known: InputFormat | None, value: Any, odd: int, every: bool) -> Conversation:
    """Return the turns of a value that was parsed. A log may hold anything: of one that is not understood none."""
    try:
        because = ""
        if known is None or known.conversation is None:
            agent, messages = "chat", joined(_of_chat(value), told=True)
            count = len(messages)
        else:
            agent, messages = known.name, joined(known.conversation(value), told=True)
            whole, why = known.unfolded(value) if known.unfolded else (value, "")
            most = joined(known.conversation(whole), told=True) if known.unfolded else messages
            count = max(len(messages), len(most))
            if every:
                messages = most
            elif len(messages) < count:
                because = why
        start = -len(messages) if len(messages) < count else 1
        turns = tuple(_turn(number, message) for number, message in enumerate(messages, start))
        usage = usage_of(value) if every else NOT_KNOWN
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001
        return Conversation("", (), 0)
    if odd:
        because = "; ".join(filter(None, (because, REMARK.format(odd, "" if odd == 1 else "s"))))
    return Conversation(agent, turns, count, because, usage) if turns else Conversation("", (), 0)


def _turn(number: int, message: Message) -> ConversationTurn:
    calls = ((call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return ConversationTurn(
        number,
        str(message["role"]),
        message["content"],
        message.get("time", 0),
        tuple(calls),
        tuple(message.get("pictures", ())),
    )


def _of_chat(value: Any) -> list[Message]:
    """Return the messages of a chat, or of a request with its answer, whoever made it; none of other JSON."""
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        items = any(str(row.get("type", "")).endswith(("_call", "_call_output")) for row in rows)
        return codex.items(rows) if items else events.conversation(rows)
    if not isinstance(value, dict):
        return []
    found = list[Message]()
    if isinstance(value.get("system"), str | list):
        found += events.conversation([{"role": "system", "content": value["system"]}])
    for key in (*LISTS, *WITHIN):
        found += _of_chat(value[key]) if isinstance(value.get(key), dict | list) else []
    for choice in value["choices"] if isinstance(value.get("choices"), list) else ():
        found += events.conversation([choice["message"]])
    if isinstance(value.get("role"), str) and "content" in value:  # a message that the API returned
        found += events.conversation([value])
    return found


def _known(value: Any) -> InputFormat | None:
    """Return the format of an agent's log, None for other values. A list of nothing but messages is a chat."""
    if isinstance(value, dict) and list(value) == ["messages"]:  # the logs of all agents have more keys
        return None
    known = registry.of_value(value)
    if known is not None and known.noun == "agent log":
        return known
    events = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    if not events or (known is not None and all(item.keys() <= PLAIN for item in value)):
        return None
    return registry.of_events(value[:EVENTS])
