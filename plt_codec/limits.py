"""The limits of one session, defined here alone. Figures and reasons: docs/limits.md.

Every entry point checks a session against `MAX_BYTES` before it is tokenised or coded. Readers check the
sizes that a file claims before they allocate. So the largest session decides how much memory a command needs.

    pltz compress, pltz archive put, pltz.compress, pltz.Archive, nightly job          MAX_BYTES, but of logs and
                                                                                         texts for an archive
    eviction hook, pltz.Archive                                                          MAX_IDS
    .pltz files, archive records and towers                                            MAX_TOKENS
"""

from __future__ import annotations

from pltz.plt_codec.errors import LimitError

MAX_BYTES = 1 << 26  # bytes of one session in plain form: `Session.to_bytes`
MAX_IDS = MAX_BYTES // 4  # token ids of one session: each counts for 4 bytes
MAX_TOKENS = MAX_BYTES + (1 << 12)  # of a frame or a tower: one token per byte, plus the specials of a chat
MAX_DENSITY = 1 << 16  # tokens of a record or of a bridged frame per byte, and one byte more
ZSTD_ABOVE = 1 << 22  # bytes: zstd, not the model, codes larger sessions; PPMd those of an archive, and larger logs


def check_bytes(found: int) -> None:
    """Refuse a session of ``found`` bytes if that is over `MAX_BYTES`.

    Raises:
        LimitError: ``found`` is over the limit.

    >>> check_bytes(MAX_BYTES)
    """
    if found > MAX_BYTES:
        raise LimitError(
            f"expected a session of at most {MAX_BYTES} bytes, found {found}: split it into several sessions"
        )


def check_ids(found: int) -> None:
    """Refuse a session of ``found`` token ids if that is over `MAX_IDS`.

    Raises:
        LimitError: ``found`` is over the limit.
    """
    if found > MAX_IDS:
        raise LimitError(
            f"expected a session of at most {MAX_IDS} token ids, found {found}: split it into several sessions"
        )
