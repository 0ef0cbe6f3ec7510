"""Sessions: tokens of a chat to JSON, and JSON to bytes, as models/FORMAT.md describes them."""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from tests.second_reader.fields import Damaged, refuse
from tests.second_reader.model import Vocabulary

VOICES = ("system", "user", "assistant", "tool", "developer", "function")
LEAN = dict(enumerate(VOICES, 1))  # the role of each byte of a lean chat
HEAD = {"system", "tools", "instructions", "functions"}
NO_MOULD = b"[{}]"
DEEPEST, MOST_VALUES = 200, 1 << 21  # of lists and objects in each other; in all

Segment = tuple[str, bytes]  # name of the special, text


def session(content: int, found: Any, bundle: Vocabulary | None) -> Any:
    """Return a session of its bytes or tokens: the value of a chat (0), the bytes of a text (1), a list of ids (2)."""
    if content == 2:
        return list(struct.unpack(f"<{len(found) // 4}I", found)) if isinstance(found, bytes) else found
    if isinstance(found, bytes):
        return found if content else value_of_bytes(found)
    if bundle is None:
        raise LookupError("a session of tokens without its bundle")
    return bundle.spell(found) if content else value_of(bundle.segments(found))


def value_of(segments: Sequence[Segment]) -> Any:
    """Return the value of a chat's segments: "A session as tokens", steps 1 to 7."""
    (first, text), *others = segments or [("", b"")]
    if first == "meta":
        refuse(others, "segments behind a whole chat")
        return parse(text)
    if (first, text) == ("list", b"0"):
        alone = Messages(["messages", "role", "content"]).all(others)
        refuse(len(alone) != 1, f"{len(alone)} messages in a chat of one")
        return alone[0]
    styled = first in ("sharegpt", "list")
    style = _style(first, text) if styled else ["messages", "role", "content"]
    left, head = others if styled else list(segments), dict[Any, Any]()
    frame: Any = parse(left.pop()[1]) if left and left[-1][0] == "meta" else {style[0]: None}
    metas = [place for place, (name, _) in enumerate(left) if name == "meta"]
    if metas:
        head, left = _head(left[: metas[0]], parse(left[metas[0]][1])), left[metas[0] + 1 :]
    head[style[0]] = Messages(style).all(left)
    fits = isinstance(frame, dict) and all(frame.get(key, 0) is None for key in head)
    refuse(not fits or (None in head and len(head | frame) > 1), "no place for the messages or the head")
    return head.get(None, {**frame, **head})


def _style(special: str, text: bytes) -> list[Any]:
    """Return the style that a first segment gives."""
    if not text:
        return [None, "role", "content"] if special == "list" else ["conversations", "from", "value"]
    match parse(text):
        case [container, str(role), str(said), *more] if role != said and len(more) < 2:
            fits = container is None if special == "list" else isinstance(container, str)
            names = [more[0].get(voice, "") if isinstance(more[0], dict) else 0 for voice in VOICES if more]
            if fits and all(isinstance(name, str) for name in names):
                return [container, role, said, *more]
    raise Damaged("a style that is none, or does not fit its special")


def _head(voices: Sequence[Segment], value: Any) -> Any:
    """Return the keys of a head and their values."""
    match value:
        case [dict(frame), int(count)] if count is not True and 0 < count == len(voices) and frame.keys() <= HEAD:
            if {name for name, _ in voices} <= {*VOICES}:
                return _framed(frame, [text_of(text) for _, text in voices])
    raise Damaged("a head without a frame for its texts, or of other keys")


class Messages:
    """The messages of a session, and the moulds that they had so far."""

    def __init__(self, style: list[Any]) -> None:
        _, self._role, self._text, *names = style
        usual = {"user": "human", "assistant": "gpt"} if self._role == "from" else {}
        self._names: dict[str, str] = usual | (names[0] if names else {})
        self._messages: list[Any] = []
        self._voices: list[tuple[str, str]] = []  # that no segment made a message of so far
        self._usual: dict[str, bytes] = {}  # mould of each special's messages that say none
        self._said: dict[str, bytes] = {}  # mould that each special said last
        self._latest = b""  # said last of all, [{}] aside
        self._room = 1 << 16  # bytes of moulds that may go unsaid

    def all(self, segments: Sequence[Segment]) -> list[Any]:
        """Return the messages of segments."""
        for name, data in segments:
            refuse(name not in (*VOICES, "message"), f"the special {name} among messages")
            self._room += 4 * len(data)
            if name == "message":
                self._message(data)
            else:
                self._voices.append((name, text_of(data)))
        self._plain(len(self._voices))
        return self._messages

    def _message(self, data: bytes) -> None:
        count = len(self._voices)
        match parse(data):
            case dict(whole):
                self._plain(count)
                self._messages.append(whole)
            case [] if count:
                self._plain(count - 1)
                name = self._voices[0][0]
                refuse(not (mould := self._said.get(name, self._latest)), "a mould again that was never said")
                self._usual[name] = self._said[name] = mould
                self._plain(1)
            case [dict()] if count:
                self._plain(count - 1)
                [(name, text)] = self._voices
                self._messages.append(self._moulded(data, name, text))
                self._said[name] = data
                self._latest = self._latest if data == NO_MOULD else data
            case [dict(frame), int(texts)] if texts is not True and 0 < texts <= count:
                self._plain(count - texts)
                self._messages.append(_framed(frame, [text for _, text in self._voices]))
            case _:
                raise Damaged("a message that is none")
        self._voices.clear()

    def _plain(self, count: int) -> None:
        """Make messages of the first voices, with the usual mould of each."""
        for name, text in self._voices[:count]:
            mould = self._usual.get(name, NO_MOULD)
            self._room -= len(mould) * (mould != NO_MOULD)
            refuse(self._room < 0, "more bytes of moulds unsaid than texts allow")
            self._messages.append(self._moulded(mould, name, text))
        del self._voices[:count]

    def _moulded(self, data: bytes, name: str, text: str) -> dict[str, Any]:
        [mould], role = parse(data), self._names.get(name, name)
        if self._role not in mould and self._text not in mould:
            return {self._role: role, self._text: text, **mould}
        match mould.get(self._role, 0), mould.get(self._text, 0):
            case (None | str()) as said, None:
                return {**mould, self._role: role if said is None else said, self._text: text}
            case (None | str()) as said, [{"type": "text", "text": None, **more}, *others] if not more:
                parts = [{"type": "text", "text": text}, *others]
                return {**mould, self._role: role if said is None else said, self._text: parts}
        raise Damaged("a mould without a role, or without a place for the text")


def _framed(frame: dict[str, Any], texts: Sequence[str]) -> Any:
    """Return a frame with its texts in their places."""
    left = iter(texts)
    found = _filled(frame, left)
    refuse(not isinstance(found, dict) or next(left, None) is not None, "a frame with fewer places than texts")
    return found


def _filled(value: Any, texts: Iterator[str]) -> Any:
    match value:
        case "":
            refuse(not (text := next(texts, "")), "a frame with more places than texts")
            return text
        case list():
            return [_filled(one, texts) for one in value]
        case {"": "", **more} if not more:
            return ""
        case {"": {"": inner, **deeper}, **more} if not (more or deeper):
            return {"": _filled(inner, texts)}
        case {"": _, **more} if not more:
            raise Damaged("an escape of nothing in a frame")
        case dict():
            return {key: _filled(one, texts) for key, one in value.items()}
    return value


def text_of(data: bytes) -> str:
    """Return UTF-8 as characters, lone surrogates too."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged("a text that is no UTF-8") from error


def parse(data: bytes) -> Any:
    """Return the value of JSON, which must come back as it is."""
    numbers: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), _number)
    try:
        value = json.loads(text_of(data), object_pairs_hook=_dict, **numbers)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"no JSON: {error}") from error
    refuse(_values(value) > MOST_VALUES, "more values than a session has")
    return value


def _values(value: Any, depth: int = 0) -> int:
    """Return how many values there are in a value."""
    if not isinstance(value, (dict, list)):
        return 1
    refuse(depth == DEEPEST, "values too deep in each other")
    return 1 + sum(_values(one, depth + 1) for one in (value.values() if isinstance(value, dict) else value))


def _dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse(len(dict(pairs)) != len(pairs), "a key twice in an object")
    return dict(pairs)


def _number(text: str) -> float:
    whole = text.lstrip("-").isdigit()
    value = int(text) if whole else float(text)
    exact = Decimal(repr(value)) == Decimal(text) and len(text) <= (4000 if whole else 64)
    refuse(not exact or text in ("-0", "Infinity", "-Infinity"), "a number that would not come back")
    return value


def value_of_bytes(data: bytes) -> Any:
    """Return the value of a chat that is kept as bytes: lean, lines of JSON, or one JSON."""
    if data[:1] and data[0] in LEAN:
        text = text_of(data)
        starts = [place for place, letter in enumerate(text) if ord(letter) in LEAN]
        spans = zip(starts, [*starts[1:], len(text)], strict=True)
        return {"messages": [{"role": LEAN[ord(text[a])], "content": text[a + 1 : b]} for a, b in spans]}
    if data[:1] == b"{" and data[-1:] == b"\n":
        lines = [parse(line) for line in data[:-1].split(b"\n")]
        refuse(not all(isinstance(line, dict) for line in lines), "a line that is no object")
        return lines
    return parse(data)


# By number: blanks behind "," and ":", indent, ASCII alone, and the characters that Go or PHP escapes
GO, PHP = "<>&\u2028\u2029", "/"
SPELLINGS = (
    *((False, "", False, ""), (True, "", False, ""), (False, "", True, ""), (True, "", True, "")),
    *((False, "", False, GO), (False, "", True, PHP), (False, "", False, PHP)),
    *((True, indent, ascii_alone, "") for indent in ("  ", "    ", "\t") for ascii_alone in (False, True)),
    *((True, "  ", False, GO), (True, "\t", False, GO), (True, "  ", True, PHP)),
)
ENDS = (b"\n", b"\r\n", b"")
WRITINGS = len(SPELLINGS) * len(ENDS)


class Written(str):
    """A number as it is written, of a log."""


def spelled(value: Any, spelling: int = 0, depth: int = 0) -> str:
    """Return a value as JSON in a spelling."""
    spaced, indent, ascii_alone, escaped = SPELLINGS[spelling]
    if isinstance(value, Written):
        return str(value)
    if not isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=ascii_alone)
        for letter in escaped:
            text = text.replace(letter, "\\/" if letter == "/" else f"\\u{ord(letter):04x}")
        return text
    inside = [spelled(one, spelling, depth + 1) for one in (value.values() if isinstance(value, dict) else value)]
    if isinstance(value, dict):
        keys = (spelled(key, spelling) + (": " if spaced else ":") for key in value)
        inside = [key + one for key, one in zip(keys, inside, strict=True)]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    if not indent or not inside:
        return begin + (", " if spaced else ",").join(inside) + end
    line = "\n" + indent * (depth + 1)
    return begin + line + ("," + line).join(inside) + "\n" + indent * depth + end


def input_bytes(value: Any, writing: int = 0) -> bytes:
    """Return a session as an exact file has it: bytes of a text, or JSON in a writing; 0: none."""
    if isinstance(value, bytes):
        return value
    if writing:
        spelling, end = divmod(writing - 1, len(ENDS))
        refuse(len(text := spelled(value, spelling)) > 32 * len(spelled(value)) + 65536, "indents that swell a value")
        return text.encode() + ENDS[end]
    several = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    ones = value if several else [value]
    lines = [spelled(one, 2 if re.search("[\ud800-\udfff]", spelled(one)) else 0) for one in ones]
    return b"".join(line.encode() + b"\n" for line in lines)
