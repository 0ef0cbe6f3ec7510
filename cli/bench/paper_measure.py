"""Measure the claims of the papers: each function returns the rows of a subject, with verdicts by its own figures.

Every figure is of this run: of the given target, sessions and bundle. Records stand in `paper_records.py`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.cli.bench.paper_row import JOINT, LEARNED, MEMORY, TIERS, TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.cli.bench.deployment import Deployment
    from pltz.coding.codec import Codec
    from pltz.kv.calibrate.measure import Outcome
    from pltz.kv.port.rotary import Rotary
    from pltz.models.session.session import Session
    from pltz.models.target.target import Target

COMMUNITIES, BOTS = 5, 20  # of the deployment
MEASURED = 12  # of 50 communities are coded after their nearest
LAYERS_8B, LAYERS_70B = 32, 80  # 8 key heads of 128 each, 16 bits
KV_70B = LAYERS_70B * 2 * 8 * 128 * 2  # bytes per token


@dataclass(frozen=True, eq=False)
class Work:
    """Hold what is measured: a target in float32 by name, sessions, a codec, and how much of them.

    ``rows``, ``context``, ``new``: rows of tokens, those that are kept as KV, those scored after them. ``count``:
    sessions of the deployment.
    """

    model: str
    target: Target
    sessions: Sequence[Session]
    codec: Codec
    bundle: str | None
    threads: int | None
    rows: int
    context: int
    new: int
    count: int

    @cached_property
    def drawn(self) -> NDArray[np.int32]:
        """Return the rows, (rows, context + new)."""
        from pltz.kv.calibrate.measure import sessions_to_rows

        return sessions_to_rows(self.target, self.sessions, self.rows, self.context + self.new)

    @cached_property
    def kvs(self) -> list[torch.Tensor]:
        """Return the exact KV of each row's context."""
        from pltz.kv.calibrate.measure import prefilled

        return [prefilled(self.target, row[: self.context]) for row in self.drawn]

    @cached_property
    def rotary(self) -> Rotary:
        """Return the target's rotary embedding. Raises ModelError where it has none that turns."""
        from pltz.kv.port.rotary import Rotary

        return Rotary.of(self.target)

    @cached_property
    def deployment(self) -> Deployment:
        """Return a small deployment."""
        from pltz.cli.bench.deployment import Deployment

        return Deployment.made(self.target, self.sessions, communities=COMMUNITIES, bots=BOTS, count=self.count)

    def forms(self, named: Sequence[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the figures of forms of KV on the rows, by name."""
        from pltz.kv.calibrate.measure import compare

        found: list[Outcome] = compare(self.target, self.drawn, self.context, named, control=False)
        return {one.name: one.row() for one in found}

    def loss(self, changed: Sequence[torch.Tensor]) -> tuple[float, float]:
        """Return KL in bits per token, and the share of equal top-1, of each row's next tokens on a changed KV."""
        from pltz.kv.calibrate.measure import scored

        kl, same = [], []
        for row, kv, other in zip(self.drawn, self.kvs, changed, strict=True):
            exact, got = (scored(self.target, one, row[self.context :]) for one in (kv, other))
            kl.append(float((exact.exp() * (exact - got)).sum(-1).mean()) / math.log(2))
            same.append(float((exact.argmax(-1) == got.argmax(-1)).double().mean()))
        return max(statistics.mean(kl), 0.0), statistics.mean(same)


def positions(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 9: towers that move, and documents that stand behind others."""
    from pltz.cli.bench import attention_error
    from pltz.kv.compose.composition import Composer
    from pltz.kv.compose.segment import Segment
    from pltz.models.target.target import Target

    found = []
    quarter = work.context // 4
    runs = [work.drawn[0][n * quarter : (n + 1) * quarter] for n in range(4)]
    for target in (work.target, Target.load(work.model, work.target.device, "bfloat16")):
        said = attention_error.materialised(target, runs)
        dtype = str(target.model.dtype).removeprefix("torch.")
        found.append(
            PaperRow(
                TOWERS, "Theorem 9", f"a tower that moves whole, in {dtype}: error of keys", f"<= {said['bound']:.1e}",
                f"the turn {said['turn']:.1e}; against a prefill there: keys {said['prefill']:.1e}, values "
                f"{said['value']:.1e}",
                verdict(max(said["prefill"], said["value"]) <= said["bound"], said["turn"] <= said["bound"]),
                "the bound counts the turn alone; a prefill elsewhere rounds every layer anew, so values differ too",
            )
        )  # fmt: skip
    composer, kl = Composer(work.target), {}
    for share in (0.0, 0.15):
        changed = []
        for row in work.drawn:
            parts = [Segment.alone(work.target, row[n * quarter : (n + 1) * quarter]) for n in range(4)]
            changed.append(composer.compose(parts, repair=share).kv)
        kl[share] = work.loss(changed)
    found.append(
        PaperRow(
            TOWERS, "Theorem 9, premise", "segments behind other tokens than before", "not covered",
            f"KL {kl[0.0][0]:.4f}, top-1 {kl[0.0][1]:.1%}; 15 % computed anew: {kl[0.15][0]:.4f}, {kl[0.15][1]:.1%}",
            verdict(kl[0.0][0] > 1e-4), "",
        )
    )  # fmt: skip
    return found


def attention(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 19, remark 20 and corollary 21."""
    from pltz.cli.bench import attention_error
    from pltz.cli.bench.kv_peers import PeerForm, turboquant

    said = attention_error.drift(work.target, work.drawn[0][: work.context])
    fine = [said["bits"][bits] for bits in ("4", "6", "8")]
    two, per_bit = said["bits"]["2"], abs(said["per_bit"] - 1) < 0.25
    run = min(64, work.context // 8)

    def coarse(first: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, float]]:
        def change(kv: torch.Tensor) -> tuple[torch.Tensor, float]:
            x, part = kv.clone(), slice(first, first + run)
            x[:, :, :, part], _ = turboquant(2)(kv[:, :, :, part])
            return x, 16.0 * kv.numel()

        return change

    middle = work.context // 2
    lost = work.forms([(f"{at}", PeerForm(f"{at}", coarse(at))) for at in (0, 4, middle)])
    base, later, far = (lost[f"{at}"]["kl"] for at in (0, 4, middle))
    return [
        PaperRow(
            TOWERS, "Theorem 19", "error of attention's output when keys of 64 tokens are quantised", "<= the bound",
            f"at 4 to 8 bits at most {max(one['most'] for one in fine):.2f} of it; at 2 bits {two['above']:.1%} of "
            f"{said['cases']:,} cases above, up to {two['most']:.0f} times",
            verdict(all(one["most"] <= 1 for one in fine) and two["most"] <= 1, all(one["most"] <= 1 for one in fine)),
            "it is of first order: an error of logits above 1 is not small",
        ),
        PaperRow(
            TOWERS, "Theorem 19, scaling", "octaves of error per bit; power of the attention mass", "1; 0.5",
            f"{said['per_bit']:.2f}; {said['power']:.2f}",
            verdict(per_bit and abs(said["power"] - 0.5) < 0.1, per_bit),
            "the second moment in the bound grows with the mass as well, so little mass matters less than its root",
        ),
        PaperRow(
            TOWERS, "Corollary 21", "the base takes the fewest bits", "least harm",
            f"{run} tokens at 2 bits: KL {base:.4f} for the first ones, {later:.4f} from the fifth on, {far:.4f} in "
            "the middle", verdict(base <= far, later <= 2 * far),
            "the first four tokens are attention sinks and stand in the base; behind them the claim is nearer",
        ),
    ]  # fmt: skip


def storage(work: Work) -> list[PaperRow]:
    """Return the rows of theorems 14 and 23 and of tables 1, 3 and 4, of an archive that is made, and its thaws."""
    from pltz.archive.archive import Archive
    from pltz.kv.store.store import HotStore

    here, target, token = work.deployment, work.target, work.target.kv_bytes(1)
    counts = [work.count // 8, work.count // 2, work.count]
    levels = here.levels()
    prompts = sum(len(one) for level in list(levels.values())[:3] for one in level)
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        cold = Archive.open(Path(folder) / "cold", create=True, bundle=work.bundle, threads=work.threads)
        shared = sum(here.put_prompts(cold, target).values())
        before = _size(Path(folder))
        steps, own, done = [], 0, 0
        for count in counts:
            own += here.put_sessions(cold, target, done, count)
            done = count
            steps.append((count, (shared + own) / count, own / count, (_size(Path(folder)) - before) / count))
        rows = [_shared(steps, shared), _table_4(work, shared, own)]
        rows.append(_per_session(work, own))
        thawer = cold.thawer(target, HotStore.open(1 << 30))
        times = [thawer.thaw(f"session/{n}").timings for n in range(4)]
        again = [thawer.thaw(f"session/{n}").timings for n in range(4)]
    middle = {name: statistics.median(one[name] for one in times) for name in ("read", "decode", "prefill", "total")}
    warm = statistics.median(one["total"] for one in again)
    tokens = statistics.mean(sum(map(len, here.tower(n))) for n in range(len(times)))
    rows.append(
        PaperRow(
            TOWERS, "10.5", "a thaw: read, decode, one prefill; then hot",
            "0.5 to 1, 5 to 15, 100 to 500 ms; then free",
            f"{tokens:,.0f} tokens, this machine: {middle['read']:.1f}, {middle['decode']:.0f}, "
            f"{middle['prefill']:.0f}, all {middle['total']:.0f} ms; again {warm:.1f} ms",
            verdict(middle["decode"] <= 15 and middle["total"] <= 515 and warm < 10, warm < middle["total"] / 10),
            "times are of this machine, a CPU unless --device says otherwise; what is read and what is hot is as said",
        )
    )  # fmt: skip
    kv_shared = (prompts + sum(map(len, here.chats))) * token / work.count
    kv_alone = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * token / work.count
    floor = sum(map(len, here.chats)) * token / work.count
    rows.append(
        PaperRow(
            TOWERS, "Theorem 14, KV", f"KV per session of {work.count}, each segment once", "own part + prompts / N",
            f"{kv_shared / 1e6:.2f} MB; own part {floor / 1e6:.2f}, unshared {kv_alone / 1e6:.2f}",
            verdict(abs(kv_shared - floor - prompts * token / work.count) < 1), "",
        )
    )  # fmt: skip
    return [*rows, *_composed(work)]


def _shared(steps: Sequence[tuple[int, float, float, float]], shared: int) -> PaperRow:
    """Return the row of theorem 14 and table 1 in coded bytes. ``steps``: N, all and own bytes each, and of files."""
    leaf = steps[-1][2]
    said = [leaf + shared / count for count, *_ in steps]
    off = max(abs(one[1] - two) / two for one, two in zip(steps, said, strict=True))
    pairs = zip(steps, said, strict=True)
    measured = "; ".join(f"N={one[0]}: {one[1]:,.0f} B, by the formula {two:,.0f}" for one, two in pairs)
    return PaperRow(
        TOWERS, "Theorem 14, Table 1", "coded bytes per session against N", "own bytes + prompts / N",
        f"{measured}; files add {steps[-1][3] - leaf:,.0f} B each", verdict(off < 0.1, off < 0.5),
        f"the mean of the first chats differs from that of all: the formula is off by {off:.0%} at most",
    )  # fmt: skip


def _table_4(work: Work, shared: int, own: int) -> PaperRow:
    here, token = work.deployment, work.target.kv_bytes(1)
    raw = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * token
    tokens = sum(len(one) for level in here.levels().values() for one in level)
    ratio = raw / (shared + own)
    big = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * KV_70B / (shared + own)
    return PaperRow(
        TOWERS, "Table 4", "KV of a deployment over its coded tokens", "850,000 times",
        f"{raw / 1e6:,.0f} MB to {shared + own:,} B: {ratio:,.0f} times; with 70B's KV {big:,.0f}; "
        f"{8 * (shared + own) / tokens:.2f} bits per token", verdict(big >= 850_000, big >= 425_000),
        "the ratio is that of the target's KV per token and of how many sessions share the prompts",
    )  # fmt: skip


def _per_session(work: Work, own: int) -> PaperRow:
    tokens = sum(map(len, work.deployment.chats)) / work.count
    size = own / work.count
    return PaperRow(
        TOWERS, "12.3, Corollary 33", "a session's own content", "100 to 500 B",
        f"{size:,.0f} B of {tokens:,.0f} tokens", verdict(size <= 500, size <= 1000), "",
    )  # fmt: skip


def _composed(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 23: the product of single factors beside what all together take."""
    from pltz.kv.calibrate.measure import bits_of, watched
    from pltz.kv.forms.q4 import Q4Codec
    from pltz.kv.port.codec import Span

    here, codec = work.deployment, Q4Codec(work.rotary)
    raw = quantised = once = both = 0
    seen: set[bytes] = set()
    kept: list[torch.Tensor] = []
    for n in range(min(8, work.count)):
        tower = here.tower(n)
        ids = np.concatenate(tower).astype(np.int32)
        kv, mass = watched(work.target, ids)
        kept.append(kv)

        def packed(begin: int, end: int, kv: Any = kv, mass: Any = mass, ids: Any = ids) -> int:
            part = codec.encode(kv[:, :, :, begin:end], Span(ids[begin:end], begin, mass[begin:end]))
            return sum(bits_of(name, one) for name, one in part.items()) // 8

        raw += 2 * kv.numel()  # as in 16 bits
        quantised += packed(0, len(ids))
        begin = 0
        for segment in tower:
            end = begin + len(segment)
            name = ids[:end].tobytes()
            if name not in seen:
                seen.add(name)
                once += 2 * kv[:, :, :, begin:end].numel()
                both += packed(begin, end)
            begin = end
    q, t = raw / quantised, raw / once
    product, total = q * t, raw / both
    explained = statistics.mean(_by_previous(kv, work.rotary) for kv in kept)
    gain = 0.5 * math.log2(1 / max(1 - explained, 1e-9))
    bits = 16 / q
    d = bits / max(bits - max(gain, 0.0), 1e-9)
    return [
        PaperRow(
            TOWERS, "Theorem 23", "Q, P and T together against the product", "the product of the factors",
            f"Q {q:.2f}, P and T {t:.2f}: product {product:.2f}, measured {total:.2f}",
            verdict(False, total >= 0.85 * product),
            "P and T are one saving: what is stored once is counted once, so a factor for each would count it twice. "
            "Segments kept apart each pay for their finer first and most attended tokens",
        ),
        PaperRow(
            TOWERS, "Theorem 23, D", "delta coding to the token before", "30 times",
            f"it explains {explained:.0%} of keys and values: {gain:.2f} bits per element, {d:.2f} times after Q",
            verdict(d >= 30, d >= 10),
            "KV follows from the token exactly, but the vector before tells little of the next; prediction across "
            "layers tells more (the form predictive)",
        ),
    ]  # fmt: skip


def _by_previous(kv: torch.Tensor, rotary: Rotary) -> float:
    """Return the share of the variance of un-rotated keys, and of values, that the best gain on the last explains."""
    found = []
    for one in (rotary.turn(kv[:, 0], 0, back=True), kv[:, 1]):
        x = (one - one.mean(2, keepdim=True)).double()
        now, last = x[:, :, 1:], x[:, :, :-1]
        gain = (now * last).sum((2, 3)) / last.square().sum((2, 3)).clamp_min(1e-12)
        left = (now - gain[:, :, None, None] * last).square().sum((2, 3)) / now.square().sum((2, 3)).clamp_min(1e-12)
        found.append(1 - float(left.mean()))
    return statistics.mean(found)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "parity" not in path.parts)


def code(work: Work) -> list[PaperRow]:
    """Return the rows of proposition 27 and table 5: bits per token of the sessions by source."""
    from pltz.cli.bench import corpus, measure

    records = [corpus.SampleSession("all", one, 0) for one in work.sessions[: max(8, work.count // 2)]]
    run = measure.run(work.codec, [one.session for one in records])
    coded = [one for one in run.costs if not one.log]
    ideal, size = sum(one.ideal_bits for one in coded), 8 * sum(one.coded_bytes for one in coded)
    bits = [8 * one.file_bytes / one.tokens for one in run.costs]
    mean = 8 * len(run.data) / run.tokens
    low, high = np.quantile(bits, [0.1, 0.9])
    return [
        PaperRow(
            TOWERS, "Proposition 27", "coded length over the model's code length", "O(1)",
            f"{(size - ideal) / len(coded):.1f} bits per session, {size / ideal - 1:.2%}",
            verdict((size - ideal) / len(coded) < 64), "",
        ),
        PaperRow(
            TOWERS, "Table 5", "bits per token: conservative, realistic, optimistic", "5.0, 3.0, 1.7",
            f"{mean:.2f} in the mean of {len(bits)} sessions, all bytes of the file; 90th percentile {high:.2f}, 10th "
            f"{low:.2f}", verdict(bool(mean <= 3 and high <= 5), bool(mean <= 5)),
            "sessions of a kind that the bundle has not learnt cost more",
        ),
    ]  # fmt: skip


def lossy(work: Work) -> list[PaperRow]:
    """Return the row of 10.3: what tokens cost and lose where rare ones give way to the most probable ones."""
    from pltz.kv.calibrate.measure import prefilled

    told, kept, small = [], [], []
    before = _code_lengths(work, [row[: work.context] for row in work.drawn])
    for bits in (8, 14):
        changed, replaced = [], 0
        for row, cost in zip(work.drawn, before, strict=True):
            ids = row[: work.context].copy()
            rare = cost[0] > bits
            ids[1:][rare] = cost[1][rare]
            replaced += int(rare.sum())
            changed.append(ids)
        after = _code_lengths(work, changed)
        kl, same = work.loss([prefilled(work.target, ids) for ids in changed])
        share = replaced / (work.context - 1) / len(work.drawn)
        more = sum(float(one[0].sum()) for one in after) / sum(float(one[0].sum()) for one in before) - 1
        told.append(f"below 2^-{bits} ({share:.1%}): {more:+.0%} bits, KL {kl:.3f}, top-1 {same:.0%}")
        kept.append(more)
        small.append(kl)
    return [
        PaperRow(
            TOWERS, "10.3", "rare tokens replaced by probable ones, to rebuild KV alone", "shorter, with bounded drift",
            "; ".join(told) + ", by the target's own probabilities",
            verdict(max(kept) < 0 and max(small) < 0.01, min(kept) < 0),
            "rare tokens are what a chat is about: without them the next ones are harder to predict",
        )
    ]  # fmt: skip


def _code_lengths(work: Work, rows: Sequence[NDArray[Any]]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return of each row (T,) the target's code length of its ids but the first, in bits, and its likeliest ids."""
    import torch

    found = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(work.target.device)
        with torch.inference_mode():
            model: Any = work.target.model
            logits = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        bits = -logits.gather(-1, ids[0, 1:, None])[:, 0] / math.log(2)
        found.append((bits.cpu().numpy(), logits.argmax(-1).cpu().numpy().astype(np.int32)))
    return found


def communities(work: Work) -> list[PaperRow]:
    """Return the row of theorem 32: bytes per community after the nearest other one."""
    from pltz.cli.bench import corpus, nearest
    from pltz.cli.bench.communities import sampled
    from pltz.models.session.session import Session

    def record(text: str) -> corpus.SampleSession:
        session = Session("chat", {"messages": [{"role": "system", "content": text}]})
        return corpus.SampleSession("communities", session, len(text.encode()))

    records = [record(one.prompt) for one in sampled().made]
    [tenant] = nearest.tenants_of(records, work.codec, least=20, most=1500, count=MEASURED)
    bundle: Any = work.codec.bundle
    near = nearest.nearest(tenant, bundle.weights.shape.memory, 3)
    size = nearest.measure(work.codec, tenant, near, 3)
    after, alone = (statistics.mean(one) for one in (size.chosen(3), size.alone))
    return [
        PaperRow(
            TOWERS, "Theorem 32", "bytes per community, of 5 groups", "50",
            f"{after:.0f} after the nearest, {alone:.0f} alone; {len(size.alone)} of 50",
            verdict(after <= 50, after <= 75),
            "a quarter of the sentences are the community's own, and those cost their full code length",
        )
    ]  # fmt: skip


def quantised(work: Work) -> list[PaperRow]:
    """Return the rows about forms: the Q4 of agent-memory, and the low-rank budgets of the learnable paper."""
    from pltz.cli.bench.kv_peers import (
        PeerForm,
        budgets,
        int4_groups,
        low_rank,
        low_rank_by_layer,
        turboquant,
    )
    from pltz.kv.forms.q4 import Q4Codec

    named: list[tuple[str, Any]] = [("q4", Q4Codec(work.rotary))]
    changes = {"int4": int4_groups, "tq4": turboquant(4)}
    changes |= {f"even {n}": low_rank(n) for n in (2, 3, 4)}
    changes |= {f"by layer {n}": low_rank_by_layer(n) for n in (2, 3, 4)}
    lost = work.forms([*named, *((name, PeerForm(name, change)) for name, change in changes.items())])
    kept = np.mean([budgets(kv, 2) for kv in work.kvs], 0).reshape(-1, 2).sum(1)
    trend = float(np.corrcoef(np.arange(len(kept)), kept)[0, 1]) if len(kept) > 1 and kept.std() else 0.0
    token = {name: lost[name]["bits"] for name in ("int4", "q4", "tq4")}

    def told(name: str) -> str:
        return ", ".join(f"{lost[f'{name} {n}']['kl']:.2f}" for n in (2, 3, 4))

    gain = all(lost[f"by layer {n}"]["kl"] < lost[f"even {n}"]["kl"] for n in (2, 3, 4))
    small = lost["by layer 4"]["kl"] < 0.05
    return [
        PaperRow(
            MEMORY, "5.3", "what Q4 costs in quality", "1 % perplexity, of others",
            f"its groups of 64 with scale and zero: KL {lost['int4']['kl']:.4f}, top-1 {lost['int4']['top1']:.1%}, "
            f"{lost['int4']['change']:+.4f} bits per token; q4 of pltz {lost['q4']['kl']:.4f}, "
            f"{lost['q4']['top1']:.1%}",
            verdict(2 ** lost["int4"]["change"] - 1 <= 0.01), "",
        ),
        PaperRow(
            MEMORY, "3.2", "memory below 16 bits", "72 %",
            f"{1 - token['int4'] / 16:.1%} for its form, {1 - token['q4'] / 16:.1%} for q4 with its finer tokens",
            verdict(1 - token["int4"] / 16 >= 0.715),
            "its formula counts one scale per group, its figure two; its bytes are a quarter of its formula's",
        ),
        PaperRow(
            LEARNED, "Table 1", "KL at 2, 3 and 4 times, an even budget", "12 to 15 points of accuracy", told("even"),
            verdict(lost["even 2"]["kl"] > 0.05), "",
        ),
        PaperRow(
            LEARNED, "Table 1, adaptive", "KL at 2, 3 and 4 times, a budget by layer", "1 to 2 points of accuracy",
            told("by layer"), verdict(gain and small, gain),
            "the best basis of each row at the best budgets for squared error; what small directions say is lost",
        ),
        PaperRow(
            LEARNED, "5.1, abstract", "layers with the larger budget", "late ones (abstract), early ones (5.1)",
            f"dimensions by layer {', '.join(f'{one:.0f}' for one in kept)}: correlation with depth {trend:+.2f}",
            verdict(False, abs(trend) > 0.5),
            "the paper says both; squared error follows the variance, which here "
            f"{'grows' if trend > 0 else 'does not grow'} with depth",
        ),
        PaperRow(
            TIERS, "the numbers", "bytes per token of 8B with 4 bits", "34 KB, 3.76 times below FP16",
            f"{token['tq4'] / 8 * LAYERS_8B * 2 * 8 * 128 / 1e3:.1f} kB with these heads' norms, at KL "
            f"{lost['tq4']['kl']:.4f}",
            verdict(abs(token["tq4"] / 16 * 3.76 - 1) < 0.05, abs(token["tq4"] / 16 * 3.76 - 1) < 0.15),
            "a norm takes more of a small head",
        ),
    ]  # fmt: skip


def joint(work: Work) -> list[PaperRow]:
    """Return the rows of joint encoding: compression, loss, alike blocks, and the Poisson rate."""
    from pltz.cli.bench.attention_error import fusion_bound
    from pltz.cli.bench.joint_blocks import BLOCK, fuse

    whole = work.context // BLOCK * BLOCK
    kvs = [kv[:, :, :, :whole] for kv in work.kvs]
    found = {}
    for threshold in (0.99, 0.8, 0.7):
        one = fuse(kvs, work.rotary, threshold)
        changed = [kv.clone() for kv in work.kvs]
        for kv, new in zip(changed, one.kvs, strict=True):
            kv[:, :, :, :whole] = new
        found[threshold] = (one, *work.loss(changed))
    exact, high, low = (found[threshold] for threshold in (0.99, 0.8, 0.7))
    epsilon = fusion_bound(work.target, work.drawn[0][: work.context], 0.8)
    off = abs(low[0].found - low[0].expected) / max(low[0].found, 1)
    return [
        PaperRow(
            JOINT, "3, Figure 1", "blocks with a near one (cosine above 0.8) in another session", "94 %",
            f"{high[0].alike:.0%}; above 0.99, mostly shared prompts, {exact[0].alike:.0%}",
            verdict(high[0].alike >= 0.9, high[0].alike >= 0.5),
            "its workload is mathematics of one template; keys of one layer point alike whatever they say",
        ),
        PaperRow(
            JOINT, "Table 1", "compression and loss at 0.7 and 0.8", "2.98 times at -5 points; 1.6 at -0.7 (0.78)",
            f"{low[0].ratio:.2f} times at KL {low[1]:.2f}, top-1 {low[2]:.0%}; {high[0].ratio:.2f} at {high[1]:.2f}, "
            f"{high[2]:.0%}; 0.99: {exact[0].ratio:.2f} at {exact[1]:.4f}",
            verdict(high[1] < 0.01, high[1] < 0.05),
            "blocks that point alike differ in what matters; what fuses harmlessly is mostly what a trie shares "
            "already. The row on Q4 shows what the same bytes buy",
        ),
        PaperRow(
            JOINT, "Proposition 5.1", "pairs above 0.7 by the Poisson rate", "the count",
            f"{low[0].expected:,.0f} expected, {low[0].found:,} found", verdict(off < 0.1, off < 0.5),
            "cosines of a layer are not Gaussian",
        ),
        PaperRow(
            JOINT, "Proposition 5.3", "change of attention at 0.8", "<= 2 epsilon",
            f"epsilon {epsilon:.1f} at the median", verdict(epsilon < 1, True),
            "true, but it says something below 1 only: two distributions never differ by more than 2",
        ),
    ]  # fmt: skip


def memory(work: Work) -> list[PaperRow]:
    """Return the rows of agents' memory and of tiers: first tokens cold, warm and hot; batches; moves of blocks.

    The target attends by pages afterwards, so this runs last.
    """
    import torch

    from pltz.kv.memory.agent_memory import AgentMemory
    from pltz.kv.pool.block_pool import BlockPool
    from pltz.kv.pool.packed_session import PackedSession

    target = work.target
    pool = BlockPool.of(target, "q4", 2048, host_tokens=2048)
    session = PackedSession.of(target.prefill(work.drawn[0][: work.context])[0], pool)
    before = session.kv()
    session.spill()
    session.warm()
    same = bool(torch.equal(before, session.kv()))
    session.release()
    lengths = (work.context, 4 * work.context)
    text = target.tokenizer.decode(np.concatenate([row for row in work.drawn]).tolist())
    words = text.split(" ")
    lines = []
    speed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        for length in lengths:
            name = f"agent {length}"
            with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
                cold = _seconds(agents.phase, name, _cut(target, words, length), 1)
                hot = _seconds(agents.phase, name, " And then?", 1)
            with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
                warm = _seconds(agents.phase, name, " And now?", 1)
            lines.append((length, cold, warm, hot))
        with AgentMemory.open(folder, target, "q4", 8 * max(lengths)) as agents:
            prompt = _cut(target, words, work.context)
            agents.many({"a": prompt, "b": prompt + " x"}, 1)
            speed["one"] = sum(_seconds(agents.phase, who, " Go on.", 16) for who in "ab")
            speed["both"] = _seconds(agents.many, dict.fromkeys("ab", " Go on."), 16)
    last = lines[-1]
    grows = lines[-1][3] / lines[0][3]
    gain = speed["one"] / speed["both"]
    told = "; ".join(f"{n:,}: {1e3 * c:.0f}, {1e3 * w:.0f}, {1e3 * h:.0f}" for n, c, w, h in lines)
    return [
        PaperRow(
            MEMORY, "Table 1", "first token cold, warm from disk, hot, ms; warm and hot over cold",
            "7,024, 1,680, 758 at 4K: 4.2, 9.3 times",
            f"{told}: {last[1] / last[2]:.1f}, {last[1] / last[3]:.1f} times",
            verdict(last[1] / last[2] >= 4.2 and last[1] / last[3] >= 9.3, last[1] > last[2] > 0 and last[1] > last[3]),
            "the speed-up is prefill over reading, and this target's prefill is short",
        ),
        PaperRow(
            MEMORY, "Table 1, hot", f"time of a hot first token at {lengths[1]:,} over {lengths[0]:,} tokens", "1.1",
            f"{grows:.2f}", verdict(grows <= 1.3, grows <= 4),
            "attention reads all KV; its 81.6 times at 16K divides by 68.9 s of cold time, and its text says 31.8",
        ),
        PaperRow(
            MEMORY, "Table 2", "two agents as a batch over one after the other", "1.48 times", f"{gain:.2f} times",
            verdict(gain >= 1.4, gain > 1), "a step of a small target on a CPU is bound by calls, not by weights",
        ),
        PaperRow(
            TIERS, "1", "a block spilled and warmed", "bit-identical", "identical" if same else "different",
            verdict(same), "",
        ),
        PaperRow(
            TIERS, "6", "a shadow of 10,000 blocks", "340 MB",
            f"{10_000 * 16 * 34_000 / 1e9:.1f} GB at its own 34 KB per token and 16 tokens per block",
            verdict(abs(10_000 * 16 * 34_000 - 340e6) < 34e6), "340 MB are 10,000 tokens",
        ),
    ]  # fmt: skip


def _cut(target: Target, words: Sequence[str], tokens: int) -> str:
    """Return the first words of a text, of about so many tokens."""
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(target.tokenize(" ".join(words[:middle]))) <= tokens else (low, middle - 1)
    return " ".join(words[:low])


def _seconds(work: Callable[..., Any], *given: Any) -> float:
    began = time.perf_counter()
    work(*given)
    return time.perf_counter() - began


SUBJECTS = positions, attention, storage, code, lossy, communities, quantised, joint, memory
