"""A context: fields that many records share, stored once in a pack's table. Spec: FORMAT.md, "Pack".

    domain, codec, target, key root    83 bytes and the name of the domain
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pltz.archive.format.record import MAX_NAME
from pltz.coding.codecs.modes import ALONE, CODING
from pltz.models.session.session import NUMBERS
from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.plt_codec.identity import NONE
from pltz.plt_codec.varint import read_varint, write_varint

FORM = struct.Struct("<B16s16s16sH16sBBB8s5s")
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
        fixed = FORM.pack(
            self.domain_kind,
            self.domain,
            self.tokenizer,
            self.bundle,
            self.contract,
            self.target,
            self.kind,
            self.mode,
            self.cipher,
            self.root,
            bytes(5),
        )
        return fixed + write_varint(len(name)) + name


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
    domain_kind, domain, tokenizer, bundle, contract, target, kind, mode, cipher, root, rest = (
        FORM.unpack_from(table, at)
    )
    if cipher > SEALED or any(rest) or not is_mode(mode) or kind >= NUMBERS or domain_kind > 1:
        raise VersionError(f"a context of a newer version (mode {mode}, cipher {cipher}): use a newer pltz")
    size, at = read_varint(table, at + FORM.size)
    if size > MAX_NAME or at + size > len(table):
        raise CorruptError(f"the name of a domain of {size} bytes does not fit the table: damaged")
    try:
        name = table[at : at + size].decode()
    except UnicodeDecodeError as exc:
        raise CorruptError("the name of a domain is not UTF-8: damaged") from exc
    if (size and cipher) or (cipher == CLEAR and any(root)):
        raise CorruptError("a context has a name and a key, or a key without a cipher: damaged")
    return Context(
        domain_kind, domain, name, tokenizer, bundle, contract, target, kind, mode, cipher, root
    ), at + size
