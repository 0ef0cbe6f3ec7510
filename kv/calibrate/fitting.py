"""Fitting: make a calibration from a target and its sessions. The method is in `predictive.py`, its file in FORMAT.md.

    collect    KV of each row, keys at position 0, and the attention that each token received     a file per row
    effects    how an error of the KV changes what the target says: gradients of sampled tokens    a running sum
               after the context, and where an early passage is repeated
    layers     closed loop: predictor by ridge regression from decoded layers, transform, integers, decoded layer
    tables     frequencies of the integers at several steps
    receipts   what each form loses on held-out rows                                               a line per row

The effect of an error d of a layer's KV on the next tokens is d G d / 2 nats. G is the mean of g g over gradients g
of the log probability of tokens that the target itself samples (the Fisher information). The transform is the KLT of
the residual under sqrt(G): the square root, since far from zero the error grows less than the square says. Measured on
SmolLM2-135M at one bit per element, each step in turn: predictor fitted on exact layers KL 0.0122, on decoded layers
0.0045, keys and values in one transform 0.0027, under sqrt(G) 0.0004 (experiments/LOG.md).

All stages but the layers and tables resume where they were, and those two begin anew: their files are in a work
folder. Points between two that were measured have receipts, too, but KL at a single point has noise of its own: 12 %
on 1,000 tokens, from one sixteenth to the next. So the points that bounds choose are measured at last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.kv.calibrate.measure import prefilled, watched
from pltz.kv.calibrate.outcome_file import OutcomeFile
from pltz.kv.engines.streams import BASE, ESCAPE, HALF, MEAN_UNIT, PRECISION, SYMBOLS, TABLES, Tables, contexts
from pltz.kv.kv_forms import row_forms
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.port.private_file import private_folder
from pltz.kv.port.receipt import LEAST_ROWS
from pltz.kv.port.rotary import Rotary, at_zero
from pltz.kv.predictive.calibration import BELOW, FORMAT, PREDICTIVE, Calibration, KVShape
from pltz.kv.predictive.layer import Layer, inputs_of, layers_of, quantised, rows
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.predictive.steps import classes_of, steps_of
from pltz.models import cache_argument, cache_of
from pltz.plt_codec import CorruptError, ModelError, UsageError

if TYPE_CHECKING:
    import torch

    from pltz.models import Target

FIT_POINT = -4  # the step that predictors are fitted for: 8 log2
SCORED_POINTS = (-36, -32, -28, -24, -20, -16, -12, -8, -4, 0, 4)  # with a receipt each
CHOICES = 4  # rounds in which points chosen by bounds are measured
TABLE_POINTS = (-24, -12, -4, 4)  # whose integers fill the tables
TABLE_ROWS, TABLE_SHARE = 24, 12  # rows that fill the tables; every twelfth token of each
RIDGE = 1e-3  # of the mean diagonal
FLOOR = 0.02  # of the mean eigenvalue of an effect
LEAST, MOST = 0.05, 20.0  # weight of a direction
SHARE = 0.03  # of the model's bytes: a calibration above it gets predictors of low rank
FIXED, EACH = 40000, 14  # bytes of a calibration beside its matrices: tables, header, receipts; per layer and component
LEAST_RANK = 8  # width / 8 is the lowest rank: the transforms of targets with many heads weigh above SHARE alone
SAMPLES = 2  # sampled tokens after each id, per row
REPEATED = 6  # of a context the share of an early passage that is repeated
PRIOR_COUNT = 50.0  # of the Laplace distribution in each table


@dataclass(frozen=True)
class Plan:
    """Say how much to calibrate on.

    ``context``: tokens whose KV is modelled, and ``new``: tokens after them, of each row. ``effects``: rows for the
    effects. ``work``: folder for what is done. ``bounds``: on the loss; the points that they choose are measured.
    ``begin``, ``advance``: told of each stage and unit.
    """

    context: int
    new: int
    effects: int
    work: Path
    rank: int | None = None
    bounds: tuple[Bound, ...] = ()
    begin: Callable[[str, int], None] = lambda stage, count: None
    advance: Callable[[int], None] = lambda count: None

    def __post_init__(self) -> None:
        if self.context < 64 or self.new < 8 or self.effects < 1:
            raise UsageError("expected a context of at least 64 tokens, 8 tokens after it, and a row for the effects")


def calibrate(target: Target, train: NDArray[np.int32], held: NDArray[np.int32], plan: Plan) -> Calibration:
    """Return the calibration of a target. ``train``, ``held``: rows of ids, (n, context + new).

    Raises:
        ModelError: the target's keys cannot be turned, or its attention cannot be seen; the message says why.
        UsageError: rows or plan make no sense, too few rows are held out, the work folder is of another calibration,
            or its disk is too small.
    """
    if train.shape[1] != plan.context + plan.new or held.shape[1] != train.shape[1] or not len(train):
        raise UsageError(f"expected rows of {plan.context + plan.new} ids")
    if len(held) < LEAST_ROWS:
        raise UsageError(f"expected {LEAST_ROWS} rows held out for receipts, found {len(held)}: give more sessions")
    rotary = Rotary.of(target)
    work = _claim(target, train, held, plan)
    found = Fit(target, rotary, train, plan, work).found()
    return receipts(target, rotary, found, held, plan)


class Fit:
    """A calibration in the making. Files in ``plan.work`` are written whole or not at all.

    ``work``: names what is being made. Each file says it, and its own name.
    """

    def __init__(self, target: Target, rotary: Rotary, train: NDArray[np.int32], plan: Plan, work: str) -> None:
        import torch

        self.work = work
        self.target, self.rotary, self.train, self.plan = target, rotary, train, plan
        embedding: Any = target.model.get_input_embeddings().weight.detach()
        self.embedding: torch.Tensor = embedding
        with torch.inference_mode():
            self.shape = self._shape(prefilled(target, train[0, :2]))

    def found(self) -> Calibration:
        """Return the calibration without receipts: `fitted.safetensors`, or all stages up to it."""
        path = self.plan.work / "fitted.safetensors"
        if not path.exists():
            self.collect()
            self.effects()
            self.fitted().save(path)
        return Calibration.load(path, self.target.fingerprint)

    # ---- stages, of which the first two resume

    def collect(self) -> None:
        """Write the KV and the mass of each row: `row-N.safetensors`, one float16 tensor per layer.

        Raises UsageError where the disk has no room for them, and ModelError where the target shows no attention.
        """
        import torch

        missing = sum(not self._row(n).exists() for n in range(len(self.train)))
        needed = missing * self.plan.context * self.shape.layers * self.shape.width * 2
        if (free := shutil.disk_usage(self.plan.work).free) < needed:
            raise UsageError(
                f"{self.plan.work} needs {needed / 1e9:.1f} GB for the KV of {missing} rows, and {free / 1e9:.1f} GB "
                "are free: free some, or give fewer or shorter rows"
            )
        self.plan.begin("prefill", len(self.train))
        for n, row in enumerate(self.train):
            path = self._row(n)
            if not path.exists():
                ids = row[: self.plan.context]
                with torch.inference_mode():
                    kv, mass = watched(self.target, ids)
                    still = rows(at_zero(kv, Span(ids, 0), self.rotary))
                    halves = [r.clamp(-65504, 65504).half().cpu().contiguous() for r in still]
                    tensors = {f"layer.{i}": half for i, half in enumerate(halves)}
                    if mass is None:
                        raise ModelError(
                            "the attention of this target cannot be seen, and its forms code by it: load it with "
                            "attn_implementation sdpa or eager, or keep its KV in the form raw or q8"
                        )
                    tensors["mass"] = torch.from_numpy(mass)
                self._save(path, tensors)
            self.plan.advance(1)

    def effects(self) -> None:
        """Write the effects of the first rows: `effects.safetensors`, (layers, width, width) and a count."""
        import torch

        path = self.plan.work / "effects.safetensors"
        wanted = min(self.plan.effects, len(self.train))
        if path.exists():
            total, count = self._load(path, "total", "done")
            total, done = total.to(self.embedding.device), int(count)
        else:
            size = (self.shape.layers, self.shape.width, self.shape.width)
            total, done = torch.zeros(size, device=self.embedding.device), 0
        self.plan.begin("measure effects", wanted)
        self.plan.advance(done)
        for n in range(done, wanted):
            total += self._effect(n)
            if n % 4 == 3 or n == wanted - 1:
                self._save(path, {"total": total.cpu(), "done": torch.tensor(n + 1)})
            self.plan.advance(1)
        self.effect = total / max(wanted, 1)

    def _effect(self, n: int) -> torch.Tensor:
        """Return the sum over tokens of g g for one row, weighted by the token's step; (layers, width, width).

        Half of it is of the row's own next tokens, half of an early passage that is repeated: who repeats reads other
        layers, above all their keys. Both count as many tokens.
        """
        row, context = self.train[n], self.plan.context
        length = min(max(context // REPEATED, 2), self.plan.new)
        begin = int(np.random.default_rng(n).integers(0, context // 2 - length + 1))
        early = self._effect_on(n, row[begin : begin + length])
        return (self._effect_on(n, row[context:]) + early * (self.plan.new / length)) / 2

    def _effect_on(self, n: int, next_ids: NDArray[np.int32]) -> torch.Tensor:
        """Return the sum over the tokens that follow the context of a row."""
        import torch

        shape, context = self.shape, self.plan.context
        device = self.embedding.device
        layers, mass = self._read(n)
        span = Span(self.train[n, :context], 0, mass)
        weight = torch.from_numpy(steps_of(classes_of(span, context), 0)).to(device)
        weight[:4] = 0  # sinks are coded finely whatever the effect
        leaves = [r.to(device).float().requires_grad_() for r in layers]
        model: Any = self.target.model
        with torch.enable_grad():
            pairs = []
            for leaf in leaves:
                kv = leaf.unflatten(1, (2, shape.heads, shape.dim)).permute(1, 2, 0, 3)[:, None]  # (2, 1, heads, T, D)
                pairs.append((self.rotary.turn(kv[0], 0).to(model.dtype), kv[1].to(model.dtype)))
            cache = cache_of(pairs, model.config)
            follow = torch.from_numpy(next_ids.astype(np.int64))[None].to(device)
            logp = model(input_ids=follow, **cache_argument(model, cache)).logits[0].float().log_softmax(-1)
            total = torch.zeros((shape.layers, shape.width, shape.width), device=device)
            generator = torch.Generator(device).manual_seed(n)
            for sample in range(SAMPLES):
                said = torch.multinomial(logp.detach().exp(), 1, generator=generator)
                gradients = torch.autograd.grad(logp.gather(1, said).sum(), leaves, retain_graph=sample < SAMPLES - 1)
                for i, g in enumerate(gradients):
                    g = g * weight
                    total[i] += g.T @ g / SAMPLES
        return total

    def fitted(self) -> Calibration:
        """Return the calibration without receipts."""
        import torch

        self.plan.begin("fit layers", self.shape.layers)
        scale = self._scales()
        tensors: dict[str, NDArray[Any]] = {}
        level, constant, basis, basis_scale = [], [], [], []
        rank = self._rank()
        decoded: list[list[torch.Tensor]] = [[] for _ in self.train]
        with torch.inference_mode():
            for n in range(self.shape.layers):
                weight, back = self._weight(n, scale)
                layer, parts = self._layer(n, decoded, weight, back, rank)
                tensors |= {name.format(n): value for name, value in parts.items() if "{}" in name}
                constant.append(parts["constant"])
                basis.append(parts["basis"])
                basis_scale.append(parts["basis.scale"])
                level.append(self._decode(n, layer, decoded))
                self.plan.advance(1)
        tensors["level"] = np.stack(level).astype(np.int16)
        tensors["constant"], tensors["basis"] = np.stack(constant), np.stack(basis)
        tensors["basis.scale"] = np.stack(basis_scale)
        tensors["freq"], tensors["mean"] = self._tables(tensors)
        kind = str(self.target.model.dtype).removeprefix("torch.")
        return Calibration(self.target.fingerprint, self.shape, tensors, type=kind)

    def _layer(
        self, n: int, decoded: list[list[torch.Tensor]], weight: torch.Tensor, back: torch.Tensor, rank: int
    ) -> tuple[Layer, dict[str, NDArray[Any]]]:
        """Fit predictor and transform of a layer. Returns the matrices as they are after rounding, and as tensors."""
        import torch

        inputs, width = self.shape.inputs(n), self.shape.width
        device = self.embedding.device
        xx = torch.zeros((inputs + 1, inputs + 1), dtype=torch.float64, device=device)
        xy = torch.zeros((inputs + 1, width), dtype=torch.float64, device=device)
        yy = torch.zeros((width, width), dtype=torch.float64, device=device)
        for r in range(len(self.train)):
            x = self._inputs(r, decoded[r])
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
            y = self._read(r, n)[0][0].to(device).float()
            xx += (x.T @ x).double()
            xy += (x.T @ y).double()
            yy += (y.T @ y).double()
        ridge = RIDGE * xx.diagonal()[:-1].mean() * torch.eye(inputs + 1, dtype=torch.float64, device=device)
        solved = torch.linalg.solve(xx + ridge, xy)  # (inputs + 1, width)
        weighted = solved @ weight
        if rank:
            order = torch.linalg.eigh(weighted.T @ xx @ weighted)[1].flip(1)[:, :rank]
            weighted = weighted @ order @ order.T
        residual = yy @ weight - xy.T @ weighted
        left = weight.T @ residual - weighted.T @ (xy @ weight) + weighted.T @ xx @ weighted
        turn = torch.linalg.eigh((left + left.T) / 2)[1].flip(1)
        # to components: y weight turn; back: turn' back
        codes, row_scale = _rounded(turn.T @ back, 1)
        basis = codes.double() * row_scale
        encode = torch.linalg.inv(basis)
        target = weighted @ back @ encode  # the prediction in the rounded components
        predict, constant = target[:-1], target[-1].float()
        scale_in = 1 / (xx.diagonal()[:-1] / max(len(self.train) * self.plan.context, 1)).sqrt().clamp_min(1e-9)
        parts: dict[str, NDArray[Any]] = {
            "constant": constant.cpu().numpy(),
            "basis": codes.to(torch.int8).cpu().numpy(),
            "basis.scale": row_scale[:, 0].float().cpu().numpy(),
            "predict.{}.in": scale_in.float().cpu().numpy(),
        }
        if rank:
            left, size, right = torch.linalg.svd(predict / scale_in[:, None], full_matrices=False)
            root = size[:rank].sqrt()
            first = left[:, :rank] * root
            spread, spread_scale = _rounded(root[:, None] * right[:rank], 1)
            parts["spread.{}"] = spread.to(torch.int8).cpu().numpy()
            parts["spread.{}.scale"] = spread_scale[:, 0].float().cpu().numpy()
        else:
            first = predict / scale_in[:, None]
        rounded, scale_out = _rounded(first, 0)
        parts["predict.{}"] = rounded.to(torch.int8).cpu().numpy()
        parts["predict.{}.out"] = scale_out[0].float().cpu().numpy()
        matrices: tuple[torch.Tensor, ...] = ((rounded * scale_in[:, None] * scale_out).float(),)
        if rank:
            matrices += ((spread * spread_scale).float(),)
        return Layer(matrices, constant, encode.float(), basis.float()), parts

    def _decode(self, n: int, layer: Layer, decoded: list[list[torch.Tensor]]) -> NDArray[np.int64]:
        """Decode a layer of all rows, and drop the layers no longer needed. Returns levels of components, (width,)."""
        import torch

        total = torch.zeros(self.shape.width, dtype=torch.float64, device=self.embedding.device)
        for r in range(len(self.train)):
            read, mass = self._read(r, n)
            y = read[0].to(self.embedding.device).float()
            step = torch.from_numpy(steps_of(self._classes(r, mass), FIT_POINT)).to(y.device)
            p = layer.predicted(self._inputs(r, decoded[r]))
            c = y @ layer.encode - p
            total += c[4:].abs().sum(0).double()
            decoded[r].append((p + (c / step).round() * step) @ layer.decode)
            del decoded[r][:-BELOW]
        mean = total / max(len(self.train) * (self.plan.context - 4), 1)
        found: NDArray[np.int64] = (8 * mean.clamp_min(1e-9).log2()).round().clamp(-1000, 1000).long().cpu().numpy()
        return found

    def _tables(self, tensors: dict[str, NDArray[Any]]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Return the frequencies and means of the integers of some rows at several steps."""
        import torch

        freq, mean = laplace()
        counts = np.zeros((TABLES, SYMBOLS))
        found = Calibration(bytes(16), self.shape, tensors)
        layers = layers_of(found, self.embedding.device)
        some = range(min(TABLE_ROWS, len(self.train)))
        self.plan.begin("fill tables", len(some) * len(TABLE_POINTS))
        for r in some:
            read, mass = self._read(r)
            y = [layer.to(self.embedding.device).float() for layer in read]
            classes = self._classes(r, mass)
            for point in TABLE_POINTS:
                step = torch.from_numpy(steps_of(classes, point)).to(self.embedding.device)
                with torch.inference_mode():
                    q = quantised(layers, y, self._embedded(r), step)[r % TABLE_SHARE :: TABLE_SHARE]
                tables = Tables(freq, mean, tensors["level"])
                kinds = classes[r % TABLE_SHARE :: TABLE_SHARE]
                kind, low = contexts(q, kinds, tables, point)
                high = q >> low
                symbol = np.where(np.abs(high) <= HALF, high + HALF, ESCAPE)
                counts += np.bincount(
                    (kind.astype(np.int64) * SYMBOLS + symbol).ravel(), minlength=TABLES * SYMBOLS
                ).reshape(TABLES, SYMBOLS)
                self.plan.advance(1)
        return frequencies(counts), mean

    # ---- parts

    def _scales(self) -> list[tuple[float, float]]:
        """Return the standard deviation of keys and values of each layer, over the first rows."""
        import torch

        found = []
        for n in range(self.shape.layers):
            y = torch.cat([self._read(r, n)[0][0].float() for r in range(min(8, len(self.train)))])
            keys, values = ((h - h.mean(0)).pow(2).mean().sqrt() for h in y.chunk(2, 1))
            found.append((max(float(keys), 1e-6), max(float(values), 1e-6)))
        return found

    def _weight(self, n: int, scale: list[tuple[float, float]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weight of errors of a layer, (width, width), and its inverse: the fourth root of its effect."""
        import torch

        half = self.shape.width // 2
        device = self.embedding.device

        def size(layer: int) -> torch.Tensor:
            keys, values = scale[layer]
            return torch.tensor([keys] * half + [values] * half, dtype=torch.float64, device=device)

        def effect(layer: int) -> torch.Tensor:
            return self.effect[layer].double() * size(layer)[:, None] * size(layer)

        layers = range(self.shape.layers)
        usual = sum(float(effect(i).diagonal().mean()) for i in layers) / len(layers)
        values, turn = torch.linalg.eigh(effect(n) / max(usual, 1e-30))
        values = values.clamp_min(0)
        roots = (values + FLOOR * values.mean() + 1e-9).pow(0.25).clamp(LEAST, MOST)
        weight = turn * roots @ turn.T
        return weight / size(n)[:, None], (turn / roots @ turn.T) * size(n)

    def _rank(self) -> int:
        """Return the rank of predictors, 0 for full ones, so that the file keeps to SHARE of the model.

        A weight of the model counts as two bytes. A layer's rank by what it explains saves none (experiments/LOG.md).
        """
        shape = self.shape
        if self.plan.rank is not None:
            return self.plan.rank if self.plan.rank < shape.width else 0
        model: Any = self.target.model
        inputs = sum(shape.inputs(n) for n in range(shape.layers))
        room = SHARE * 2 * sum(p.numel() for p in model.parameters()) - FIXED
        room -= shape.layers * (shape.width**2 + EACH * shape.width) + 4 * inputs
        if inputs * shape.width <= room:
            return 0
        return max(int(room / (inputs + shape.layers * (shape.width + 8))), shape.width // LEAST_RANK)

    def _inputs(self, r: int, decoded: list[torch.Tensor]) -> torch.Tensor:
        return inputs_of(self._embedded(r), decoded)

    def _embedded(self, r: int) -> torch.Tensor:
        import torch

        ids = torch.from_numpy(self.train[r, : self.plan.context].astype(np.int64))
        return self.embedding[ids.to(self.embedding.device)].float()

    def _classes(self, r: int, mass: NDArray[np.float32]) -> NDArray[np.uint8]:
        return classes_of(Span(self.train[r, : self.plan.context], 0, mass), self.plan.context)

    def _row(self, r: int) -> Path:
        return self.plan.work / f"row-{r}.safetensors"

    def _read(self, r: int, layer: int | None = None) -> tuple[list[torch.Tensor], NDArray[np.float32]]:
        """Return the rows of one or of all layers, (T, width) float16, and the mass of a row."""
        wanted = range(self.shape.layers) if layer is None else [layer]
        *layers, mass = self._load(self._row(r), *(f"layer.{n}" for n in wanted), "mass")
        return layers, mass.numpy()

    def _load(self, path: Path, *names: str) -> list[torch.Tensor]:
        """Return tensors of a file of this work. Raises CorruptError for another file, or a damaged one."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                if file.metadata() == {"work": self.work, "name": path.name}:
                    return [file.get_tensor(name) for name in names]
        except SafetensorError as exc:
            raise CorruptError(f"{path} is damaged ({exc}): remove it, and calibrate again") from exc
        raise CorruptError(f"{path} is another file, or of another work: remove it, and calibrate again")

    def _save(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Write a file of this work whole or not at all."""
        from safetensors.torch import save_file

        part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
        try:
            save_file(tensors, part, {"work": self.work, "name": path.name})
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _shape(self, kv: torch.Tensor) -> KVShape:
        layers, _, heads, _, dim = kv.shape
        return KVShape(layers, heads, dim, self.embedding.shape[1])


def receipts(target: Target, rotary: Rotary, found: Calibration, held: NDArray[np.int32], plan: Plan) -> Calibration:
    """Return the calibration with receipts of all forms, measured on held-out rows.

    First at SCORED_POINTS. Then the points that ``plan.bounds`` choose, until each chosen one is a measured one, at
    most CHOICES times. A bound that no point keeps to is left out.
    """
    embedding: Any = target.model.get_input_embeddings().weight.detach()
    layers = layers_of(found, embedding.device)
    fixed: dict[str, KVCodec] = {**row_forms(target)}
    wanted: list[tuple[str, float]] = [(form, 0) for form in fixed]
    wanted += [(PREDICTIVE, p) for p in SCORED_POINTS]
    measured: list[tuple[str, float]] = []
    base = found.digest.hex()
    kept = OutcomeFile(plan.work / "held.jsonl", {"calibration": base, "context": plan.context, "new": plan.new})
    # Round 0 measures the fixed forms and SCORED_POINTS, each later one the points that the bounds choose by then.
    for number in range(1 + CHOICES):
        codecs = {
            f"{form} {point:g}": fixed.get(form) or PredictiveCodec(found, rotary, embedding, point, layers)
            for form, point in wanted
        }
        plan.begin(f"measure chosen points, round {number}" if number else "measure receipts", len(held))
        for row in held:
            named = {name: (name, codec) for name, codec in codecs.items()}
            kept.measure(target, row, plan.context, named, control=False)
            plan.advance(1)
        outcomes = [kept.total(held, name, name) for name in codecs]
        made = tuple(
            outcome.receipt(form, point, plan.context)
            for outcome, (form, point) in zip(outcomes, wanted, strict=True)
            if outcome.scored and not outcome.refused
        )
        found = replace(found, receipts=found.receipts + made)
        measured += wanted
        wanted = sorted({(PREDICTIVE, p) for bound in plan.bounds if (p := _chosen(found, bound)) is not None})
        wanted = [one for one in wanted if one not in measured]
        if not wanted:
            break
    return found


def _chosen(found: Calibration, bound: Bound) -> float | None:
    """Return the point that a bound chooses, None where there is none."""
    try:
        return found.point(max_kl=bound.kl, max_kl_recall=bound.recall)
    except UsageError:
        return None


def _claim(target: Target, train: NDArray[np.int32], held: NDArray[np.int32], plan: Plan) -> str:
    """Take the work folder, for its owner alone. Returns what names the work.

    Raises UsageError where it holds the work of another calibration.
    """
    rows = [hashlib.sha256(ids.tobytes()).hexdigest() for ids in (train, held)]
    facts = [FORMAT, PREDICTIVE, target.fingerprint.hex(), str(target.model.dtype), *rows, plan.context, plan.new]
    facts += [plan.effects, plan.rank]
    private_folder(plan.work)
    plan.work.chmod(0o700)  # its files have KV, and the usual mode
    mark = plan.work / "work.json"
    try:
        same = not mark.exists() or json.loads(mark.read_text()) == facts
    except ValueError:  # killed while it was written
        same = False
    if not same:
        raise UsageError(f"{plan.work} holds the work of another calibration: remove it, or name another output")
    part = mark.with_suffix(".part")
    part.write_text(json.dumps(facts))
    part.replace(mark)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def laplace() -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return frequencies and means of Laplace distributions, the tables before anything was counted."""
    share = _laplace()
    size = np.abs(np.arange(2 * HALF + 1) - HALF)
    mean = np.minimum(np.rint((share * size).sum(1) * MEAN_UNIT), MEAN_UNIT * HALF).astype(np.uint16)
    return frequencies(np.zeros((TABLES, SYMBOLS))), mean


def _laplace() -> NDArray[np.float64]:
    scale = 2.0 ** ((np.arange(TABLES) - BASE) / 4)[:, None]  # mean size in steps
    size = np.abs(np.arange(2 * HALF + 1) - HALF)[None]
    tail = 0.5 * np.exp(-(size - 0.5) / scale) * (1 - np.exp(-1 / scale))
    found: NDArray[np.float64] = np.where(size == 0, 1 - np.exp(-0.5 / scale), tail)
    return found


def frequencies(counts: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return frequencies that sum to 4096 for counts (TABLES, SYMBOLS). Rare symbols get 0, and are escaped."""
    share = np.concatenate([_laplace(), np.full((TABLES, 1), 1e-4)], 1)
    share = counts + PRIOR_COUNT * share / share.sum(1, keepdims=True)
    share = share / share.sum(1, keepdims=True)
    whole = 1 << PRECISION
    freq = np.floor(share * whole).astype(np.int64)
    freq[(freq == 0) & (share * whole > 0.4)] = 1
    freq[:, ESCAPE] = np.maximum(freq[:, ESCAPE], 1)
    for row in freq:  # the most likely symbol takes the remainder
        row[int(row.argmax())] += whole - row.sum()
    found: NDArray[np.uint16] = freq.astype(np.uint16)
    return found


def _rounded(matrix: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers from -127 to 127 and scales: of rows (``dim`` 1) or of columns (0)."""
    scale = (matrix.abs().amax(dim, keepdim=True) / 127).clamp_min(1e-12).float().double()
    return (matrix / scale).round().clamp(-127, 127), scale
