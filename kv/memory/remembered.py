"""Remembered: what an agent remembers, in memory and in its file. Spec: FORMAT.md.

    text, ids     all of it
    KV            full blocks in the store, under a tenant of the agent's own | the rest of the last block | exact tail
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.errors import PoolFull
from pltz.kv.memory.prefix_match import WITHIN
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.store.kv_file import KVFile, finite
from pltz.kv.store.kv_folder import AGENT
from pltz.kv.store.store import ANY, KVStore, empty
from pltz.kv.store.trie import root_of
from pltz.plt_codec import CorruptError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.pool.page_format import PageFormat

MAX_TOKENS = 1 << 24  # of an agent, where the target has no bound
MAX_ID = 4096  # bytes of text that an id may be
FORGET = "forget the agent, and let it begin again"


def name_of(agent: str) -> bytes:
    """Return the name of an agent's file, 32 bytes."""
    return blake2b(agent.encode("utf8", "surrogatepass"), digest_size=32, person=b"pltz agent").digest()


def tenant_of(agent: str) -> str:
    """Return the tenant whose blocks in the store are an agent's."""
    return f"agent/{name_of(agent).hex()}"


@dataclass(frozen=True, eq=False)
class Tail:
    """The KV of a session that no full block has. ``packed``: tokens in pages. ``rows``: those of its last block, not
    full, as a slab has them. ``exact``: the sinks, if any token is packed, and the tail, (layers, 2, heads, E, D).
    """

    packed: int
    rows: dict[str, torch.Tensor]
    exact: torch.Tensor

    @classmethod
    def of(cls, session: PackedSession) -> Tail:
        """Return the tail of a session on the device, in host memory."""
        block = session.pool.block
        full = session.packed // block * block
        rows = session.pool.device.read(session.blocks, full, session.packed - full)
        return cls(session.packed, {name: part.cpu() for name, part in rows.items()}, session.exact.cpu())


@dataclass(eq=False)
class Remembered:
    """The memory of an agent. ``ids``: (T,) int32, those of ``text``. ``ends``: (T,) int32, see `ends_of`.

    ``session``: the KV of the first ids, all or all but the last, while it is in use; ``tail``: in place of it once its
    blocks are the store's. ``saved``: the file has the same.
    """

    text: str
    ids: NDArray[np.int32]
    ends: NDArray[np.int32]
    session: PackedSession | None = None
    tail: Tail | None = None
    saved: bool = False

    def offer(self, store: KVStore, agent: str) -> None:
        """Offer the full blocks of the session to the store, and their files."""
        if self.session is not None:
            store.insert(tenant_of(agent), self.ids, self.session)
            store.save(tenant_of(agent), self.ids[: self.session.packed])

    def leave(self, store: KVStore, agent: str) -> None:
        """Give the session's blocks to the store, and keep the tail."""
        if self.session is not None:
            self.offer(store, agent)
            self.tail = Tail.of(self.session)
            self.session.release()
            self.session = None

    def return_to(self, store: KVStore, agent: str) -> PackedSession:
        """Return the session, of as many of the ids as the store has. Raises PoolFull."""
        if self.session is not None:
            return self.session
        pool, tail, pages = store.pool, self.tail, store.pages
        assert pool is not None and tail is not None
        full = tail.packed // pool.block * pool.block
        if store.folder is not None:
            store.drain()  # what left memory may still wait to be written
            store.fetch(tenant_of(agent), self.ids[: full + 1], bound=ANY)
        found = store.match(tenant_of(agent), self.ids[: full + 1], bound=ANY)
        session = found or PackedSession(pool, [], 0, empty(pages, pool.device.device))
        if session.tokens < store.known(tenant_of(agent), self.ids[:full]):
            session.release()
            raise PoolFull(f"the pool has no room for the agent {agent!r}, whose KV is in host memory or files")
        if session.tokens == full:
            try:
                if tail.packed > full:
                    session.blocks += pool.device.allocate(1)
                    pool.device.write(session.blocks, full, tail.rows)
            except PoolFull:
                session.release()
                raise
            session.packed, session.exact = tail.packed, tail.exact.to(pool.device.device)
        self.session, self.tail = session, None
        return session

    def to_file(self, store: KVStore, agent: str) -> KVFile:
        """Return the memory as a file."""
        import torch

        tail = Tail.of(self.session) if self.session is not None else self.tail
        assert tail is not None and store.folder is not None
        head = {
            "ids": torch.from_numpy(self.ids.copy()),
            "ends": torch.from_numpy(self.ends.copy()),
            "text": torch.frombuffer(bytearray(self.text.encode()) or bytearray(1), dtype=torch.uint8)[
                : len(self.text.encode())
            ],
        }
        parts = {f"kv.{name}": part for name, part in tail.rows.items()} | {"kv.exact": tail.exact}
        return KVFile(
            AGENT, store.folder.space, name_of(agent), head, parts, root_of(tenant_of(agent)), start=tail.packed,
            label=agent,
        )  # fmt: skip

    @classmethod
    def of_file(cls, file: KVFile, pages: PageFormat, block: int, longest: int) -> Remembered:
        """Return the memory in a file. ``longest``: positions of the target. Raises CorruptError."""
        rows = pages.layers, file.start % block, pages.heads
        wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]]
        wanted = {f"kv.{name}": (dtype, (*rows, size)) for name, (size, dtype) in pages.types.items()}
        exact = file.parts.get("kv.exact")
        own = exact.shape[3] if exact is not None and exact.dim() == 5 else -1
        wanted["kv.exact"] = pages.dtype, (pages.layers, 2, pages.heads, own, pages.dim)
        found = {name: (part.dtype, tuple(part.shape)) for name, part in file.parts.items()}
        if found != wanted or file.head.keys() != {"ids", "ends", "text"}:
            raise CorruptError("its tensors are not those of a memory of these pages")
        ids, ends, text = (file.head[name].numpy() for name in ("ids", "ends", "text"))
        count = len(ids) if ids.ndim == 1 else -1
        right = [str(one.dtype) for one in (ids, ends, text)] == ["int32", "int32", "uint8"]
        if not right or ends.shape != (count,) or text.ndim != 1 or not 0 <= count <= longest:
            raise CorruptError("ids, ends and text do not fit each other, or the target")
        sinks = min(pages.sinks, file.start)
        tokens = file.start + own - sinks
        if own < sinks or 0 < file.start <= pages.sinks or not count - 1 <= tokens <= count:
            raise CorruptError(f"the KV of {tokens} tokens does not fit {count} ids")
        try:
            said = text.tobytes().decode()
        except UnicodeDecodeError as exc:
            raise CorruptError(f"its text is none ({exc})") from exc
        where = ends[ends != WITHIN]
        if (where[1:] < where[:-1]).any() or (len(where) and not 0 <= where[0] <= where[-1] <= len(said)):
            raise CorruptError("ends of ids are not ascending, or beyond the text")
        if (ids < 0).any() or len(text) > MAX_ID * (count + 1):
            raise CorruptError("ids below 0, or more text than they may be")
        if not all(finite(part) for part in file.parts.values() if part.is_floating_point()):
            raise CorruptError("KV with NaN or infinity")
        tail = Tail(file.start, {name: file.parts[f"kv.{name}"] for name in pages.types}, file.parts["kv.exact"])
        return cls(said, ids.copy(), ends.copy(), tail=tail, saved=True)
