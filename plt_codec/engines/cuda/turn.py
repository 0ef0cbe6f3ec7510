"""An encoder of one short sequence: the turn that a put adds to a session.

A new batch allocates its buffers and records its launches, which takes the host 2 ms. The kernels take less. So the
buffers stay, with a recording for sequences that have a context and one for those that have none.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.batch import KernelChoice, SequenceBatch, by_attend_wide
from pltz.plt_codec.engines.cuda.contexts import ContextBatch
from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.rows import packed
from pltz.plt_codec.engines.cuda.structs import SESSION
from pltz.plt_codec.engines.cuda.work import SequenceWork, key_room, stream_words
from pltz.plt_codec.lanes import MAX_LANES
from pltz.plt_codec.types import Progress

TOKENS = 512  # of a sequence, at most


class TurnBatch(SequenceBatch):
    """Buffers for any one sequence of at most TOKENS tokens, with a context or without.

    Args:
        most: work with at least as many keys as that of any such sequence.
    """

    def __init__(self, coder: KernelChoice, most: SequenceWork):
        super().__init__(coder, np.zeros(1, SESSION), [most], None, *_room(), False)

    def load(
        self,
        sessions: npt.NDArray[Any],
        work: SequenceWork,
        known: ContextBatch | None,
        tokens: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
    ) -> None:
        """Replace the sequence. Arguments as of `SequenceBatch`."""
        self.work, self.known = [work], known
        ids, stream = _room()
        ids[: len(tokens)], stream[: len(words)] = tokens, words
        self.device.upload(self._at["arrays"], packed(self._arrays(sessions, ids, stream))[1])


def _room() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
    """Return places for the ids, of which the first is the last of the context, and for the stream."""
    return np.zeros(1 + TOKENS, np.int32), np.zeros(stream_words(TOKENS), np.uint32)


class TurnEncoder:
    """An encoder of single sequences of at most TOKENS tokens. Threads take turns."""

    def __init__(self, model: DeviceModel):
        self._model, self._lock = model, Lock()
        self._most = SequenceWork(TOKENS + MAX_LANES, 1, TOKENS + MAX_LANES, max(0, model.shape.memory))
        self._batch: TurnBatch | None = None
        self._replay: dict[int, Callable[[], None]] = {}  # by the address of the context's keys and values; 0: none

    def serves(self, work: SequenceWork) -> bool:
        """Return whether it encodes a sequence. It must take the attention that the sequence would take alone."""
        shape, device = self._model.shape, self._model.device
        wide = {by_attend_wide(device, shape, [one], False) for one in (work, self._most)}
        return work.tokens <= TOKENS and key_room(shape, work) <= key_room(shape, self._most) and len(wide) == 1

    def encode(
        self,
        coder: KernelChoice,
        sessions: npt.NDArray[Any],
        work: SequenceWork,
        known: ContextBatch | None,
        tokens: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
        progress: Progress | None,
    ) -> None:
        """Encode a sequence. Its session, (1,) of type SESSION, and the words of its stream are filled in place."""
        with self._lock:
            if self._batch is None:
                self._batch = TurnBatch(coder, self._most)
            batch = self._batch
            batch.load(sessions, work, known, tokens, words)
            behind = known.address("known") if known else 0
            if behind not in self._replay:
                self._replay[behind] = batch.device.record(batch.iterate)
            batch.run(progress, self._replay[behind])
            batch.download("sessions", sessions)
            batch.download("words", words)

    def __del__(self) -> None:
        if self._batch is not None:
            self._batch.close()
