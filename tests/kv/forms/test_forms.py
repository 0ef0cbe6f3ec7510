"""Each form on toy targets: what comes back, what is refused, and what a calibration is worth."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pltz
from pltz.experiments.compose.raw_codec import RAW
from pltz.kv.calibrate import fitting
from pltz.kv.calibrate.fitting import Plan, calibrate
from pltz.kv.calibrate.measure import Outcome, compare, prefilled, scored
from pltz.kv.kv_forms import row_forms
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import KVCodec, Span, loss, recall_loss
from pltz.kv.port.receipt import Receipt, upper_limit
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import FORMAT, PREDICTIVE, Calibration
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.predictive.steps import classes_of
from pltz.models.target.target import Target
from pltz.plt_codec.errors import CorruptError, ModelError, TargetMismatch, UsageError, VersionError
from tests.kv.spans import flat

SaveModel = Callable[[Path, transformers.PretrainedConfig], Path]
CONTEXT, NEW = 96, 24
SHAPE: dict[str, Any] = {
    "vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 2,
}  # fmt: skip
llama: Any = transformers.LlamaConfig  # its hints know no scaling
phi: Any = transformers.PhiConfig
neox: Any = transformers.GPTNeoXConfig
deepseek: Any = transformers.DeepseekV3Config
TURNED: dict[str, transformers.PretrainedConfig] = {
    "llama, GQA": llama(**SHAPE),
    "llama, MHA": llama(**SHAPE | {"num_key_value_heads": 4}),
    "llama3 scaling": llama(
        **SHAPE, head_dim=128,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 64, "rope_theta": 500000.0},
    ),
    "linear scaling": llama(**SHAPE, rope_scaling={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
    "yarn": llama(
        **SHAPE, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                               "rope_theta": 10000.0},
    ),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=16),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=None, head_dim=16),
    "gemma": transformers.GemmaConfig(**SHAPE | {"num_key_value_heads": 1}, head_dim=32),
    "phi, partial": phi(**SHAPE, partial_rotary_factor=0.5),
    "gpt-neox, partial, one matrix": neox(
        **{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}, rotary_pct=0.25
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[transformers.PretrainedConfig, str]] = {
    "dynamic": (llama(**SHAPE, rope_scaling={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
    "longrope": (
        llama(
            **SHAPE, rope_scaling={"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4,
                                   "long_factor": [2.0] * 4, "original_max_position_embeddings": 64, "rope_theta": 1e4},
        ),
        "longrope",
    ),
    "windows": (transformers.MistralConfig(**SHAPE, sliding_window=64, head_dim=16), "window"),
    "windows in some layers": (transformers.Gemma2Config(**SHAPE, head_dim=16, sliding_window=64), "sliding_attention"),
    "latent attention": (
        deepseek(
            **SHAPE | {"num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
            qk_nope_head_dim=8, v_head_dim=16, first_k_dense_replace=3, moe_intermediate_size=32,
        ),
        "latent",
    ),
    "neighbours turned": (transformers.CohereConfig(**SHAPE), "differ at other positions"),
    "no rotary": (
        transformers.GPT2Config(vocab_size=384, n_positions=512, n_embd=32, n_layer=2, n_head=2, eos_token_id=2),
        "rotary frequencies",
    ),
}  # fmt: skip


@dataclass
class Toy:
    """A small target with the rotation of its keys, rows of ids with habits, and a calibration on the first of them."""

    target: Target
    ids: Any
    rotary: Rotary
    calibration: Calibration

    @cached_property
    def kv(self) -> torch.Tensor:
        """KV of a row that was held out."""
        return prefilled(self.target, self.ids[9])

    def codec(self, point: float, calibration: Calibration | None = None) -> PredictiveCodec:
        embedding: Any = self.target.model.get_input_embeddings().weight.detach()
        return PredictiveCodec(calibration or self.calibration, self.rotary, embedding, point)

    def forms(self) -> list[KVCodec]:
        return [RAW, *row_forms(self.target).values(), self.codec(-24)]


@pytest.fixture(scope="module")
def ids() -> Any:
    """Rows of ids with habits: each is drawn near the one before it."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.integers(-3, 4, (17, CONTEXT + NEW)), 1)
    return (3 + (walk + rng.integers(0, 380, (17, 1))) % 380).astype(np.int32)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, save_model: SaveModel, ids: Any) -> Toy:
    target = Target.load(save_model(tmp_path_factory.mktemp("target"), TURNED["llama, GQA"]))
    made = calibrate(target, ids[:9], ids[9:], Plan(CONTEXT, NEW, 4, tmp_path_factory.mktemp("work")))
    return Toy(target, ids, Rotary.of(target), made)


def back(codec: KVCodec, kv: torch.Tensor, span: Span) -> torch.Tensor:
    parts = codec.encode(kv, span)
    codec.check(parts, len(span.ids))
    again = codec.decode(parts, span)
    assert (again.shape, again.dtype) == (kv.shape, kv.dtype)
    return again


def error(kv: torch.Tensor, again: torch.Tensor) -> float:
    return float((kv - again).float().norm() / kv.float().norm())


@pytest.mark.parametrize("name", TURNED)
def test_keys_of_every_family_are_turned(name: str, tmp_path: Path, save_model: SaveModel, ids: Any) -> None:
    target = Target.load(save_model(tmp_path, TURNED[name]))
    rotary, kv = Rotary.of(target), prefilled(target, ids[0])
    for form, most in zip(row_forms(target).values(), (0.01, 0.12), strict=False):
        assert error(kv, back(form, kv, flat(ids[0], 0))) < most
    moved = rotary.turn(rotary.turn(kv[:, 0], 0, back=True), 0)
    assert torch.allclose(moved, kv[:, 0], atol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_cannot_be_turned_are_refused_with_reason(name: str, tmp_path: Path, save_model: SaveModel) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason):
        Rotary.of(Target.load(save_model(tmp_path, config)))


def test_a_rotation_that_is_not_the_targets_is_found_out(
    tmp_path: Path, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target.load(save_model(tmp_path, TURNED["llama, GQA"]))
    real = Rotary.turn
    monkeypatch.setattr(Rotary, "turn", lambda self, keys, start, back=False: real(self, keys, start))
    with pytest.raises(ModelError, match="differ at other positions"):
        Rotary.of(target)


def test_every_form_gives_back_what_it_promises(toy: Toy) -> None:
    kv = toy.kv
    whole, cut = flat(toy.ids[9], 0), flat(toy.ids[9, 40:], 40)
    most = [0.0, 0.01, 0.12, 0.12]
    for codec, bound in zip(toy.forms(), most, strict=True):
        assert error(kv, back(codec, kv, whole)) <= bound, codec.name
        part = kv[:, :, :, 40:]
        assert error(part, back(codec, part, cut)) <= bound, codec.name
        for tokens in (0, 1, 3, 5):
            some = kv[:, :, :, :tokens]
            back(codec, some, flat(toy.ids[9, :tokens], 0))
        if not isinstance(codec, RowForm):  # whose pages are of the target's type
            assert back(codec, kv.bfloat16(), whole).dtype == torch.bfloat16


def test_forms_that_code_by_attention_refuse_kv_without_it(toy: Toy) -> None:
    """Their receipts were measured with it. Coded without, KV takes more bits and loses more than they say."""
    kv = toy.kv
    _, *rows, predictive = toy.forms()
    for form in rows:
        form.encode(kv, Span(toy.ids[9], 0))
    others, count = [predictive], len(toy.ids[9])
    masses: list[Any] = [None, np.ones(count - 1), np.full(count, np.nan), np.full(count, -1.0), np.ones((count, 1))]
    for codec in others:
        for mass in masses:
            with pytest.raises(UsageError, match="attention"):
                codec.encode(kv, Span(toy.ids[9], 0, mass))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_numbers_that_no_form_can_hold_are_refused(bad: float, toy: Toy) -> None:
    kv = toy.kv.clone()
    kv[1, 1, 0, 50, 3] = bad
    for codec in toy.forms()[1:]:
        with pytest.raises(UsageError):
            codec.encode(kv, flat(toy.ids[9], 0))


def test_parts_of_another_shape_are_refused(toy: Toy) -> None:
    kv = toy.kv
    for codec in toy.forms()[1:]:
        parts = dict(codec.encode(kv, flat(toy.ids[9], 0)))
        with pytest.raises(CorruptError):
            codec.check(parts, len(toy.ids[9]) + 10_000)
        for name, part in parts.items():
            if name == "kv.words":
                continue  # any number of words; decoding finds it out
            other = part.bool()
            longer = torch.cat([part.flatten(), part.new_ones(3)])
            for wrong in (other, part[None], longer):
                with pytest.raises(CorruptError):
                    codec.check(parts | {name: wrong}, len(toy.ids[9]))
            with pytest.raises(CorruptError):
                codec.check({k: v for k, v in parts.items() if k != name}, len(toy.ids[9]))


def test_a_calibration_is_worth_it(toy: Toy) -> None:
    receipts = {(r.form, r.point): r for r in toy.calibration.receipts}
    points = [receipts[PREDICTIVE, p] for p in fitting.SCORED_POINTS]
    assert all(r.rows == 8 and r.kl < r.most for r in toy.calibration.receipts)
    assert [r.bits for r in points] == sorted((r.bits for r in points), reverse=True)
    assert receipts["q8", 0].kl < points[-1].kl and receipts["q4", 0].kl < points[-1].kl
    assert toy.calibration.point(bits=points[2].bits) == fitting.SCORED_POINTS[2]
    for low, high in pairwise(points):  # a bound is met within 5 %, not only kept
        most, bits = (low.most + high.most) / 2, (low.bits + high.bits) / 2
        by_kl = toy.calibration.receipt(PREDICTIVE, toy.calibration.point(max_kl=most, max_kl_recall=float("inf")))
        by_bits = toy.calibration.receipt(PREDICTIVE, toy.calibration.point(bits=bits))
        assert by_kl is not None and 0.95 * most < by_kl.most <= most
        assert by_bits is not None and 0.95 * bits < by_bits.bits <= bits
    for bound in ({"max_kl": 0.0}, {"bits": 0.0}, {}, {"max_kl": 1.0, "bits": 1.0}, {"max_kl_recall": 1.0}):
        with pytest.raises(UsageError):
            toy.calibration.point(**bound)


def test_the_forms_of_a_target_come_with_their_receipts(toy: Toy, tmp_path: Path) -> None:
    path = toy.calibration.save(tmp_path)
    found = pltz.kv_forms(toy.target, path, max_kl=float("inf"))
    assert list(found) == ["q8", "q4", "predictive"], "the target is in float32"
    assert list(pltz.kv_forms(Target.load("mini-llama", dtype="bfloat16"))) == ["q8", "q4"]
    assert all(codec.exact or codec.receipt for codec in found.values())
    assert found["predictive"].receipt.bits == min(r.bits for r in toy.calibration.receipts)  # type: ignore[union-attr]
    assert [codec.receipt for codec in pltz.kv_forms(toy.target).values()] == [None, None]
    with pytest.raises(UsageError):
        pltz.kv_forms(toy.target, path)
    half = Target.load(toy.target.folder, dtype="bfloat16")
    with pytest.raises(UsageError, match=r"in float32, and this target runs in bfloat16.*--dtype bfloat16"):
        pltz.kv_forms(half, path, max_kl=float("inf"))
    other = replace(toy.calibration, type="bfloat16")
    assert other.digest != toy.calibration.digest and Calibration.load(other.save(tmp_path)).type == "bfloat16"
    with pytest.raises(CorruptError, match="the type of a target's numbers"):
        Calibration.load(replace(toy.calibration, type="int4").save(tmp_path))


def test_the_loss_of_a_form_is_its_receipts(toy: Toy) -> None:
    codec = toy.codec(-8)
    assert loss(codec) == toy.calibration.receipt(PREDICTIVE, -8).most  # type: ignore[union-attr]
    beyond = toy.codec(4.0625)
    assert loss(beyond) == float("inf"), "coarser than what was measured"
    assert loss(row_forms(toy.target)["q8"]) == float("inf") and loss(RAW) == 0
    other = replace(toy.calibration, receipts=toy.calibration.receipts[1:])
    assert toy.codec(-8, other).name != codec.name


def test_a_killed_calibration_resumes_and_ends_alike(toy: Toy, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    left = [13]

    def advance(count: int) -> None:
        left[0] -= count
        if left[0] < 0:
            raise Killed

    with pytest.raises(Killed):
        calibrate(toy.target, toy.ids[:9], toy.ids[9:], Plan(CONTEXT, NEW, 4, tmp_path, advance=advance))
    began: list[str] = []
    plan = Plan(CONTEXT, NEW, 4, tmp_path, begin=lambda stage, count: began.append(stage))
    assert calibrate(toy.target, toy.ids[:9], toy.ids[9:], plan).digest == toy.calibration.digest
    again = [began.index(stage) for stage in ("prefill", "fit layers", "measure receipts")]
    assert again == sorted(again)
    began.clear()
    assert calibrate(toy.target, toy.ids[:9], toy.ids[9:], plan).digest == toy.calibration.digest
    assert began == ["measure receipts"], "tables and rows that are there are not made again"
    for train, held in ((toy.ids[1:9], toy.ids[9:]), (toy.ids[:8], toy.ids[8:16])):
        with pytest.raises(UsageError, match="another calibration"):
            calibrate(toy.target, train, held, plan)


def test_the_point_of_a_bound_is_measured(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "CHOICES", 12)  # KL of 184 tokens is four times as noisy as that of 24 real rows
    receipts = [r for r in toy.calibration.receipts if r.form == PREDICTIVE]
    inf = float("inf")
    bounds = [Bound.of(0.7 * receipts[3].most, inf), Bound.of(inf, 0.7 * (receipts[4].most_recall or inf))]
    chosen = [toy.calibration.point(max_kl=bound.kl, max_kl_recall=bound.recall) for bound in bounds]
    assert not set(chosen) & set(fitting.SCORED_POINTS)
    began: list[str] = []
    plan = Plan(
        CONTEXT, NEW, 4, tmp_path, bounds=(*bounds, Bound.of(1e-30)), begin=lambda stage, count: began.append(stage)
    )
    found = calibrate(toy.target, toy.ids[:9], toy.ids[9:], plan)
    assert len(set(began)) == len(began) > 5, "progress counts each round anew"
    for bound in bounds:
        point = found.point(max_kl=bound.kl, max_kl_recall=bound.recall)
        codec = toy.codec(point, found)
        [outcome] = compare(toy.target, toy.ids[9:], CONTEXT, [("", codec)], control=False)
        assert codec.receipt is not None and codec.receipt in found.receipts
        assert loss(codec) <= bound.kl and recall_loss(codec) <= bound.recall
        assert outcome.row()["kl"] == pytest.approx(codec.receipt.kl, rel=0.05)


def test_too_few_rows_give_no_receipt(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected 8 rows held out for receipts, found 7"):
        calibrate(toy.target, toy.ids[:9], toy.ids[9:16], Plan(CONTEXT, NEW, 4, tmp_path))
    [outcome] = compare(toy.target, toy.ids[9:16], CONTEXT, [("raw", RAW)], control=False)
    with pytest.raises(UsageError, match="found 7"):
        outcome.receipt("raw", 0, CONTEXT)


def test_a_calibration_file_is_read_back_or_refused(toy: Toy, tmp_path: Path) -> None:
    path = toy.calibration.save(tmp_path)
    assert path.name == f"{toy.target.fingerprint.hex()}.predictive-1.{toy.calibration.digest.hex()}.safetensors"
    assert Calibration.load(path, toy.target.fingerprint).digest == toy.calibration.digest
    with pytest.raises(TargetMismatch):
        Calibration.load(path, bytes(16))
    with pytest.raises(UsageError):
        Calibration.load(tmp_path / "none")
    later = path.read_bytes().replace(FORMAT.encode(), FORMAT[:-1].encode() + b"9")
    with pytest.raises(VersionError):
        Calibration.parse(later)


def test_classes_follow_the_mass(ids: Any) -> None:
    sharp = np.full(64, 1e-4, np.float32)
    sharp[10] = 1
    even = Span(ids[9, :64], 9, np.full(64, 1 / 64, np.float32))
    assert (classes_of(even, 64) == classes_of(flat(ids[9, :64], 9), 64)).all()
    classes = classes_of(flat(np.zeros(200, np.int32), 9), 200)
    assert (classes[:72] == 3).all() and (classes[72:] == 5).all()
    assert classes_of(Span(ids[9, :64], 9, sharp), 64)[10] > classes_of(Span(ids[9, :64], 9, sharp), 64)[11]


def test_the_gate_is_the_kl_and_the_control_is_silent(toy: Toy) -> None:
    class Broken(RowForm):
        def decode(self, parts: Any, span: Span) -> torch.Tensor:
            kv = super().decode(parts, span)
            return torch.stack([kv[:, 0], kv[:, 1].flip(2)], 1)

    q8 = row_forms(toy.target)["q8"]
    named: list[Any] = [("q8", q8), ("broken", Broken(q8.pages))]
    control, sound, broken = compare(toy.target, toy.ids[9:], CONTEXT, named)
    assert control.row()["kl"] < 1e-4 and sound.row()["kl"] < 0.1 * broken.row()["kl"] and control.row()["top1"] == 1
    assert scored(toy.target, prefilled(toy.target, toy.ids[9, :CONTEXT]), toy.ids[9, CONTEXT:]).shape == (NEW - 1, 384)


def test_the_upper_limit_holds_for_rows_that_differ() -> None:
    """Draw rows from a log-normal distribution as wide as that of chats, and count how often the mean is below."""
    rng, sigma = np.random.default_rng(0), 0.6
    held = {8: 0, 24: 0}
    for rows in held:
        for _ in range(2000):
            kl = np.exp(sigma * rng.standard_normal(rows) - sigma**2 / 2)  # its mean is 1
            error = float(kl.std(ddof=1) / np.sqrt(rows))
            held[rows] += upper_limit(float(kl.mean()), error, rows) >= 1
    assert all(0.93 < count / 2000 < 0.98 for count in held.values()), held


def test_a_receipt_holds_for_the_first_tokens_too() -> None:
    """Eight rows that lose much in their first tokens, and rows that lose the same everywhere."""
    rng = np.random.default_rng(0)
    rows = [np.exp(0.3 * rng.standard_normal(511)).astype(np.float32) for _ in range(8)]
    for tokens, factor in ((32, 10.0), (64, 10.0), (128, 10.0), (511, 1.0)):
        lost = [np.concatenate([factor * row[:tokens], row[tokens:]]) for row in rows]
        receipt = Outcome("f", lost, scored=8 * 511).receipt("f", 0, 1536)
        means = np.array([row[:tokens].mean() for row in lost])
        limit = upper_limit(float(means.mean()), float(means.std(ddof=1) / np.sqrt(8)), 8)
        assert limit <= receipt.most * 1.000001 and receipt.most < 1.3 * limit
        assert receipt.most > (2 if factor > 1 else 1) * receipt.kl and Receipt.of(receipt.to_dict()) == receipt
        assert receipt.kl_recall is receipt.most_recall is None, "nobody measured it"
    short = Outcome("f", [row[:20] for row in rows], scored=160).receipt("f", 0, 1536)
    assert short.most == pytest.approx(upper_limit(short.kl, short.kl_error, 8))


def test_receipts_that_are_none_are_refused() -> None:
    good = Receipt("q8", 0, 1, 8, 1, 8.25, 0.1, 0.01, upper_limit(0.1, 0.01, 8), 0.2, 0.9, 0.0).to_dict()
    assert Receipt.of(good).bits == 8.25
    wrong: list[dict[str, Any]] = [{"kl": -1.0}, {"kl": float("nan")}, {"point": "0"}, {"point": float("inf")}]
    wrong += [{"most": 0.13}, {"most": -1.0}]  # below the limit of its own mean
    wrong += [{"most_recall": 0.1}, {"kl_recall": 0.1}, {"kl_recall": "0", "most_recall": 0.1}]
    wrong += [{"kl_recall": a, "most_recall": b} for a, b in ((0.2, 0.1), (-0.1, 0.1), (-0.2, -0.1), (True, True))]
    wrong += [{"kl": 10**400}, {"rows": 10**300}, {"point": -(10**400)}]  # JSON has numbers of any size
    for change in (*wrong, {"form": 3}, {"context": True}, {"more": 1}, {"rows": 7}, {"kl_error": -1.0}):
        with pytest.raises(CorruptError):
            Receipt.of(good | change)
    with pytest.raises(CorruptError):
        Receipt.of([])
