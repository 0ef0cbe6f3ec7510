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
HEX: Final = re.compile(r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,128}")
ID: Final = re.compile(r"([A-Za-z]{2,12}[_-])((?:[A-Za-z0-9]{1,12}[_-]){0,3})([A-Za-z0-9]{14,80})")
STAMPED: Final = re.compile(r"([a-z]{3}_)([0-9a-f]{12})([A-Za-z0-9]{14})")  # OpenCode's ids
BASE64: Final = re.compile(r"(data:[a-z0-9/+.-]{1,60};base64,)?([A-Za-z0-9+/]{40,}={0,2}|[A-Za-z0-9_-]{40,}={0,2})")
FLAVOURS: Final = (b"+/", b"-_")  # of base64; a flavour without padding has number + 2
LOOSE: Final = 4  # number of the first flavour whose strings are no base64, but of its characters
GAP: Final = "REDACTED"  # what stands in them where a program took something out
SAMPLE: Final = 2048  # characters, bytes
RANDOM: Final = 0.8  # a base64 string is opaque if zlib makes no less of its bits
# The digits of ids: hexadecimal, base 58 (without 0, I, O and l), base 62, base 64
ALPHABETS: Final = (
    "0123456789abcdef",
    "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_",
)
VALUES: Final = tuple({c: i for i, c in enumerate(alphabet)} for alphabet in ALPHABETS)
SETS: Final = tuple(frozenset(alphabet) for alphabet in ALPHABETS)


def split_id(text: str) -> str | None:
    """Return the head of an id that others like it share, or None for a string that looks like no id.

    >>> split_id("toolu_01AbCdEfGhIjKlMnOpQrStUv"), split_id("89f4ae22"), split_id("deadbeef"), split_id("a-b")
    ('toolu_', '', None, None)
    """
    if HEX.fullmatch(text):
        return ""
    match = ID.fullmatch(text)
    if match is None:
        return None
    head, _, body = match.groups()
    if sum(map(body.count, "0123456789")) < 2 or (body.islower() and not SETS[0].issuperset(body)):
        return None
    return head


def alphabet_of(digits: str) -> int:
    """Return the number of the smallest alphabet that has all these digits."""
    found = set(digits)
    return next(n for n, letters in enumerate(SETS) if letters >= found)


def bits_of(alphabet: int, count: int) -> int:
    """Return the bits that ``count`` digits take.

    >>> bits_of(0, 8), bits_of(1, 22)
    (32, 129)
    """
    most: int = len(ALPHABETS[alphabet]) ** count - 1
    return most.bit_length()


def id_number(alphabet: int, digits: str) -> int:
    """Return digits as a number."""
    values, base, number = VALUES[alphabet], len(ALPHABETS[alphabet]), 0
    for digit in digits:
        number = number * base + values[digit]
    return number


def id_digits(alphabet: int, number: int, count: int) -> str:
    """Return the ``count`` digits of a number.

    Raises:
        ValueError: it has more.

    >>> id_digits(2, id_number(2, "00zZ"), 4)
    '00zZ'
    """
    letters, digits = ALPHABETS[alphabet], []
    for _ in range(count):
        number, digit = divmod(number, len(letters))
        digits.append(letters[digit])
    if number:
        raise ValueError("too many digits")
    return "".join(reversed(digits))


def uuid_number(text: str) -> int:
    """Return a UUID as a number of 128 bits.

    >>> hex(uuid_number("00112233-4455-6677-8899-aabbccddeeff"))
    '0x112233445566778899aabbccddeeff'
    """
    return int(text.replace("-", ""), 16)


def uuid_text(number: int) -> str:
    """Return the UUID of a number."""
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def common(first: str, second: str) -> int:
    """Return how many characters two strings have in common at their start.

    >>> common("msg_01ab", "msg_02")
    5
    """
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _random(text: str, data: bytes) -> bool:
    """Return whether base64 and its bits look random: all kinds of characters, and zlib makes no less of the middle."""
    head = text[:SAMPLE]
    lower, upper = sum(map(str.islower, head)), sum(map(str.isupper, head))
    if min(lower, upper) * 8 < len(head) or sum(map(str.isdigit, head)) * 20 < len(head):
        return False
    begin = max(0, len(data) // 2 - SAMPLE // 2)
    sample = data[begin : begin + SAMPLE]
    return len(zlib.compress(sample, 1)) >= RANDOM * len(sample)


def base64_bytes(text: str) -> tuple[int, bytes] | None:
    """Return the flavour and the bits of a base64 string, or None if they would not give it back or look like text.

    The caller has matched it with BASE64.
    """
    flavour = 1 if "-" in text or "_" in text else 0
    padded = text + "=" * (-len(text) % 4)
    try:
        data = base64.b64decode(padded, altchars=FLAVOURS[flavour], validate=True)
    except binascii.Error:
        return None
    flavour += 2 * (padded != text)
    if base64_text(flavour, data) != text or not _random(text, data):
        return None
    return flavour, data


def base64_text(flavour: int, data: bytes) -> str:
    """Return the base64 string of bits in a flavour below 4.

    >>> base64_text(3, bytes(range(250, 256)) + b"x")
    '-vv8_f7_eA'
    """
    text = base64.b64encode(data, altchars=FLAVOURS[flavour & 1]).decode()
    return text.rstrip("=") if flavour & 2 else text


def loose_bytes(text: str) -> tuple[int, bytes] | None:
    """Return the flavour and the bits of characters of base64, six each, or None if they look like text."""
    flavour = 1 if "-" in text or "_" in text else 0
    data = base64.b64decode(text + "A" * (-len(text) % 4), altchars=FLAVOURS[flavour])
    if not _random(text, data):
        return None
    return flavour + LOOSE, data


def loose_text(flavour: int, data: bytes, count: int) -> str:
    """Return ``count`` characters of their bits."""
    return base64.b64encode(data, altchars=FLAVOURS[flavour - LOOSE]).decode()[:count]
