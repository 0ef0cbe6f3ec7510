"""AgentMemory: the KV of agents as their working memory, packed, apart from each other, and kept over restarts.

    with AgentMemory.open("agents/", target, "q4", tokens=100_000) as memory:
        memory.phase("judge", "You are a judge. Round 1: ...", 64).text
        memory.phase("judge", "Round 2: ...", 64).text          # runs the new ids only

    phase     text of the agent + new text ---\\
    respond   a whole prompt -------------------> match by characters -> cut -> new ids over packed pages -> reply
    many      one phase of several agents ----/                                           |
                                              file of each agent, synced  <---------------/

Each agent has pages of its own. A pool that runs full gives up the KV of the agents used least recently: to host
memory, if it has any, else to their files.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pltz.kv.errors import MemoryFailed, MemoryMismatch, PoolFull
from pltz.kv.memory.memory_file import MemoryFolder, Remembered
from pltz.kv.memory.prefix_match import PrefixMatch, cut, ends_of, spelled
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import KEEP, PackedSession
from pltz.kv.store.warm_file import finite
from pltz.models import cache_argument
from pltz.plt_codec import ModelError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from pltz.kv.pool.batch_cache import BatchKVCache
    from pltz.models import Target

CHUNK = 256  # ids that a prefill runs at a time


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

    ``folder``: keeps each agent's memory, None for none. ``keep``: last tokens of an agent that stay exact.
    ``save_each``: a reply is returned after its agent's file is on the disk; else `save` and `close` write.
    The target's model attends by `use_pages` from then on.
    """

    def __init__(
        self,
        target: Target,
        pool: BlockPool,
        folder: MemoryFolder | None = None,
        *,
        keep: int = KEEP,
        save_each: bool = True,
    ) -> None:
        from pltz.kv.pool.page_attention import use_pages

        self.target, self.pool, self.folder, self.keep, self.save_each = target, pool, folder, keep, save_each
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
        keep: int = KEEP,
        save_each: bool = True,
    ) -> Self:
        """Open the memories of a target in a folder, with a pool of ``tokens`` tokens. Other targets keep theirs.

        ``kind``: of the pages, "raw", "q8" or "q4". Raises what `MemoryFolder.form` and `BlockPool` do.
        """
        form = MemoryFolder.form(folder, target, kind)
        pool = BlockPool(form, tokens, block=block, host_tokens=host_tokens, device=target.device)
        return cls(target, pool, MemoryFolder(folder, target, form), keep=keep, save_each=save_each)

    def agents(self) -> list[str]:
        """Return the names of all agents that have a memory here, in the pool or in the folder."""
        stored = () if self.folder is None else self.folder.agents()
        return sorted({*self._agents, *stored})

    def text(self, agent: str) -> str:
        """Return what an agent remembers, "" for nothing. Raises what `MemoryFolder.load` does."""
        memory = self._recall(agent, {agent})
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
            CorruptError, VersionError, MismatchError: the agent's file is damaged, later, or foreign: see `forget`.
            MemoryMismatch: another process wrote the agent's file since this one read it: see `reload`.
            MemoryFailed: the disk cannot read or write now. The reply is remembered, and `save` tries again.
            ModelError: the target computes no numbers (NaN). The memory stays as it was before the turn.
        """
        return self._run({agent: prompt}, new_tokens, options)[agent]

    def save(self, agent: str | None = None) -> int:
        """Write the memory of an agent, or of all whose files lack something. Returns bytes.

        Raises MemoryFailed, and MemoryMismatch where another process wrote a file; all others are written then.
        """
        return self._save([agent] if agent is not None else list(self._agents))

    def reload(self, agent: str) -> None:
        """Drop an agent's memory in this process. What its file has, perhaps by another process, counts from now on."""
        if self.folder is None:
            raise UsageError("this memory has no folder: open it with `AgentMemory.open`")
        if (memory := self._agents.pop(agent, None)) is not None:
            memory.session.release()

    def forget(self, agent: str) -> None:
        """Drop an agent's memory and its file, damaged or not.

        Raises MemoryMismatch where another process wrote the file since this one read it; `reload` the agent to forget
        that file too. Raises MemoryFailed where the file is still there. The memory stays then.
        """
        memory = self._agents.get(agent)
        if self.folder is not None:
            self.folder.remove(agent, memory)
        if memory is not None:
            self._agents.pop(agent)
            memory.session.release()

    def close(self) -> None:
        """Save all agents, and give their blocks back."""
        if self.folder is not None:
            self.save()
        for memory in self._agents.values():
            memory.session.release()
        self._agents.clear()

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
        failed: MemoryFailed | MemoryMismatch | None = None
        for name, memory in due:
            try:
                size += self.folder.save(name, memory)
            except (MemoryFailed, MemoryMismatch) as exc:
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
                    turns.append(self._turn(agent, prompt, new_tokens, set(prompts)))
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

    def _turn(self, agent: str, prompt: str, new_tokens: int, active: set[str]) -> _Turn:
        """Return a turn whose session is the part of the memory that stays, in blocks of its own or shared."""
        ids, ends = spelled(self.target, prompt)
        array = np.array(ids, np.int32)
        memory = self._recall(agent, active)
        match, kept, done = None, 0, 0
        if memory is not None:
            if self.folder is not None:
                self.folder.check(agent, memory)  # before the work of a reply that could not be saved
            match = PrefixMatch.of(memory.text, prompt)
            kept, done = cut(memory.ends, ends, match.characters)
        if memory is None or not kept:
            self.target.check_ids(np.concatenate([array, np.zeros(new_tokens, np.int32)]))
            return _Turn(agent, prompt, array, ends, match, self._empty())
        array = np.concatenate([memory.ids[:kept], array[done:]])
        ends = np.concatenate([memory.ends[:kept], ends[done:]])
        self.target.check_ids(np.concatenate([array, np.zeros(new_tokens, np.int32)]))
        session = memory.session.fork()
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
                        memory.session.release()
                    raise
            finally:
                cache.release()
                self._release(turns)
        for memory, reply in made:
            before = self._agents.pop(reply.agent, None)
            self._agents[reply.agent] = memory
            if before is not None:
                memory.stamp = before.stamp
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

    def _recall(self, agent: str, active: set[str]) -> Remembered | None:
        """Return an agent's memory, its KV on the device. Other agents leave the pool if they must."""
        while True:
            memory = self._agents.get(agent)
            try:
                if memory is not None:
                    memory.session.warm()
                elif self.folder is not None and (memory := self.folder.load(agent, self.pool)) is not None:
                    self._agents[agent] = memory
                break
            except PoolFull:
                if not self._gave_room(active):
                    raise
        if memory is not None:
            self._agents.move_to_end(agent)
        return memory

    def _gave_room(self, active: set[str]) -> bool:
        """Take the KV of the agent used least recently off the device. Returns whether there was one."""
        for agent, memory in self._agents.items():
            if agent in active or memory.session.spilled or not memory.session.blocks:
                continue
            try:
                memory.session.spill()
            except PoolFull:
                if self.folder is None:
                    continue
                try:
                    self.save(agent)
                except MemoryMismatch:  # it stays until its user reloads it, and is no matter of the active agents
                    continue
                del self._agents[agent]
                memory.session.release()
            return True
        return False

    def _empty(self) -> PackedSession:
        import torch

        form = self.pool.form
        shape = form.layers, 2, form.heads, 0, form.dim
        exact = torch.empty(shape, dtype=form.dtype, device=self.pool.device.device)
        return PackedSession(self.pool, [], 0, exact)

    @staticmethod
    def _release(turns: list[_Turn]) -> None:
        for turn in turns:
            turn.session.release()
