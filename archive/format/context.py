"""A context: fields that many records share, stored once in a pack's table. Spec: FORMAT.md, "Pack".

    what is there, content, writing, mode, contract, tokenizer, bundle | target | name of the domain, or its id and root
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pltz.archive.format.ids import domain_id
from pltz.archive.format.record import MAX_NAME
from pltz.coding.codecs.modes import ALONE, CODING
from pltz.models.session.session import KINDS, kind_number, kind_of, writing_in
from pltz.models.session.spelling import WRITINGS
from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.plt_codec.identity import NONE, SIZE
from pltz.plt_codec.varint import read_varint, write_varint

FORM = struct.Struct("<BBBBH16s16s")
BASE, SEALS, TARGET = 1, 2, 4  # bits of its first byte
RUN = 8  # bit of the mode beside those of `coding.codecs.modes`
CLEAR, SEALED = 0, 1  # ciphers
NO_ROOT = bytes(8)


@dataclass(frozen=True, slots=True)
class Context:
    """The fields that many records share: see the table in FORMAT.md."""

    domain_kind: int
    domain: bytes
    domain_name: str
    tokenizer: bytes
    bundle: bytes
    contract: int
    target: bytes = NONE
    kind: int = 2  # of the session: 0 chat, 1 text, 2 ids, above that a chat with a writing (`kind_number`)
    mode: int = ALONE
    cipher: int = CLEAR
    root: bytes = NO_ROOT  # names the keys, zeros without encryption

    @property
    def coding(self) -> int:
        """Return the bits of the mode that tell a codec how tokens were coded."""
        return self.mode & CODING

    def encode(self) -> bytes:
        """Return the bytes of the context in a table. Raises ContentError where the name is too long."""
        name = self.domain_name.encode()
        if len(name) > MAX_NAME:
            raise ContentError(f"the name of a domain has {len(name)} bytes, at most {MAX_NAME} are allowed")
        what = self.domain_kind * BASE | self.cipher * SEALS | (self.target != NONE) * TARGET
        content, writing = KINDS.index(kind_of(self.kind)), writing_in(self.kind)
        fixed = FORM.pack(what, content, writing, self.mode, self.contract, self.tokenizer, self.bundle)
        whose = self.domain + self.root if self.cipher else write_varint(len(name)) + name
        return fixed + (self.target if what & TARGET else b"") + whose


def is_mode(mode: int) -> bool:
    """Return whether a mode has a meaning in this version.

    >>> [mode for mode in range(64) if is_mode(mode)]
    [0, 1, 2, 3, 8, 9, 10, 11]
    """
    return mode & ~RUN <= CODING


def read_context(table: bytes, at: int) -> tuple[Context, int]:
    """Return the context at ``table[at]`` and the offset of its end. Raises CorruptError, VersionError."""
    if at + FORM.size > len(table):
        raise CorruptError("the table of the pack ends in a context: damaged")
    what, content, writing, mode, contract, tokenizer, bundle = FORM.unpack_from(table, at)
    at += FORM.size
    newer = what >= 2 * TARGET or not is_mode(mode) or content >= len(KINDS) or writing >= WRITINGS
    if newer or (writing and KINDS[content] != "chat"):
        raise VersionError(f"a context of a newer version (mode {mode}, content {content}): use a newer pltz")
    target, at = (table[at : at + SIZE], at + SIZE) if what & TARGET else (NONE, at)
    kind, domain_kind = kind_number(KINDS[content], writing), what & BASE
    if what & SEALS:
        domain, root, at = table[at : at + SIZE], table[at + SIZE : at + SIZE + len(NO_ROOT)], at + SIZE + len(NO_ROOT)
        if at > len(table):
            raise CorruptError("the table of the pack ends in a context: damaged")
        return Context(
            domain_kind, domain, "", tokenizer, bundle, contract, target, kind, mode, SEALED, root
        ), at
    size, at = read_varint(table, at)
    if size > MAX_NAME or at + size > len(table):
        raise CorruptError(f"the name of a domain of {size} bytes does not fit the table: damaged")
    try:
        name = table[at : at + size].decode()
    except UnicodeDecodeError as exc:
        raise CorruptError("the name of a domain is not UTF-8: damaged") from exc
    domain = domain_id(domain_kind, name)
    return Context(domain_kind, domain, name, tokenizer, bundle, contract, target, kind, mode), at + size
