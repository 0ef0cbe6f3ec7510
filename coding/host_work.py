"""HostWork: the work of coding sessions beside the model, as pure methods that processes can run (workers.py).

    sessions --bytes, tokens proved to give them back, copies, 4-grams--> Prepared --> the model
    log      --bytes, passages--> Prepared --context chosen--> draft --> the model --> content   (log/log_coder.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pltz.coding.log.log_coder import LogTables
from pltz.coding.log.log_look import LEAST_ESCAPED, is_log
from pltz.coding.log.passages import passages_of
from pltz.coding.neighbours import Grams
from pltz.coding.sketch import GRAM
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec import limits, repeats
from pltz.plt_codec.errors import ContentError, OpaqueContentError, PltzError, TokenizerMismatch
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.options import CodingOptions
    from pltz.coding.sketch import Hashes
    from pltz.models.bundle.tokenizer import Ids
    from pltz.plt_codec.lanes import Tokens
    from pltz.plt_codec.repeats import Copy


@dataclass(frozen=True)
class Prepared:
    """A session before the model has it.

    Attributes:
        content: its bytes.
        tokens: (T,); None for a log, and where its bytes go to the fallback.
        copies: the long repeats of the tokens.
        grams: of the tokens, where it may be coded after an earlier session.
        patch: of ids of another tokenizer.
        log: whether it goes to the log coder.
        passages: of a log that may be coded after an earlier one, (h,).
        fast: bytes of the content under a fast zstd, where it has tokens.
    """

    content: bytes
    tokens: Ids | None = None
    copies: Sequence[Copy] = ()
    grams: Grams | None = None
    patch: bytes = b""
    log: bool = False
    passages: Hashes | None = None
    fast: int = 0


class HostWork(LogTables):
    """The work beside the model, with a bundle's tokenizer and its dictionary for zstd."""

    def __init__(self, tokenizer: BundleTokenizer, dictionary: bytes) -> None:
        super().__init__(tokenizer)
        self._dictionary, self._fallback = dictionary, Fallback(dictionary)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same."""
        return _host_work, (self.tokenizer.json, self._dictionary)

    def prepare(self, sessions: Sequence[Session], options: CodingOptions) -> list[Prepared | PltzError]:
        """Return sessions prepared, or the error of one that cannot be coded in its place."""
        begun = [self._begun(session, options) for session in sessions]
        chosen = [session for session, one in zip(sessions, begun, strict=True) if isinstance(one, bytes)]
        rows = iter(self.tokens(chosen, options.keep_opaque) if chosen else ())
        return [self.prepared(one, next(rows), options) if isinstance(one, bytes) else one for one in begun]

    def _begun(self, session: Session, options: CodingOptions) -> bytes | Prepared | PltzError:
        """Return the bytes of a session that the model may code; another prepared, or its error."""
        try:
            content = session.to_bytes()  # raises if over a limit, before anything is made of it
            if len(content) > LEAST_ESCAPED and is_log(session, content):
                if not options.keep_opaque:
                    transcript.refuse_opaque(session)
                return Prepared(content, log=True, passages=None if options.independent else passages_of(content))
            if len(content) > limits.ZSTD_ABOVE:
                tokens_for_model(session, self.tokenizer, by_zstd=True, keep_opaque=options.keep_opaque)
                return Prepared(content)
        except PltzError as exc:
            return exc
        return content

    def prepared(
        self, content: bytes, tokens: Ids | PltzError | None, options: CodingOptions, patch: bytes = b""
    ) -> Prepared | PltzError:
        """Return a session of these bytes and tokens, (T,), prepared, or the error that it has in place of these."""
        if isinstance(tokens, PltzError):
            return tokens
        if tokens is None:
            return Prepared(content, patch=patch)
        grams = None if options.independent or len(tokens) <= GRAM else Grams.of(tokens)
        return Prepared(content, tokens, repeats.find(tokens), grams, patch, fast=self._fallback.fast_size(content))

    def tokens(self, sessions: Sequence[Session], keep_opaque: bool) -> list[Ids | PltzError | None]:
        """Return the tokens of sessions as `tokens_to_store` does, or an error in its place."""
        with suppress(ContentError, TokenizerMismatch):  # all of them in one call, which is faster
            rows = transcript.to_tokens_many(sessions, self.tokenizer)
            pairs = zip(sessions, rows, strict=True)
            return [given_back(*pair, self.tokenizer) if pair[0].kind == "text" else pair[1] for pair in pairs]
        return [self._tokens(session, keep_opaque) for session in sessions]

    def _tokens(self, session: Session, keep_opaque: bool) -> Ids | PltzError | None:
        try:
            return tokens_to_store(session, self.tokenizer, keep_opaque=keep_opaque)
        except PltzError as exc:
            return exc

    def packed(self, content: bytes) -> bytes:
        """Return a content under zstd with the bundle's dictionary."""
        return self._fallback.compress(content)

    def candidates(self, rows: Sequence[tuple[Tokens, Tokens, int]]) -> list[list[list[Copy]]]:
        """Return the copies that are tried of sequences, each after its context, as `repeats.candidates` does."""
        return [repeats.candidates(*row) for row in rows]


def _host_work(tokenizer_json: bytes, dictionary: bytes) -> HostWork:
    return HostWork(BundleTokenizer(tokenizer_json), dictionary)


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


def tokens_to_store(session: Session, tokenizer: BundleTokenizer, *, keep_opaque: bool) -> Ids | None:
    """Return the bundle tokens of a session, (T,), as `tokens_for_model` does; None where they do not give it back."""
    tokens = tokens_for_model(session, tokenizer, by_zstd=False, keep_opaque=keep_opaque)
    return given_back(session, tokens, tokenizer)


def given_back(session: Session, tokens: Ids | None, tokenizer: BundleTokenizer) -> Ids | None:
    """Return tokens of a session, (T,); None for those of a text that do not give the same text back."""
    if tokens is not None and session.kind == "text" and tokenizer.decode(tokens) != session.value:
        return None
    return tokens
