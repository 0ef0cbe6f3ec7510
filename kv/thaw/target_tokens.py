"""The ids with which a target is prefilled for a tower, and the segment each of them belongs to.

    tokens   |<|system|> You are ... | <|user|> Hi <|assistant|> Hello | <|meta|> {...} |
    ids       0 ............... 70     70 ................... 75         75 .. 75      same tokenizer
    ids       0 .. 0                   0 .................... 0          0 ... 81      another tokenizer

With the same tokenizer and chat template the ids are the tokens themselves. Of an agent's log they are those of the
conversation that the agent had (`datasets.conversation`), rendered as with another tokenizer.

With another tokenizer or template the ids are those of the rendered chat. No cut of them matches a cut of the archive's
tokens. So all ids belong to the last segment, and are shared only by sessions that share the whole tower. Sessions
archived as the ids a target saw (`bridged.BridgedCodec`) map to the same ids again, segment by segment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.archive import SessionReader
from pltz.datasets import HEAD, left_out, messages_of, registry, rendered
from pltz.models import LIST, MESSAGE, SPECIALS, Bridge, as_seen_by, conversation_span, kind_of
from pltz.plt_codec import TokenizerMismatch, is_bytewise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.archive import Archive, Tower, Version
    from pltz.models import Target


@dataclass(frozen=True, eq=False)
class TargetTokens:
    """The ids of a tower for one target.

    ``ids``: (T,) int32, of the target's tokenizer. ``cuts``: (segments + 1,), where the ids of each segment
    begin, and where those of the last one end. ``left_out``: what they leave out of a log, in a sentence.
    """

    ids: NDArray[np.int32]
    cuts: list[int]
    left_out: str = ""

    def of(self, segment: int) -> NDArray[np.int32]:
        """Return the ids of one segment, (n,) int32. ``segment``: its number in the tower."""
        return self.ids[self.cuts[segment] : self.cuts[segment + 1]]


class TargetTokenReader:
    """The mapping of one archive's sessions to the ids of one target."""

    def __init__(self, archive: Archive, target: Target) -> None:
        parts, codecs = archive.parts, archive.codecs
        self._codecs, self._tokenizer = codecs, codecs.tokenizer
        self._sessions, self._target = SessionReader(parts.reader, codecs), target
        self._bridge = Bridge(target.tokenizer_json, codecs.tokenizer)
        self._same = self._bridge.identity  # the bundle's tokenizer is the target's own
        self._own = {self._bridge.fingerprint} | ({codecs.tokenizer.fingerprint} if self._same else set())

    def prepare(self, version: Version) -> None:
        """Let the archive decode the target's own ids in a version, where the bundle has another
        tokenizer."""
        if not self._same and version.tokenizer == self._bridge.fingerprint:
            self._codecs.add(self._target.tokenizer_json, self._target.device.type)

    def _may_be_log(self, tower: Tower) -> bool:
        """Return whether a tower of the bundle's tokens may be an agent's log. Most chats are none at a look."""
        kind, tokens = kind_of(tower.version.kind), tower.tokens
        if kind == "text" and tower.version.tokenizer == self._tokenizer.fingerprint:
            head = self._tokenizer.decode(tokens[:HEAD])
            return head.lstrip()[:1] in (b"{", b"[") or registry.of_head(head) is not None
        return kind == "chat" and bool(np.any(tokens[:1] == LIST) or np.any(tokens == MESSAGE))

    def read(self, tower: Tower) -> TargetTokens:
        """Return the ids that stand for a tower.

        Raises TokenizerMismatch for ids of another tokenizer, ContentError, BundleMismatch and CorruptError.
        """
        kind, tokenizer = kind_of(tower.version.kind), tower.version.tokenizer
        ends = list(itertools.accumulate((len(tokens) for _, tokens in tower.segments), initial=0))
        own = tokenizer in self._own and not is_bytewise(tokenizer)
        own = own and (kind != "chat" or self._target.writes_as_shipped or tokenizer != self._tokenizer.fingerprint)
        session = None if own and not self._may_be_log(tower) else self._sessions.session(tower)
        messages = messages_of(session) if session else None
        if session and messages is not None:
            ids = np.asarray(rendered(self._target, messages).value, np.int32)
            return TargetTokens(ids, [0] * len(tower.segments) + [len(ids)], left_out(session))
        if own:
            tokens = tower.tokens
            begin, end = conversation_span(tokens) if kind == "chat" else (0, len(tokens))
            if kind == "chat":
                words = self._tokenizer.decode(tokens[tokens >= len(SPECIALS)]).decode("utf8", "replace")
                self._target.warn_of_control([("this chat", words)])
            return TargetTokens(tokens[begin:end].astype(np.int32), [min(max(at, begin), end) - begin for at in ends])
        session = session or self._sessions.session(tower)
        if kind == "ids" and not self._same:
            raise TokenizerMismatch("these ids belong to the bundle's tokenizer, and the target has another one")
        ids = np.asarray(as_seen_by(self._target, session).value, np.int32)
        return TargetTokens(ids, [0] * len(tower.segments) + [len(ids)])
