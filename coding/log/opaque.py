"""Opaque strings: ids, hashes, signatures and images, whose characters are bits that no coder shrinks.

Each kind turns a string into a head that is worth modelling and into bytes that are stored as they are.
Spec: FORMAT.md, "Opaque strings".
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Final

UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
HEX: Final = re.compile(r"(?:[0-9a-f]{2}){8,}")
ID: Final = re.compile(r"((?:[a-z]{2,8}[_-])+)([A-Za-z0-9]{16,64})")
BASE64: Final = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}|[A-Za-z0-9_-]{40,}={0,2}")
FLAVOURS: Final = (b"+/", b"-_")  # of base64; a flavour without padding has number + 2
DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
VALUE: Final = {c: i for i, c in enumerate(DIGITS)}
RANDOM: Final = 0.95  # a base64 string is opaque if zlib makes no less of its bits


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID.

    >>> uuid_bytes("00112233-4455-6677-8899-aabbccddeeff").hex()
    '00112233445566778899aabbccddeeff'
    """
    return bytes.fromhex(text.replace("-", ""))


def uuid_text(data: bytes) -> str:
    """Return the UUID of 16 bytes."""
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_size(count: int) -> int:
    """Return the bytes that ``count`` digits of base 62 take.

    >>> id_size(24)
    18
    """
    most: int = 62**count - 1
    return (most.bit_length() + 7) // 8


def id_bytes(digits: str) -> bytes:
    """Return digits of base 62 as a number."""
    number = 0
    for c in digits:
        number = number * 62 + VALUE[c]
    return number.to_bytes(id_size(len(digits)), "big")


def id_text(data: bytes, count: int) -> str:
    """Return ``count`` digits of base 62.

    Raises:
        ValueError: the number has more digits.

    >>> id_text(id_bytes("00zZ"), 4)
    '00zZ'
    """
    number, digits = int.from_bytes(data, "big"), []
    for _ in range(count):
        number, digit = divmod(number, 62)
        digits.append(DIGITS[digit])
    if number:
        raise ValueError("too many digits")
    return "".join(reversed(digits))


def base64_bytes(text: str) -> tuple[int, bytes] | None:
    """Return the flavour and the bits of a base64 string, or None if they would not give it back or look like text."""
    flavour = 1 if "-" in text or "_" in text else 0
    padded = text + "=" * (-len(text) % 4)
    try:
        data = base64.b64decode(padded, altchars=FLAVOURS[flavour], validate=True)
    except binascii.Error:
        return None
    flavour += 2 * (padded != text)
    if base64_text(flavour, data) != text or len(zlib.compress(data[:4096], 1)) < RANDOM * len(data[:4096]):
        return None
    return flavour, data


def base64_text(flavour: int, data: bytes) -> str:
    """Return the base64 string of bits in a flavour below 4.

    >>> base64_text(3, bytes(range(250, 256)) + b"x")
    '-vv8_f7_eA'
    """
    text = base64.b64encode(data, altchars=FLAVOURS[flavour & 1]).decode()
    return text.rstrip("=") if flavour & 2 else text
