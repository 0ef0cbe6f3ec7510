"""From sessions to a bundle folder: the stages of a training run, one after the other.

    split       sessions read, held-out ones set apart          finish      rounding in the loop, the rate falling to zero
    tokenizer   learnt, taken from a bundle or from a target    dictionary  zstd, for the fallback coder
    write       a target writes turns anew (if asked for)       export      floats to the integers of the contract
    streams     token streams                                   calibrate   temperatures, on validation sessions
    order       ids put into classes                            evaluate    test sessions, by real decoding
    teacher     a larger net of our own (if asked for)          card        what was done and measured
    student     the model that ships

What a stage is and how a killed run goes on: stages.py. Settings: settings.py. Reading files and measuring are handed in, because they belong to
packages above this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from pltz.models.bridge import Bridge
from pltz.models.bundle import Bundle, read_weights, write_bundle
from pltz.models.checkpoint import resolve, tokenizer_json_of
from pltz.models.session import Session
from pltz.models.target import Target
from pltz.models.tokenizer import BundleTokenizer
from pltz.models.training import prepare, records
from pltz.models.training.calibrate import calibrate
from pltz.models.training.card import own_card, own_markdown
from pltz.models.training.distil import NetTeacher, TargetTeacher
from pltz.models.training.export import export, restore
from pltz.models.training.fit import CHECKPOINT, Plan, Teaching, fit
from pltz.models.training.net import Net, NetConfig
from pltz.models.training.records import Record
from pltz.models.training.settings import Settings, Student, Teacher
from pltz.models.training.stages import Say, Work, digest, digest_files, publish
from pltz.models.training.vocabulary import covered, from_target
from pltz.models.transcript import to_tokens_many
from pltz.plt_codec.errors import ContentError, ModelError, UsageError
from pltz.plt_codec.fallback import Fallback

PARTS = ("train", "validation", "test")
Read = Callable[[str], Iterator[Session]]  # a file or folder -> its sessions
Measure = Callable[
    [Path, list[Record], int], dict[str, Any]
]  # bundle folder, records, content bytes a source -> figures


@dataclass(frozen=True)
class Run:
    """What a run needs beside its settings.

    Args:
        output: bundle folder; appears whole.
        work: folder of the stages.
        read, measure: see `Read` and `Measure`.
        device: of torch.
        force: replace `output`.
        tell: gets every line of the log.
    """

    output: Path
    work: Path
    read: Read
    measure: Measure
    device: str
    force: bool
    tell: Say


def train(settings: Settings, run: Run) -> dict[str, Any]:
    """Make a bundle; its card.

    Raises:
        UsageError: settings or files that cannot be used, or an output that is there.
        ModelError: a target that cannot teach.
    """
    if run.output.exists() and not run.force and not _ours(run.output):
        raise UsageError(f"{run.output} exists and is no bundle: choose another output")
    with Work(run.work, run.tell) as work:
        return _Pipeline(settings, run, work).all()


def _ours(folder: Path) -> bool:
    return (folder / "bundle.json").is_file()


class _Pipeline:
    """The stages of one run; each method returns the folder of its stage."""

    def __init__(self, settings: Settings, run: Run, work: Work) -> None:
        self.s, self.run, self.work, self.say = settings, run, work, work.say
        self._target: Target | None = None

    def all(self) -> dict[str, Any]:
        """Run every stage; the card."""
        split = self.split()
        tokenizer = self.tokenizer(split)
        written = self.write(split) if self.s.teacher and self.s.teacher.write else None
        streams = self.order(self.streams(split, tokenizer, written))
        teacher = self.teacher(streams) if self.s.teacher and not self.s.teacher.target else None
        student = self.student(streams, teacher)
        finish = self.finish(streams, teacher, student)
        exported = self.export(streams, self.dictionary(split), finish)
        calibrated = self.calibrate(split, exported) if self.s.calibrate.limit_bytes else exported
        figures = self.evaluate(split, calibrated)
        training = {"student": _json(student / "fit.json"), "finish": _json(finish / "fit.json")}
        if teacher:
            training["teacher"] = _json(teacher / "fit.json")
        if calibrated != exported:
            training["calibration"] = _json(calibrated / "calibration.json")
        final = self.card(split, calibrated, _json(figures / "figures.json"), training)
        return self.deliver(final)

    # ---- data

    def split(self) -> Path:
        """train, validation and test records; facts.json says how many, by source, with their licences."""
        d = self.s.data
        key = [d.held_out, *(digest_files(list(names)) for names in (d.files, d.validation, d.test))]

        def build(folder: Path) -> None:
            facts: dict[str, dict[str, Any]] = {}
            with contextlib.ExitStack() as stack:
                keep = {part: stack.enter_context(records.keeper(folder / f"{part}.zst")) for part in PARTS}
                for part, record in self._parts():
                    keep[part](record)
                    _count(facts, part, record)
            for part in PARTS:
                count = sum(source["sessions"].get(part, 0) for source in facts.values())
                self.say(f"  {part}: {count:,} sessions")
                if not count:
                    raise UsageError(f"no session for {part}: give more sessions, or another [data] held_out")
            _dump(folder / "facts.json", facts)

        return self.work.stage("split", key, build)

    def _parts(self) -> Iterator[tuple[str, Record]]:
        """Every record and the part it belongs to; what stands in a file of its own for validation or test is not trained on."""
        d = self.s.data
        given = {"validation": d.validation, "test": d.test}
        apart: set[bytes] = set()
        for part, names in given.items():
            for name in names:
                for session in self.run.read(name):
                    apart.add(records.fingerprint(session))
                    yield part, records.record(session, name)
        for name in d.files:
            for session in self.run.read(name):
                if records.fingerprint(session) not in apart:
                    part = records.part_of(session, d.held_out)
                    yield "train" if given.get(part) else part, records.record(session, name)

    def tokenizer(self, split: Path) -> Path:
        """tokenizer.json in the bundle's form."""
        t = self.s.tokenizer
        key: list[Any] = [t.kind]
        if t.kind == "train":
            key += [t.vocabulary, t.sample_bytes, split.name]
        elif t.kind == "bundle":
            key += [Bundle.load(t.bundle).tokenizer.fingerprint.hex()]
        else:
            key += [self.target_json().hex()]

        def build(folder: Path) -> None:
            (folder / "tokenizer.json").write_bytes(self._tokenizer(split))

        return self.work.stage("tokenizer", key, build)

    def _tokenizer(self, split: Path) -> bytes:
        t = self.s.tokenizer
        if t.kind == "bundle":
            return Bundle.load(t.bundle).tokenizer.json
        if t.kind == "target":
            return from_target(self.target_json())
        chosen = records.sample(records.read(split / "train.zst"), t.sample_bytes)
        words = [text for session in chosen for text in records.texts(session)]
        self.say(f"  learns {t.vocabulary:,} pieces from {sum(map(len, words)) / 1e6:.1f} MB")
        return str(prepare.train_tokenizer(words, t.vocabulary).to_str()).encode()

    def write(self, split: Path) -> Path:
        """written.jsonl: training chats up to a random assistant's turn, that turn by the target. Goes on line by line."""
        teacher = self._teacher_settings()
        key = [split.name, teacher.write, teacher.write_tokens, self.s.seed, self.target().fingerprint.hex()]

        def build(folder: Path) -> None:
            path = folder / "written.jsonl"
            done = path.read_bytes() if path.exists() else b""
            done = done[: done.rfind(b"\n") + 1]  # a torn last line is written again
            path.write_bytes(done)
            with path.open("ab") as f:
                for number, line in enumerate(self._written(split, done.count(b"\n")), done.count(b"\n") + 1):
                    f.write(line)
                    f.flush()
                    if number % 10 == 0:
                        self.say(f"  {number} of {teacher.write} sessions written")

        return self.work.stage("write", key, build, resumes=True)

    def _written(self, split: Path, done: int) -> Iterator[bytes]:
        """The sessions that are still to be written, one line of JSON each; chats that the target's template refuses are passed over."""
        teacher, target = self._teacher_settings(), self.target()
        prompts = self._prompts(split)
        made = refused = 0
        while made < teacher.write:
            messages = prompts[(made + refused) % len(prompts)]
            try:
                ids = target.render({"messages": messages}, add_generation_prompt=True)
            except ContentError:
                refused += 1
                if refused >= len(prompts) and not made:
                    raise
                continue
            torch.manual_seed(self.s.seed * 1_000_003 + made)
            made += 1
            if made > done:
                text = _reply(target, ids, teacher.write_tokens)
                value = {"messages": [*messages, {"role": "assistant", "content": text}]}
                yield Session("chat", value).to_json_line()

    def _prompts(self, split: Path) -> list[list[Any]]:
        """The messages before a random assistant's turn of each training chat that has one, in random order."""
        rng = random.Random(self.s.seed)
        found: list[list[Any]] = []
        for record in records.read(split / "train.zst"):
            value = records.plain(record.session).value
            messages = value.get("messages", []) if isinstance(value, dict) else []
            roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
            if turns := [i for i, role in enumerate(roles) if role == "assistant" and i]:
                found.append(messages[: rng.choice(turns)])
        if not found:
            raise UsageError("[teacher] write: no training chat has an assistant's turn to write anew")
        rng.shuffle(found)
        return found

    def streams(self, split: Path, tokenizer: Path, written: Path | None) -> Path:
        """Token streams of train and validation sessions."""
        named = bool(self.s.teacher and self.s.teacher.target)
        key = [split.name, tokenizer.name, written.name if written else None]
        key.append(digest(self.target_json().hex()) if named else None)

        def build(folder: Path) -> None:
            raw = (tokenizer / "tokenizer.json").read_bytes()
            (folder / "tokenizer.json").write_bytes(raw)
            bundle = BundleTokenizer(raw)
            spell = Bridge(self.target_json(), bundle).spell if named else None
            out = records.Streams(folder, bundle, spell)
            for name, part in (("train", "train"), ("val", "validation")):
                sessions, tokens = out.add(
                    name, self._read_with(split / f"{part}.zst", written if name == "train" else None)
                )
                self.say(f"  {name}: {sessions:,} sessions, {tokens:,} tokens")
                if not tokens:
                    raise UsageError(f"no session for {part} has tokens: give more sessions")
            if out.skipped:
                self.say(
                    f"  {out.skipped} sessions left out: images, or ids of a tokenizer that was not named"
                )
            out.finish()

        return self.work.stage("streams", key, build)

    def _read_with(self, path: Path, written: Path | None) -> Iterator[Record]:
        yield from records.read(path)
        if written:
            for line in (written / "written.jsonl").read_bytes().splitlines():
                yield Record("written", Session.from_json_line(line))

    def order(self, streams: Path) -> Path:
        """Streams whose ids are in classes: by a target's embeddings, or by those of a quick model. A bundle's are already."""
        t = self.s.tokenizer
        if t.kind == "bundle" or (t.kind == "train" and not t.order_steps):
            return streams

        def build(folder: Path) -> None:
            raw = (streams / "tokenizer.json").read_bytes()
            size = BundleTokenizer(raw).size
            quick = folder / "quick"
            vectors = (
                self._target_vectors(raw) if t.kind == "target" else self._quick_vectors(quick, streams, size)
            )
            stream = np.fromfile(streams / "train.bin", np.uint16)
            prepare.order_vocabulary(streams, vectors, np.bincount(stream, minlength=size), folder)
            shutil.rmtree(quick, ignore_errors=True)

        key: list[Any] = [streams.name, t.kind, t.order_steps if t.kind == "train" else None, self.s.seed]
        key += [dataclasses.asdict(self.s.student)] if t.kind == "train" else []
        return self.work.stage("order", key, build, resumes=True)

    def _quick_vectors(self, scratch: Path, streams: Path, size: int) -> np.ndarray:
        """Embeddings (V, d) of the student's shape after a few steps."""
        net = Net(self._config(size, self.s.student, True))
        plan = self._plan(
            dataclasses.replace(self.s.student, steps=self.s.tokenizer.order_steps, seconds=0.0), False
        )
        scratch.mkdir(exist_ok=True)
        fit(net, scratch, plan, self._sampling(streams), streams, self.run.device, self.say)
        return np.asarray(net.embed.detach().float().cpu().numpy())

    def _target_vectors(self, raw: bytes) -> np.ndarray:
        """The target's output embeddings (V, d) for the ids of a bundle tokenizer; zeros where it has none."""
        from pltz.models.training.vocabulary import counterparts

        target = self.target()
        known = counterparts(BundleTokenizer(raw), target.tokenizer_json)
        head = target.model.get_output_embeddings() or target.model.get_input_embeddings()
        rows = head.weight.detach().float().cpu().numpy()
        known[known >= len(rows)] = -1
        return np.where((known >= 0)[:, None], rows[np.maximum(known, 0)], 0.0)

    # ---- training

    def teacher(self, streams: Path) -> Path:
        """A larger net, in floats; net.pt, config.json, fit.json."""
        t = self._teacher_settings()
        shape = dataclasses.replace(
            self.s.student,
            **{
                k: getattr(t, k)
                for k in ("d", "layers", "heads", "kv_heads", "head_dim", "hidden", "steps", "seconds")
            },
        )
        key = [streams.name, dataclasses.asdict(shape), self._sampling_key(), self.s.seed]

        def build(folder: Path) -> None:
            self._fit(
                folder,
                Net(self._config(self._vocab(streams), shape, False)),
                streams,
                self._plan(shape, True),
            )

        return self.work.stage("teacher", key, build, resumes=True)

    def student(self, streams: Path, teacher: Path | None) -> Path:
        """The student at a steady rate; net.pt, config.json, fit.json."""
        s = self.s.student
        start = Bundle.load(s.start) if s.start else None

        def build(folder: Path) -> None:
            net = Net(self._config(self._vocab(streams), s, s.rounding))
            if start:
                self._load_bundle(net, start, streams)
            self._fit(folder, net, streams, self._plan(s, False), self._teaching(streams, teacher))

        key = [
            streams.name,
            dataclasses.asdict(s),
            self._sampling_key(),
            self.s.seed,
            self._teacher_key(teacher),
        ]
        key.append(start.id.hex() if start else None)
        return self.work.stage("student", key, build, resumes=True)

    def finish(self, streams: Path, teacher: Path | None, student: Path) -> Path:
        """The student trained on with rounding, to a rate of zero; net.pt, config.json, fit.json."""
        f = self.s.finish
        s = dataclasses.replace(
            self.s.student,
            steps=f.steps,
            seconds=f.seconds,
            muon_rate=self.s.student.muon_rate * f.rate,
            adam_rate=self.s.student.adam_rate * f.rate,
        )

        def build(folder: Path) -> None:
            net = Net(self._config(self._vocab(streams), s, True))
            net.load_state_dict(torch.load(student / "net.pt", weights_only=True))
            self._fit(folder, net, streams, self._plan(s, True), self._teaching(streams, teacher))

        return self.work.stage(
            "finish", [student.name, dataclasses.asdict(f), self._sampling_key()], build, resumes=True
        )

    def _fit(
        self, folder: Path, net: Net, streams: Path, plan: Plan, teacher: Teaching | None = None
    ) -> None:
        if (folder / "fit.json").is_file():
            return  # cut off after training, before the stage got its name
        count = sum(p.numel() for p in net.parameters())
        self.say(f"  {count / 1e6:.2f} M parameters on {self.run.device}")
        _dump(folder / "config.json", net.cfg.to_dict())
        report = fit(net, folder, plan, self._sampling(streams), streams, self.run.device, self.say, teacher)
        _dump(folder / "fit.json", {"parameters": count, **report})
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def _config(self, vocab: int, s: Student, rounding: bool) -> NetConfig:
        shape = {
            k: getattr(s, k)
            for k in ("d", "layers", "heads", "kv_heads", "head_dim", "hidden", "block", "memory")
        }
        return NetConfig(vocab=vocab, quant=rounding, **shape)

    def _plan(self, s: Student, falls: bool) -> Plan:
        return Plan(
            steps=s.steps,
            seconds=s.seconds,
            rows=s.rows,
            row=s.row,
            muon_rate=s.muon_rate,
            adam_rate=s.adam_rate,
            weight_decay=s.weight_decay,
            falls=falls,
            seed=self.s.seed + falls,
            share=self.s.teacher.share if self.s.teacher else 0.0,
        )

    def _sampling_key(self) -> list[Any]:
        d = self.s.data
        return [d.power, d.text_share, d.most, d.augment, d.prefix]

    def _sampling(self, streams: Path) -> dict[str, Any]:
        d, names = self.s.data, list(_json(streams / "sources.json"))
        texts = sum(name.startswith(records.TEXT) for name in names)
        share = 0.0 if not texts else 1.0 if texts == len(names) else d.text_share
        return {
            "block": self.s.student.block,
            "memory": self.s.student.memory,
            "power": d.power,
            "most": d.most,
            "text_share": share,
            "augment": d.augment,
            "prefix": d.prefix,
        }

    def _vocab(self, streams: Path) -> int:
        return BundleTokenizer((streams / "tokenizer.json").read_bytes()).size

    def _load_bundle(self, net: Net, start: Bundle, streams: Path) -> None:
        same = start.tokenizer.json == (streams / "tokenizer.json").read_bytes()
        expected = {k: v for k, v in start.weights.shape.to_dict().items() if not k.endswith("_gain")}
        found = {k: getattr(net.cfg, k) for k in expected}
        if not same or expected != found:
            what = "tokenizer" if not same else "shape"
            raise UsageError(
                f'[student] start: bundle {start.name} has another {what}: use [tokenizer] kind = "bundle" and its shape {expected}'
            )
        state = {k: torch.from_numpy(np.asarray(v)).float() for k, v in restore(start.weights).items()}
        net.load_state_dict(state)

    def _teaching(self, streams: Path, teacher: Path | None) -> Teaching | None:
        t = self.s.teacher
        if t is None or t.share <= 0:
            return None
        if teacher is None:
            return TargetTeacher(
                self.target(), BundleTokenizer((streams / "tokenizer.json").read_bytes()), t.temperature
            )
        net = Net(NetConfig(**_json(teacher / "config.json")))
        net.load_state_dict(torch.load(teacher / "net.pt", weights_only=True))
        return NetTeacher(net, self.run.device)

    def _teacher_key(self, teacher: Path | None) -> list[Any] | None:
        t = self.s.teacher
        if t is None or t.share <= 0:
            return None
        return [t.share, t.temperature, teacher.name if teacher else self.target().fingerprint.hex()]

    def _teacher_settings(self) -> Teacher:
        if self.s.teacher is None:
            raise UsageError("there is no [teacher]")
        return self.s.teacher

    def target(self) -> Target:
        """The target that teaches, loaded once."""
        if self._target is None:
            self.say(f"  loads the target {self._teacher_settings().target}")
            self._target = Target.load(self._teacher_settings().target, device=self.run.device)
        return self._target

    def target_json(self) -> bytes:
        """The target's tokenizer, without loading its weights."""
        return tokenizer_json_of(resolve(self._teacher_settings().target))

    # ---- the bundle

    def dictionary(self, split: Path) -> Path:
        """A file `dictionary`, trained on training sessions; that of the bundle the student starts from, where validation says so."""
        d, start = self.s.dictionary, self.s.student.start
        old = Bundle.load(start).zstd_dict if start else b""

        def build(folder: Path) -> None:
            def contents(part: str, limit: int) -> list[Any]:
                chosen = records.sample(records.read(split / f"{part}.zst"), limit)
                return [data for session in chosen if (data := records.plain(session).to_bytes())]

            found = _dictionary(contents("train", d.sample_bytes), d.bytes, self.say)
            held_out = contents("validation", 300_000)
            sizes = [sum(len(Fallback(one).compress(data)) for data in held_out) for one in (found, old)]
            if old and sizes[1] < sizes[0]:
                self.say(
                    f"  keeps the dictionary of {start}: {sizes[1]:,} bytes on validation, {sizes[0]:,} with a new one"
                )
                found = old
            (folder / "dictionary").write_bytes(found)

        key = [split.name, dataclasses.asdict(d), digest(old.hex()) if old else None]
        return self.work.stage("dictionary", key, build)

    def export(self, streams: Path, dictionary: Path, finish: Path) -> Path:
        """The bundle folder, uncalibrated."""

        def build(folder: Path) -> None:
            state = {
                k: v.double().numpy() for k, v in torch.load(finish / "net.pt", weights_only=True).items()
            }
            weights = export(state, _json(finish / "config.json"))
            tokenizer = (streams / "tokenizer.json").read_bytes()
            write_bundle(
                folder, self.s.name, weights, tokenizer, (dictionary / "dictionary").read_bytes(), {}
            )
            self.say(f"  {weights.shape.macs / 1e6:.2f} M multiply-adds a token outside attention")

        return self.work.stage("export", [streams.name, dictionary.name, finish.name, self.s.name], build)

    def calibrate(self, split: Path, exported: Path) -> Path:
        """The bundle with temperatures fitted on validation sessions."""
        limit = self.s.calibrate.limit_bytes

        def build(folder: Path) -> None:
            bundle = Bundle.load(exported)
            chosen = [records.plain(s) for s in records.sample(records.read(split / "validation.zst"), limit)]
            tokens = _tokens([s for s in chosen if s.kind != "ids"], bundle.tokenizer)
            weights, report = calibrate(bundle.weights, tokens, lambda line: self.say("  " + line))
            write_bundle(folder, bundle.name, weights, bundle.tokenizer.json, bundle.zstd_dict, {})
            _dump(folder / "calibration.json", report)

        return self.work.stage("calibrate", [split.name, exported.name, limit], build)

    def evaluate(self, split: Path, bundle: Path) -> Path:
        """figures.json: test sessions coded and decoded back."""
        limit = self.s.evaluate.limit_bytes

        def build(folder: Path) -> None:
            test = [r._replace(session=records.plain(r.session)) for r in records.read(split / "test.zst")]
            found = self.run.measure(bundle, [r for r in test if r.session.kind != "ids"], limit)
            total = found["total"]
            self.say(f"  {total['content_bytes']:,} bytes of content: {total['bits_per_byte']} bits a byte")
            _dump(folder / "figures.json", found)

        return self.work.stage("evaluate", [split.name, bundle.name, limit], build)

    def card(self, split: Path, bundle: Path, figures: dict[str, Any], training: dict[str, Any]) -> Path:
        """The bundle with its card, for programs and for people."""
        s = self.s
        facts = _json(split / "facts.json")
        described = _described(s)
        key = [bundle.name, figures, training, facts, described]

        def build(folder: Path) -> None:
            weights = read_weights(bundle)
            for path in bundle.iterdir():
                if path.name not in ("calibration.json", "card.json"):
                    shutil.copy2(path, folder / path.name)
            made = own_card(_json(bundle / "bundle.json"), weights, described, facts, training, figures)
            _dump(folder / "card.json", made)
            (folder / "CARD.md").write_text(own_markdown(made), "utf8")

        return self.work.stage("card", key, build)

    def deliver(self, final: Path) -> dict[str, Any]:
        """Copy the finished bundle to the output folder, whole or not at all; the card."""
        output = self.run.output
        card: dict[str, Any] = _json(final / "card.json")
        if _ours(output) and not self.run.force:
            if (output / "card.json").is_file() and _json(output / "card.json") == card:
                self.say(f"{output} is this bundle already")
                return card
            raise UsageError(
                f"{output} holds another bundle: choose another output, or pass --force to replace it"
            )
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
        Bundle.load(output)  # as everyone will load it: files, shape and identity hold
        self.say(f"{output}: bundle {card['name']} {card['id']}")
        return card


def _count(facts: dict[str, dict[str, Any]], part: str, record: Record) -> None:
    """Note a record: sessions by part and licences, by source."""
    of = facts.setdefault(record.source, {"sessions": {}, "licences": []})
    of["sessions"][part] = of["sessions"].get(part, 0) + 1
    if record.licence and record.licence not in of["licences"]:
        of["licences"].append(record.licence)


def can_teach(target: str, bundle: str) -> bool:
    """Whether a target has every piece of a bundle's tokenizer, so that its probabilities can be learnt in it."""
    return covered(Bundle.load(bundle).tokenizer, tokenizer_json_of(resolve(target)))


def _reply(target: Target, ids: list[int], most: int) -> str:
    """What a target says after some ids, drawn from its probabilities."""
    if target.max_positions is not None:
        ids = ids[-max(1, target.max_positions - most) :]
    given = torch.tensor([ids], device=target.device)
    made = target.model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=True,
        top_k=0,
        max_new_tokens=most,
        pad_token_id=min(target.eos_ids, default=0),
    )[0, len(ids) :].tolist()
    end = next((i for i, token in enumerate(made) if token in target.eos_ids), len(made))
    return str(
        target.tokenizer.decode(made[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def _tokens(sessions: list[Session], tokenizer: BundleTokenizer) -> list[Any]:
    found = []
    for session in sessions:
        try:
            found += to_tokens_many([session], tokenizer)
        except ContentError:
            continue
    if not found:
        raise UsageError(
            "[calibrate] limit_bytes: no validation session is that short: raise it, or set it to 0"
        )
    return found


def _dictionary(samples: list[Any], size: int, say: Say) -> bytes:
    """A zstd dictionary of at most `size` bytes."""
    total = sum(map(len, samples))
    size = max(256, min(size, total // 4))  # zstd wants several times as much to learn from
    try:
        best = zstandard.train_dictionary(
            size, samples, level=19, k=400, d=8, f=22 if total > 1 << 24 else 20
        )
    except zstandard.ZstdError as exc:
        say(f"  raw content instead of a trained dictionary ({exc})")
        return b"".join(samples)[-size:]
    return bytes(best.as_bytes())


def _described(s: Settings) -> dict[str, Any]:
    """The settings as the card has them: files and target by name, without the folders they lie in on this machine."""
    out = dataclasses.asdict(s)
    for key in ("files", "validation", "test"):
        out["data"][key] = [Path(name).name for name in out["data"][key]]
    if s.teacher:
        out["teacher"]["target"] = Path(s.teacher.target).name
    return out


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read ({exc}): remove its folder and run again") from exc


def _dump(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf8")
    os.replace(part, path)
