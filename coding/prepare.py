"""The tokens of a session that the model codes, or none where its bytes go to zstd: for files and archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.models.session import transcript
from pltz.plt_codec.errors import OpaqueContentError

if TYPE_CHECKING:
    from pltz.models.bundle.tokenizer import BundleTokenizer, Ids
    from pltz.models.session.session import Session


def tokens_for_model(session: Session, tokenizer: BundleTokenizer, *, by_zstd: bool, keep_opaque: bool) -> Ids | None:
    """Return the bundle tokens of a session, (T,); None where its bytes are coded by zstd.

    Args:
        by_zstd: it is too long for the model. Its parts and ids are checked all the same.
        keep_opaque: keep images, audio and files, which have no tokens, as bytes.

    Raises:
        ContentError: it cannot be coded; OpaqueContentError for a part that is not to be kept.
        TokenizerMismatch: its ids are none of the bundle.
    """
    try:
        if not by_zstd:
            return transcript.to_tokens(session, tokenizer)
        if session.kind == "ids":
            transcript.to_tokens(session, tokenizer)  # raises for ids of another tokenizer
        elif not keep_opaque:
            transcript.refuse_opaque(session)
    except OpaqueContentError:
        if not keep_opaque:
            raise
    return None


def tokens_to_store(session: Session, tokenizer: BundleTokenizer, *, by_zstd: bool, keep_opaque: bool) -> Ids | None:
    """Return the bundle tokens of a session, (T,), as `tokens_for_model` does; None where they do not give it back."""
    tokens = tokens_for_model(session, tokenizer, by_zstd=by_zstd, keep_opaque=keep_opaque)
    return given_back(session, tokens, tokenizer)


def given_back(session: Session, tokens: Ids | None, tokenizer: BundleTokenizer) -> Ids | None:
    """Return tokens of a session, (T,); None for those of a text that do not give the same text back."""
    if tokens is not None and session.kind == "text" and tokenizer.decode(tokens) != session.value:
        return None
    return tokens
