"""Documents: texts that are prefilled once and used in any order behind any prompt.

    documents = Documents(target)
    documents.add("manual", target.tokenize(text))
    found = documents.behind(prompt_ids, ["manual", "prices"])
    cache, logits = target.prefill([*found.ids, *question_ids], cache=found.cache(target))

Retrieval puts the same documents into many prompts. Each document is kept at position 0, in any form of KV, and moved
behind the prompt when it is asked for. Such KV is approximate: see `composition.py` for what is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.compose.composition import Composer, Composition
from pltz.experiments.compose.raw_codec import RAW
from pltz.experiments.compose.segment import Segment
from pltz.kv.port.codec import KVCodec
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.models.target.target import Target


class Documents:
    """Named documents of one target and their KV, in memory. Raises ModelError where keys cannot be turned.

    One thread uses it at a time.
    """

    def __init__(self, target: Target, codec: KVCodec = RAW) -> None:
        self.composer, self.codec = Composer(target), codec
        self._segments: dict[str, Segment] = {}

    def __contains__(self, name: object) -> bool:
        """Return whether a document has this name."""
        return name in self._segments

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._segments)

    @property
    def size(self) -> int:
        """Return the bytes of all blocks."""
        return sum(one.block.size for one in self._segments.values())

    def add(self, name: str, ids: Sequence[int] | NDArray[np.int32]) -> None:
        """Prefill a document, ids (T,), under a name. Another document of this name is replaced.

        Raises ContentError where the target cannot take the ids, and UsageError where the form cannot hold its KV.
        """
        self._segments[name] = Segment.alone(self.composer.target, ids, self.codec)

    def remove(self, name: str) -> None:
        """Drop a document. Raises UsageError where there is none of this name."""
        self._of(name)
        del self._segments[name]

    def behind(
        self, prompt: Sequence[int] | NDArray[np.int32], names: Sequence[str], *, repair: float = 0.15
    ) -> Composition:
        """Return a prompt, ids (T,), and documents behind it. The prompt is computed anew; it may be empty.

        Raises UsageError where a document is not there, and as `Composer.compose`.
        """
        own = [Segment.alone(self.composer.target, prompt)] if len(prompt) else []
        return self.composer.compose([*own, *map(self._of, names)], repair=repair)

    def _of(self, name: str) -> Segment:
        if name not in self._segments:
            raise UsageError(f'no document "{name}" here: add it first')
        return self._segments[name]
