"""QueuedPrefill: the prefill of a session that the GPU is still decoding, queued behind its decoder.

    host     | launch decoder | launch prefill ........ | ids, their proof |  wait
    device                    | decode     | prefill .........................|

Without it the device idles while the host reads and verifies the ids and launches the first kernels of the
prefill. That takes about 1.5 ms of a thaw of 130 ms, measured between two runs on two GPUs of one kind. The
result counts once the archive has verified the ids and they are those that the prefill ran over. Otherwise it is
dropped: a decoder may also read a damaged record first, or another session.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pltz.plt_codec.engines.queued import Queued

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from transformers import DynamicCache

    from pltz.kv.calibrate.watch import Watch
    from pltz.models.target.target import Target

Found = tuple["DynamicCache", "torch.Tensor"]


class QueuedPrefill:
    """A prefill of ``count`` ids still being decoded, in place of the target's `prefill`.

    The decoder calls it when the ids are queued (`pltz.plt_codec.engines.queued`). A failure here is no error of the
    thaw, which then prefills as usual. ``watch``: sees the attention of the prefill.
    """

    def __init__(self, target: Target, count: int, watch: Watch | None = None) -> None:
        self._target, self._count, self.watch = target, count, watch
        self._told = 0
        self._found: Found | None = None
        self._ran: torch.Tensor | None = None  # ids, (count,) int64, on the device
        self._same: torch.Tensor | None = None
        self._begun = self._mark()
        self._decoded: torch.cuda.Event | None = None

    def __call__(self, queued: Queued) -> None:
        self._told += 1
        self._found = None  # called twice: one of the two was for another stream
        if self._told > 1 or queued.tokens != self._count or queued.device != _name(self._target.device):
            return
        try:
            with self.watch or nullcontext():
                self._ran = self._ids(queued)
                self._found = self._target.prefill_queued(self._ran)
        except Exception:  # noqa: BLE001 - of the model or of torch: the thaw will meet a real error again
            self._found = None

    def found(self, ids: npt.NDArray[np.integer]) -> Found | None:
        """Return the cache and the logits of the last id, or None if no prefill ran over so many verified ids, (T,).

        They count only if `agrees`, which is known once the device is done.
        """
        import torch

        if self._told != 1 or self._found is None or self._ran is None or len(ids) != self._count:
            return None
        verified = torch.as_tensor(ids.astype("int64"))
        self._same = (self._ran == verified.to(self._target.device, non_blocking=True)).all()
        return self._found

    def agrees(self) -> bool:
        """Return whether the prefill ran over the ids given to `found`. Waits for the device."""
        return self._same is not None and bool(self._same)

    def decode_ms(self) -> float | None:
        """Return the milliseconds from construction until the ids were decoded; None on a CPU.

        Call it once the device is done.
        """
        if self._begun is None or self._decoded is None:
            return None
        return float(self._begun.elapsed_time(self._decoded))

    def _mark(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event | None:
        """Record an event in a stream (None: the current one of the target's device)."""
        import torch

        if self._target.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream or torch.cuda.current_stream(self._target.device))
        return event

    def _ids(self, queued: Queued) -> torch.Tensor:
        """Return the ids, (count,) int64, in the target's own stream.

        They are clamped to its vocabulary, in case the stream was damaged.
        """
        import torch

        device = self._target.device
        if device.type == "cpu":
            values = (ctypes.c_int32 * queued.tokens).from_address(queued.address)
            ids = torch.tensor(list(values), dtype=torch.int64)
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


def _name(device: torch.device) -> str:
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"
