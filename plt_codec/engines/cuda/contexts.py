"""Contexts: what sequences stand behind, run through the model in one parallel pass for its keys and values (NUMERICS.md, "Context").

    ids of the contexts --collect, enter, layers--> keys and values, one region a context, kept while the sequences behind them are coded

A context is a block of one lane, all of its positions at once, and nothing of it is coded. Sequences that stand behind the same
context share its region: `recall` copies it to the slot of each when that begins. One context alone, what a session that grew turn by
turn asks for again and again, has buffers and a recording of the launches that stay: the launches alone take the host longer than the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.model import Model
from pltz.plt_codec.engines.cuda.pack import up
from pltz.plt_codec.engines.cuda.rows import ROWS, STATE_TYPE, Rows, packed
from pltz.plt_codec.engines.cuda.session import SESSION
from pltz.plt_codec.engines.cuda.work import KEYS, key_bytes
from pltz.plt_codec.prefix import Ids

SLOTS = 1024  # contexts run side by side, at most


class Contexts(Rows):
    """Room for so many contexts, each of at most `longest` tokens: its keys and values at "known", where each one's are at "contexts".

    wide: values lie as the attention of wide.cu reads them.
    """

    def __init__(self, model: Model, count: int, longest: int, wide: bool):
        super().__init__(model)
        self.wide, self.count, self.longest = wide, count, longest
        self.slots = min(count, SLOTS, max(1, ROWS // longest))
        self.rows = up(self.slots * longest, 128)
        self._first = 0  # of the contexts under way
        room = up(longest, KEYS)
        places = np.zeros((count, 2), np.int64)
        places[:, 0] = np.arange(count) * room * key_bytes(self.shape)
        places[:, 1] = room
        none = [np.zeros(1, np.int64)] * count
        arrays = self._arrays(none) | {"tokens": np.zeros(count * longest, np.int32), "contexts": places}
        self._open(arrays, {"memory": count * room * key_bytes(self.shape), **self._row_sizes()})

    def _arrays(self, contexts: Sequence[Ids]) -> dict[str, npt.NDArray[Any]]:
        """The contexts as the kernels see them, the ids last."""
        lengths = np.array([len(c) for c in contexts], np.int64)
        sessions = np.zeros(self.count, SESSION)
        sessions["total"] = sessions["steps"] = lengths
        sessions["lanes"], sessions["context"] = 1, -1
        sessions["token_at"] = np.cumsum(lengths) - lengths
        state = np.zeros(1, STATE_TYPE)
        state["slots"], state["count"], state["left"] = self.slots, self.count, self.count
        state["rows_max"] = self.rows
        tokens = np.concatenate(contexts).astype(np.int32)
        return {
            "state": state,
            "sessions": sessions,
            "slots": np.full(self.slots, -1, np.int32),
            "tokens": tokens,
        }

    def load(self, contexts: Sequence[Ids]) -> None:
        """Take the ids of all contexts, (m,) each, at least one, in place of those before."""
        self.device.upload(self._at["arrays"], packed(self._arrays(contexts))[1])

    def run(self) -> None:
        """Queue the passes. All contexts of a round fit its rows whole, so each takes one iteration, and nothing need be asked of the device."""
        for first in range(0, self.count, self.slots):
            self._first = first
            self._collect(up(self.slots, 32))
            self._layers(self.longest, known=True)

    def _address(self, name: str) -> int:
        """The slots of a round hold the contexts from `_first` on."""
        if name == "caches":
            return self._within["contexts"] + 16 * self._first
        return self._at["memory"] if name == "known" else super()._address(name)


class OneContext:
    """A context alone, of up to M tokens: buffers that stay, and one recording for each way values lie. For one thread at a time."""

    def __init__(self, model: Model):
        self._model, self._lock = model, Lock()
        self._made: dict[bool, Contexts] = {}
        self._replay: dict[bool, Any] = {}

    @contextmanager
    def of(self, context: Ids, wide: bool) -> Iterator[Contexts]:
        """The context, its passes queued; it holds until this is left."""
        with self._lock:
            if wide not in self._made:
                made = Contexts(self._model, 1, self._model.shape.memory, wide)
                self._replay[wide] = self._model.device.record(made.run)
                self._made[wide] = made
            self._made[wide].load([context])
            self._replay[wide]()
            yield self._made[wide]

    def __del__(self) -> None:
        for made in self._made.values():
            made.close()


@contextmanager
def computed(
    model: Model, alone: OneContext, contexts: Sequence[Ids], wide: bool
) -> Iterator[Contexts | None]:
    """The keys and values of some contexts, while this is open; None where there are none."""
    if not contexts:
        yield None
    elif len(contexts) == 1:
        with alone.of(contexts[0], wide) as known:
            yield known
    else:
        with Contexts(model, len(contexts), max(map(len, contexts)), wide) as known:
            known.load(contexts)
            known.run()
            yield known
