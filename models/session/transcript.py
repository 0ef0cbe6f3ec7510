"""A session as bundle tokens, and back.

A text is its BPE tokens and nothing else; ids are themselves. A chat is a row of segments, each one special
token followed by the BPE tokens of some text (UTF-8, lone surrogates kept as their three bytes):

    {"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}]}
    <|user|>Hi<|assistant|>Hello!

Spec: models/FORMAT.md, "A session as tokens", with its styles, heads, moulds and frames. What follows is what a
writer does with them:

    {"role":"tool","content":"4°","tool_call_id":"c1"}   <|tool|>4°<|message|>[{"tool_call_id":"c1"}]
    {"type":"user","message":{"role":"user","content":"Where is\nmy bicycle?"}}
        <|user|>Where is
        my bicycle?<|message|>[{"type":"user","message":{"role":"user","content":""}},1]

* A message of a role and a text is its text, never escaped inside JSON, and a *mould* with its other keys. A program
  that writes messages with a mould writes it in each. So one that comes again is an empty list, and later ones of this
  special are not said at all.
* A *frame* keeps a message whose texts lie deeper: events of agent logs, tool calls and their results. Strings are
  lifted where JSON would escape them or they hold words (`_is_prose`).
* A *head* keeps the prompt that stands beside the messages (`HEAD`), as in requests to Anthropic. It comes before the
  messages, so that sessions with the same prompt and tools begin with the same tokens.

``to_tokens`` reads its own tokens back and compares strictly before it returns. So a chat that would come
back changed is refused instead.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pltz.models.bundle.tokenizer import SPAN, SPECIALS, BundleTokenizer, Ids
from pltz.models.session import json_value
from pltz.models.session.session import Kind, Session
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, OpaqueContentError, TokenizerMismatch

_ID = {name: i for i, name in enumerate(SPECIALS)}
MESSAGE, META, SHAREGPT, LIST = _ID["message"], _ID["meta"], _ID["sharegpt"], _ID["list"]
ROLES: dict[int, str] = {_ID[name]: name for name in ("system", "user", "assistant", "tool", "developer", "function")}
"""Role specials and the role name behind each in the plain style."""

ALIASES: dict[str, int] = {name: i for i, name in ROLES.items()} | {
    **dict.fromkeys(("human",), _ID["user"]),
    **dict.fromkeys(("gpt", "chatgpt", "model", "bot", "ai", "bing", "bard"), _ID["assistant"]),
    **dict.fromkeys(("observation", "function_response", "tool_response", "ipython"), _ID["tool"]),
    **dict.fromkeys(("function_call", "tool_call"), _ID["function"]),
}
"""The role special of each role name, also of those that collections of chats use for them."""

MANY = 1 << 14  # objects: more of them that hold no text are one value, as segments take twice the time and memory

TEXT_PARTS = frozenset(
    ("text", "input_text", "output_text", "summary_text", "refusal", "thinking", "redacted_thinking")
) | frozenset(("reasoning", "tool_use", "tool_result", "tool_call", "function_call", "server_tool_use"))
"""Types of content parts that hold text or JSON; any other type is refused as opaque."""

_VOICES = ALIASES | {
    **dict.fromkeys(("tool_result", "function_call_output", "custom_tool_call_output"), _ID["tool"]),
    **dict.fromkeys(("tool_use", "server_tool_use", "custom_tool_call"), _ID["function"]),
}
"""The special before a text of a frame, by the role or type of the object that holds it."""

HEAD = ("system", "tools", "instructions", "functions")
"""Keys beside the messages whose texts stand before them, each a segment of its own."""

ALONE = b"0"  # the style of a session that is one message
NO_MOULD, AGAIN = b"[{}]", b"[]"
IMPLIED, FREE = 4, 1 << 16  # bytes of moulds that are not said, per byte that is, and beside
PROSE = 16  # characters: a shorter string stays in its frame
_MARKS = re.compile(r'[\s"\\]')  # between words, or escaped in JSON

_Segment = tuple[int, bytes]  # special id, text


class _Style(NamedTuple):
    """The spelling of the messages of one session."""

    container: str | None  # the key of the messages; None where they are a list at the top
    role: str  # the key of a message's role
    text: str  # the key of a message's text
    names: dict[int, str]  # role name behind each special of ROLES


class _Moulds:
    """The moulds that messages of a session had so far, as JSON; ``[{}]`` is none.

    ``said``: bytes of all segments so far. Moulds that are not said have at most `IMPLIED` bytes for each of them,
    and `FREE` more, so that few tokens never become much JSON.
    """

    def __init__(self) -> None:
        self.said = self._implied = 0
        self._usual: dict[int, bytes] = {}  # by special: of a message that says nothing
        self._last: dict[int, bytes] = {}  # by special: said last
        self._latest = b""  # said last of all, other than none

    def usual(self, special: int) -> bytes:
        """Return the mould of a message that says none."""
        return self._usual.get(special, NO_MOULD)

    def imply(self, mould: bytes) -> bool:
        """Note that a message has a mould that it does not say in full. Returns False where there is no room for it."""
        if mould != NO_MOULD:
            if self._implied + len(mould) > FREE + IMPLIED * self.said:
                return False
            self._implied += len(mould)
        return True

    def say(self, special: int, mould: bytes) -> None:
        """Note that a message said its mould."""
        self._last[special] = mould
        if mould != NO_MOULD:
            self._latest = mould

    def again(self, special: int) -> bytes:
        """Return the mould that ``[]`` names, b"" for none."""
        return self._last.get(special, self._latest)

    def say_again(self, special: int) -> None:
        """Note that a message said ``[]``: messages of this special have that mould from now on."""
        self._usual[special] = self._last[special] = self.again(special)


_PLAIN = _Style("messages", "role", "content", ROLES)
_LISTED = _PLAIN._replace(container=None)
_GPT_NAMES = ROLES | {_ID["user"]: "human", _ID["assistant"]: "gpt"}
_SHAREGPT = _Style("conversations", "from", "value", _GPT_NAMES)


def to_tokens(session: Session, tokenizer: BundleTokenizer) -> Ids:
    """Return the bundle tokens (T,) of a session; ``from_tokens`` gives an equal session.

    Raises:
        ContentError: a chat's value is not plain JSON, or would come back changed.
        OpaqueContentError: a chat holds an image, audio or file part.
        TokenizerMismatch: ids are not ids of this tokenizer (they need a bridge).
    """
    return to_tokens_many([session], tokenizer)[0]


def to_tokens_many(sessions: Sequence[Session], tokenizer: BundleTokenizer) -> list[Ids]:
    """Return the bundle tokens (T,) of each session, as ``to_tokens`` gives them, with BPE in parallel.

    Raises:
        PltzError: as ``to_tokens``, for the first session that has an error.
    """
    rows = [_segments(session) for session in sessions]
    texts = iter(tokenizer.encode_many([text for row in rows for _, text in row]))
    tokens = [_assemble(row, texts) for row in rows]
    for i, session in enumerate(sessions):
        if session.kind == "ids":
            tokens[i] = _own_ids(session.value, tokenizer)
        elif session.kind == "chat":
            _check_return(session, tokens[i], tokenizer)
    return tokens


def from_tokens(kind: Kind, ids: npt.ArrayLike, tokenizer: BundleTokenizer) -> Session:
    """Return the session behind bundle tokens (T,).

    Raises:
        CorruptError: no session has these tokens.
    """
    array = np.asarray(ids)
    if kind == "ids":
        return Session(kind, array)
    if kind == "text":
        return Session(kind, tokenizer.decode(array))
    starts = np.flatnonzero(array < len(SPECIALS))
    if len(array) and not (len(starts) and starts[0] == 0):
        raise CorruptError("expected a chat to begin with a special token, found text")
    ends = [*starts[1:].tolist(), len(array)]
    spans = zip(starts.tolist(), ends, strict=False)
    if 0 < len(array) <= SPAN and array.dtype.kind in "iu" and int(array.max()) < tokenizer.size:
        row, piece = array.tolist(), tokenizer.pieces.__getitem__  # of a short one all at once
        segments = [(row[start], b"".join(map(piece, row[start + 1 : end]))) for start, end in spans]
    else:
        segments = [(int(array[start]), tokenizer.decode(array[start + 1 : end])) for start, end in spans]
    return Session(kind, _value(segments))


def conversation_ids(ids: npt.ArrayLike) -> Ids:
    """Return a chat's tokens (T,) without its style, head and <|meta|>, as a target is prefilled with them."""
    array = np.asarray(ids, np.int32)
    begin, end = conversation_span(array)
    return array[begin:end]


def conversation_span(ids: npt.NDArray[np.integer[Any]]) -> tuple[int, int]:
    """Return where `conversation_ids` begin and end in a chat's tokens (T,)."""
    starts = np.flatnonzero(ids < len(SPECIALS)).tolist()
    if starts and ids[starts[0]] in (SHAREGPT, LIST):
        starts = starts[1:]
    if not starts:
        return 0, 0
    head = next((i for i, start in enumerate(starts[:-1]) if ids[start] == META), -1)
    starts = starts[head + 1 :]
    return starts[0], starts[-1] if ids[starts[-1]] == META else len(ids)


def refuse_opaque(session: Session) -> None:
    """Refuse the first content part that is not text.

    Raises:
        OpaqueContentError: there is such a part.
    """
    if session.kind != "chat":
        return
    value = session.value
    found = _container(value)
    messages = found[1] if found else value if isinstance(value, list) else []
    for number, message in enumerate(messages, 1):
        if isinstance(message, dict):
            kinds = _opaque(message.get("content")) + _opaque(message.get("value"))
            if kinds:
                raise OpaqueContentError(
                    f'message {number} holds a part of type "{kinds[0]}", and only text is coded: '
                    "remove the part, or pass --keep-opaque to keep the session under zstd, never to be thawed"
                )


def _opaque(content: object) -> list[str]:
    """Return the types of the parts of a content that are not text, those inside tool results included."""
    if not isinstance(content, list):
        return []
    parts = [part for part in content if isinstance(part, dict) and isinstance(part.get("type"), str)]
    inner = [kind for part in parts if part["type"] == "tool_result" for kind in _opaque(part.get("content"))]
    return [part["type"] for part in parts if part["type"] not in TEXT_PARTS] + inner


def _assemble(row: list[_Segment], texts: Iterator[Ids]) -> Ids:
    """Join a row's specials and the ids of its texts; -1 stands for no special."""
    pieces: list[Ids] = [np.zeros(0, np.int32)]
    for special, _ in row:
        if special >= 0:
            pieces.append(np.array([special], np.int32))
        pieces.append(next(texts))
    return np.concatenate(pieces)


def _own_ids(ids: Ids, tokenizer: BundleTokenizer) -> Ids:
    if len(ids) and int(ids.max()) >= tokenizer.size:
        raise TokenizerMismatch(
            f"expected ids of the bundle's tokenizer, 0..{tokenizer.size - 1}, found {int(ids.max())}: "
            "name the tokenizer they belong to"
        )
    return ids


def _check_return(session: Session, tokens: Ids, tokenizer: BundleTokenizer) -> None:
    try:
        changed = json_value.difference(session.value, from_tokens("chat", tokens, tokenizer).value)
    except CorruptError as exc:
        changed = str(exc)
    if changed:
        raise ContentError(f"this session would come back changed, {changed}")


# ---- value -> segments


def _segments(session: Session) -> list[_Segment]:
    """Return the segments of a session; a text is one with the special -1, ids have none."""
    if session.kind == "ids":
        return []
    if session.kind == "text":
        return [(-1, session.value)]
    json_value.check(session.value)
    refuse_opaque(session)
    style, messages = _style_of(session.value)
    if style is None:
        framed = _framed(session.value) if isinstance(session.value, dict) else None
        return [(META, _json(session.value))] if framed is None else [(LIST, ALONE), *framed]
    if len(messages) > MANY and not any(map(_may_say, messages)):
        return [(META, _json(session.value))]
    head = _head_segments(session.value) if style.container else []
    row = [*_style_segment(style), *head]
    moulds = _Moulds()
    for message in messages:
        found = _message_segments(message, style, moulds)
        moulds.said += sum(len(text) for _, text in found)
        row += found
    if style.container and list(session.value) != [style.container]:
        meta = {**session.value, style.container: None}
        row.append((META, _json({key: None if head and key in HEAD else item for key, item in meta.items()})))
    return row


def _may_say(message: dict[str, Any]) -> bool:
    """Return whether a message may hold a text: a string, or a list or object that holds one."""
    return any(isinstance(item, str | list | dict) for item in message.values())


def _head_segments(value: dict[str, Any]) -> list[_Segment]:
    """Return the texts and the frame of the keys of `HEAD`; nothing where they hold no text worth a segment."""
    texts: list[_Segment] = []
    frame = {key: _frame(item, _ID["system"], texts) for key, item in value.items() if key in HEAD}
    try:
        return [*texts, (META, _json([frame, len(texts)]))] if texts else []
    except LimitError:  # the frame is nested a little deeper than the session
        return []


def _style_of(value: Any) -> tuple[_Style | None, list[Any]]:
    """Return the style and messages of a chat; (None, []) where it is no chat but some other JSON value."""
    key: str | None = None
    found = _container(value)
    if found:
        key, messages = found
        style = _PLAIN if key == "messages" else _SHAREGPT
        if key == "messages" and not messages and len(value) > 1:
            return None, []  # <|meta|> alone would read as any JSON value
    elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
        messages, style = value, _LISTED
    else:
        return None, []
    spelt: dict[str, Any] = next((m for m in messages if isinstance(m.get("role", m.get("from")), str)), {})
    if "role" in spelt:
        style = style._replace(role="role", text="content", names=ROLES)
    elif "from" in spelt:
        style = style._replace(role="from", text="value", names=_GPT_NAMES)
    return style._replace(container=key, names=_names(messages, style)), messages


def _container(value: Any) -> tuple[str, list[Any]] | None:
    """Return the key and the messages of an object with a list of objects where chats have their messages."""
    if isinstance(value, dict):
        for key in ("messages", "conversations", "conversation"):
            messages = value.get(key)
            if isinstance(messages, list) and all(isinstance(item, dict) for item in messages):
                return key, messages
    return None


def _names(messages: list[Any], style: _Style) -> dict[int, str]:
    """Return the first role name in the session for each special, else the style's usual one."""
    used: dict[int, str] = {}
    for message in messages:
        role = message.get(style.role)
        if isinstance(role, str) and role in ALIASES:
            used.setdefault(ALIASES[role], role)
    return {special: used.get(special, name) for special, name in style.names.items()}


def _style_segment(style: _Style) -> list[_Segment]:
    """Return the segment that states a style: none for the plain one, no text for the usual two."""
    if style == _PLAIN:
        return []
    special = LIST if style.container is None else SHAREGPT
    if style in (_LISTED, _SHAREGPT):
        return [(special, b"")]
    usual = _usual_names(style.role)
    names = {ROLES[i]: name for i, name in style.names.items() if name != usual[i]}
    return [(special, _json([*style[:3], names] if names else list(style[:3])))]


def _usual_names(role_key: str) -> dict[int, str]:
    return _GPT_NAMES if role_key == "from" else ROLES


def _message_segments(message: dict[str, Any], style: _Style, moulds: _Moulds) -> list[_Segment]:
    """Return one message: a role and its text, a mould after it where it is not the usual one, or plain JSON."""
    role, content = message.get(style.role), message.get(style.text)
    text, hollow = _lift(content)
    if not isinstance(role, str) or text is None or (isinstance(hollow, list) and _has_prose(hollow[1:])):
        return _framed(message) or [(MESSAGE, _json(message))]
    special = ALIASES.get(role, _ID["user"])
    usual = role == style.names[special]
    mould = {**message, style.role: None if usual else role, style.text: hollow}
    if usual and hollow is None and list(mould)[:2] == [style.role, style.text]:
        mould = {key: mould[key] for key in list(mould)[2:]}
    row = [(special, text.encode("utf-8", "surrogatepass"))]
    said = _json([mould]) if mould else NO_MOULD
    usual = said == moulds.usual(special)
    if (usual or said == moulds.again(special)) and moulds.imply(said):
        if usual:
            return row
        moulds.say_again(special)
        return [*row, (MESSAGE, AGAIN)]
    moulds.say(special, said)
    return [*row, (MESSAGE, said)]


def _lift(content: Any) -> tuple[str | None, Any]:
    """Return the text of a content and the content without it; (None, ...) where there is none to lift."""
    if isinstance(content, str):
        return content, None
    if isinstance(content, list) and content and isinstance(content[0], dict):
        first = content[0]
        if list(first) == ["type", "text"] and first["type"] == "text" and isinstance(first["text"], str):
            return first["text"], [{"type": "text", "text": None}, *content[1:]]
    return None, None


def _framed(message: dict[str, Any]) -> list[_Segment] | None:
    """Return a message as its texts and their frame; None where it holds no text worth a segment."""
    texts: list[_Segment] = []
    frame = _frame(message, _ID["user"], texts)
    if not texts:
        return None
    try:
        return [*texts, (MESSAGE, _json([frame, len(texts)]))]
    except LimitError:  # the frame is nested a little deeper than the message
        return None


def _frame(value: Any, voice: int, texts: list[_Segment]) -> Any:
    """Return a value with "" in the place of its texts, and append these. ``voice``: the special before a text."""
    if isinstance(value, str):
        if _is_prose(value):
            texts.append((voice, value.encode("utf-8", "surrogatepass")))
            return ""
        return value or {"": ""}
    if isinstance(value, list):
        return [_frame(item, voice, texts) for item in value]
    if isinstance(value, dict):
        inner = _voice(value, voice)
        found = {key: _frame(item, inner, texts) for key, item in value.items()}
        return {"": found} if list(value) == [""] else found
    return value


def _voice(value: dict[str, Any], above: int) -> int:
    """Return the special of a role or type that an object of a message names, else the one ``above`` it."""
    for key in ("role", "type"):
        name = value.get(key)
        if isinstance(name, str) and name in _VOICES:
            return _VOICES[name]
    return above


def _has_prose(value: Any) -> bool:
    """Return whether any string in a value is worth a segment of its own."""
    if isinstance(value, str):
        return _is_prose(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_prose, items))


def _is_prose(text: str) -> bool:
    """Return whether a string is coded shorter as text than inside JSON: it holds words, or JSON would escape it."""
    return len(text) >= PROSE and _MARKS.search(text) is not None


def _json(value: Any) -> bytes:
    return json_value.dump(value).encode("utf-8", "surrogatepass")


# ---- segments -> value


def _value(segments: list[_Segment]) -> Any:
    """Return the JSON value of a chat's segments."""
    if segments and segments[0][0] == META:
        if len(segments) > 1:
            _corrupt("<|meta|> to be the last segment", "more after it")
        return _parse(segments[0][1])
    style = _PLAIN
    if segments and segments[0] == (LIST, ALONE):
        alone = _messages(segments[1:], style)
        return alone[0] if len(alone) == 1 else _corrupt("one message", f"{len(alone)}")
    if segments and segments[0][0] in (SHAREGPT, LIST):
        style, segments = _parse_style(*segments[0]), segments[1:]
    meta: Any = {style.container: None}
    if segments and segments[-1][0] == META:
        meta, segments = _parse(segments[-1][1]), segments[:-1]
    head, segments = _parse_head(segments)
    messages = _messages(segments, style)
    if style.container is None:
        return messages if meta == {None: None} and not head else _corrupt("no <|meta|> after a list", "one")
    head[style.container] = messages
    if not isinstance(meta, dict) or any(meta.get(key, 0) is not None for key in head):
        _corrupt(f"<|meta|> with a place for {', '.join(map(repr, head))}", "none")
    return {**meta, **head}


def _parse_head(segments: list[_Segment]) -> tuple[dict[str, Any], list[_Segment]]:
    """Return the keys of a head, and the segments after it; {} and all segments where there is no head."""
    count = next((i for i, (special, _) in enumerate(segments) if special == META), -1)
    if count < 0:
        return {}, segments
    texts = [_text(text) for special, text in segments[:count] if special in ROLES]
    value = _parse(segments[count][1])
    if len(texts) < count or not (isinstance(value, list) and _is_frame(value, count) and value[1] == count):
        _corrupt("a head with a frame for the texts before it", "another value")
    frame = value[0]
    if not set(frame) <= set(HEAD):
        _corrupt(f"a head of the keys {', '.join(HEAD)}", "another key")
    return _unframed(frame, texts), segments[count + 1 :]


def _parse_style(special: int, text: bytes) -> _Style:
    if not text:
        return _LISTED if special == LIST else _SHAREGPT
    match _parse(text):
        case [None | str() as container, str() as role, str() as key, *rest] if len(rest) <= 1:
            named = rest[0] if rest else {}
        case _:
            _corrupt("a style of container, role key, text key and names", "another value")
    if (container is None) != (special == LIST) or role == key or not isinstance(named, dict):
        _corrupt("a style that fits its special", "another")
    names = {i: named.get(name, _usual_names(role)[i]) for i, name in ROLES.items()}
    if not all(isinstance(name, str) for name in names.values()):
        _corrupt("role names that are strings", "another value")
    return _Style(container, role, key, names)


def _messages(segments: list[_Segment], style: _Style) -> list[Any]:
    messages: list[Any] = []
    moulds = _Moulds()
    spoken: list[tuple[int, str]] = []  # roles and texts just before: messages, or texts of a frame

    def plain(count: int) -> None:
        """Make messages with their usual moulds of the first roles and texts."""
        for special, text in spoken[:count]:
            messages.append(_moulded(implied(moulds.usual(special)), special, text, style))
        del spoken[:count]

    def implied(mould: bytes) -> bytes:
        return mould if moulds.imply(mould) else _corrupt("moulds of few bytes for those that are said", "more")

    for special, data in segments:
        moulds.said += len(data)
        if special in ROLES:
            spoken.append((special, _text(data)))
            continue
        if special != MESSAGE:
            _corrupt("a message", f"the special <|{SPECIALS[special]}|>")
        value = _parse(data)
        if isinstance(value, dict):
            plain(len(spoken))
            messages.append(value)
        elif spoken and isinstance(value, list) and (_is_mould(value) or not value):
            plain(len(spoken) - 1)
            [(role, text)] = spoken
            said = data if value else implied(moulds.again(role) or _corrupt("a mould before an empty list", "none"))
            messages.append(_moulded(said, role, text, style))
            if value:
                moulds.say(role, said)
            else:
                moulds.say_again(role)
        elif isinstance(value, list) and _is_frame(value, len(spoken)):
            plain(len(spoken) - value[1])
            messages.append(_unframed(value[0], [text for _, text in spoken]))
        else:
            _corrupt("a message, the mould of one or a frame", "another value")
        spoken.clear()
    plain(len(spoken))
    return messages


def _moulded(mould: bytes, special: int, text: str, style: _Style) -> dict[str, Any]:
    """Return the message of a role's special, its text and its mould, parsed anew: no two messages share a value."""
    message = {style.role: style.names[special], style.text: text}
    return message if mould == NO_MOULD else _fill(_parse(mould)[0], message, style)


def _is_mould(value: list[Any]) -> bool:
    return len(value) == 1 and isinstance(value[0], dict)


def _is_frame(value: list[Any], spoken: int) -> bool:
    """Return whether a value is a frame for some of the texts just before."""
    match value:
        case [dict(), int(count)] if not isinstance(count, bool):
            return 0 < count <= spoken
    return False


def _unframed(frame: dict[str, Any], texts: list[str]) -> Any:
    """Return the message of a frame and its texts."""
    rest = iter(texts)
    message = _filled(frame, rest)
    if not isinstance(message, dict) or next(rest, None) is not None:
        _corrupt("a frame with a place for each text", "fewer places")
    return message


def _filled(value: Any, texts: Iterator[str]) -> Any:
    if value == "":
        return next(texts, None) or _corrupt("a text for each place of a frame", "fewer texts")
    if isinstance(value, list):
        return [_filled(item, texts) for item in value]
    if isinstance(value, dict):
        if list(value) != [""]:
            return {key: _filled(item, texts) for key, item in value.items()}
        inner = value[""]
        if inner == "":
            return ""
        if isinstance(inner, dict) and list(inner) == [""]:
            return {"": _filled(inner[""], texts)}
        _corrupt("an empty string or an object in an escape of a frame", "another value")
    return value


def _fill(mould: dict[str, Any], message: dict[str, Any], style: _Style) -> dict[str, Any]:
    """Return the message that a mould describes, with the role and text of the segment before it."""
    if style.role not in mould and style.text not in mould:
        return message | mould
    role, content = mould.get(style.role, 0), mould.get(style.text, 0)
    if role is not None and not isinstance(role, str):
        _corrupt("a role or a place for it in a mould", "neither")
    match content:
        case None:
            content = message[style.text]
        case [{"type": "text", "text": None}, *rest]:
            content = [{"type": "text", "text": message[style.text]}, *rest]
        case _:
            _corrupt("a place for the text in a mould", "none")
    return {**mould, style.role: message[style.role] if role is None else role, style.text: content}


def _parse(text: bytes) -> Any:
    try:
        return json_value.parse(_text(text))
    except (ValueError, ContentError) as exc:
        raise CorruptError(f"expected JSON in a chat's tokens: {exc}") from exc


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as exc:
        raise CorruptError(f"expected UTF-8 in a chat's tokens: {exc}") from exc


def _corrupt(expected: str, found: str) -> NoReturn:
    raise CorruptError(f"expected {expected} in a chat's tokens, found {found}")
