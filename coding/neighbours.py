"""Neighbours: for each session of a file, an earlier one that it may be coded after.

    session --4-grams--> nearest earlier session --real code length--> context, or none
    log     --passages--> nearest earlier logs --fast zstd, alone and after each--> context, or none

A session with much in common with an earlier one takes fewer bytes after it, and after that one's contexts. At most
three contexts stand one behind the other, so a reader of one session decodes at most four, none of them long. Both the
4-grams of a session and the passages of a log (log/passages.py) are looked up in sketches. The bytes of the frame tell
whether a session's context is worth it. A log is coded once, so a fast zstd does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.coding.log import passages
from pltz.coding.log.above import Above
from pltz.coding.sketch import GRAM, Hashes, NearestItems, Sketch, hashes_of, least_shared
from pltz.plt_codec.container.frame import CONTEXT_TOKENS, MOST_CONTEXTS, context_of

if TYPE_CHECKING:
    from pltz.plt_codec.types import Tokens

HASHES = 256  # of a sketch: it is never stored, and finds short sessions too
LONGEST = 4096  # tokens of a neighbour; it helps the first block only, and a long one is slow to decode
NAME_BYTES = 2  # that naming a neighbour takes where both are in one block
KEPT = 1 << 23  # tokens of earlier sessions that are kept, 32 MB
LEAST_KEPT = 1 << 6  # tokens that a session counts for, however few it has: 131,072 sessions are kept at most
RUN = 1 << 20  # tokens of a run of sessions
SETTLED = 2  # runs after which trials count: a device makes those of a run while the next one is looked through
LOGS_KEPT = 1 << 26  # bytes of earlier logs that are kept
LOGS_TRIED = 2  # of the nearest logs


class Grams(NamedTuple):
    """The 4-grams of a session with tokens.

    Attributes:
        all: distinct hashes of its 4-grams, (h,).
        sketch: of what is read of it as a context.
    """

    all: Hashes
    sketch: Sketch

    @classmethod
    def of(cls, tokens: Tokens) -> Grams:
        """Return those of a session, (T,)."""
        grams, read = hashes_of(tokens), tokens[: CONTEXT_TOKENS if len(tokens) <= LONGEST else 0]
        return cls(grams, Sketch.of(grams if len(read) == len(tokens) else hashes_of(read), HASHES))


@dataclass(eq=False)
class Earlier:
    """A session of a file, and the one that it may be coded after.

    Attributes:
        number: its number in the file.
        tokens: (T,), or the first `CONTEXT_TOKENS` once it is one of `Neighbours`; bytes of a log.
        context: an earlier one; None: it is coded alone.
        run: number of the run of `RUN` tokens that it is one of.
        proposed: number of contexts that stand behind it if all trials succeed that do not count yet.
        sketch: of what is read of it, once it is one of `Neighbours`.
    """

    number: int
    tokens: Tokens
    context: Earlier | None = None
    run: int = 0
    proposed: int = field(init=False)
    sketch: Sketch = field(init=False)

    def __post_init__(self) -> None:
        self.proposed = 0 if self.context is None else 1 + self.context.depth_in(self.run)

    @cached_property
    def part(self) -> Above:
        """Return what a log is coded after that has this one as its context."""
        return Above.of(self.tokens.tobytes(), self.context.part if self.context else None)

    @property
    def depth(self) -> int:
        """Return the number of contexts that stand behind it, one behind the other."""
        return 0 if self.context is None else 1 + self.context.depth

    def depth_in(self, run: int) -> int:
        """Return the number of contexts behind it as a session of a run sees it.

        Trials of the last runs may not have been made yet: that would depend on how sessions fall into batches.
        """
        return self.proposed if run < self.run + SETTLED else self.depth

    def behind(self, most: int = MOST_CONTEXTS) -> Tokens:
        """Return the context of the session (m,), of at most so many sessions. It has one."""
        line: list[Tokens] = []
        one = self.context
        while one is not None and len(line) < most:
            line.append(one.tokens)
            one = one.context
        return context_of(*line)

    def settled(self, left: Container[int]) -> bool:
        """Return whether its context is none of the sessions of these numbers."""
        return self.context is None or self.context.number not in left


class Neighbours:
    """The earlier sessions of a file that can be a context. Their tokens are kept within a budget, the latest ones.

    Logs are contexts of logs alone.
    """

    def __init__(self) -> None:
        self._logs = NearestItems[Earlier]()
        self._log_bytes = 0
        self._sessions: list[Earlier] = []
        self._index = NearestItems[Earlier]()  # sessions are added to it when one is looked for
        self._later = NearestItems[Earlier]()  # those behind them since `look`
        self._looked: dict[int, list[tuple[float, Earlier]]] = {}  # of the next sessions, the nearest in the index
        self._tokens = 0
        self._seen = 0  # tokens of all sessions
        self._deep = deque[tuple[Earlier, Grams]]()  # those of the last runs that serve none unless a trial fails

    def run_of(self, tokens: int) -> int:
        """Return the run of the next session, of so many tokens. Each session is told once."""
        run = self._seen // RUN
        self._seen += tokens
        return run

    def look(self, sessions: Sequence[tuple[int, Tokens, Grams]]) -> None:
        """Look for the nearest of the earlier sessions to each of the next ones, all at once, for `propose`.

        They come by number, with their tokens, (T,). Other threads of Python run meanwhile.
        """
        self._later = NearestItems()
        self._fill(self._index)
        some = [one for one in sessions if len(one[1]) > GRAM]
        found = self._index.nearest_to_each(
            [grams.all for _, _, grams in some], [least_shared(tokens) for _, tokens, _ in some]
        )
        self._looked = {number: one for (number, _, _), one in zip(some, found, strict=True)}

    def log(self, number: int, content: bytes, hashes: Hashes) -> Earlier | None:
        """Return the earlier log that a log is worth coding after, or None; the log may serve later ones.

        ``hashes``: of all its passages, as `passages_of` gives them, (h,).
        """
        near = self._logs.nearest_to(hashes, passages.LEAST_SHARED * len(hashes), LOGS_TRIED)
        short = [one for _, one in near if len(one.tokens) <= passages.most_before(len(content))]
        found = passages.worth_most(content, short, lambda one: one.tokens.tobytes())
        one = Earlier(number, np.frombuffer(content, np.uint8), found)
        if one.depth < MOST_CONTEXTS and one.part.to_follow:
            if self._log_bytes + len(content) > LOGS_KEPT:  # forget all: the sketches of a few cannot be taken out
                self._logs, self._log_bytes = NearestItems(), 0
            self._logs.add(one, passages.sketch_of_passages(hashes))
            self._log_bytes += len(content)
        return found

    def _fill(self, index: NearestItems[Earlier]) -> None:
        """Add the sessions that are in no index yet."""
        for session in self._sessions[len(self._index) + len(self._later) :]:
            index.add(session, session.sketch)

    def propose(self, number: int, tokens: Tokens, grams: Grams, run: int = 0) -> Earlier:
        """Return a session, (T,), with the earlier one that it is to be tried after, if any; it may serve later ones.

        Args:
            number: of the session in the file.
            tokens: its tokens, (T,).
            grams: their 4-grams.
            run: its run. All trials of the runs `SETTLED` before it and earlier were made.
        """
        while self._deep and self._deep[0][0].run + SETTLED <= run:
            self.add(*self._deep.popleft())
        context = self.nearest(tokens, grams, self._looked.pop(number, None))
        one = Earlier(number, tokens, context, run)
        if one.proposed < MOST_CONTEXTS:
            self.add(one, grams)
        elif len(tokens) <= LONGEST:
            self._deep.append((one, grams))
        return one

    def add(self, session: Earlier, grams: Grams | None = None) -> None:
        """Add a session that has tokens; nothing where it is long, or has too many contexts behind it."""
        if len(session.tokens) > LONGEST or session.depth >= MOST_CONTEXTS:
            return
        session.sketch = (grams or Grams.of(session.tokens)).sketch
        session.tokens = session.tokens[:CONTEXT_TOKENS].copy()
        if self._tokens + _weight(session) > KEPT:
            self._forget()
        self._sessions.append(session)
        self._tokens += _weight(session)

    def nearest(
        self, tokens: Tokens, grams: Grams | None = None, looked: list[tuple[float, Earlier]] | None = None
    ) -> Earlier | None:
        """Return the earlier session that is worth trying as the context of a sequence (T,), or None.

        ``looked``: what `look` found.
        """
        if not self._sessions or len(tokens) <= GRAM:
            return None
        wanted, least = (grams or Grams.of(tokens)).all, least_shared(tokens)
        self._fill(self._index if looked is None and not len(self._later) else self._later)
        near = self._later.nearest_to(wanted, least)
        near += self._index.nearest_to(wanted, least) if looked is None else looked
        return max(near, key=lambda one: one[0])[1] if near else None  # of equal ones the later

    def _forget(self) -> None:
        """Forget the older half of the tokens."""
        sizes = np.cumsum([_weight(session) for session in self._sessions[::-1]])
        kept = self._sessions[len(self._sessions) - int(np.searchsorted(sizes, KEPT // 2)) :]
        self._sessions, self._tokens = kept, sum(map(_weight, kept))
        self._index, self._later, self._looked = NearestItems(), NearestItems(), {}


def _weight(session: Earlier) -> int:
    return max(LEAST_KEPT, len(session.tokens))
