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
from pltz.coding.sketch import Hashes, Sketch, SketchIndex, hashes_of, least_shared
from pltz.plt_codec.container.frame import CONTEXT_TOKENS, MOST_CONTEXTS, context_of

if TYPE_CHECKING:
    from pltz.plt_codec.lanes import Tokens

HASHES = 256  # of a sketch: it is never stored, and finds short sessions too
LONGEST = 4096  # tokens of a neighbour; it helps the first block only, and a long one is slow to decode
NAME_BYTES = 2  # that naming a neighbour takes where both are in one block
KEPT = 1 << 23  # tokens of earlier sessions that are kept, 32 MB
LEAST_KEPT = 1 << 6  # tokens that a session counts for, however few it has: 131,072 sessions are kept at most
RUN = 1 << 20  # tokens of a run of sessions
SETTLED = 2  # runs after which trials count: a device makes those of a run while the next one is looked through
LOGS_KEPT = 1 << 26  # bytes of earlier logs that are kept
LOGS_TRIED = 2  # of the nearest logs
NO_SKETCH = Sketch.of(np.zeros(0, np.uint32))


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
        sketch: of what is read of it, where it may be one of `Neighbours`.
        proposed: number of contexts that stand behind it if all trials succeed that do not count yet.
    """

    number: int
    tokens: Tokens
    context: Earlier | None = None
    run: int = 0
    sketch: Sketch = NO_SKETCH
    proposed: int = field(init=False)

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
        self._logs, self._log_index = list[Earlier](), SketchIndex()
        self._log_bytes = 0
        self._sessions, self._index = list[Earlier](), SketchIndex()  # the newest are in the index once it is searched
        self._tokens = 0
        self._seen = 0  # tokens of all sessions
        self._deep = deque[Earlier]()  # those of the last runs that serve none unless a trial fails

    def run_of(self, tokens: int) -> int:
        """Return the run of the next session, of so many tokens. Each session is told once."""
        run = self._seen // RUN
        self._seen += tokens
        return run

    def log(self, number: int, content: bytes, hashes: Hashes) -> Earlier | None:
        """Return the earlier log that a log is worth coding after, or None; the log may serve later ones.

        ``hashes``: of all its passages, as `passages_of` gives them, (h,).
        """
        near = self._log_index.nearest_to(hashes, LOGS_TRIED, passages.LEAST_SHARED * len(hashes))
        most = passages.most_before(len(content))
        short = [self._logs[n] for n, _ in near if len(self._logs[n].tokens) <= most]
        found = passages.worth_most(content, short, lambda one: one.tokens.tobytes())
        one = Earlier(number, np.frombuffer(content, np.uint8), found)
        if one.depth < MOST_CONTEXTS and one.part.to_follow:
            if self._log_bytes + len(content) > LOGS_KEPT:  # forget all: the sketches of a few cannot be taken out
                self._logs, self._log_index, self._log_bytes = [], SketchIndex(), 0
            self._logs.append(one)
            self._log_index.add([passages.sketch_of_passages(hashes)])
            self._log_bytes += len(content)
        return found

    def propose(self, sessions: Sequence[tuple[int, Tokens, Grams]], run: int = 0) -> list[Earlier]:
        """Return the next sessions, each with the earlier one that it is to be tried after, if any.

        They may serve later ones, also among themselves.

        Args:
            sessions: their numbers in the file, tokens, (T,), and 4-grams.
            run: their run. All trials of the runs `SETTLED` before it and earlier were made.
        """
        while self._deep and self._deep[0].run + SETTLED <= run:
            self._add(self._deep.popleft())
        self._index.add([one.sketch for one in self._sessions[len(self._index) :]])
        wanted, least = [one[2].all for one in sessions], [least_shared(one[1]) for one in sessions]
        before = self._index.nearest_to_each(wanted, least)
        beside = SketchIndex([one[2].sketch for one in sessions]).nearest_to_each(wanted, least, len(sessions))
        known, mine, made = self._sessions, dict[int, Earlier](), list[Earlier]()
        for n, (number, tokens, grams) in enumerate(sessions):
            near = [(shared, mine[at]) for at, shared in beside[n] if at in mine][:1]
            near += [(shared, known[at]) for at, shared in before[n]]
            _, context = max(near, key=lambda one: one[0], default=(0, None))  # of equal ones the later
            one = Earlier(number, tokens, context, run, grams.sketch)
            made.append(one)
            if one.proposed >= MOST_CONTEXTS:
                self._deep.append(one)
            elif self._add(one):
                mine[n] = one
            if known is not self._sessions:  # some were forgotten, so others are the nearest
                return made + self.propose(sessions[n + 1 :], run)
        return made

    def _add(self, session: Earlier) -> bool:
        """Add a session, and return whether it can be a context: none that is long or has too many of them behind."""
        if len(session.tokens) > LONGEST or session.depth >= MOST_CONTEXTS:
            return False
        session.tokens = session.tokens[:CONTEXT_TOKENS].copy()
        if self._tokens + _weight(session) > KEPT:
            self._forget()
        self._sessions.append(session)
        self._tokens += _weight(session)
        return True

    def _forget(self) -> None:
        """Forget the older half of the tokens."""
        sizes = np.cumsum([_weight(session) for session in self._sessions[::-1]])
        kept = self._sessions[len(self._sessions) - int(np.searchsorted(sizes, KEPT // 2)) :]
        self._sessions, self._tokens, self._index = kept, sum(map(_weight, kept)), SketchIndex()


def _weight(session: Earlier) -> int:
    return max(LEAST_KEPT, len(session.tokens))
