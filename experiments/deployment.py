"""A deployment: one platform, its communities and bots, and the chats of their users, as towers of token ids.

    platform prompt  |  community prompt  |  bot's own sentences  |  chat
          1                    50                   500             one per session

The prompts are real or made from real ones (`communities.py`), the chats are real. It is the case of the Towers paper,
tables 1 and 4, and of `python -m pltz.experiments papers` and `python -m pltz.experiments stack`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.archive.writing.put_request import PutRequest
from pltz.experiments.communities.communities import BOTS, COMMUNITIES, community_of, sampled
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.models.target.target import Target

    Ids = NDArray[np.int64]

LEVELS = PLATFORM, COMMUNITY, BOT, SESSION = "platform", "community", "bot", "session"
BEGIN = 1_700_000_000  # time of the first put, in seconds since 1970


@dataclass(frozen=True, eq=False)
class Deployment:
    """The token ids of every level, each without those above it.

    ``platform``: (T,). ``communities``, ``bots``: (T,) of each. ``chats``: (T,) of each session. Bot ``n`` belongs to
    `community_of_bot`, session ``n`` to `bot_of`. Immutable: any thread may use it.
    """

    platform: Ids
    communities: list[Ids]
    bots: list[Ids]
    chats: list[Ids]

    @classmethod
    def made(
        cls, target: Target, sessions: Sequence[Session], *, communities: int, bots: int, count: int,
        platform: int = 1024, most: int = 1024,
    ) -> Deployment:  # fmt: skip
        """Return a deployment of a target's ids with ``count`` chats.

        Args:
            sessions: chats, taken in order and again from the first where they are too few. System messages are left
                out, since the deployment has its own.
            communities, bots: how many, at most 50 and 500.
            platform: tokens of the platform's prompt, at most.
            most: tokens of a chat, at most; the rest is cut off.

        Raises UsageError where there is no chat, or more communities or bots than are made.
        """
        from pltz.datasets.loaders import sample_path

        if not (1 <= communities <= COMMUNITIES and 1 <= bots <= BOTS):
            raise UsageError(f"expected 1 to {COMMUNITIES} communities and 1 to {BOTS} bots")
        made = sampled()
        texts = [one.prompt for one in made.made[:communities]]
        prompts = zip(range(bots), made.bots(), strict=False)
        own = [text[len(made.made[community_of(number)].prompt) :] for number, text in prompts]
        talks = [found for session in sessions if (found := _chat(session)) is not None]
        if not talks:
            raise UsageError("expected chats, found none: give --data with records that have messages")
        chats = [_seen(target, talk)[:most] for talk in talks[:count]]
        chats = [chats[n % len(chats)] for n in range(count)]
        tenants = json.loads(sample_path().with_name("tenants.json").read_bytes())
        first = _ids(target, tenants["platform"]["text"])[:platform]
        return cls(first, [_ids(target, text) for text in texts], [_ids(target, text) for text in own], chats)

    def community_of_bot(self, bot: int) -> int:
        """Return the number of a bot's community."""
        return community_of(bot) % len(self.communities)

    def bot_of(self, session: int) -> int:
        """Return the number of a session's bot: the sessions are spread evenly over the bots."""
        return session * 7 % len(self.bots)

    def tower(self, session: int) -> list[Ids]:
        """Return the ids of the four levels of a session."""
        bot = self.bot_of(session)
        return [self.platform, self.communities[self.community_of_bot(bot)], self.bots[bot], self.chats[session]]

    def levels(self) -> dict[str, list[Ids]]:
        """Return the distinct segments of each level."""
        return {PLATFORM: [self.platform], COMMUNITY: self.communities, BOT: self.bots, SESSION: self.chats}

    def put_prompts(self, cold: Archive, target: Target) -> dict[str, int]:
        """Put every prompt once, and return the bytes of new segments of each of the three levels."""
        sizes = {}
        for level in LEVELS[:3]:
            sizes[level] = sum(receipt.size for receipt in cold.put_many(list(self._prompts(level, target))))
        return sizes

    def put_sessions(self, cold: Archive, target: Target, first: int, last: int) -> int:
        """Put sessions ``first`` up to ``last``, without it, and return the bytes of their new segments."""
        requests = [
            self._request(f"{SESSION}/{n}", self.tower(n), target, BEGIN + 1000 + n) for n in range(first, last)
        ]
        return sum(receipt.size for receipt in cold.put_many(requests))

    def _prompts(self, level: str, target: Target) -> Iterator[PutRequest]:
        towers: list[list[Ids]] = {
            PLATFORM: [[self.platform]],
            COMMUNITY: [[self.platform, one] for one in self.communities],
            BOT: [
                [self.platform, self.communities[self.community_of_bot(n)], one] for n, one in enumerate(self.bots)
            ],
        }[level]
        for number, tower in enumerate(towers):
            yield self._request(f"{level}/{number}", tower, target, BEGIN + LEVELS.index(level))

    @staticmethod
    def _request(name: str, tower: Sequence[Ids], target: Target, time: int) -> PutRequest:
        ends = np.cumsum([len(one) for one in tower]).tolist()
        return PutRequest(
            name, np.concatenate(tower), target=target.fingerprint, tokenizer=target.tokenizer_json,
            prefixes=ends[:-1], time=time,
        )  # fmt: skip


def _ids(target: Target, text: str) -> Ids:
    return np.asarray(target.tokenize(text), np.int64)


def _chat(session: Session) -> Session | None:
    """Return a chat without system messages, or None where nothing is left or it is no chat."""
    value: Any = session.value
    messages = value.get("messages") if session.kind == "chat" and isinstance(value, dict) else None
    rest = [one for one in messages or () if one.get("role") != "system"]
    return Session("chat", {"messages": rest}) if rest else None


def _seen(target: Target, session: Session) -> Ids:
    from pltz.models.target.target import as_seen_by

    return np.asarray(as_seen_by(target, session).value, np.int64)
