"""Chains: sequences that each stand behind the tokens of those before them, decoded without the host in between.

    host     | upload all streams | launch, launch, launch ...                      | download the ids
    device                        | sequence 0 | context 1 | sequence 1 | context 2 | sequence 2 ...

A session that grew turn by turn is such a chain. All ids lie in one buffer: sequences write to it, and each context is
a piece of it that is run once the sequence before it is decoded. The lengths of all contexts are known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.engines.cuda.batch import CLUSTER_LANES, KernelChoice, SequenceBatch
from pltz.plt_codec.engines.cuda.contexts import ContextBatch
from pltz.plt_codec.engines.cuda.model import DeviceModel
from pltz.plt_codec.engines.cuda.structs import BATCH
from pltz.plt_codec.engines.cuda.work import SequenceWork, most_lanes
from pltz.plt_codec.types import Progress

LINKS = 64  # sequences of a chain, at most
IDS = 1 << 17  # their ids and those of the first context, at most


class ChainBatch(SequenceBatch):
    """One chain of sequences, in their order. Their ids are in the buffer of ``contexts``."""

    def __init__(
        self,
        coder: KernelChoice,
        sessions: npt.NDArray[Any],
        work: Sequence[SequenceWork],
        contexts: ContextBatch,
        words: npt.NDArray[np.uint32],
    ):
        self._contexts = contexts
        super().__init__(coder, sessions, work, contexts, np.zeros(0, np.int32), words, True)

    def _kernels(self, coder: KernelChoice) -> tuple[bool, bool, int]:
        return not self.shape.gated, self.shape.gated, 1

    def address(self, name: str) -> int:
        """Return the address of a buffer, of a buffer of contexts, or of a tensor."""
        return self._contexts.address(name) if name == "tokens" else super().address(name)

    def turn_to(self, one: SequenceWork) -> None:
        """Choose the kernel for the next sequence: of grid.cu that for up to 16 lanes, or that for 32.

        Their marks lie elsewhere on the wire. So another kernel finds it as at first, and counts steps from 0.
        """
        lanes = most_lanes(one)
        if self.grid and (lanes <= CLUSTER_LANES) != (self.lanes <= CLUSTER_LANES):
            self.device.zero(self.address("wire"), self._sizes(0)["wire"])
            assert BATCH.fields is not None
            self.device.zero(self.address("state") + BATCH.fields["epoch"][1], BATCH["epoch"].itemsize)
        self.lanes = lanes


class ChainDecoder:
    """A decoder of chains. Its buffers of contexts, and the recording of their launches, stay. Threads take turns."""

    def __init__(self, model: DeviceModel):
        self._model, self._lock = model, Lock()
        self._contexts: ContextBatch | None = None
        self._replay: Any = None

    def decode(
        self,
        coder: KernelChoice,
        sessions: npt.NDArray[Any],
        work: Sequence[SequenceWork],
        ids: npt.NDArray[np.int32],
        words: npt.NDArray[np.uint32],
        progress: Progress | None,
    ) -> npt.NDArray[np.int32]:
        """Decode a chain of sequences that the whole GPU decodes one by one; return its ids behind the first context's.

        Args:
            coder: the coder of this model.
            sessions: (n,) of type SESSION, at most LINKS.
            work: of each sequence.
            ids: those of the first context and places for the others, (t,), at most IDS.
            words: all streams.

        Raises:
            CorruptError: a stream does not hold its number of tokens, or damaged data.
            ModelError: memory does not suffice.
        """
        with self._lock:
            # memory for contexts, and the recorded launches that read one, are made once
            if self._contexts is None:
                longest = max(1, self._model.shape.memory)
                self._contexts = ContextBatch(self._model, LINKS, longest, places=1, ids=IDS)
                self._replay = self._model.device.record(self._contexts.run)
            # all work is queued before anything is awaited: each context, then the blocks behind it
            behind = sessions[sessions["first"] > 0]  # each context begins where its sequence's ids are counted from
            self._contexts.place(behind["token_at"], behind["first"].astype(np.int64), ids)
            with ChainBatch(coder, sessions, work, self._contexts, words) as batch:
                for one in work:
                    if one.first:
                        self._replay()
                    batch.turn_to(one)
                    for _ in range(one.layout.extent(one.tokens).blocks):
                        batch.begin()
                        batch.decode_block()
                batch.report(np.zeros(1, BATCH), 0, progress)
                batch.download("tokens", ids)
        return ids[len(ids) - sum(one.tokens for one in work) :]

    def __del__(self) -> None:
        if self._contexts is not None:
            self._contexts.close()
