"""A record: a segment, a session's version, both, or a mark, as a value, and the context that it shares with others.

Spec: FORMAT.md, "Block" and "Pack". `block.py` stores records, and the table of a pack the contexts:

    what is there, writing | splitter or tokenizer | bundle | target | name of the domain, or its id and root
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from pltz.archive.format.ids import NO_SEGMENT, domain_id
from pltz.models.session.session import KINDS, kind_number, writing_in
from pltz.models.session.spelling import WRITINGS
from pltz.plt_codec.container.frame import ALONE, PPMD, Method, tokenizer_of_bytes
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError, VersionError
from pltz.plt_codec.identity import NONE, SIZE
from pltz.plt_codec.limits import MAX_DENSITY, MAX_TOKENS as SESSION_TOKENS
from pltz.plt_codec.varint import read_varint, write_varint

UNDELETE, FORGET = 0, 1
RUN = 4  # bit of the mode: several segments, and older versions of the session (`run.py`)
MAX_NAME = 1024  # bytes of UTF-8
TICK_BITS = 20  # a second has 2^20 ticks
MAX_MOMENT = 1 << 62  # ticks since 1970, excluded
MAX_TIME = 1 << 40  # seconds since 1970, excluded
MAX_TAGS = 16384  # bytes of JSON
MAX_PART = 1024  # bytes of UTF-8
MAX_TITLE = 80  # characters
MAX_ABOUT = 1 + 2 + MAX_PART + 2 + 4 * MAX_TITLE + 5 * 9 + MAX_TAGS  # bytes
TAGS_BIT = 7  # of the first byte of `pack_about`: those below are for the part and the fields of `ContentFacts`
MAX_VEIL = 8 + 16 + 5 + MAX_NAME + MAX_ABOUT  # bytes: unit, tag, length of the name, name, about
LEAST_VEIL = 8 + 16 + 1

BASE, SEALS, TARGET, WRITTEN = 16, 32, 64, 128  # bits of its first byte, beside content and method
CLEAR, SEALED = 0, 1  # ciphers
NO_ROOT = bytes(8)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that forgets or undeletes one version. The mark with the highest counter is in force."""

    version: bytes  # version id
    counter: int
    verb: int  # UNDELETE or FORGET


class Record(NamedTuple):
    """The content of a record.

    Attributes:
        context: number of its context in the pack's table.
        parent: id of the segment above, NO_SEGMENT for a root.
        id: id of its segment, None without one.
        tokens: number of tokens of its segment.
        name: name of its session, None without one.
        part: key of the part of the session (`ids.part_key`), 0 for the main one.
        moment: when its version was put, in ticks since 1970. A session's versions are ordered by it.
        time: time of its version, in seconds since 1970, as it was given or when it was put.
        about: what else is known of it (`pack_about`).
        mode: how its segment is coded, as bits: those of `plt_codec.container.frame`, and `RUN`.
        veil: in a sealed archive, unit and box in place of name and ``about``, which are empty then. The bitstring is
            a box too.
    """

    context: int
    parent: bytes = NO_SEGMENT
    id: bytes | None = None
    tokens: int = 0
    bitstring: bytes = b""
    name: str | None = None
    moment: int = 0
    time: int = 0
    about: bytes = b""
    mark: Mark | None = None
    veil: bytes = b""
    part: int = 0
    mode: int = ALONE

    @property
    def leaf(self) -> bytes:
        """Return the leaf of the session's tower; NO_SEGMENT for an empty one."""
        return self.parent if self.id is None else self.id


def segment_only(record: Record) -> Record:
    """Return the segment of a record without its session."""
    return Record(0, record.parent, record.id, record.tokens, record.bitstring, mode=record.mode)


def session_only(record: Record) -> Record:
    """Return the session of a record, with its segment named as parent."""
    return Record(
        0,
        record.leaf,
        name=record.name,
        moment=record.moment,
        time=record.time,
        about=record.about,
        veil=record.veil,
        part=record.part,
    )


def tokens_fit(tokens: int, size: int) -> bool:
    """Return whether a bitstring of ``size`` bytes may hold this many tokens."""
    return 0 <= tokens <= min(SESSION_TOKENS, MAX_DENSITY * (size + 1))


class ContentFacts(NamedTuple):
    """Facts about the content of a part, which a list shows. Empty or 0: not known.

    Attributes:
        title: the first words of the user, at most `MAX_TITLE` characters.
        turns: how often the user and the model spoke.
        size: bytes of the content.
        mtime: when its file was changed last, in nanoseconds since 1970.
        first, last: when the first and the last thing in it was said, in seconds since 1970.
    """

    title: str = ""
    turns: int = 0
    size: int = 0
    mtime: int = 0
    first: int = 0
    last: int = 0

    def said(self, time: int) -> tuple[int, int]:
        """Return when the first and the last thing was said, a time of the session where that is not known.

        >>> ContentFacts(first=5, last=9).said(20), NOTHING.said(20)
        ((5, 9), (20, 20))
        """
        return (self.first, self.last) if self.last else (time, time)


NOTHING = ContentFacts()


def check_name(name: str) -> None:
    """Check the name of a session, tenant or base. Raises UsageError where it is empty, ContentError."""
    if not name:
        raise UsageError("expected a name, found nothing")
    if name.isascii() and len(name) <= MAX_NAME:
        return
    _check_text(name, "name", MAX_NAME)


def check_part(part: str) -> None:
    """Check the path of a part: relative, with slashes, and below its session. Raises ContentError.

    >>> check_part("subagents/a.jsonl"), check_part("")
    (None, None)
    """
    if (part and any(word in ("", ".", "..") for word in part.split("/"))) or "\0" in part:
        raise ContentError(f"expected the path of a part, relative and without . and .., found {part!r}")
    _check_text(part, "path of a part", MAX_PART)


def _check_text(text: str, what: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise ContentError(f"the {what} {text!r} is not valid Unicode: use another one") from exc
    if size > most:
        raise ContentError(f"the {what} has {size} bytes, at most {most} are allowed")


def pack_about(
    part: str = "", content: ContentFacts = NOTHING, tags: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return the part, what is known of its content, and tags, as bytes; none where all of it is empty.

    Raises ContentError where a path or a title is too long, a number is out of range, or as `pack_tags`.

    >>> pack_about(tags={"a": "1"}), pack_about("a.txt", ContentFacts(turns=2))
    (b'\\x80{"a":"1"}', b'\\x05\\x05a.txt\\x01\\x02')
    """
    if content is NOTHING and not part and not tags:
        return b""
    check_part(part)
    title, turns, size, mtime, first, last = content
    if len(title) > MAX_TITLE or not all(0 <= number < 1 << 63 for number in content[1:]):
        raise ContentError(f"expected a title of {MAX_TITLE} characters and numbers below 2^63, found {content!r}")
    numbers = turns, size, mtime, first, max(0, last - first)
    words = [part.encode(), title.encode("utf-8", "replace")]
    words += [number.to_bytes(number.bit_length() + 7 >> 3, "little") for number in numbers]
    fields = [*(write_varint(len(word)) + word if word else b"" for word in words), pack_tags(tags)]
    there = sum(bool(field) << bit for bit, field in enumerate(fields))
    return bytes([there]) + b"".join(fields) if there else b""


def unpack_about(data: bytes) -> tuple[str, ContentFacts, dict[str, str]]:
    """Undo `pack_about`. Raises CorruptError."""
    words, at = [b""] * TAGS_BIT, 1
    for bit in range(TAGS_BIT if data else 0):
        if data[0] >> bit & 1:
            size, at = read_varint(data, at)
            words[bit], at = data[at : at + size], at + size
    turns, size, mtime, first, spoken = (int.from_bytes(word, "little") for word in words[2:])
    tags = data[at:]
    try:
        part, title = words[0].decode(), words[1].decode()
        check_part(part)
    except (ContentError, UnicodeDecodeError) as exc:
        raise CorruptError("a session has a path or title that cannot be: damaged") from exc
    cut_off = data and (at > len(data) or bool(tags) != data[0] >> TAGS_BIT)
    if cut_off or len(title) > MAX_TITLE or len(tags) > MAX_TAGS:
        raise CorruptError("a session has a field that is cut off or over its limit: damaged")
    return part, ContentFacts(title, turns, size, mtime, first, first + spoken), unpack_tags(tags)


def pack_tags(tags: Mapping[str, str]) -> bytes:
    """Return tags as bytes, none without tags.

    Raises ContentError where they are not strings or are too many.

    >>> pack_tags({"b": "2", "a": "1"})
    b'{"a":"1","b":"2"}'
    """
    if not tags:
        return b""
    if any(not isinstance(part, str) for pair in tags.items() for part in pair):
        raise ContentError("expected tags as strings by strings")
    data = json.dumps(dict(tags), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MAX_TAGS:
        raise ContentError(f"tags of {len(data)} bytes are over the limit of {MAX_TAGS}")
    return data


def unpack_tags(data: bytes) -> dict[str, str]:
    """Undo `pack_tags`. Raises CorruptError."""
    if not data:
        return {}
    try:
        tags = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CorruptError("the tags of a session are not JSON: damaged") from exc
    if not isinstance(tags, dict) or any(not isinstance(value, str) for value in tags.values()):
        raise CorruptError("the tags of a session are not strings by strings: damaged")
    return tags


# ---- contexts


@dataclass(frozen=True, slots=True)
class Context:
    """The fields that many records share: see the table in FORMAT.md."""

    domain_kind: int
    domain: bytes
    domain_name: str
    tokenizer: bytes  # fingerprint, or `tokenizer_of_bytes`
    bundle: bytes
    method: int = Method.MODEL
    target: bytes = NONE
    kind: int = 2  # of the session: 0 chat, 1 text, 2 ids, above that a chat with a writing (`kind_number`)
    cipher: int = CLEAR
    root: bytes = NO_ROOT  # names the keys, zeros without encryption

    def encode(self) -> bytes:
        """Return the bytes of the context in a table. Raises ContentError where the name is too long."""
        name = self.domain_name.encode()
        if len(name) > MAX_NAME:
            raise ContentError(f"the name of a domain has {len(name)} bytes, at most {MAX_NAME} are allowed")
        writing = writing_in(self.kind) if self.kind >= len(KINDS) else 0
        content = KINDS.index("chat") if writing else self.kind
        what = content | self.method << 2 | self.domain_kind * BASE | self.cipher * SEALS
        what |= (self.target != NONE) * TARGET | (writing > 0) * WRITTEN
        begin, end = _stored(content, self.method)
        fields = bytes([what, writing] if writing else [what]) + self.tokenizer[begin:end] + self.bundle
        whose = self.domain + self.root if self.cipher else write_varint(len(name)) + name
        return fields + (self.target if what & TARGET else b"") + whose


def clear_context(kind: int, name: str) -> Context:
    """Return the context for records of a domain without encryption, with codec and target left open."""
    return Context(kind, domain_id(kind, name), name, NONE, NONE)


def _stored(content: int, method: int) -> tuple[int, int]:
    """Return which bytes of a tokenizer a context has, begin and end: of a log the number of its splitter."""
    if method == Method.LOG:
        return 1, 2
    return 0, SIZE if method in (Method.MODEL, PPMD) or KINDS[content] == "ids" else 0


def read_context(table: bytes, at: int) -> tuple[Context, int]:
    """Return the context at ``table[at]`` and the offset of its end. Raises CorruptError, VersionError."""

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(table):
            raise CorruptError("the table of the pack ends in a context: damaged")
        return table[at - size : at]

    [what] = take(1)
    content, method = what & 3, what >> 2 & 3
    writing = take(1)[0] if what & WRITTEN else 0
    newer = content >= len(KINDS) or not (what & WRITTEN == 0 or 0 < writing < WRITINGS)
    if newer or (writing and KINDS[content] != "chat"):
        raise VersionError(f"a context of a newer version (content {content}, method {method}): use a newer pltz")
    begin, end = _stored(content, method)
    stored = take(end - begin)
    tokenizer = stored if len(stored) == SIZE else tokenizer_of_bytes(method, *stored)
    bundle, target = take(SIZE), take(SIZE) if what & TARGET else NONE
    domain_kind, kind = bool(what & BASE), kind_number("chat", writing) if writing else content
    if what & SEALS:
        domain, root = take(SIZE), take(len(NO_ROOT))
        return Context(domain_kind, domain, "", tokenizer, bundle, method, target, kind, SEALED, root), at
    size, at = read_varint(table, at)
    if size > MAX_NAME:
        raise CorruptError(f"the name of a domain of {size} bytes does not fit the table: damaged")
    try:
        name = take(size).decode()
    except UnicodeDecodeError as exc:
        raise CorruptError("the name of a domain is not UTF-8: damaged") from exc
    return Context(domain_kind, domain_id(domain_kind, name), name, tokenizer, bundle, method, target, kind), at
