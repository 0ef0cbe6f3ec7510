"""Measure by the static-prefix protocol what a form of KV loses.

    prefill a context exactly  ->  encode and decode its KV  ->  score the session's own next tokens on it

The distributions are compared with those on the exact KV, token by token: KL in bits, the most likely token, and the
bits that the session's text costs. The first scored token follows a token that read the changed KV, so a form is
never judged on logits that were computed before the change. The control is the exact KV in a batch of two: its KL is
the noise of the machine.

After the same KV the target also repeats an early passage, and answers a question about another one. A user who comes
back to the beginning makes it look at tokens that got little attention before, and that a form coded coarsely.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.port.receipt import LEAST_ROWS, Receipt, spans, upper_limit
from pltz.models import cache_argument, cache_of, pairs_of
from pltz.plt_codec import ContentError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.models import Session, Target

CONTROL = "control"
SIMULATED, CHANGED = "kv.bits.", "kv.changed"  # parts of a baseline: its size, and the KV after it
POOL = 4096  # sessions that rows are drawn from
SEED = 5
COPIED = (1 / 24, 5 / 24)  # of the context: the early passage that is repeated, tokens 64 to 320 of 1536
ASKED = (1 / 4, 5 / 16)  # the one that is asked for
QUESTION = "\n\nWhat did I say at the beginning? You said: "


@dataclass
class Outcome:
    """Hold the measurements of one form. KL in bits per token, one value per scored token; sizes in bits.

    ``kl``: of each row, of its own next tokens. ``copied``, ``asked``: of each row, of tokens of an early passage.
    """

    name: str
    kl: list[NDArray[np.float32]] = field(default_factory=list)
    copied: list[NDArray[np.float32]] = field(default_factory=list)
    asked: list[NDArray[np.float32]] = field(default_factory=list)
    same: int = 0
    scored: int = 0
    change: float = 0.0
    coded_bits: int = 0
    elements: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    refused: int = 0

    def add(self, other: Outcome) -> None:
        """Add the measurements of the same form on other rows."""
        self.kl += other.kl
        self.copied += other.copied
        self.asked += other.asked
        for name in ("same", "scored", "change", "coded_bits", "elements", "encode_s", "decode_s", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self) -> dict[str, Any]:
        """Return the figures, for JSON."""
        kl = np.concatenate(self.kl) if self.kl else np.zeros(1, np.float32)
        scored = max(self.scored, 1)
        rows = max(len(self.kl), 1)
        found: dict[str, Any] = {
            "form": self.name,
            "bits": self.coded_bits / max(self.elements, 1),
            "kl": max(float(kl.mean(dtype=np.float64)), 0.0),
            "kl_error": _error(self.kl),
            "kl99": max(float(np.quantile(kl, 0.99)), 0.0),
            "top1": self.same / scored,
            "change": self.change / scored,
            "encode_ms": 1e3 * self.encode_s / rows,
            "decode_ms": 1e3 * self.decode_s / rows,
            "sessions": len(self.kl),
            "refused": self.refused,
        }
        for name, early in (("copied", self.copied), ("asked", self.asked)):
            if early:
                found |= {f"kl_{name}": _mean(early), f"kl_{name}_error": _error(early)}
        return found

    def receipt(self, form: str, point: float, context: int) -> Receipt:
        """Return the receipt of what was measured. Raises UsageError for fewer than LEAST_ROWS rows."""
        if len(self.kl) < LEAST_ROWS:
            raise UsageError(f"expected {LEAST_ROWS} rows for a receipt, found {len(self.kl)}: give more sessions")
        row = self.row()
        early = [rows for rows in (self.copied, self.asked) if rows]
        recall = (max(map(_mean, early)), max(map(_limit, early))) if early else (None, None)
        return Receipt(
            form, point, context, len(self.kl), self.scored, row["bits"], row["kl"], row["kl_error"], self._most(),
            row["kl99"], row["top1"], row["change"], *recall,
        )  # fmt: skip

    def _most(self) -> float:
        """Return the largest of the upper limits of the loss over beginnings of the rows, and over all of them."""
        longest = max(len(row) for row in self.kl)
        return max(_limit([row[:count] for row in self.kl]) for count in spans(longest))


def sessions_to_rows(target: Target, sessions: Iterable[Session], count: int, length: int) -> NDArray[np.int32]:
    """Return ``count`` rows of ``length`` ids, (count, length), from sessions in a fixed random order.

    Short sessions are joined, long ones are cut. Raises UsageError where the sessions are too short for two rows, and
    ContentError for one that the target cannot take.
    """
    from pltz.models import as_seen_by

    rng = np.random.default_rng(SEED)
    pool: list[tuple[int, Session]] = []
    for number, session in enumerate(sessions):  # every session is as likely to be drawn
        if len(pool) < POOL:
            pool.append((number, session))
        elif (place := int(rng.integers(number + 1))) < POOL:
            pool[place] = number, session
    rows: list[NDArray[np.int32]] = []
    left: list[int] = []
    for n in rng.permutation(len(pool)):
        number, session = pool[n]
        try:
            left += np.asarray(as_seen_by(target, session).value).tolist()[:length]
        except ContentError as exc:
            raise ContentError(f"session {number + 1} of all given is none for this target: {exc}") from exc
        if len(left) >= length:
            rows.append(np.array(left[:length], np.int32))
            left = []
        if len(rows) == count:
            break
    if len(rows) < 2:
        raise UsageError(f"expected sessions for two rows of {length} tokens, found {len(rows)}: give more sessions")
    return np.stack(rows)


def prefilled(target: Target, ids: NDArray[np.int32]) -> torch.Tensor:
    """Return the KV of ids (T,): (layers, 2, heads, T, D)."""
    import torch

    cache, _ = target.prefill(ids)
    return torch.stack([torch.stack([k[0], v[0]]) for k, v in pairs_of(cache)])


def watched(target: Target, ids: NDArray[np.int32]) -> tuple[torch.Tensor, NDArray[np.float32] | None]:
    """Return the KV of ids (T,), and the attention that each received, (T,), where the target shows it."""
    from pltz.kv.calibrate.watch import Watch

    with Watch([len(ids)]) as watch:
        kv = prefilled(target, ids)
    return kv, watch.mass(0, len(ids))


def scored(target: Target, kv: torch.Tensor, ids: NDArray[np.int32], *, copies: int = 1) -> torch.Tensor:
    """Return natural log probabilities, (n - 1, vocabulary), of the ids (n,) that follow a KV. ``copies``: batch."""
    import torch

    with torch.inference_mode():
        pairs = ((k[None].expand(copies, -1, -1, -1), v[None].expand(copies, -1, -1, -1)) for k, v in kv)
        cache = cache_of(pairs, target.model.config)
        rows = torch.from_numpy(ids.astype(np.int64))[None].expand(copies, -1).to(kv.device)
        logits = target.model(input_ids=rows, **cache_argument(target.model, cache)).logits[0, :-1]
        return torch.as_tensor(logits.float().log_softmax(-1))


def recalled(target: Target, row: NDArray[np.int32], context: int) -> tuple[NDArray[np.int32], ...]:
    """Return what follows the context of a row where early passages are asked for, and how much of it is no answer.

    The ids (n,) of a passage to repeat; those of a question with its answer, (m,); and the ids of the question alone.
    """
    edges = [(round(a * context), round(b * context)) for a, b in (COPIED, ASKED)]
    first, asked = (row[begin : max(end, begin + 2)] for begin, end in edges)
    question = np.array(target.tokenize(QUESTION), np.int32)
    return first, np.concatenate([question, asked]), question


def compare(
    target: Target,
    rows: NDArray[np.int32],
    context: int,
    codecs: Sequence[tuple[str, KVCodec]],
    *,
    control: bool = True,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Outcome]:
    """Measure forms on rows (n, length) of which the first ``context`` ids are coded. Returns an outcome for each.

    ``advance``: called with 1 after each row. A form that refuses a row counts it as refused, and is not scored on it.
    The control is not asked for early passages. The time to "decode" the control is that of the prefill.
    """
    import torch

    from pltz.plt_codec import PltzError

    found = [Outcome(name) for name, _ in codecs]
    noise = Outcome(CONTROL)
    for row in rows:
        ids, follow = row[:context], row[context:]
        # The exact KV, and all that is scored on it once: the continuation, the early passages.
        start = time.perf_counter()
        kv, mass = watched(target, ids)
        _wait(kv.device)
        noise.decode_s += time.perf_counter() - start
        exact = scored(target, kv, follow)
        copied, asked, question = recalled(target, row, context)
        early = [scored(target, kv, ids) for ids in (copied, asked)]
        # The control is the same KV in a batch of two: other float sums, nothing lost.
        if control:
            _count(noise, exact, scored(target, kv, follow, copies=2), follow)
            noise.coded_bits += 8 * kv.numel() * kv.element_size()
            noise.elements += kv.numel()
        for outcome, (_, codec) in zip(found, codecs, strict=True):
            # Only the form's own work is timed; its parts are checked as a reader would check them.
            span = Span(ids, 0, mass)
            try:
                _wait(kv.device)
                start = time.perf_counter()
                parts = codec.encode(kv, span)
                _wait(kv.device)
                middle = time.perf_counter()
                codec.check(parts, len(ids))
                again = codec.decode(parts, span)
                _wait(kv.device)
            except PltzError:
                outcome.refused += 1
                continue
            outcome.encode_s += middle - start
            outcome.decode_s += time.perf_counter() - middle
            outcome.coded_bits += sum(bits_of(name, part) for name, part in parts.items())
            outcome.elements += kv.numel()
            _count(outcome, exact, scored(target, again, follow), follow)
            outcome.copied.append(_lost(early[0], scored(target, again, copied)))
            outcome.asked.append(_lost(early[1], scored(target, again, asked))[max(len(question) - 1, 0) :])
        del exact, early
        if kv.device.type == "cuda":
            torch.cuda.empty_cache()
        advance(1)
    return [noise, *found] if control else found


def _limit(rows: Sequence[NDArray[np.float32]]) -> float:
    """Return the upper limit of the mean of rows."""
    return upper_limit(_mean(rows), _error(rows), len(rows))


def _mean(rows: Sequence[NDArray[np.float32]]) -> float:
    """Return the mean over all tokens of rows, not below 0, which rounding can give; 0 for none."""
    return max(float(np.concatenate(rows).mean(dtype=np.float64)), 0.0) if rows else 0.0


def _error(rows: Sequence[NDArray[np.float32]]) -> float:
    """Return the standard error of the mean of rows, from how much they differ; 0 for a single one."""
    means = [float(row.mean(dtype=np.float64)) for row in rows]
    return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0


def bits_of(name: str, part: torch.Tensor) -> int:
    """Return the bits of a part. A baseline that is only simulated says its size in the name of an empty part."""
    if name.startswith(SIMULATED):
        return int(name.removeprefix(SIMULATED))
    return 0 if name == CHANGED else 8 * part.numel() * part.element_size()


def _count(outcome: Outcome, exact: torch.Tensor, got: torch.Tensor, follow: NDArray[np.int32]) -> None:
    import torch

    outcome.kl.append(_lost(exact, got))
    outcome.same += int((exact.argmax(-1) == got.argmax(-1)).sum())
    outcome.scored += len(exact)
    right = torch.from_numpy(follow[1:].astype(np.int64)).to(exact.device)[:, None]
    outcome.change += float((exact.gather(-1, right) - got.gather(-1, right)).sum()) / math.log(2)


def _lost(exact: torch.Tensor, got: torch.Tensor) -> NDArray[np.float32]:
    """Return the KL of each token, (n,), in bits, from natural log probabilities (n, vocabulary)."""
    found: NDArray[np.float32] = ((exact.exp() * (exact - got)).sum(-1) / math.log(2)).float().cpu().numpy()
    return found


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
