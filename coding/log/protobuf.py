"""Messages of Protocol Buffers as values: signatures of models are such messages, with random bytes in a fixed frame.

Without a schema, a field of bytes may be text, a message or bytes: what it looks like. Source: the encoding guide of
Protocol Buffers, wire types 0, 1, 2 and 5. Spec: FORMAT.md, "Messages".
"""

from __future__ import annotations

import re
from typing import Final

Message = dict[str, "int | str | bytes | Message"]

VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5  # wire types
FIRST_TAGS: Final = (b"\x08", b"\x0a", b"\x12")  # of a message that is looked for
MOST_FIELDS: Final = 32
MOST_DEPTH: Final = 4
LEAST: Final = 16  # bytes of a message in a message
TEXT: Final = re.compile(rb"[ -~]{3,200}")
KEY: Final = re.compile(r"([0-9]{1,9}):([0125])(?:-[0-9]{1,2})?")


def read_message(data: bytes, depth: int = 0) -> Message | None:
    """Return the fields of a message, by number and wire type, or None if data is none that would come back.

    >>> read_message(bytes.fromhex("0a03616263180f"))
    {'1:2': 'abc', '3:0': 15}
    """
    if data[:1] not in FIRST_TAGS or depth == MOST_DEPTH:
        return None
    message: Message = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1000 or wire not in (VARINT, EIGHT, LENGTH, FOUR) or len(message) == MOST_FIELDS:
            return None
        key = f"{number}:{wire}"
        if key in message:
            key = f"{key}-{len(message)}"
        if wire == VARINT:
            value, at = _varint(data, at)
            if value < 0:
                return None
            message[key] = value
            continue
        size = 8 if wire == EIGHT else 4
        if wire == LENGTH:
            size, at = _varint(data, at)
        if not 0 <= size <= len(data) - at:
            return None
        message[key] = _field(data[at : at + size], depth) if wire == LENGTH else data[at : at + size]
        at += size
    return message if depth or write_message(message) == data else None


def _field(data: bytes, depth: int) -> str | bytes | Message:
    if TEXT.fullmatch(data):
        return data.decode()
    inner = read_message(data, depth + 1) if len(data) >= LEAST else None
    return data if inner is None else inner


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place and the place behind it, -1 for one that does not end or has over 62 bits."""
    value = shift = 0
    for place in range(at, min(at + 9, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value if value < 1 << 62 else -1), place + 1
    return -1, len(data)


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_message(message: object) -> bytes:
    """Return the bytes of a message.

    Raises:
        ValueError: it has something that no message has.

    >>> write_message({"1:2": "abc", "3:0": 15}).hex()
    '0a03616263180f'
    """
    if type(message) is not dict:
        raise ValueError("a message has fields")
    parts = []
    for key, value in message.items():
        match = KEY.fullmatch(key)
        if match is None:
            raise ValueError("no field of a message has such a name")
        wire = int(match[2])
        parts.append(_write_varint(int(match[1]) << 3 | wire))
        if wire == VARINT:
            if type(value) is not int or value < 0:
                raise ValueError("a varint is a number")
            parts.append(_write_varint(value))
            continue
        data = value if type(value) is bytes else value.encode() if type(value) is str else write_message(value)
        if wire == LENGTH:
            parts.append(_write_varint(len(data)))
        elif len(data) != (8 if wire == EIGHT else 4):
            raise ValueError("a number of four or eight bytes has another size")
        parts.append(data)
    return b"".join(parts)
