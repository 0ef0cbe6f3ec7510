"""BatchKVCache: a cache of transformers over packed sessions of different lengths.

    cache = BatchKVCache.merge([session, other])
    inputs = cache.inputs([[17, 4], [9]])                          # new ids of each session
    model.generate(**inputs, past_key_values=cache)
    session = cache.extract(0)

Pages are shared with the sessions and never change. New tokens are exact. When the tail of a row has grown by FLUSH
tokens, all but the last ones go into pages, those of all layers at once. The order of tokens does not matter to
attention, since keys are at their positions. So sinks, tail and new tokens of all rows lie in one tensor, with gaps
that do not count.

transformers sees a batch that is padded at the left: `get_seq_length` is the number of columns of such a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.packed_session import KEEP, PackedSession, extended
from pltz.plt_codec import UsageError

FLUSH = 64  # tokens by which the tail grows before it is packed


class BatchKVCache(Cache):
    """The sessions of a batch. It holds their blocks until `release`. One thread uses it at a time.

    The model must attend by `use_pages(model)`. ``keep``: last tokens of a session that stay exact.
    """

    def __init__(self, sessions: Sequence[PackedSession], *, keep: int = KEEP) -> None:
        if not sessions or any(one.pool is not sessions[0].pool for one in sessions):
            raise UsageError("expected at least one session, all of one pool")
        self.pool, self.keep = sessions[0].pool, keep
        self.tables = [list(one.blocks) for one in sessions]
        self.packed = [one.packed for one in sessions]
        for table in self.tables:
            self.pool.device.retain(table)
        self.length = max(one.tokens for one in sessions)  # columns as transformers counts them
        self._most = [one.tokens for one in sessions]  # tokens of each row at most
        self.columns = self.fresh = 0  # exact ones in use, and those since the last packing
        self.exact = sessions[0].exact.new_empty(0)  # (layers, 2, B, heads, room, D)
        self.real = torch.empty(0, dtype=torch.uint8)  # (B, room)
        self._marked = True  # whether `real` says which of the newest columns are tokens
        self._fill([one.exact for one in sessions])
        super().__init__(layers=[PackedLayer(self, layer) for layer in range(self.pool.form.layers)])

    @classmethod
    def merge(cls, sessions: Sequence[PackedSession], *, keep: int = KEEP) -> BatchKVCache:
        """Return a cache of sessions, which stay as they are. Raises UsageError for sessions of several pools."""
        return cls(sessions, keep=keep)

    def extract(self, row: int, tokens: int | None = None) -> PackedSession:
        """Return the session of a row, of its first ``tokens`` tokens, all for None. It holds blocks of its own."""
        exact = self.exact[:, :, row, :, self.real[row, : self.columns].nonzero()[:, 0]]
        self.pool.device.retain(self.tables[row])
        session = PackedSession(self.pool, self.tables[row], self.packed[row], exact)
        if tokens is not None:
            session.cut(tokens)
        return session

    def tokens(self) -> list[int]:
        """Return the number of tokens of each row."""
        sinks = [min(self.pool.form.sinks, packed) for packed in self.packed]
        exact = self.real[:, : self.columns].sum(1).tolist()
        return [packed + int(e) - s for packed, e, s in zip(self.packed, exact, sinks, strict=True)]

    def inputs(self, new: Sequence[Sequence[int]], pad: int = 0) -> dict[str, torch.Tensor]:
        """Return ``input_ids`` and ``attention_mask``, (B, columns), for `generate` after new ids of each row.

        ``new``: at least one id per row. Ids before them are ``pad``: the cache has their KV.
        """
        if len(new) != len(self.packed) or not all(len(ids) for ids in new):
            raise UsageError(f"expected new ids, at least one, for each of {len(self.packed)} sessions")
        wide = max(map(len, new))
        ids = np.full((len(new), self.length + wide), pad, np.int64)
        mask = np.zeros_like(ids)
        for row, (more, done) in enumerate(zip(new, self.tokens(), strict=True)):
            ids[row, -len(more) :] = more
            mask[row, self.length - done : self.length] = mask[row, -len(more) :] = 1
        device = self.exact.device
        return {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(mask).to(device)}

    def view(self, layer: int) -> LayerView:
        """Return what attention reads of a layer."""
        keys, values = self.exact[layer, 0], self.exact[layer, 1]
        most = max(self.packed)
        return LayerView(self.pool.device, layer, self.table, self.counts, most, keys, values, self.real, self.columns)

    def open(self, count: int) -> None:
        """Make room for a pass of ``count`` columns, which are tokens unless `mark` says otherwise."""
        if not self._marked:
            raise UsageError("the pass before this one was not attended by `use_pages`, or failed: merge anew")
        due = [row for row, most in enumerate(self._most) if most - self.packed[row] >= self.keep + FLUSH]
        if due:
            self._pack(due)
        if self.columns > 2 * (self.keep + FLUSH):
            self._close_gaps()
        room = self.exact.shape[4]
        if self.columns + count > room:
            more = self.columns + count + FLUSH - room
            self.exact = torch.nn.functional.pad(self.exact, (0, 0, 0, more))
            self.real = torch.nn.functional.pad(self.real, (0, more))
        self.real[:, self.columns : self.columns + count] = 1
        self.columns, self.length, self.fresh = self.columns + count, self.length + count, self.fresh + count
        self._most = [most + count for most in self._most]
        self._marked = False

    def mark(self, mask: torch.Tensor | None, count: int) -> None:
        """Say which of the newest columns are tokens, by a mask (B or 1, 1, queries, keys) of transformers, or all."""
        if not self._marked and mask is not None and mask.dim() == 4:
            last = mask[:, 0, -1, -count:]
            seen = last if mask.dtype == torch.bool else last >= 0
            self.real[:, self.columns - count : self.columns] = seen.to(torch.uint8)
            if count > 1:
                if not seen.any():
                    raise UsageError("no id of this pass is a token: call `inputs` anew before each `generate`")
                self._most = self.tokens()
        self._marked = True

    def _fill(self, rows: Sequence[torch.Tensor]) -> None:
        """Set the exact tokens, those of each row (layers, 2, heads, E, D), and the tables on the device."""
        like, count = rows[0], [row.shape[3] for row in rows]
        layers, two, heads, _, dim = like.shape
        self.columns, self.fresh = max(count), 0
        room = self.columns + FLUSH
        self.exact = like.new_zeros((layers, two, len(rows), heads, room, dim))
        self.real = torch.zeros((len(rows), room), dtype=torch.uint8, device=like.device)
        for n, row in enumerate(rows):
            self.exact[:, :, n, :, : count[n]] = row
            self.real[n, : count[n]] = 1
        self._set_tables()

    def _set_tables(self) -> None:
        wide = max(map(len, self.tables))
        table = np.zeros((len(self.tables), wide), np.int32)
        for n, blocks in enumerate(self.tables):
            table[n, : len(blocks)] = blocks
        device = self.exact.device
        self.table = torch.from_numpy(table).to(device)
        self.counts = torch.tensor(self.packed, dtype=torch.int32, device=device)

    def _pack(self, rows: Sequence[int]) -> None:
        """Pack all but the last tokens of rows whose tail has grown by FLUSH. Raises PoolFull; nothing is lost then.

        A row alone decides when it is packed, so that it has the same pages in any batch.
        """
        real = self.real[:, : self.columns].cpu().numpy()
        sinks = self.pool.form.sinks
        for row in rows:
            at = np.flatnonzero(real[row])
            tail = at[min(sinks, self.packed[row]) :]
            count = len(tail) - self.keep
            if count < FLUSH or count <= sinks:
                continue
            moved = torch.from_numpy(tail[:count]).to(self.exact.device)
            pages = self.exact[:, :, row].index_select(3, moved)
            self.tables[row] = extended(self.pool, self.tables[row], self.packed[row], pages)
            gone = tail[:count] if self.packed[row] else tail[sinks:count]
            self.real[row, torch.from_numpy(gone).to(self.real.device)] = 0
            self.packed[row] += count
            self._set_tables()
        self._most, self.fresh = self.tokens(), 0

    def _close_gaps(self) -> None:
        """Move the exact tokens of each row together."""
        real = self.real[:, : self.columns].cpu().numpy()
        places = [torch.from_numpy(np.flatnonzero(row)).to(self.exact.device) for row in real]
        self._fill([self.exact[:, :, row].index_select(3, at) for row, at in enumerate(places)])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the columns of a batch padded at the left."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last columns, ``tokens_to_remove`` at most 0. Raises UsageError for those that are packed.

        Columns that came since the last packing or merge are there to drop.
        """
        count = -tokens_to_remove
        if not 0 <= count <= self.fresh:
            raise UsageError(
                f"the last {self.fresh} columns can be dropped, not {count}: `extract` a session of fewer tokens, "
                "and merge that"
            )
        self.real[:, self.columns - count : self.columns] = 0
        self.columns, self.length, self.fresh = self.columns - count, self.length - count, self.fresh - count
        self._most = self.tokens()

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may come several times. Blocks are shared, and copied on write."""
        before = self.tables
        self.tables = [list(before[row]) for row in rows]
        for table in self.tables:
            self.pool.device.retain(table)
        for table in before:
            self.pool.device.release(table)
        self.packed = [self.packed[row] for row in rows]
        self._most = [self._most[row] for row in rows]
        index = torch.tensor(list(rows), device=self.exact.device)
        self.exact, self.real = self.exact.index_select(2, index), self.real.index_select(0, index)
        self._set_tables()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep the rows of beams. See `select`."""
        self.select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row. See `select`."""
        self.select([row for row in range(len(self.tables)) for _ in range(repeats)])

    def release(self) -> None:
        """Give the blocks back. The cache is of no use then."""
        for table in self.tables:
            self.pool.device.release(table)
        self.tables = []


class PackedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers has no hint there
    """One layer of a `BatchKVCache`, as transformers calls it. Layers are updated in their order, once per pass."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: BatchKVCache, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache, self._layer = cache, layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the sessions were there before."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Add exact tokens, keys and values (B, heads, S, D). Returns a handle, for `use_pages`, in place of both."""
        cache, count = self._cache, key_states.shape[2]
        if not cache.tables:
            raise UsageError("this cache was released: merge sessions anew")
        if (rows := key_states.shape[0]) != len(cache.tables):
            raise UsageError(
                f"this cache has {len(cache.tables)} rows, and the pass {rows}: for beams, or several answers each, "
                "call `batch_repeat_interleave` with their number after `inputs`"
            )
        if self._layer == 0:
            cache.open(count)
        new = slice(cache.columns - count, cache.columns)
        cache.exact[self._layer, 0, :, :, new] = key_states
        cache.exact[self._layer, 1, :, :, new] = value_states
        handle = NewTokens(cache, self._layer)
        return handle, handle

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns with those of the next pass, and 0."""
        return self._cache.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the columns."""
        return self._cache.length

    def get_max_length(self) -> int:
        """Return -1: there is no most."""
        return -1

    def reset(self) -> None:
        """Give the blocks of all layers back."""
        self._cache.release()


@dataclass(frozen=True, eq=False)
class NewTokens:
    """The tokens that a pass adds to a layer, in place of its keys and values. Only `use_pages` knows them."""

    cache: BatchKVCache
    layer: int

    def __getattr__(self, name: str) -> Any:
        """Raise UsageError: something else wants a tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError("a BatchKVCache needs a model that attends over pages: call `use_pages(model)` first")
