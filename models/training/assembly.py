"""The stages that make a bundle of a trained net: dictionary, export, calibration, figures, card.

Training leaves the model too sure of itself on data it has not seen. So four groups of multipliers get one
factor each, chosen by the model's ideal code length on validation sessions (integer engine, real frames). They
are both levels of the head, the inverse temperatures of attention, and the last layer's contribution to the
residual. The groups are fitted one after the other, and then all again in finer steps. Nothing else changes,
so speed and size stay.

Every figure of the card is of test sessions that were decoded back and compared.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from pltz.models.bundle.bundle import Bundle, coder_of, read_weights, write_bundle
from pltz.models.bundle.tokenizer import BundleTokenizer, Ids
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens_many
from pltz.models.training import checkpoint, records
from pltz.models.training.export import export
from pltz.models.training.origin import Origin
from pltz.models.training.settings import TrainSettings
from pltz.models.training.stages import RunContext, Say, digest, read_json, write_json
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.weights import Weights
from pltz.plt_codec.zstd import Fallback

ROUNDS = ((0.85, 0.9, 0.93, 0.96, 1.04), (0.975, 1.025))  # factors, coarse and then fine


class Assembly:
    """The stages after training; each method returns the folder of its stage."""

    def __init__(self, context: RunContext) -> None:
        self.c, self.s, self.work, self.say = context, context.s, context.work, context.say

    def dictionary(self, split: Path, start: Origin | None) -> Path:
        """Write a file `dictionary`, trained on training sessions.

        If validation says that the dictionary of the student's starting bundle is better, that one is kept.
        """
        d = self.s.dictionary
        old = start.bundle.zstd_dict if start and start.bundle else b""

        def build(folder: Path) -> None:
            def contents(part: str, limit: int) -> list[Any]:
                chosen = records.sample(records.read(split / f"{part}.zst"), limit)
                return [data for session in chosen if (data := records.plain(session).to_bytes())]

            found = _dictionary(contents("train", d.sample_bytes), d.bytes, self.say)
            held_out = contents("validation", 300_000)
            sizes = [sum(len(Fallback(one).compress(data)) for data in held_out) for one in (found, old)]
            if old and sizes[1] < sizes[0]:
                self.say(
                    f"  keeps the dictionary of {self.s.student.start}: {sizes[1]:,} bytes on validation, "
                    f"{sizes[0]:,} with a new one"
                )
                found = old
            (folder / "dictionary").write_bytes(found)

        key = [split.name, dataclasses.asdict(d), digest(old.hex()) if old else None]
        return self.work.stage("dictionary", key, build)

    def export(self, streams: Path, dictionary: Path, student: Path) -> Path:
        """Write the bundle folder, uncalibrated."""

        def build(folder: Path) -> None:
            weights = export(checkpoint.read(student))
            tokenizer = (streams / "tokenizer.json").read_bytes()
            words, packed = (dictionary / "dictionary").read_bytes(), weights.shape.gated
            write_bundle(folder, self.s.name, weights, tokenizer, words, {}, packed=packed)
            self.say(f"  {weights.shape.macs / 1e6:.2f} M multiply-adds per token outside attention")

        return self.work.stage("export", [streams.name, dictionary.name, student.name, self.s.name], build)

    def calibrate(self, split: Path, exported: Path) -> Path:
        """Write the bundle with temperatures fitted on validation sessions."""
        limit = self.s.calibrate.limit_bytes

        def build(folder: Path) -> None:
            bundle = Bundle.load(exported)
            chosen = [records.plain(s) for s in records.sample(records.read(split / "validation.zst"), limit)]
            tokens = _tokens([s for s in chosen if s.kind != "ids"], bundle.tokenizer)
            weights, report = fit_temperatures(bundle.weights, tokens, lambda line: self.say("  " + line))
            parts, packed = (bundle.tokenizer.json, bundle.zstd_dict), weights.shape.gated
            write_bundle(folder, bundle.name, weights, *parts, {}, packed=packed)
            write_json(folder / "calibration.json", report)

        return self.work.stage("calibrate", [split.name, exported.name, limit], build)

    def evaluate(self, split: Path, bundle: Path) -> Path:
        """Write figures.json: test sessions coded and decoded back."""
        limit = self.s.evaluate.limit_bytes

        def build(folder: Path) -> None:
            test = [r._replace(session=records.plain(r.session)) for r in records.read(split / "test.zst")]
            found = self.c.run.measure(bundle, [r for r in test if r.session.kind != "ids"], limit)
            total = found["total"]
            self.say(f"  {total['content_bytes']:,} bytes of content: {total['bits_per_byte']} bits per byte")
            write_json(folder / "figures.json", found)

        return self.work.stage("evaluate", [split.name, bundle.name, limit], build)

    def card(self, split: Path, bundle: Path, figures: dict[str, Any], training: dict[str, Any]) -> Path:
        """Write the bundle with its card, for programs and for people."""
        s = self.s
        facts = read_json(split / "facts.json")
        described = _described(s)
        key = [bundle.name, figures, training, facts, described]

        def build(folder: Path) -> None:
            weights = read_weights(bundle)
            for path in bundle.iterdir():
                if path.name not in ("calibration.json", "card.json"):
                    shutil.copy2(path, folder / path.name)
            made = card_of(read_json(bundle / "bundle.json"), weights, described, facts, training, figures)
            write_json(folder / "card.json", made)
            (folder / "CARD.md").write_text(as_markdown(made), "utf8")

        return self.work.stage("card", key, build)


def _tokens(sessions: list[Session], tokenizer: BundleTokenizer) -> list[Any]:
    found = []
    for session in sessions:
        try:
            found += to_tokens_many([session], tokenizer)
        except ContentError:
            continue
    if not found:
        raise UsageError("[calibrate] limit_bytes: no validation session is that short: raise it, or set it to 0")
    return found


def _dictionary(samples: list[Any], size: int, say: Say) -> bytes:
    """Train a zstd dictionary of at most `size` bytes."""
    total = sum(map(len, samples))
    size = max(256, min(size, total // 4))  # zstd wants several times as much to learn from
    try:
        best = zstandard.train_dictionary(size, samples, level=19, k=400, d=8, f=22 if total > 1 << 24 else 20)
    except zstandard.ZstdError as exc:
        say(f"  raw content instead of a trained dictionary ({exc})")
        return b"".join(samples)[-size:]
    return bytes(best.as_bytes())


def _described(s: TrainSettings) -> dict[str, Any]:
    """Return the settings as the card has them: files, target and bundles by name, without their folders on this
    machine."""
    out = dataclasses.asdict(s)
    for key in ("files", "validation", "test"):
        out["data"][key] = [Path(name).name for name in out["data"][key]]
    named = [("student", "start"), ("tokenizer", "bundle")]
    named += [("teacher", key) for key in ("target", "bundle")] if s.teacher else []
    for table, key in named:
        out[table][key] = Path(out[table][key]).name
    return out


def groups(layers: int) -> dict[str, list[str]]:
    """Return the tensors that share a factor, by group name."""
    return {
        "class": ["class.m", "class.b"],
        "member": ["member.m", "member.b"],
        "attention": [f"layer.{i}.heat" for i in range(layers)],
        "last": [f"layer.{layers - 1}.down.m"],
    }


def scaled(weights: Weights, names: list[str], factor: float) -> Weights:
    """Return the same model with these tensors multiplied and rounded."""
    changed = {name: np.round(weights[name] * factor).astype(np.int32) for name in names}
    return Weights(weights.shape, {**weights.tensors, **changed})


def cost(weights: Weights, tokens: list[Ids], device: str) -> float:
    """Return the ideal code length, in bits, of token sequences (T,)."""
    return sum(e.ideal_bits for e in coder_of(weights, device).encode(tokens))


def fit_temperatures(
    weights: Weights, tokens: list[Ids], say: Callable[[str], None] = print, device: str = "cpu"
) -> tuple[Weights, dict[str, dict[str, float]]]:
    """Fit the factors on token sequences (T,).

    Return the weights with the best factor for each group, and bits per token by group, round and factor.
    """
    count, best = max(1, sum(map(len, tokens))), cost(weights, tokens, device)
    report: dict[str, dict[str, float]] = {"before": {"1.0": round(best / count, 4)}}
    for turn, factors in enumerate(ROUNDS):
        for group, names in groups(weights.shape.layers).items():
            title = group if not turn else f"{group}, again"
            found = {factor: cost(scaled(weights, names, factor), tokens, device) for factor in factors}
            report[title] = {str(f): round(bits / count, 4) for f, bits in found.items()}
            factor = min(found, key=lambda f: found[f])
            if found[factor] < best:
                best, weights = found[factor], scaled(weights, names, factor)
            say(f"{title} {report[title]} now {best / count:.4f} bits per token")
    report["after"] = {"1.0": round(best / count, 4)}
    return weights, report


def card_of(
    head: dict[str, Any],
    weights: Weights,
    settings: dict[str, Any],
    facts: dict[str, Any],
    training: dict[str, Any],
    figures: dict[str, Any],
) -> dict[str, Any]:
    """Return the card of a bundle that `pltz bundle train` made, as JSON.

    Args:
        head: its bundle.json.
        weights: its weights.
        settings: the whole configuration.
        facts: sessions and licences by source.
        training: the report of each training stage.
        figures: of the test sessions.
    """
    told = settings["card"]["sources"]
    sources = [
        {
            "source": source,
            "sessions": found["sessions"],
            "licence": ", ".join(found["licences"] or [told.get(source, "not stated")]),
        }
        for source, found in sorted(facts.items())
    ]
    return {
        "name": head["name"],
        "id": head["id"],
        "contract": head["contract"],
        "licence": settings["card"]["licence"],
        "about": settings["card"]["about"],
        "shape": head["shape"],
        "multiply_adds_per_token": weights.shape.macs,
        "training": training,
        "settings": settings,
        "test": figures,
        "data": sources,
    }


MARKDOWN = """\
# Bundle `{name}`

Id `{id}`, numeric contract {contract}, licence: {licence}. {about}

## Model

Width {d}, {layers} layers, {heads} query and {kv_heads} key heads of {head_dim}, hidden {hidden}, vocabulary {vocab:,},
blocks of {block} tokens, memory {memory}. {macs:.2f} M multiply-adds per token outside attention. Weights int8.

## Training

{training}

The settings are in card.json.

## Test

Held-out sessions, at most {limit_bytes:,} bytes of content per source, each decodable alone, all bytes of a .pltz file
counted, decoded back and compared.

| source | sessions | content bytes | pltz bytes | bits per byte | bits per token | \
zstd -19 + dictionary | by fallback |
|---|---|---|---|---|---|---|---|
{test}

## Data

| source | sessions (train, validation, test) | licence |
|---|---|---|
{data}
"""


def as_markdown(card: dict[str, Any]) -> str:
    """Return the card of `card_of` for people."""
    test, teacher = card["test"], card["settings"]["teacher"]
    tests = [
        f"| {r['source']} | {r['sessions']:,} | {r['content_bytes']:,} | {r['pltz_bytes']:,.0f} | "
        f"{r['bits_per_byte']} | {r['bits_per_token']} | {_rate(r, 'zstd+dict')} | {r['fallback_sessions']} |"
        for r in [*test["sources"], test["total"]]
    ]
    training = [
        f"- {name}: {r['steps']:,} steps, {r['tokens']:,} tokens, {r['seconds']:,.0f} seconds, "
        f"{r['parameters'] / 1e6:.2f} M parameters, {r['bits_per_token']} bits per token at the end (training data)"
        for name, r in card["training"].items()
        if "steps" in r
    ]
    if teacher:
        who = f"the target {teacher['target']}" if teacher["target"] else f"the bundle {teacher['bundle']}"
        wrote = f"; it wrote {teacher['write']} turns" if teacher["write"] else ""
        training.append(f"- teacher: {who}, {teacher['share']} of the loss{wrote}")
    parts = ("train", "validation", "test")
    data = [
        f"| {d['source']} | {', '.join(str(d['sessions'].get(part, 0)) for part in parts)} | {d['licence']} |"
        for d in card["data"]
    ]
    return MARKDOWN.format(
        **{key: card[key] for key in ("name", "id", "contract", "licence", "about")},
        **card["shape"],
        macs=card["multiply_adds_per_token"] / 1e6,
        limit_bytes=test["limit_bytes"],
        training="\n".join(training),
        test="\n".join(tests),
        data="\n".join(data),
    )


def _rate(r: dict[str, Any], peer: str) -> str:
    """Return the bits per byte of a peer, - where it was not measured."""
    size = r["peer_bytes"].get(peer)
    return f"{8 * size / r['content_bytes']:.3f}" if size is not None and r["content_bytes"] else "-"
