"""AgentMemory: the KV of agents as their working memory, packed, apart from each other, and kept over restarts.

    with AgentMemory.open("agents/", target, "q4", tokens=100_000) as memory:
        memory.phase("judge", "You are a judge. Round 1: ...", 64).text
        memory.phase("judge", "Round 2: ...", 64).text          # runs the new ids only

    phase     text of the agent + new text ---\\
    respond   a whole prompt -------------------> match by characters -> cut -> new ids over packed pages -> reply
    many      one phase of several agents ----/                                           |
                                              file of each agent, synced  <---------------/

Each agent is a tenant of its own in the store (`store.py`): its KV is in the pool while there is room, then in host
memory, then in files, and what is nowhere any more is run again. Its file has its text and ids, and must stay.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pltz.kv.errors import MemoryFailed, MemoryMismatch, PoolFull
from pltz.kv.memory.prefix_match import PrefixMatch, cut, ends_of, spelled
from pltz.kv.memory.remembered import FORGET, MAX_TOKENS, Remembered, name_of, tenant_of
from pltz.kv.pool.packed_session import KEEP, PackedSession
from pltz.kv.store.kv_file import finite
from pltz.kv.store.kv_folder import AGENT
from pltz.kv.store.store import KVStore, empty
from pltz.models import cache_argument
from pltz.plt_codec import CorruptError, ModelError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from pltz.kv.pool.batch_cache import BatchKVCache
    from pltz.models import Target

CHUNK = 256  # ids that a prefill runs at a time
DISK_BYTES = 20_000_000_000  # of a folder, unless the caller says otherwise


@dataclass(frozen=True)
class AgentReply:
    """The answer of an agent.

    ``text``, ``ids``: generated, without the id that ends a reply. ``match``: of the prompt with what was remembered,
    None where nothing was. ``reused``, ``prefilled``: ids of the prompt whose KV was there, and that were run.
    """

    agent: str
    text: str
    ids: tuple[int, ...]
    match: PrefixMatch | None
    reused: int
    prefilled: int


@dataclass(eq=False)
class _Turn:
    """One agent's turn under way. ``prompt``, ``ids``, ``ends``: all of it. ``session``: the KV that is there."""

    agent: str
    prompt: str
    ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    match: PrefixMatch | None
    session: PackedSession


class AgentMemory:
    """The agents of one target. One thread uses it at a time.

    ``store``: with a pool; its folder, if any, keeps each agent's memory. ``keep``: last tokens of an agent that stay
    exact. ``save_each``: a reply is returned after its agent's file is on the disk; else `save` and `close` write.
    The target's model attends by `use_pages` from then on. An agent that is in use here is refused to others.
    """

    def __init__(self, target: Target, store: KVStore, *, keep: int = KEEP, save_each: bool = True) -> None:
        from pltz.kv.pool.page_attention import use_pages

        if store.pool is None:
            raise UsageError("expected a store with a pool: open it with `tokens`")
        self.target, self.store, self.pool, self.folder = target, store, store.pool, store.folder
        self.keep, self.save_each = keep, save_each
        self._locks: dict[str, int] = {}
        self._agents: OrderedDict[str, Remembered] = OrderedDict()  # the least recently used first
        use_pages(target.model)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        target: Target,
        kind: str = "q4",
        tokens: int = 65_536,
        *,
        block: int = 16,
        host_tokens: int = 0,
        disk_bytes: int = DISK_BYTES,
        keep: int = KEEP,
        save_each: bool = True,
    ) -> Self:
        """Open the memories of a target in a folder, with a pool of ``tokens`` tokens. Other targets keep theirs.

        ``kind``: of the pages, "raw", "q8" or "q4". ``disk_bytes``: that all files together may take. Raises what
        `KVStore.open` does.
        """
        store = KVStore.open(target, tokens, host_tokens, disk_bytes, kind=kind, folder=folder, block=block)
        return cls(target, store, keep=keep, save_each=save_each)

    def agents(self) -> list[str]:
        """Return the names of all agents that have a memory here, in the pool or in the folder."""
        stored = () if self.folder is None else self.folder.lasting(AGENT)
        return sorted({*self._agents, *(file.label for file in stored)})

    def text(self, agent: str) -> str:
        """Return what an agent remembers, "" for nothing. Raises the errors of `respond` about its file."""
        memory = self._recall(agent)
        return "" if memory is None else memory.text

    def phase(self, agent: str, text: str, new_tokens: int, **options: Any) -> AgentReply:
        """Add text to an agent's memory, and return its reply. Only the new ids are run. See `respond`."""
        return self.many({agent: text}, new_tokens, **options)[agent]

    def many(self, texts: Mapping[str, str], new_tokens: int, **options: Any) -> dict[str, AgentReply]:
        """Run one phase of several agents as one batch. See `phase`."""
        return self._run({agent: self.text(agent) + text for agent, text in texts.items()}, new_tokens, options)

    def respond(self, agent: str, prompt: str, new_tokens: int, **options: Any) -> AgentReply:
        """Return an agent's reply to a whole prompt, of which what matches its memory is not run again.

        Args:
            agent: its name.
            prompt: all of its text, special tokens recognised.
            new_tokens: of the reply, at most.
            options: for `generate` of transformers, as `do_sample`; greedy by default.

        Raises:
            ContentError: the target cannot take the prompt.
            UsageError: the prompt is empty, or options make no single reply.
            PoolFull: the pool has no room, also without all other agents.
            CorruptError, VersionError: the agent's file is damaged, foreign or later: see `forget`.
            MemoryMismatch: another process uses the agent.
            MemoryFailed: the disk cannot read or write now. The reply is remembered, and `save` tries again.
            ModelError: the target computes no numbers (NaN). The memory stays as it was before the turn.
        """
        return self._run({agent: prompt}, new_tokens, options)[agent]

    def save(self, agent: str | None = None) -> int:
        """Write the memory of an agent, or of all whose files lack something. Returns bytes.

        Raises MemoryFailed; all others are written then.
        """
        return self._save([agent] if agent is not None else list(self._agents))

    def forget(self, agent: str) -> None:
        """Drop an agent's memory and its files, damaged or not.

        Raises MemoryMismatch where another process uses it, and MemoryFailed and WarmFileError where a file is still
        there.
        """
        self._claim(agent)
        if self.folder is not None:
            self.folder.remove(name_of(agent), AGENT)
        memory = self._agents.pop(agent, None)
        if memory is not None and memory.session is not None:
            memory.session.release()
        self.store.clear(tenant_of(agent))
        self._let_others(agent)

    def close(self) -> None:
        """Save all agents, and give their blocks back."""
        if self.folder is not None:
            self.save()
        self.store.close()
        for agent, memory in self._agents.items():
            if memory.session is not None:
                memory.session.release()
            self.store.release(tenant_of(agent), memory.ids)
        self._agents.clear()
        for agent in list(self._locks):
            self._let_others(agent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _save(self, chosen: list[str]) -> int:
        """Write the memories of agents. See `save`."""
        if self.folder is None:
            raise UsageError("this memory has no folder: open it with `AgentMemory.open`")
        due = [(name, self._agents[name]) for name in chosen if name in self._agents and not self._agents[name].saved]
        size = 0
        failed: MemoryFailed | None = None
        for name, memory in due:
            memory.offer(self.store, name)
            try:
                size += self.folder.put(memory.to_file(self.store, name))
                memory.saved = True
            except MemoryFailed as exc:
                failed = failed or exc
        if failed is not None:
            raise failed
        return size

    def _run(self, prompts: Mapping[str, str], new_tokens: int, options: dict[str, Any]) -> dict[str, AgentReply]:
        """Run a turn of each agent. Where the pool is full, other agents leave it, and all is tried again."""
        if new_tokens < 1 or not prompts or not all(prompts.values()):
            raise UsageError("expected a prompt, not empty, and at least 1 new token")
        if many := {"num_beams", "num_return_sequences"} & options.keys():
            raise UsageError(f"an agent has one reply: leave out {min(many)}")
        while True:
            turns: list[_Turn] = []
            try:
                for agent, prompt in prompts.items():
                    turns.append(self._turn(agent, prompt, new_tokens))
                replies = self._generated(turns, new_tokens, options)
                break
            except PoolFull:
                self._release(turns)
                if not self._gave_room(set(prompts)):
                    raise
            except BaseException:
                self._release(turns)
                raise
        if self.folder is not None and self.save_each:
            self._save(list(prompts))
        return replies

    def _turn(self, agent: str, prompt: str, new_tokens: int) -> _Turn:
        """Return a turn whose session is the part of the memory that stays, in blocks of its own or shared."""
        ids, ends = spelled(self.target, prompt)
        array = np.array(ids, np.int32)
        memory = self._recall(agent)
        match, kept, done = None, 0, 0
        if memory is not None:
            match = PrefixMatch.of(memory.text, prompt)
            kept, done = cut(memory.ends, ends, match.characters)
        if memory is None or not kept:
            self.target.check_ids(np.concatenate([array, np.zeros(new_tokens, np.int32)]))
            return _Turn(agent, prompt, array, ends, match, self._empty())
        array = np.concatenate([memory.ids[:kept], array[done:]])
        ends = np.concatenate([memory.ends[:kept], ends[done:]])
        self.target.check_ids(np.concatenate([array, np.zeros(new_tokens, np.int32)]))
        session = memory.return_to(self.store, agent).fork()
        session.cut(min(kept, session.tokens, len(array) - 1))  # the last id is run, for its logits
        return _Turn(agent, prompt, array, ends, match, session)

    def _generated(self, turns: list[_Turn], new_tokens: int, options: dict[str, Any]) -> dict[str, AgentReply]:
        """Run the ids of all turns that have no KV yet, and generate. All memories are the new ones then, or none."""
        import torch

        from pltz.kv.pool.batch_cache import BatchKVCache

        reused = [turn.session.tokens for turn in turns]
        with torch.inference_mode():
            for turn in turns:
                self._prefill(turn)
            cache = BatchKVCache.merge([turn.session for turn in turns], keep=self.keep)
            try:
                inputs = cache.inputs([turn.ids[turn.session.tokens :].tolist() for turn in turns])
                found = self.target.model.generate(
                    **inputs,
                    **cache_argument(self.target.model, cache),
                    max_new_tokens=new_tokens,
                    eos_token_id=sorted(self.target.eos_ids) or None,
                    pad_token_id=min(self.target.eos_ids, default=0),
                    **{"do_sample": False, **options},
                )
                rows = [row[inputs["input_ids"].shape[1] :].tolist() for row in found]
                made: list[tuple[Remembered, AgentReply]] = []
                try:
                    for n, turn in enumerate(turns):
                        made.append(self._remembered(turn, cache, n, rows[n], reused[n]))
                except BaseException:
                    for memory, _ in made:
                        assert memory.session is not None
                        memory.session.release()
                    raise
            finally:
                cache.release()
                self._release(turns)
        for memory, reply in made:
            before = self._agents.pop(reply.agent, None)
            self._agents[reply.agent] = memory
            if before is not None and before.session is not None:
                before.session.release()
        return {reply.agent: reply for _, reply in made}

    def _prefill(self, turn: _Turn) -> None:
        """Run a long prompt, all but its last chunk, so that no pass is longer than CHUNK ids."""
        import torch

        from pltz.kv.pool.batch_cache import BatchKVCache

        session = turn.session
        if not session.tokens and len(turn.ids) > 1:  # exact KV, packed at the end
            cache, _ = self.target.prefill(turn.ids[:-1], chunk=CHUNK)
            turn.session = PackedSession.of(cache, self.pool, keep=self.keep)
            return
        while len(turn.ids) - turn.session.tokens > CHUNK:
            done = turn.session.tokens
            batch = BatchKVCache.merge([turn.session], keep=self.keep)
            try:
                inputs = batch.inputs([turn.ids[done : done + CHUNK].tolist()])
                ids = inputs.pop("input_ids")[:, done:]
                place = torch.arange(done, done + CHUNK, device=ids.device)[None]
                self.target.model(
                    input_ids=ids,
                    position_ids=place,
                    **cache_argument(self.target.model, batch),
                    logits_to_keep=1,
                    **inputs,
                )
                longer = batch.extract(0)
            finally:
                batch.release()
            turn.session.release()
            turn.session = longer
            longer.pack(self.keep)

    def _remembered(
        self, turn: _Turn, cache: BatchKVCache, row: int, new: list[int], reused: int
    ) -> tuple[Remembered, AgentReply]:
        """Return the memory of an agent after a turn, and the reply. Raises ModelError for KV with NaN or infinity."""
        stop = next((n for n, one in enumerate(new) if one in self.target.eos_ids), None)
        reply = new if stop is None else new[:stop]
        ids = np.concatenate([turn.ids, np.array(reply, np.int32)])
        text = self.target.decode(reply)
        ends = ends_of(self.target, reply, text)
        ends[ends >= 0] += len(turn.prompt)
        session = cache.extract(row, len(ids) - (stop is None))
        if not finite(session.exact):
            session.release()
            raise ModelError(
                f"the target computes no numbers (NaN) for the agent {turn.agent!r} in {self.target.model.dtype}: load "
                "it in another dtype (bfloat16 or float32), and check its weights"
            )
        memory = Remembered(turn.prompt + text, ids, np.concatenate([turn.ends, ends]), session)
        return memory, AgentReply(turn.agent, text, tuple(reply), turn.match, reused, len(turn.ids) - reused)

    def _recall(self, agent: str) -> Remembered | None:
        """Return an agent's memory, None where there is none."""
        self._claim(agent)
        memory = self._agents.get(agent)
        if memory is None and self.folder is not None and (file := self.folder.get(name_of(agent), AGENT)) is not None:
            try:
                longest = self.target.max_positions or MAX_TOKENS
                memory = Remembered.of_file(file, self.store.pages, self.store.block, longest)
            except CorruptError as exc:
                raise CorruptError(f"{self.folder.path(file.name, AGENT)} is damaged ({exc}): {FORGET}") from exc
            self._agents[agent] = memory
        if memory is not None:
            self._agents.move_to_end(agent)
        return memory

    def _claim(self, agent: str) -> None:
        """Keep other processes from an agent. Raises MemoryMismatch where one uses it."""
        if self.folder is not None and agent not in self._locks:
            handle = self.folder.claim(name_of(agent))
            if handle is None:
                raise MemoryMismatch(f"another process uses the agent {agent!r}: let it close its memory, or forget it")
            self._locks[agent] = handle

    def _let_others(self, agent: str) -> None:
        if (handle := self._locks.pop(agent, None)) is not None:
            os.close(handle)

    def _gave_room(self, active: set[str]) -> bool:
        """Give the blocks of the agent used least recently to the store. Returns whether there was one."""
        for agent, memory in self._agents.items():
            if agent not in active and memory.session is not None and memory.session.blocks:
                memory.leave(self.store, agent)
                return True
        return False

    def _empty(self) -> PackedSession:
        return PackedSession(self.pool, [], 0, empty(self.pool.form, self.pool.device.device))

    @staticmethod
    def _release(turns: list[_Turn]) -> None:
        for turn in turns:
            turn.session.release()
