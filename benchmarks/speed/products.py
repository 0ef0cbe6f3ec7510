"""The int8 matrix product of torch on the shapes of a model. The speed of coding is compared with it."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pltz.plt_codec.weights import Weights

WINDOW = 0.4  # seconds of products between two rounds of coding
# A longer pass is not made whole: without byte products (AVX2 alone) torch runs a plain loop of about a minute.
LONGEST = 4.0  # seconds
CUDA_ROWS = 32  # torch._int_mm on CUDA needs more than 16


class Products:
    """The weight matrices of a model as `torch._int_mm` takes them, times ``rows`` rows of random int8.

    The matrices are those of the model, each in memory of its own as in use. Of two orders in memory (by rows, by
    columns) the faster counts. ``rows`` is raised to the product's minimum. ``macs``: multiply-adds per pass.
    """

    def __init__(self, weights: "Weights", rows: int, device: str) -> None:
        import torch

        self.rows = rows = max(rows, 1 if device == "cpu" else CUDA_ROWS)
        shape, found = weights.shape, []
        parts = ("qkv", "out", *(("gate",) if shape.gated else ()), "up", "down")
        for i in range(shape.layers):
            found += [weights[f"layer.{i}.{name}.w"] for name in parts]
        found += [weights["class.w"], weights["embed.w"][:128]]  # the members of one class
        self.macs = rows * sum(w.size for w in found)
        by_columns = [torch.tensor(w, device=device).t() for w in found]  # (k, n) seen, (n, k) stored
        self._orders = [by_columns, [w.contiguous() for w in by_columns]]
        self._inputs = {
            k: torch.randint(-127, 128, (rows, k), dtype=torch.int8, device=device)
            for k in {w.shape[0] for w in by_columns}
        }
        self._device = device

    def seconds(self) -> float:
        """Return the seconds of one pass, in the faster order of those that the device takes.

        On the CPU it is the processor time of all threads.

        Raises:
            RuntimeError: the device takes none of the orders.
        """
        found, refused = [], None
        for order in self._orders:
            try:
                found.append(self._mean(order))
            except RuntimeError as exc:  # the device's library lacks this order
                refused = exc
        if refused is not None and not found:
            raise refused
        return min(found)

    def _mean(self, matrices: "Sequence[Any]") -> float:
        """Return the mean seconds of a pass over `WINDOW`, about as long as coding takes.

        A pass longer than `LONGEST` is estimated from its first matrices.
        """
        import torch

        weights, clock = 0, time.process_time if self._device == "cpu" else time.perf_counter
        start, spent = clock(), 0.0
        while spent < WINDOW:
            for w in matrices:
                torch._int_mm(self._inputs[w.shape[0]], w)
                weights += w.numel()
                if clock() - start > LONGEST:
                    break
            if self._device != "cpu":
                torch.cuda.synchronize()
            spent = clock() - start
        return spent * self.macs / (self.rows * weights)


class TorchThreads:
    """A context in which torch runs on as many threads as the coder."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        torch.set_num_threads(self._threads or self._before)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_num_threads(self._before)
