"""Chats: their tokens to JSON, and JSON to bytes, as models/FORMAT.md describes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.second_reader.fields import Damaged
from tests.second_reader.model import Vocabulary

VOICES = ("system", "user", "assistant", "tool", "developer", "function")
LEAN = dict(enumerate(VOICES, 1))  # the role of each byte of a lean chat
HEAD = {"system", "tools", "instructions", "functions"}
PLAIN: list[Any] = ["messages", "role", "content"]
NO_MOULD = b"[{}]"
MAX_DEPTH, MAX_VALUES, MAX_BITS, MAX_DIGITS = 200, 1 << 21, 13_000, 64

Segment = tuple[str, bytes]  # name of the special, text


def value_of_tokens(ids: Sequence[int], bundle: Vocabulary) -> Any:
    """Return the value of a chat's tokens."""
    starts = [place for place, token in enumerate(ids) if token in bundle.special]
    if len(ids) and starts[:1] != [0]:
        raise Damaged("a chat that begins with text")
    ends = [*starts[1:], len(ids)]
    spans = zip(starts, ends, strict=True) if starts else []
    return value_of([(bundle.special[ids[a]], bundle.spell(ids[a + 1 : b])) for a, b in spans])


def value_of(segments: Sequence[Segment]) -> Any:
    """Return the value of a chat's segments: "A session as tokens", steps 1 to 7."""
    left = list(segments)
    if left and left[0][0] == "meta":
        if len(left) > 1:
            raise Damaged("segments behind a whole chat")
        return parse(left[0][1])
    if left and left[0] == ("list", b"0"):
        alone = Messages(PLAIN).all(left[1:])
        if len(alone) != 1:
            raise Damaged(f"{len(alone)} messages in a chat of one")
        return alone[0]
    style = PLAIN
    if left and left[0][0] in ("sharegpt", "list"):
        style = style_of(*left.pop(0))
    frame = parse(left.pop()[1]) if left and left[-1][0] == "meta" else None
    head = dict[str, Any]()
    for place, (name, text) in enumerate(left):
        if name == "meta":
            head, left = head_of(left[:place], parse(text)), left[place + 1 :]
            break
    messages = Messages(style).all(left)
    container = style[0]
    if container is None:
        if frame is not None or head:
            raise Damaged("a list of messages with something beside it")
        return messages
    if frame is None:
        frame = {container: None}
    head[container] = messages
    if not isinstance(frame, dict) or any(frame.get(key, 0) is not None for key in head):
        raise Damaged("no place for the messages or the head")
    return {**frame, **head}


def style_of(special: str, text: bytes) -> list[Any]:
    """Return the style that a first segment gives."""
    if not text:
        return [None, "role", "content"] if special == "list" else ["conversations", "from", "value"]
    style = parse(text)
    if not isinstance(style, list) or len(style) not in (3, 4) or not all(isinstance(key, str) for key in style[1:3]):
        raise Damaged("a style that is none")
    if not (style[0] is None if special == "list" else isinstance(style[0], str)) or style[1] == style[2]:
        raise Damaged("a style that does not fit its special")
    names = style[3] if len(style) == 4 else {}
    if not isinstance(names, dict) or not all(isinstance(names.get(voice, ""), str) for voice in VOICES):
        raise Damaged("role names that are none")
    return style


def head_of(voices: Sequence[Segment], value: Any) -> dict[str, Any]:
    """Return the keys of a head and their values."""
    if not is_frame(value, len(voices)) or value[1] != len(voices) or not {name for name, _ in voices} <= set(VOICES):
        raise Damaged("a head without a frame for its texts")
    if not set(value[0]) <= HEAD:
        raise Damaged("a head of other keys")
    return framed(value[0], [text_of(text) for _, text in voices])


class Messages:
    """The messages of a session, and the moulds that they had so far."""

    def __init__(self, style: list[Any]) -> None:
        self._role, self._text = style[1:3]
        usual = {"user": "human", "assistant": "gpt"} if self._role == "from" else {}
        self._names = {voice: voice for voice in VOICES} | usual | (style[3] if len(style) == 4 else {})
        self._messages: list[Any] = []
        self._voices: list[tuple[str, str]] = []  # that no segment made a message of so far
        self._usual: dict[str, bytes] = {}  # mould of each special's messages that say none
        self._said: dict[str, bytes] = {}  # mould that each special said last
        self._latest = b""  # said last of all, [{}] aside
        self._room = 1 << 16  # bytes of moulds that may still go unsaid

    def all(self, segments: Sequence[Segment]) -> list[Any]:
        """Return the messages of segments."""
        for name, data in segments:
            self._room += 4 * len(data)
            if name in VOICES:
                self._voices.append((name, text_of(data)))
            elif name == "message":
                self._message(data)
            else:
                raise Damaged(f"the special {name} among messages")
        self._plain(len(self._voices))
        return self._messages

    def _message(self, data: bytes) -> None:
        value, count = parse(data), len(self._voices)
        if isinstance(value, dict):
            self._plain(count)
            self._messages.append(value)
        elif value == [] and count:
            self._plain(count - 1)
            name = self._voices[0][0]
            mould = self._said.get(name, self._latest)
            if not mould:
                raise Damaged("a mould again that was never said")
            self._plain(1, mould)
            self._usual[name] = self._said[name] = mould
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and count:
            self._plain(count - 1)
            [(name, text)] = self._voices
            self._messages.append(self._moulded(data, name, text))
            self._said[name] = data
            self._latest = self._latest if data == NO_MOULD else data
        elif is_frame(value, count):
            self._plain(count - value[1])
            self._messages.append(framed(value[0], [text for _, text in self._voices]))
        else:
            raise Damaged("a message that is none")
        self._voices.clear()

    def _plain(self, count: int, mould: bytes = b"") -> None:
        """Make messages of the first voices. ``mould``: one that they do not say in full; else their usual one."""
        for name, text in self._voices[:count]:
            unsaid = mould or self._usual.get(name, NO_MOULD)
            self._room -= 0 if unsaid == NO_MOULD else len(unsaid)
            if self._room < 0:
                raise Damaged("more moulds than are said")
            self._messages.append(self._moulded(unsaid, name, text))
        del self._voices[:count]

    def _moulded(self, data: bytes, name: str, text: str) -> dict[str, Any]:
        mould, role = parse(data)[0], self._names[name]
        if self._role not in mould and self._text not in mould:
            return {self._role: role, self._text: text, **mould}
        given, place = mould.get(self._role, 0), mould.get(self._text, 0)
        if not (given is None or isinstance(given, str)):
            raise Damaged("a mould without a role")
        if isinstance(place, list) and place[:1] == [{"type": "text", "text": None}]:
            filled: Any = [{"type": "text", "text": text}, *place[1:]]
        elif place is None:
            filled = text
        else:
            raise Damaged("a mould without a place for the text")
        return {**mould, self._role: role if given is None else given, self._text: filled}


def is_frame(value: Any, most: int) -> bool:
    """Return whether a value is a frame for one to so many texts."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], dict):
        return False
    return type(value[1]) is int and 0 < value[1] <= most


def framed(frame: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return a frame with its texts in their places."""
    left = iter(texts)
    found = _filled(frame, left)
    if not isinstance(found, dict) or next(left, None) is not None:
        raise Damaged("a frame with fewer places than texts")
    return found


def _filled(value: Any, texts: Iterator[str]) -> Any:
    if value == "":
        text = next(texts, "")
        if not text:
            raise Damaged("a frame with more places than texts")
        return text
    if isinstance(value, list):
        return [_filled(one, texts) for one in value]
    if not isinstance(value, dict):
        return value
    if list(value) != [""]:
        return {key: _filled(one, texts) for key, one in value.items()}
    inner = value[""]
    if inner == "":
        return ""
    if isinstance(inner, dict) and list(inner) == [""]:
        return {"": _filled(inner[""], texts)}
    raise Damaged("an escape of nothing in a frame")


def text_of(data: bytes) -> str:
    """Return UTF-8 as characters, lone surrogates too."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged("a text that is no UTF-8") from error


def parse(data: bytes) -> Any:
    """Return the value of JSON, which must come back as it is."""
    try:
        value = json.loads(
            text_of(data), object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_none
        )
    except (ValueError, RecursionError) as error:
        raise Damaged(f"no JSON: {error}") from error
    if _values(value, 0) > MAX_VALUES:
        raise Damaged("more values than a session may have")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise Damaged("a key twice in an object")
    return dict(pairs)


def _int(text: str) -> int:
    if text == "-0" or len(text) > 4000 or int(text).bit_length() > MAX_BITS:
        raise Damaged("an integer that would not come back")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else math.inf
    try:
        if math.isfinite(value) and Decimal(repr(value)) == Decimal(text):
            return value
    except InvalidOperation:
        pass
    raise Damaged("a number that would not come back")


def _none(text: str) -> Any:
    raise Damaged(f"{text} in JSON")


def _values(value: Any, depth: int) -> int:
    if not isinstance(value, (dict, list)):
        return 1
    if depth == MAX_DEPTH:
        raise Damaged("values too deep in each other")
    return 1 + sum(_values(one, depth + 1) for one in (value.values() if isinstance(value, dict) else value))


def value_of_bytes(data: bytes) -> Any:
    """Return the value of a chat that is kept as bytes: lean, lines of JSON, or one JSON."""
    if data[:1] and data[0] in LEAN:
        text = text_of(data)
        starts = [place for place, letter in enumerate(text) if ord(letter) in LEAN]
        spans = zip(starts, [*starts[1:], len(text)], strict=True)
        return {"messages": [{"role": LEAN[ord(text[a])], "content": text[a + 1 : b]} for a, b in spans]}
    if data[:1] == b"{" and data[-1:] == b"\n":
        lines = [parse(line) for line in data[:-1].split(b"\n")]
        if not all(isinstance(line, dict) for line in lines):
            raise Damaged("a line that is no object")
        return lines
    return parse(data)


# ---- JSON as bytes

SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
GO = "<>&\u2028\u2029"
# blanks behind "," and ":", indent, ASCII, Go, slashes
SPELLINGS = (
    *((False, "", False, False, False), (True, "", False, False, False), (False, "", True, False, False)),
    *((True, "", True, False, False), (False, "", False, True, False), (False, "", True, False, True)),
    *((False, "", False, False, True), (True, "  ", False, False, False), (True, "  ", True, False, False)),
    *((True, "    ", False, False, False), (True, "    ", True, False, False), (True, "\t", False, False, False)),
    *((True, "\t", True, False, False), (True, "  ", False, True, False), (True, "\t", False, True, False)),
    (True, "  ", True, False, True),
)
ENDS = (b"\n", b"\r\n", b"")
WRITINGS = len(SPELLINGS) * len(ENDS)


class Written(str):
    """A number as it is written, of a log."""


def spelled(value: Any, spelling: int = 0, depth: int = 0) -> str:
    """Return a value as JSON in a spelling."""
    spaced, indent, *how = SPELLINGS[spelling]
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_letter(letter, *how) for letter in value) + '"'
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, (dict, list)):
        return {None: "null", True: "true", False: "false"}[value] if value is None or value is True or value is False \
            else str(value)
    colon = ": " if spaced else ":"
    if isinstance(value, dict):
        inside = [spelled(k, spelling) + colon + spelled(v, spelling, depth + 1) for k, v in value.items()]
    else:
        inside = [spelled(one, spelling, depth + 1) for one in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    if not indent or not inside:
        return begin + (", " if spaced else ",").join(inside) + end
    line = "\n" + indent * (depth + 1)
    return begin + line + ("," + line).join(inside) + "\n" + indent * depth + end


def _letter(letter: str, ascii_alone: bool, go: bool, slashes: bool) -> str:
    code = ord(letter)
    if letter in SHORT:
        return SHORT[letter]
    if slashes and letter == "/":
        return "\\/"
    if code < 32 or (ascii_alone and code > 126) or (go and letter in GO):
        units = letter.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[place:place + 2].hex()}" for place in range(0, len(units), 2))
    return letter


def input_bytes(value: Any, writing: int = 0) -> bytes:
    """Return a session as an exact file has it: bytes of a text, or JSON in a writing; 0: none."""
    if isinstance(value, bytes):
        return value
    if writing:
        spelling, end = divmod(writing - 1, len(ENDS))
        text = spelled(value, spelling)
        if SPELLINGS[spelling][1] and len(text) > (1 << 16) + 32 * len(spelled(value)):
            raise Damaged("a value that its indents swell")
        return text.encode() + ENDS[end]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return b"".join(map(line_of, value))
    return line_of(value)


def line_of(value: Any) -> bytes:
    """Return a value as one line of JSON."""
    try:
        return spelled(value).encode() + b"\n"
    except UnicodeEncodeError:
        return spelled(value, 2).encode() + b"\n"
