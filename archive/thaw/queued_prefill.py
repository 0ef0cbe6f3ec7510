"""QueuedPrefill: the prefill of a session that is still being decoded, run behind its decoder.

On a GPU all of it is queued behind the decoder, before the host has read a token:

    host     | launch decoder | launch prefill ........ | ids, their proof |  wait
    device                    | decode     | prefill .........................|

Without it the device idles while the host reads and verifies the ids and launches the first kernels of the
prefill. That takes about 1.5 ms of a thaw of 130 ms, measured between two runs on two GPUs of one kind.

On a CPU a session of several segments comes in pieces, each of them proved. A thread prefills them in chunks while the
next ones are decoded:

    this thread  | decode 1 | decode 2 | decode 3 | decode 4 |  wait
    its own                            | prefill 1, 2, 3 | prefill 4 |

Chunks end at multiples of `CHUNK` tokens, so the cut does not depend on the speed of either, and two thaws give the
same bits. The result counts once the archive has verified all ids and they are those that the prefill ran over.
Otherwise it is dropped: a decoder may also read a damaged record first, or another session.
"""

from __future__ import annotations

import ctypes
import time
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.plt_codec.engines.queued import Queued

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch
    from transformers import DynamicCache

    from pltz.kv.calibrate.watch import Watch
    from pltz.models.target.target import Target

Found = tuple["DynamicCache", "torch.Tensor"]
CHUNK = 512  # tokens of a chunk; the last one has up to twice as many


class QueuedPrefill:
    """A prefill of ``count`` ids still being decoded, in place of the target's `prefill`.

    The decoder calls it with each piece of the ids, in order (`pltz.plt_codec.engines.queued`). A failure here is no
    error of the thaw, which then prefills as usual. `close` it before the target is used for anything else.

    ``watch``: sees the attention of the prefill.
    """

    def __init__(self, target: Target, count: int, watch: Watch | None = None) -> None:
        self._target, self._count, self.watch = target, count, watch
        self._told = 0  # ids
        self._found: Found | None = None
        self._ran: list[torch.Tensor] = []  # ids of each piece, (n,) int64, on the device
        self._same: torch.Tensor | None = None
        self._begun, self._begun_s = self._mark(), time.perf_counter()
        self._decoded: torch.cuda.Event | None = None
        self._decoded_s = 0.0
        self._coming = SimpleQueue[bool]()  # a piece has come; False: nothing more will
        self._worker: Thread | None = None
        self._closed = False

    def __call__(self, queued: Queued) -> None:
        self._told += queued.tokens
        if self._told > self._count or queued.device != _name(self._target.device):
            self._told = self._count + 1  # it was told of two streams, or of another device
            self.close()
            return
        try:
            self._ran.append(self._ids(queued))
        except Exception:  # noqa: BLE001 - of torch: the thaw will meet a real error again
            self._told = self._count + 1
            return
        self._decoded_s = time.perf_counter()
        ends = [self._count] if queued.tokens == self._count else _ends(self._count)
        if self._target.device.type == "cpu":
            if self._worker is None:
                self._worker = Thread(target=self._prefill, args=(ends,), name="pltz-prefill", daemon=True)
                self._worker.start()
            self._coming.put(True)
        elif ends == [queued.tokens]:
            self._prefill(ends)

    def close(self) -> None:
        """End the thread of the prefill, if there is one, after the chunk under way."""
        self._closed = True
        self._wait()

    def found(self, ids: npt.NDArray[np.integer]) -> Found | None:
        """Return the cache and the logits of the last id, or None if no prefill ran over so many verified ids, (T,).

        They count only if `agrees`, which is known once the device is done. Waits for the thread.
        """
        import torch

        self._wait()
        if self._told != self._count or self._found is None or len(ids) != self._count:
            return None
        verified = torch.as_tensor(ids.astype("int64")).to(self._target.device, non_blocking=True)
        self._same = (torch.cat(self._ran) == verified).all()
        return self._found

    def agrees(self) -> bool:
        """Return whether the prefill ran over the ids given to `found`. Waits for the device."""
        return self._same is not None and bool(self._same)

    def decode_ms(self) -> float:
        """Return the milliseconds from construction until the ids were decoded. Call it once the device is done."""
        if self._begun is None or self._decoded is None:
            return 1e3 * (self._decoded_s - self._begun_s)
        return float(self._begun.elapsed_time(self._decoded))

    def _wait(self) -> None:
        """Wait for the thread, to which no more ids come."""
        if self._worker is not None:
            self._coming.put(False)
            self._worker.join()
            self._worker = None

    def _prefill(self, ends: list[int]) -> None:
        """Prefill chunks that end so, each as soon as its ids are there."""
        import torch

        cache, logits, done = None, None, 0
        try:
            with self.watch or nullcontext():
                for end in ends:
                    while sum(map(len, self._ran)) < end:
                        if not self._coming.get():
                            return
                    if self._closed:
                        return
                    cache, logits = self._target.prefill_queued(torch.cat(self._ran)[done:end], cache)
                    done = end
        except Exception:  # noqa: BLE001 - of the model or of torch: the thaw will meet a real error again
            return
        if cache is not None and logits is not None:
            self._found = cache, logits

    def _mark(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event | None:
        """Record an event in a stream (None: the current one of the target's device)."""
        import torch

        if self._target.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream or torch.cuda.current_stream(self._target.device))
        return event

    def _ids(self, queued: Queued) -> torch.Tensor:
        """Return the ids of a piece, (n,) int64, in the target's own stream.

        They are clamped to its vocabulary, in case the stream was damaged.
        """
        import torch

        device = self._target.device
        if device.type == "cpu":
            values = np.ctypeslib.as_array((ctypes.c_int32 * queued.tokens).from_address(queued.address))
            ids = torch.from_numpy(values.astype(np.int64))
            return ids.clamp_(0, self._target.vocab_size - 1)
        theirs = torch.cuda.ExternalStream(queued.stream, device=device)
        ours = torch.cuda.current_stream(device)
        self._decoded = self._mark(theirs)
        assert self._decoded is not None
        ours.wait_event(self._decoded)
        ids = torch.as_tensor(_Memory(queued), device=device).to(torch.int64)
        theirs.wait_event(ours.record_event())  # the memory is not reused before it was read
        return ids.clamp_(0, self._target.vocab_size - 1)


class _Memory:
    """GPU memory behind the interface that torch and other libraries accept."""

    def __init__(self, queued: Queued) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (queued.tokens,), "typestr": "<i4", "data": (queued.address, False), "version": 2,
        }  # fmt: skip


def _ends(count: int) -> list[int]:
    """Return where the chunks of so many ids end: at each multiple of `CHUNK`, but for the last but one."""
    return [*range(CHUNK, count - CHUNK + 1, CHUNK), count]


def _name(device: torch.device) -> str:
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"
