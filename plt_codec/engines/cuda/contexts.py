"""Contexts: the tokens before sequences, run in one parallel pass for keys and values (NUMERICS.md, "Context").

    ids of the contexts --collect, enter, layers--> keys and values, kept while the sequences behind them are coded

A context is a block of one lane, all of its positions at once, and nothing of it is coded. Sequences behind the same
context share its keys and values: `recall` copies them to the slot of each one when it begins. A session that grew turn
by turn needs one context after another. So a single context keeps its buffers, and a recording of its launches, between
calls: without, the host takes longer to launch the kernels than the device to run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.pack import up
from pltz.plt_codec.engines.cuda.rows import ROWS, RowBuffers, packed
from pltz.plt_codec.engines.cuda.structs import BATCH, SESSION
from pltz.plt_codec.engines.cuda.work import KEYS, key_bytes
from pltz.plt_codec.lanes import Ids

SLOTS = 1024  # contexts that run side by side, at most


class ContextBatch(RowBuffers):
    """Buffers for ``count`` contexts of at most ``longest`` tokens each.

    The keys and values lie in the buffer "known"; "contexts" says where those of each context begin.

    Args:
        places: contexts whose keys and values are kept; None is all. With 1 they replace each other, pass by pass.
        ids: room for the ids of all contexts; None is ``count * longest``.
    """

    def __init__(
        self, model: DeviceModel, count: int, longest: int, *, places: int | None = None, ids: int | None = None
    ):
        super().__init__(model)
        self.count, self.longest, self.places = count, longest, places or count
        self.slots = min(self.places, SLOTS, max(1, ROWS // longest))
        self.rows = up(self.slots * longest, 128)
        room = up(longest, KEYS)
        self._where = where = np.zeros((self.places, 2), np.int64)
        where[:, 0] = np.arange(self.places) * room * key_bytes(self.shape)
        where[:, 1] = room
        arrays = self._arrays(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(ids or count * longest, np.int32))
        self._open(
            arrays | {"contexts": where, "caches": where[: self.slots]},
            {"memory": self.places * room * key_bytes(self.shape), **self._row_sizes()},
        )

    def _arrays(
        self, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], ids: npt.NDArray[np.int32]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the contexts as the kernels see them, the ids last."""
        sessions = np.zeros(self.count, SESSION)
        used = sessions[: len(lengths)]
        used["total"] = used["steps"] = lengths
        used["lanes"], used["context"] = 1, -1
        used["token_at"] = begins
        state = np.zeros(1, BATCH)
        state["slots"], state["count"], state["left"] = self.slots, len(lengths), len(lengths)
        state["rows_max"] = self.rows
        return {"state": state, "sessions": sessions, "slots": np.full(self.slots, -1, np.int32), "tokens": ids}

    def place(self, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], ids: npt.NDArray[np.int32]) -> None:
        """Replace the contexts by those that begin at ``begins`` (n,) of ``ids`` (t,) and have ``lengths`` (n,).

        They may overlap, and their ids may be written later, before their pass runs.
        """
        self.device.upload(self._at["arrays"], packed(self._arrays(begins, lengths, ids))[1])

    def load(self, contexts: Sequence[Ids]) -> None:
        """Replace the contexts by these ids, (m,) each; at least one, and as many as there is room for."""
        lengths = np.array([len(c) for c in contexts], np.int64)
        self.place(np.cumsum(lengths) - lengths, lengths, np.concatenate(contexts).astype(np.int32))

    def run(self) -> None:
        """Queue the passes over the next contexts, as many as are kept.

        All contexts of a pass fit its rows whole, so each takes one iteration, and the host need not wait. Several
        passes are recorded once: the host launches them faster then, and threads beside it wait for it less.
        """
        if self.places <= self.slots:
            self._pass()
            return
        one = self.device.record(self._pass)
        for first in range(0, self.places, self.slots):
            self.device.upload(self._within["caches"], self._where[first : first + self.slots])
            one()

    def _pass(self) -> None:
        self._collect()
        self._layers(self.longest, known=True)

    def address(self, name: str) -> int:
        """Return the address of a buffer or a tensor. The slots of a pass hold the contexts of "caches"."""
        return self._at["memory"] if name == "known" else super().address(name)


class SingleContext:
    """One context of up to M tokens, with buffers and a recording that stay. Threads take turns."""

    def __init__(self, model: DeviceModel):
        self._model, self._lock = model, Lock()
        self._made: ContextBatch | None = None
        self._replay: Any = None

    @contextmanager
    def of(self, context: Ids) -> Iterator[ContextBatch]:
        """Queue the pass over a context, (m,), and yield the batch that holds it."""
        with self._lock:
            if self._made is None:
                made = ContextBatch(self._model, 1, self._model.shape.memory)
                self._replay = self._model.device.record(made.run)
                self._made = made
            self._made.load([context])
            self._replay()
            yield self._made

    def __del__(self) -> None:
        if self._made is not None:
            self._made.close()


@contextmanager
def computed(model: DeviceModel, single: SingleContext, contexts: Sequence[Ids]) -> Iterator[ContextBatch | None]:
    """Yield the keys and values of contexts, (m,) each; None where there are none."""
    if not contexts:
        yield None
    elif len(contexts) == 1:
        with single.of(contexts[0]) as known:
            yield known
    else:
        with ContextBatch(model, len(contexts), max(map(len, contexts))) as known:
            known.load(contexts)
            known.run()
            yield known
