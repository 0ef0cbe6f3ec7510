"""From sessions to a bundle folder: the stages of a training run, one after the other.

    split       sessions read, held-out ones set apart          student     the model that ships
    tokenizer   learnt, taken from a bundle or from a target    dictionary  zstd, for the fallback coder
    write       a target writes turns anew (if asked for)       export      floats to the integers of the contract
    streams     token streams                                   calibrate   temperatures, on validation sessions
    order       ids put into classes                            evaluate    test sessions, by real decoding
    teacher     a bundle's net (if asked for)                   card        what was done and measured

The left column is in corpus.py; training and the stages after it are here. A stage, the resuming of a killed run and
the context that stages share are in stages.py, the settings in settings.py. Reading files and measuring are handed in,
because they belong to packages above this one.

Training leaves the model too sure of itself on data it has not seen. So four groups of multipliers get one
factor each, chosen by the model's ideal code length on validation sessions (integer engine, real frames). They
are both levels of the head, the inverse temperatures of attention, and the last layer's contribution to the
residual. The groups are fitted one after the other, and then all again in finer steps. Nothing else changes,
so speed and size stay.

Every figure of the card is of test sessions that were decoded back and compared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from pltz.models import (
    Bundle,
    BundleTokenizer,
    Ids,
    Session,
    coder_of,
    publish,
    resolve,
    to_tokens_many,
    tokenizer_json_of,
    write_bundle,
)
from pltz.plt_codec import ContentError, Fallback, UsageError, Weights
from pltz.training.data import records
from pltz.training.data.corpus import Corpus
from pltz.training.data.records import TEXT
from pltz.training.data.vocabulary import covered
from pltz.training.digests import digest
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.export import export
from pltz.training.nets.origin import Origin
from pltz.training.run import snapshot
from pltz.training.run.schedule import Schedule
from pltz.training.run.trainer import REPORT, Machine, Stopped, TrainingJob, fit
from pltz.training.settings import Data, TrainSettings
from pltz.training.stages import RunContext, Say, TrainingRun, WorkFolder, read_json, write_json

__all__ = ["Stopped", "TrainingRun", "can_teach", "train"]

ROUNDS = ((0.85, 0.9, 0.93, 0.96, 1.04), (0.975, 1.025))  # factors, coarse and then fine


def train(settings: TrainSettings, run: TrainingRun) -> dict[str, Any]:
    """Make a bundle, and return its card.

    Raises:
        UsageError: settings or files that cannot be used, or an output that is there.
        ModelError: a target that cannot teach.
        Stopped: the deadline is over.
    """
    if run.output.exists() and not run.force and not _ours(run.output):
        raise UsageError(f"{run.output} exists and is no bundle: choose another output")
    with WorkFolder(run.work, run.tell) as work:
        return _deliver(_made(RunContext(settings, run, work)), run, work.say)


def _ours(folder: Path) -> bool:
    return (folder / "bundle.json").is_file()


def _made(context: RunContext) -> Path:
    """Run every stage, and return the folder of the finished bundle."""
    learning, assembly = Learning(context), Assembly(context)
    learning.check()
    corpus = Corpus(context, learning.quick)
    split = corpus.split()
    streams = corpus.all(split)
    teacher = learning.teacher(streams)
    student = learning.student(streams, teacher)
    training = {"student": read_json(student / REPORT)}
    bundle = assembly.export(streams, assembly.dictionary(split, learning.start), student)
    if context.s.calibrate.limit_bytes:
        bundle = assembly.calibrate(split, bundle)
        training["calibration"] = read_json(bundle / "calibration.json")
    figures = assembly.evaluate(split, bundle)
    return assembly.card(split, bundle, read_json(figures / "figures.json"), training)


def _deliver(final: Path, run: TrainingRun, say: Say) -> dict[str, Any]:
    """Copy the finished bundle to the output folder, whole or not at all, and return its card."""
    output = run.output
    card: dict[str, Any] = read_json(final / "card.json")
    if _ours(output) and not run.force:
        if (output / "card.json").is_file() and read_json(output / "card.json") == card:
            say(f"{output} is this bundle already")
            return card
        raise UsageError(f"{output} holds another bundle: choose another output, or pass --force to replace it")
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(final, part)
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        os.rename(output, old)
    publish(part, output)
    shutil.rmtree(old, ignore_errors=True)
    Bundle.load(output)  # as every user will load it: files, shape and identity hold
    say(f"{output}: bundle {card['name']} {card['id']}")
    return card


def can_teach(target: str, bundle: str) -> bool:
    """Return whether a target has every piece of a bundle's tokenizer, so that its probabilities can be learnt
    in it."""
    return covered(Bundle.load(bundle).tokenizer, tokenizer_json_of(resolve(target)))


class Learning:
    """The training stages; a method named after a stage returns the stage's folder."""

    def __init__(self, context: RunContext) -> None:
        self.c, self.s, self.work, self.say = context, context.s, context.work, context.say

    def check(self) -> None:
        """Refuse a net that cannot be trained or exported, before anything is made.

        Raises:
            UsageError: the settings do not fit, or the start is of another shape or tokenizer.
        """
        for origin in (self.start, self.taught_by):
            if origin is None:
                continue
            kind = self.s.tokenizer.kind
            if kind == "train":
                raise UsageError(
                    f"{origin.place}: a tokenizer that is learnt anew fits no net that is there: "
                    'use [tokenizer] kind = "bundle"'
                )
            if kind == "bundle":
                origin.check_tokenizer(Bundle.load(self.s.tokenizer.bundle).tokenizer.json)
        if self.start is not None:
            self.start.check_shape(NetConfig.of(self.s.student, self.start.net.config.vocab))

    @cached_property
    def start(self) -> Origin | None:
        """Return the student's start."""
        name = self.s.student.start
        return Origin(name, "[student] start") if name else None

    @cached_property
    def taught_by(self) -> Origin | None:
        """Return the bundle that teaches."""
        name = self.s.teacher.bundle if self.s.teacher else ""
        return Origin(name, "[teacher] bundle") if name else None

    def teacher(self, streams: Path) -> Path | None:
        """Return the net of the bundle that teaches; None if a target teaches, or if there is no teacher.

        Raises:
            UsageError: the bundle has another tokenizer.
        """
        if self.taught_by is None:
            return None
        self.taught_by.check_tokenizer(_tokenizer(streams))
        return self.work.stage("teacher", self.taught_by.key, self.taught_by.write)

    def student(self, streams: Path, teacher: Path | None) -> Path:
        """Train the net that ships.

        Raises:
            UsageError: the start does not fit, or the training left the numbers.
        """
        job, t = self._job(streams), self.s.teacher
        if self.start is not None:
            self.start.check_tokenizer(_tokenizer(streams))
            self.start.check_shape(job.config)
            start = self.work.stage("start", self.start.key, self.start.write)
            job = dataclasses.replace(job, start=start)
        settings = dataclasses.asdict(dataclasses.replace(self.s.student, start=""))  # its folder may move
        key: list[Any] = [streams.name, settings, job.sampling, self.s.seed]
        key += [job.start.name if job.start else None]
        if t and t.share > 0:
            taught = {name: getattr(t, name) for name in ("target", "share", "temperature", "repeat")}
            job = dataclasses.replace(job, teacher=teacher, **taught)
            key += [t.share, t.temperature, t.repeat, teacher.name if teacher else self.c.target.fingerprint.hex()]
        return self.work.stage("student", key, lambda folder: self._fit(job, folder), resumes=True)

    def quick(self, folder: Path, streams: Path) -> np.ndarray:
        """Return embeddings (V, d) of the student's shape after a few steps."""
        job = self._job(streams)
        steps = self.s.tokenizer.order_steps
        schedule = dataclasses.replace(job.schedule, steps=steps, seconds=0.0, decay=0.0)
        folder.mkdir(exist_ok=True)
        self._fit(dataclasses.replace(job, schedule=schedule), folder)
        return checkpoint.read(folder).floats()["embed"]

    def _job(self, streams: Path) -> TrainingJob:
        """Return the job of the student, without start and teacher."""
        s = self.s.student
        return TrainingJob(
            config=NetConfig.of(s, BundleTokenizer(_tokenizer(streams)).size),
            schedule=Schedule(**{f.name: getattr(s, f.name) for f in dataclasses.fields(Schedule)}),
            sampling=sampling(self.s.data, s.block, s.memory, streams),
            seed=self.s.seed,
            streams=streams,
        )

    def _fit(self, job: TrainingJob, folder: Path) -> None:
        fit(job, folder, Machine(self.c.run.device, self.say, self.c.run.processes, self.c.run.deadline))
        snapshot.remove(folder)


def _tokenizer(streams: Path) -> bytes:
    return (streams / "tokenizer.json").read_bytes()


def sampling(data: Data, block: int, memory: int, streams: Path) -> dict[str, Any]:
    """Return the arguments for drawing rows.

    Texts get all of the tokens if there are no chats, and none if there are no texts.

    Raises:
        UsageError: [data.weights] names an unknown source.
    """
    names = list(json.loads((streams / "sources.json").read_text("utf8")))
    if unknown := sorted(set(data.weights) - set(names)):
        raise UsageError(f"[data.weights] {unknown[0]}: no such source, expected some of {', '.join(names)}")
    texts = sum(name.startswith(TEXT) for name in names)
    share = 0.0 if not texts else 1.0 if texts == len(names) else data.text_share
    return {
        "block": block,
        "memory": memory,
        "power": data.power,
        "most": data.most,
        "text_share": share,
        "augment": data.augment,
        "prefix": data.prefix,
        "layouts": data.layouts,
        "weights": data.weights,
    }


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
            weights = Bundle.load(bundle).weights
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
