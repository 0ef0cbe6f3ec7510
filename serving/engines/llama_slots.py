"""The token ids in a slot file of llama.cpp's ``llama-server`` (``POST /slots/ID?action=save``). Read only.

    u32 magic "ggsq" | u32 version 3 | u32 count | count words | KV of the slot (not read)

    words     i32 per token (older servers), or
              -1 | 1 (their own version) | u32 n | n tokens | u32 media | descriptions of images and audio

Only the ids are read. The KV in the file belongs to one model, one KV type and one build, and the file names
none of them. The server accepts it for any model of the same shape. Ids that are prefilled again are right by
construction. The file has no checksum either. A damaged id is detected only outside the vocabulary, so pass
``vocab_size`` where it is known.

Source: llama.cpp, src/llama-context.cpp (state_seq_save_file) and tools/server/server-common.cpp
(server_tokens::serialize).
"""

from __future__ import annotations

import os
import stat
import struct
from typing import BinaryIO

import numpy as np

from pltz.archive import Tokens
from pltz.plt_codec import ContentError, CorruptError, FormatError, OpaqueContentError, UsageError, VersionError

Path = str | os.PathLike[str]

HEAD = struct.Struct("<4sII")
MAGIC, VERSION = b"qsgg", 3  # the u32 'ggsq' as stored in the file
MARK, PACKED_VERSION = -1, 1


def read_slot_ids(path: Path, vocab_size: int | None = None) -> Tokens:
    """Return the ids of a slot file, (T,) int64: the tokens whose KV the slot held.

    The last sampled token is not among them.

    Args:
        vocab_size: ids from here on are treated as damage.

    Raises:
        UsageError: no such file.
        FormatError: not a slot file.
        VersionError: a file of another version.
        CorruptError: a count or an id is invalid.
        OpaqueContentError: the slot held an image or audio.
        ContentError: the slot was empty.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"expected a slot file, found {os.fspath(path)}, which is no file")
            words = _words(file, os.fspath(path))
    except OSError as exc:
        raise UsageError(f"cannot read {os.fspath(path)}: {exc.strerror or exc}") from exc
    ids = _unpack(words, os.fspath(path)) if len(words) and words[0] == MARK else words
    return _checked(ids, vocab_size, os.fspath(path))


def _words(file: BinaryIO, path: str) -> Tokens:
    """Return the words before the KV, (n,) int64, in no more memory than the file's length."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size or head[:4] != MAGIC:
        raise FormatError(f"{path} is not a slot file of llama-server: it does not begin with {MAGIC!r}")
    _, version, count = HEAD.unpack(head)
    if version != VERSION:
        raise VersionError(f"{path}: expected a slot file of version {VERSION}, found {version}")
    room = (os.fstat(file.fileno()).st_size - HEAD.size) // 4
    data = file.read(4 * count) if count <= room else b""
    if len(data) != 4 * count:
        raise CorruptError(f"{path}: expected {count} words, found room for {room}: cut short or damaged")
    return np.frombuffer(data, "<i4").astype(np.int64)


def _unpack(words: Tokens, path: str) -> Tokens:
    """Return the tokens of newer servers' packed words. All lengths must agree to the last word."""
    if len(words) < 4:
        raise CorruptError(f"{path}: expected at least 4 words, found {len(words)}: damaged")
    if words[1] != PACKED_VERSION:
        raise VersionError(f"{path}: expected tokens of version {PACKED_VERSION}, found {words[1]}")
    count = int(words[2])
    if not 0 <= count <= len(words) - 4:
        raise CorruptError(f"{path}: expected at most {len(words) - 4} tokens, found {count}: damaged")
    if words[3 + count] != 0:
        raise OpaqueContentError(
            f"{path}: the slot holds {words[3 + count]} images or sounds, which token ids do not bring back"
        )
    if len(words) != 4 + count:
        raise CorruptError(f"{path}: expected {4 + count} words, found {len(words)}: damaged")
    return words[3 : 3 + count]


def _checked(ids: Tokens, vocab_size: int | None, path: str) -> Tokens:
    if not len(ids):
        raise ContentError(f"{path}: the slot was empty")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        bad = low if low < 0 else high
        raise CorruptError(
            f"{path}: expected ids from 0 to {(vocab_size or 1 << 31) - 1}, found {bad}: damaged, or of another model"
        )
    return ids
