"""Neighbours: for each session of a file, an earlier one that it may be coded after.

    session --sketch--> nearest earlier session --real code length--> context, or none

A session with much in common with an earlier one takes fewer bytes after it, and after that one's contexts. At most
three contexts stand one behind the other, so a reader of one session decodes at most four, none of them long. Sketches
(sketch.py) tell which earlier session is nearest. The bytes of the frame tell whether it is worth it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.coding.log.earlier_logs import EarlierLogs
from pltz.coding.sketch import GRAM, NearestItems, Sketch, hashes_of, least_shared
from pltz.plt_codec.container.frame import CONTEXT_TOKENS, MOST_CONTEXTS, context_of

if TYPE_CHECKING:
    from pltz.plt_codec.types import Tokens

HASHES = 256  # of a sketch, four times those of the archive: it is never stored, and finds short sessions too
LONGEST = 4096  # tokens of both sessions; a context helps the first block only, and a long one is slow to decode
NAME_BYTES = 2  # that naming an earlier one takes where both are in one block
KEPT = 1 << 23  # tokens of earlier sessions that are kept, 32 MB


@dataclass(eq=False)
class Earlier:
    """A session of a file, and the one that it may be coded after.

    Attributes:
        number: its number in the file.
        tokens: (T,), or the first `CONTEXT_TOKENS` once it is one of `Neighbours`.
        context: an earlier one; None: it is coded alone.
    """

    number: int
    tokens: Tokens
    context: Earlier | None = None

    def behind(self, most: int = MOST_CONTEXTS) -> Tokens:
        """Return the context of the session (m,), of at most so many sessions. It has one."""
        line: list[Tokens] = []
        one = self.context
        while one is not None and len(line) < most:
            line.append(one.tokens)
            one = one.context
        return context_of(*line)

    @property
    def depth(self) -> int:
        """Return the number of contexts that stand behind the session, one behind the other."""
        return 0 if self.context is None else 1 + self.context.depth

    def settled(self, left: Container[int]) -> bool:
        """Return whether its context is none of the sessions of these numbers."""
        return self.context is None or self.context.number not in left


class Neighbours:
    """The earlier sessions of a file that can be a context. Their tokens are kept within a budget, the latest ones.

    ``logs``: those that are logs, each the context of logs alone.
    """

    def __init__(self) -> None:
        self.logs = EarlierLogs()
        self._sessions: list[Earlier] = []
        self._index = NearestItems[Earlier]()  # sessions are added to it when one is looked for
        self._tokens = 0

    def add(self, session: Earlier) -> None:
        """Add a session that has tokens; nothing where it is long, or has too many contexts behind it."""
        if len(session.tokens) > LONGEST or session.depth == MOST_CONTEXTS:
            return
        session.tokens = session.tokens[:CONTEXT_TOKENS].copy()
        if self._tokens + len(session.tokens) > KEPT:
            self._forget()
        self._sessions.append(session)
        self._tokens += len(session.tokens)

    def nearest(self, tokens: Tokens) -> Earlier | None:
        """Return the earlier session that is worth trying as the context of a sequence (T,), or None."""
        if not self._sessions or not GRAM < len(tokens) <= LONGEST:
            return None
        for session in self._sessions[len(self._index) :]:
            self._index.add(session, Sketch.of(hashes_of(session.tokens), HASHES))
        found = self._index.nearest_to(hashes_of(tokens), least_shared(tokens))
        return found[0][1] if found else None

    def _forget(self) -> None:
        """Forget the older half of the tokens."""
        sizes = np.cumsum([len(session.tokens) for session in self._sessions[::-1]])
        kept = self._sessions[len(self._sessions) - int(np.searchsorted(sizes, KEPT // 2)) :]
        self._sessions, self._tokens = kept, sum(len(session.tokens) for session in kept)
        self._index = NearestItems()
