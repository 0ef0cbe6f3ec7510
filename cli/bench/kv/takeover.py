"""Takeover: text that begins on a small form of KV and goes on over the exact KV, as a progressive thaw writes it.

    small form    decode | token token token ... token |
    beside it     prefill of the exact KV ............. | run the tokens written so far | token token ...

`pltz bench kv --refine N` shows it for each chat. The prefill runs in a thread beside the generation, on the same
device, as it does in a thaw with ``refine`` (`kv/thaw/thawer.py`). The text is compared with the one that the
exact KV alone gives.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.kv.calibrate.measure import watched
from pltz.kv.port.codec import KVCodec, Span
from pltz.models.target.cache import cache_argument, cache_of

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache

    from pltz.models.target.target import Target


@dataclass(frozen=True)
class Takeover:
    """One chat on one form.

    ``on_small``: tokens written on the small form before the exact KV took over; all of them where it came too late.
    ``departs``: number of the first token that differs from the exact text, None where the text is the same.
    ``departs_small``: the same of a text on the small form alone. ``first_ms``: until the first token, from the coded
    parts. ``exact_ms``: until the exact KV was there, beside the generation. ``text``: the ids.
    """

    on_small: int
    departs: int | None
    departs_small: int | None
    first_ms: float
    exact_ms: float
    text: list[int]

    @property
    def written(self) -> int:
        """Return the number of tokens of the text."""
        return len(self.text)

    def row(self) -> dict[str, Any]:
        """Return its figures, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "text"} | {"written": self.written}


def takeovers(
    target: Target, row: NDArray[np.int32], context: int, codecs: list[tuple[str, KVCodec]], count: int
) -> dict[str, Takeover]:
    """Return what happens to ``count`` greedy tokens of a chat, by form. Forms that refuse the chat are left out.

    ``row``: (n,) ids, of which the first ``context`` are coded; the next one is what the user said last.
    """
    from pltz.plt_codec.errors import PltzError

    ids, last = row[:context], int(row[context])
    kv, mass = watched(target, ids)
    exact = _Writer(target, cache_of(((k[None], v[None]) for k, v in kv), target.model.config), [last]).write(count)
    found = {}
    for name, codec in codecs:
        span = Span(ids, 0, mass)
        try:
            parts = codec.encode(kv, span)
            found[name] = _takeover(target, codec, parts, span, last, exact)
        except PltzError:
            continue
    return found


def _takeover(target: Target, codec: KVCodec, parts: Any, span: Span, last: int, exact: list[int]) -> Takeover:
    def prefilled() -> tuple[DynamicCache, float]:
        cache, _ = target.prefill(span.ids)
        _wait(target)
        return cache, time.perf_counter()

    _wait(target)
    start = time.perf_counter()
    with ThreadPoolExecutor(1, "exact") as beside:
        small = _Writer(target, _cache(target, codec.decode(parts, span)), [last])
        text = small.write(1)
        first = time.perf_counter()
        coming = beside.submit(prefilled)
        while len(text) < len(exact) and not coming.done():
            text += small.write(1)
        on_small = len(text)
        cache, there = coming.result()
    text = text + _Writer(target, cache, [last, *text]).write(len(exact) - on_small)
    alone = text[:on_small] + small.write(len(exact) - on_small)
    return Takeover(
        on_small, _departs(text, exact), _departs(alone, exact), 1e3 * (first - start), 1e3 * (there - first), text
    )


class _Writer:
    """Greedy text over a cache. ``ids``: that the cache does not have yet."""

    def __init__(self, target: Target, cache: DynamicCache, ids: list[int]) -> None:
        self._target, self._cache, self._next = target, cache, ids

    def write(self, count: int) -> list[int]:
        """Return the next ``count`` ids."""
        import torch

        found: list[int] = []
        with torch.inference_mode():
            while len(found) < count:
                ids = torch.tensor([self._next], device=self._target.device)
                logits = self._target.model(input_ids=ids, **cache_argument(self._target.model, self._cache)).logits
                found.append(int(logits[0, -1].float().argmax()))
                self._next = found[-1:]
        return found


def _cache(target: Target, kv: torch.Tensor) -> DynamicCache:
    return cache_of(((k[None], v[None]) for k, v in kv.to(target.device)), target.model.config)


def _departs(text: list[int], exact: list[int]) -> int | None:
    """Return the place of the first id that differs, or None."""
    return next((n for n, (a, b) in enumerate(zip(text, exact, strict=True)) if a != b), None)


def _wait(target: Target) -> None:
    import torch

    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
