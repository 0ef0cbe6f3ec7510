"""A context: fields that many records share, stored once in a pack's table. Spec: FORMAT.md, "Pack".

    what is there, writing | splitter or tokenizer | bundle | target | name of the domain, or its id and root
"""

from __future__ import annotations

from dataclasses import dataclass

from pltz.archive.format.ids import domain_id
from pltz.archive.format.record import MAX_NAME
from pltz.coding.codecs.modes import tokenizer_of_bytes
from pltz.models.session.session import KINDS, kind_number, kind_of, writing_in
from pltz.models.session.spelling import WRITINGS
from pltz.plt_codec.container.frame import Method
from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.plt_codec.identity import NONE, SIZE
from pltz.plt_codec.varint import read_varint, write_varint

BASE, SEALS, TARGET, WRITTEN = 16, 32, 64, 128  # bits of its first byte, beside content and method
CLEAR, SEALED = 0, 1  # ciphers
NO_ROOT = bytes(8)


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
        content, writing = KINDS.index(kind_of(self.kind)), writing_in(self.kind)
        what = content | self.method << 2 | self.domain_kind * BASE | self.cipher * SEALS
        what |= (self.target != NONE) * TARGET | (writing > 0) * WRITTEN
        begin, end = _stored(content, self.method)
        fields = bytes([what, writing] if writing else [what]) + self.tokenizer[begin:end] + self.bundle
        whose = self.domain + self.root if self.cipher else write_varint(len(name)) + name
        return fields + (self.target if what & TARGET else b"") + whose


def _stored(content: int, method: int) -> tuple[int, int]:
    """Return which bytes of a tokenizer a context has, begin and end: of a log the number of its splitter."""
    if method == Method.LOG:
        return 1, 2
    return 0, SIZE if method == Method.MODEL or KINDS[content] == "ids" else 0


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
    newer = content >= len(KINDS) or method > Method.BYTES or not (what & WRITTEN == 0 or 0 < writing < WRITINGS)
    if newer or (writing and KINDS[content] != "chat"):
        raise VersionError(f"a context of a newer version (content {content}, method {method}): use a newer pltz")
    begin, end = _stored(content, method)
    stored = take(end - begin)
    tokenizer = stored if len(stored) == SIZE else tokenizer_of_bytes(method, *stored)
    bundle, target = take(SIZE), take(SIZE) if what & TARGET else NONE
    kind, domain_kind = kind_number(KINDS[content], writing), bool(what & BASE)
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
