"""Keys: what names and fields mean in an archive, and the secret that opens a sealed one. Spec: FORMAT.md, "Encryption".

    passphrase, key file or command --Secret--> wraps the archive key --> wraps the keys of each domain (`domain_keys.py`)

`Clear` is what an archive without encryption has, `Locked` a sealed one opened without its key (records can be checked, copied and
repaired, not read), `keyring.Keyring` a sealed one with it. All three say the same things: what a domain, a segment and a session are called,
and what a record's fields are.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pltz.archive.encryption.box import KEY, UNIT, keyed
from pltz.archive.encryption.key_files import RAW, SCRYPT
from pltz.archive.errors import KeyMismatch
from pltz.archive.format import ids as identity
from pltz.archive.format.context import CLEAR, SEALED, Context
from pltz.archive.format.ids import NONE, Tokens
from pltz.archive.format.record import Record
from pltz.plt_codec.errors import UsageError

LEAST_SECRET = 16  # bytes of a key file or a command's output


@dataclass(frozen=True)
class Secret:
    """What opens an archive. Make one with `passphrase`, `file` or `command`; it never shows what it holds."""

    material: bytes = field(repr=False)
    kdf: int

    @classmethod
    def passphrase(cls, words: str) -> Secret:
        """Stretched by scrypt. Raises UsageError for an empty one."""
        if not words:
            raise UsageError("expected a passphrase, got an empty one")
        return cls(words.encode(), SCRYPT)

    @classmethod
    def environment(cls, name: str) -> Secret:
        """Read a passphrase from an environment variable. Raises UsageError where it is not set, or empty."""
        if not os.environ.get(name):
            raise UsageError(f"expected a passphrase in the environment variable {name}, found none")
        return cls.passphrase(os.environ[name])

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """The bytes of a file, at least 16 and random. Raises UsageError."""
        try:
            data = Path(path).read_bytes()
        except OSError as exc:
            raise UsageError(f"cannot read the key file: {exc.strerror}") from exc
        return cls._raw(data, "the key file")

    @classmethod
    def command(cls, line: str) -> Secret:
        """What a shell command prints, at least 16 bytes. Raises UsageError where it fails."""
        done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise UsageError(f"the key command ended with {done.returncode}")
        return cls._raw(done.stdout, "the output of the key command")

    @classmethod
    def chosen(
        cls,
        *,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
        passphrase_env: str | None = None,
        passphrase: str | None = None,
    ) -> Secret | None:
        """Make the secret of whichever one is given; None where none is. Raises UsageError where there are two, or as its maker."""
        if sum(given is not None for given in (key_file, key_command, passphrase_env, passphrase)) > 1:
            raise UsageError("expected one of key_file, key_command, passphrase_env and passphrase, got more")
        if key_file is not None:
            return cls.file(key_file)
        if key_command is not None:
            return cls.command(key_command)
        if passphrase_env is not None:
            return cls.environment(passphrase_env)
        return None if passphrase is None else cls.passphrase(passphrase)

    @classmethod
    def _raw(cls, data: bytes, what: str) -> Secret:
        if len(data) < LEAST_SECRET:
            raise UsageError(f"expected at least {LEAST_SECRET} bytes in {what}, got {len(data)}")
        return cls(data, RAW)

    def key(self, cost: tuple[int, int, int], salt: bytes) -> bytes:
        """32 bytes. ``cost``: log2 of n, r, p of scrypt."""
        if self.kdf == RAW:
            return keyed(salt, b"pltz secret", [self.material], KEY)
        n, r, p = cost
        return Scrypt(salt=salt, length=KEY, n=1 << n, r=r, p=p).derive(self.material)


class Keys(Protocol):
    """What names and fields mean in an archive."""

    cipher: int

    def refresh(self) -> None:
        """See what others did, when it is next asked for."""

    def check(self, domains: Iterable[bytes]) -> None:
        """Raises Fenced where keys of these domains changed since the last refresh: something was erased meanwhile."""

    def domain(self, kind: int, name: str) -> bytes:
        """What a domain is called. Raises KeyMismatch without the key."""

    def domain_name(self, context: Context) -> str:
        """What people call the domain of a stored record."""

    def context(self, kind: int, name: str) -> Context:
        """What records of a domain are written under, codec and target left open; makes its keys where it has none."""

    def session_key(self, domain: bytes, name: str) -> bytes:
        """What a session is looked up by."""

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        """32 bytes that begin with what a segment is called."""

    def segment_head(self, domain: bytes, tokenizer: bytes, parent: bytes) -> identity.Head:
        """What is hashed before the tokens, as little-endian u32."""

    def seal(self, context: Context, record: Record) -> Record:
        """The record as it is stored."""

    def bits(self, context: Context, record: Record) -> bytes:
        """The bitstring of a stored record. Raises Erased, KeyMismatch, CorruptError."""

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        """Tenant, name and labels of a stored session. Raises Erased, CorruptError."""

    def gone(self, context: Context, identity: bytes) -> bool:
        """Whether the key of a segment or session was destroyed."""

    def doomed(self, context: Context, identity: bytes) -> bool:
        """Whether it is about to be: nothing new may rely on it."""


class Clear:
    """An archive without encryption."""

    cipher = CLEAR

    def refresh(self) -> None:
        return

    def check(self, domains: Iterable[bytes]) -> None:
        return

    def domain(self, kind: int, name: str) -> bytes:
        return identity.domain_id(kind, name)

    def domain_name(self, context: Context) -> str:
        return context.domain_name

    def context(self, kind: int, name: str) -> Context:
        return Context(kind, self.domain(kind, name), name, NONE, NONE, 0)

    def session_key(self, domain: bytes, name: str) -> bytes:
        return identity.session_key(domain, name)

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        return identity.segment_digest(domain, tokenizer, parent, tokens)

    def segment_head(self, domain: bytes, tokenizer: bytes, parent: bytes) -> identity.Head:
        return identity.segment_head(domain, tokenizer, parent)

    def seal(self, context: Context, record: Record) -> Record:
        return record

    def bits(self, context: Context, record: Record) -> bytes:
        return record.bitstring

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        return self.domain_name(context), record.name or "", record.labels

    def gone(self, context: Context, identity: bytes) -> bool:
        return False

    def doomed(self, context: Context, identity: bytes) -> bool:
        return False


class Locked(Clear):
    """A sealed archive without its key: names are shown as the ids that stand for them."""

    cipher = SEALED

    def domain(self, kind: int, name: str) -> bytes:
        raise _locked()

    def domain_name(self, context: Context) -> str:
        return f"sealed {context.domain.hex()}"

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        raise _locked()

    def segment_head(self, domain: bytes, tokenizer: bytes, parent: bytes) -> identity.Head:
        raise _locked()

    def bits(self, context: Context, record: Record) -> bytes:
        raise _locked()

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        return self.domain_name(context), f"sealed {record.veil[:UNIT].hex()}", b""


def _locked() -> KeyMismatch:
    return KeyMismatch("this archive is sealed: open it with its passphrase, key file or key command")
