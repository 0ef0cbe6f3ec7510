"""Keys: ids and fields of an archive with and without encryption, and the secret that opens a sealed one.

Spec: FORMAT.md, "Keys".

    passphrase, key file or command --Secret--> wraps the archive key --> wraps each domain's keys (`domain_keys.py`)

`Plaintext` serves an archive without encryption, `keyring.Keyring` a sealed one. `LockedArchive` serves a sealed one
opened without its key, whose records can be checked, copied and repaired, but not read. All three answer the
same questions: the ids of domains, segments and sessions, and the fields of a record.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pltz.archive.encryption.box import KEY, UNIT, keyed
from pltz.archive.errors import KeyMismatch
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import Tokens
from pltz.archive.format.record import CLEAR, SEALED, Context, Record, clear_context, pack_about
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.named_files import secret_file

RAW, SCRYPT = 0, 1  # ways of a secret to its key-encrypting key
LEAST_SECRET = 16  # least bytes of a key file or a command's output
MAX_SECRET = 1 << 20  # bytes of a key file, or of a command's output
COMMAND_SECONDS = 120  # time of a key command, in which a person may have to unlock a vault


class KeySource(Protocol):
    """A maker of the key-encrypting keys of an archive: a `Secret`, or a key service that a user plugs in.

    One thread uses it at a time.
    """

    @property
    def kdf(self) -> int:
        """Return `RAW`, or `SCRYPT` where it stretches a passphrase."""

    def key(self, cost: tuple[int, int, int], salt: bytes) -> bytes:
        """Return 32 bytes that depend on the salt (16 bytes): the same for the same, now and in years."""


@dataclass(frozen=True)
class Secret:
    """The secret that opens an archive.

    Immutable: any thread may use it.

    Make one with `passphrase`, `file` or `command`; its repr never shows it.
    """

    material: bytes = field(repr=False)
    kdf: int

    @classmethod
    def passphrase(cls, words: str) -> Secret:
        """Return the secret of a passphrase, stretched by scrypt. Raises UsageError for an empty one."""
        if not words:
            raise UsageError("expected a passphrase, got an empty one")
        return cls(words.encode(errors="surrogateescape"), SCRYPT)  # bytes of another encoding are as they are

    @classmethod
    def environment(cls, name: str) -> Secret:
        """Return the secret of a passphrase in an environment variable.

        Raises UsageError where it is unset or empty.
        """
        if not os.environ.get(name):
            raise UsageError(f"expected a passphrase in the environment variable {name}, found none")
        return cls.passphrase(os.environ[name])

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """Return the secret in a file of at least 16 random bytes, which nobody else may read. Raises UsageError."""
        try:
            data = secret_file(path, MAX_SECRET, ", or let a command print the key: --key-command 'cat FILE'")
        except OSError as exc:
            raise UsageError(f"cannot read the key file: {exc.strerror}") from exc
        return cls._raw(data, "the key file")

    @classmethod
    def command(cls, line: str) -> Secret:
        """Return the secret that a shell command prints, at least 16 bytes.

        Raises UsageError where it fails, prints more than a key, or takes longer than COMMAND_SECONDS.
        """
        end, data = time.monotonic() + COMMAND_SECONDS, b""
        with subprocess.Popen(line, shell=True, stdout=subprocess.PIPE) as run:
            assert run.stdout is not None
            try:
                while select.select([run.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                    if not (piece := os.read(run.stdout.fileno(), MAX_SECRET)):
                        code = run.wait(max(0.0, end - time.monotonic()))
                        break
                    data += piece
                    if len(data) > MAX_SECRET:
                        raise UsageError(f"the key command prints over {MAX_SECRET} bytes: let it print the key alone")
                else:
                    raise subprocess.TimeoutExpired(line, COMMAND_SECONDS)
            except subprocess.TimeoutExpired as exc:
                why = f"the key command does not end within {COMMAND_SECONDS} s: run it alone to see why"
                raise UsageError(why) from exc
            finally:
                run.kill()
        if code:
            raise UsageError(f"the key command ended with {code}")
        return cls._raw(data, "the output of the key command")

    @classmethod
    def chosen(
        cls,
        *,
        key_file: str | os.PathLike[str] | None = None,
        key_command: str | None = None,
        passphrase_env: str | None = None,
        passphrase: str | None = None,
        key: KeySource | None = None,
    ) -> KeySource | None:
        """Return the secret of whichever argument is given; None if none is. ``key``: taken as it is.

        Raises UsageError where two are given, and the errors of its maker.
        """
        if sum(given is not None for given in (key_file, key_command, passphrase_env, passphrase, key)) > 1:
            raise UsageError("expected one of key_file, key_command, passphrase_env, passphrase and key, got more")
        if key is not None:
            return key
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
        """Return the wrapping key, 32 bytes. ``cost``: log2 of n, r, p of scrypt."""
        if self.kdf == RAW:
            return keyed(salt, b"pltz secret", [self.material], KEY)
        n, r, p = cost
        return Scrypt(salt=salt, length=KEY, n=1 << n, r=r, p=p).derive(self.material)


class Encryption:
    """The keys of an archive: ids of its objects and fields of its records. What a subclass has not is refused."""

    cipher = SEALED

    def refresh(self) -> None:
        """Read the changes of others at the next use."""

    def check(self, domains: Iterable[bytes]) -> None:
        """Raise Outdated where keys of these domains changed since the last refresh.

        Something was erased meanwhile in that case.
        """

    def domain(self, kind: int, name: str) -> bytes:
        """Return the id of a domain, 16 bytes. Raises KeyMismatch without the key."""
        raise _locked()

    def domain_name(self, context: Context) -> str:
        """Return the user's name for the domain of a stored record."""
        raise _locked()

    def context(self, kind: int, name: str) -> Context:
        """Return the context for records of a domain, with codec and target left open.

        Makes the keys of a domain that has neither keys nor records. Raises KeyMismatch, MissingKeys, StoreError.
        """
        raise _locked()

    def want(self, domain: bytes, who: str) -> None:
        """Raise MissingKeys where packs have records of a domain under keys that are not there, StoreError.

        ``who``: the tenant or base, for the message.
        """

    def session_key(self, domain: bytes, name: str) -> bytes:
        """Return the key by which a session is looked up, 16 bytes."""
        raise _locked()

    def part_key(self, domain: bytes, key: bytes, part: str) -> int:
        """Return the number that stands for a part of the session with this key."""
        raise _locked()

    def segment_digest(self, domain: bytes, tokenizer: bytes, parent: bytes, tokens: Tokens) -> bytes:
        """Return the digest of a segment, 32 bytes; the first 10 are its id. ``tokens``: (T,)."""
        return self.segment_head(domain, tokenizer, parent).digest(tokens)

    def segment_head(self, domain: bytes, tokenizer: bytes, parent: bytes) -> identity.Head:
        """Return the bytes hashed before the tokens, which follow as little-endian u32."""
        raise _locked()

    def buried(self, domain: bytes, name: str) -> bool:
        """Return whether a session was erased, and is to stay so. Raises MissingKeys, StoreError."""
        raise _locked()

    def erased_at(self, domain: bytes, name: str) -> int:
        """Return when a session or its whole domain was erased last, in ticks; below 2: never. Raises as `buried`."""
        raise _locked()

    def unbury(self, domain: bytes, name: str) -> None:
        """Let an erased session be put again. Raises Fenced, MissingKeys, StoreError, WriterFailed."""

    def seal(self, context: Context, record: Record) -> Record:
        """Return the record as it is stored. Raises Erased, CorruptError."""
        raise _locked()

    def bits(self, context: Context, record: Record) -> bytes:
        """Return the bitstring of a stored record. Raises Erased, KeyMismatch, CorruptError."""
        raise _locked()

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        """Return tenant, name and `record.pack_about` of a stored session. Raises Erased, CorruptError."""
        raise _locked()

    def seal_note(self, note: bytes, about: bytes) -> bytes:
        """Return a note that people left in the archive, as it is stored beside ``about``. Raises KeyMismatch."""
        raise _locked()

    def open_note(self, note: bytes, about: bytes) -> bytes:
        """Undo `seal_note`. Raises CorruptError, KeyMismatch without the key."""
        raise _locked()

    def gone(self, context: Context, identity: bytes) -> bool:
        """Return whether the key of a segment or session was destroyed."""
        return False

    def doomed(self, context: Context, identity: bytes) -> bool:
        """Return whether the key is about to be destroyed, so that nothing new may rely on it."""
        return False

    def cache_keys(self, domain: bytes) -> list[bytes]:
        """Return keys, 32 bytes, for what a machine keeps of a domain outside of the archive, the newest first.

        The next erase of anything in the domain destroys them; there is none of an erased one. Without encryption it is
        no secret. Raises KeyMismatch, MissingKeys.
        """
        raise _locked()


class Plaintext(Encryption):
    """The keys of an archive without encryption."""

    cipher = CLEAR
    domain = staticmethod(identity.domain_id)
    context = staticmethod(clear_context)
    session_key = staticmethod(identity.session_key)
    segment_digest = staticmethod(identity.segment_digest)
    segment_head = staticmethod(identity.segment_head)

    def domain_name(self, context: Context) -> str:
        return context.domain_name

    def part_key(self, domain: bytes, key: bytes, part: str) -> int:
        return identity.part_key(key, part)

    def buried(self, domain: bytes, name: str) -> bool:
        return False

    def erased_at(self, domain: bytes, name: str) -> int:
        return 0

    def seal(self, context: Context, record: Record) -> Record:
        return record

    def bits(self, context: Context, record: Record) -> bytes:
        return record.bitstring

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        return context.domain_name, record.name or "", record.about

    def seal_note(self, note: bytes, about: bytes) -> bytes:
        return note

    def open_note(self, note: bytes, about: bytes) -> bytes:
        return note

    def cache_keys(self, domain: bytes) -> list[bytes]:
        return [bytes(KEY)]


class LockedArchive(Encryption):
    """The keys of a sealed archive opened without its key: names are shown as their ids, boxes moved as they are."""

    session_key = staticmethod(identity.session_key)

    def domain_name(self, context: Context) -> str:
        """Return a name made from the domain's id."""
        return f"sealed {context.domain.hex()}"

    def seal(self, context: Context, record: Record) -> Record:
        return record

    def session(self, context: Context, record: Record) -> tuple[str, str, bytes]:
        """Return tenant, name and part made from their ids, and nothing else."""
        part = f"{record.part:08x}" if record.part else ""
        return self.domain_name(context), f"sealed {record.veil[:UNIT].hex()}", pack_about(part)

    def part_key(self, domain: bytes, key: bytes, part: str) -> int:
        return int(part or "0", 16)


def _locked() -> KeyMismatch:
    return KeyMismatch("this archive is sealed: open it with its passphrase, key file or key command")
