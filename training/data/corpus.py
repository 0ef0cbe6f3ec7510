"""The data stages of a training run, from sessions to token streams.

Sessions are read and split, a tokenizer is made, a target writes turns, ids are put into classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pltz.models import Bridge, Bundle, BundleTokenizer, Session, Target
from pltz.plt_codec import ContentError, UsageError
from pltz.training.data import records
from pltz.training.data.records import LabelledSession
from pltz.training.data.vocabulary import counterparts, from_target, order_vocabulary, train_tokenizer
from pltz.training.digests import digest, digest_files
from pltz.training.stages import RunContext, write_json

PARTS = ("train", "validation", "test")


class Corpus:
    """The data stages; a method named after a stage returns the stage's folder.

    Args:
        quick: trains a quick net on streams in a folder, and returns its embeddings (V, d).
    """

    def __init__(self, context: RunContext, quick: Callable[[Path, Path], np.ndarray]) -> None:
        self.c, self.quick = context, quick
        self.s, self.work, self.say = context.s, context.work, context.say

    def all(self, split: Path) -> Path:
        """Make the streams that nets are trained from."""
        tokenizer = self.tokenizer(split)
        written = self.write(split) if self.s.teacher and self.s.teacher.write else None
        return self.order(self.streams(split, tokenizer, written))

    def split(self) -> Path:
        """Write train, validation and test records; facts.json counts them by source, with their licences.

        Raises:
            UsageError: a part has no session.
        """
        d = self.s.data
        key = [d.held_out, *(digest_files(list(names)) for names in (d.files, d.validation, d.test))]

        def build(folder: Path) -> None:
            """Write the records."""
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
            write_json(folder / "facts.json", facts)

        return self.work.stage("split", key, build)

    def _parts(self) -> Iterator[tuple[str, LabelledSession]]:
        """Yield every record and the part it belongs to.

        Sessions of a separate validation or test file are not trained on.
        """
        d = self.s.data
        given = {"validation": d.validation, "test": d.test}
        apart: set[bytes] = set()
        for part, names in given.items():
            for name in names:
                for session in self.c.run.read(name):
                    apart.add(records.fingerprint(session))
                    yield part, records.record(session, name)
        for name in d.files:
            for session in self.c.run.read(name):
                if records.fingerprint(session) not in apart:
                    part = records.part_of(session, d.held_out)
                    yield "train" if given.get(part) else part, records.record(session, name)

    def tokenizer(self, split: Path) -> Path:
        """Write tokenizer.json in the bundle's form."""
        t = self.s.tokenizer
        key: list[Any] = [t.kind]
        if t.kind == "train":
            key += [t.vocabulary, t.sample_bytes, split.name]
        elif t.kind == "bundle":
            key += [Bundle.load(t.bundle).tokenizer.fingerprint.hex()]
        else:
            key += [self.c.target_json.hex()]

        def build(folder: Path) -> None:
            (folder / "tokenizer.json").write_bytes(self._tokenizer(split))

        return self.work.stage("tokenizer", key, build)

    def _tokenizer(self, split: Path) -> bytes:
        t = self.s.tokenizer
        if t.kind == "bundle":
            return Bundle.load(t.bundle).tokenizer.json
        if t.kind == "target":
            return from_target(self.c.target_json)
        chosen = records.sample(records.read(split / "train.zst"), t.sample_bytes)
        words = [text for session in chosen for text in records.texts(session)]
        self.say(f"  learns {t.vocabulary:,} pieces from {sum(map(len, words)) / 1e6:.1f} MB")
        return str(train_tokenizer(words, t.vocabulary).to_str()).encode()

    def write(self, split: Path) -> Path:
        """Write written.jsonl: training chats up to a random assistant's turn, that turn by the target.

        Resumes line by line.
        """
        teacher = self.c.teacher
        key = [split.name, teacher.write, teacher.write_tokens, self.s.seed, self.c.target.fingerprint.hex()]

        def build(folder: Path) -> None:
            path = folder / "written.jsonl"
            done = path.read_bytes() if path.exists() else b""
            done = done[: done.rfind(b"\n") + 1]  # a torn last line is written again
            path.write_bytes(done)
            with path.open("ab") as f:
                for number, line in enumerate(_written(self.c, split, done.count(b"\n")), done.count(b"\n") + 1):
                    f.write(line)
                    f.flush()
                    if number % 10 == 0:
                        self.say(f"  {number} of {teacher.write} sessions written")

        return self.work.stage("write", key, build, resumes=True)

    def streams(self, split: Path, tokenizer: Path, written: Path | None) -> Path:
        """Write the token streams of train and validation sessions.

        Raises:
            UsageError: no session of a part has tokens.
        """
        named = bool(self.s.teacher and self.s.teacher.target)
        key = [split.name, tokenizer.name, written.name if written else None]
        key.append(digest(self.c.target_json.hex()) if named else None)

        def build(folder: Path) -> None:
            raw = (tokenizer / "tokenizer.json").read_bytes()
            (folder / "tokenizer.json").write_bytes(raw)
            bundle = BundleTokenizer(raw)
            spell = Bridge(self.c.target_json, bundle).spell if named else None
            out = records.TokenStreams(folder, bundle, spell)
            for name, part in (("train", "train"), ("val", "validation")):
                sessions, tokens = out.add(
                    name, self._read_with(split / f"{part}.zst", written if name == "train" else None)
                )
                self.say(f"  {name}: {sessions:,} sessions, {tokens:,} tokens")
                if not tokens:
                    raise UsageError(f"no session for {part} has tokens: give more sessions")
            if out.skipped:
                self.say(f"  {out.skipped} sessions left out: images, or ids of a tokenizer that was not named")
            out.finish()

        return self.work.stage("streams", key, build)

    def _read_with(self, path: Path, written: Path | None) -> Iterator[LabelledSession]:
        yield from records.read(path)
        if written:
            for line in (written / "written.jsonl").read_bytes().splitlines():
                yield LabelledSession("written", Session.from_json_line(line))

    def order(self, streams: Path) -> Path:
        """Write streams whose ids are in classes: by a target's embeddings, or by a quick model's.

        A bundle's already are.
        """
        t = self.s.tokenizer
        if t.kind == "bundle" or (t.kind == "train" and not t.order_steps):
            return streams

        def build(folder: Path) -> None:
            raw = (streams / "tokenizer.json").read_bytes()
            size = BundleTokenizer(raw).size
            quick = folder / "quick"
            vectors = self._target_vectors(raw) if t.kind == "target" else self.quick(quick, streams)
            stream = np.fromfile(streams / "train.bin", np.uint16)
            order_vocabulary(streams, vectors, np.bincount(stream, minlength=size), folder)
            shutil.rmtree(quick, ignore_errors=True)

        key: list[Any] = [streams.name, t.kind, t.order_steps if t.kind == "train" else None, self.s.seed]
        key += [dataclasses.asdict(self.s.student)] if t.kind == "train" else []
        return self.work.stage("order", key, build, resumes=True)

    def _target_vectors(self, raw: bytes) -> np.ndarray:
        """Return the target's output embeddings (V, d) for the ids of a bundle tokenizer; zeros where it has none."""
        target = self.c.target
        known = counterparts(BundleTokenizer(raw), target.tokenizer_json)
        head = target.model.get_output_embeddings() or target.model.get_input_embeddings()
        rows = head.weight.detach().float().cpu().numpy()
        known[known >= len(rows)] = -1
        return np.where((known >= 0)[:, None], rows[np.maximum(known, 0)], 0.0)


def _count(facts: dict[str, dict[str, Any]], part: str, record: LabelledSession) -> None:
    """Add a record to the facts: sessions by part, and licences, by source."""
    of = facts.setdefault(record.source, {"sessions": {}, "licences": []})
    of["sessions"][part] = of["sessions"].get(part, 0) + 1
    if record.licence and record.licence not in of["licences"]:
        of["licences"].append(record.licence)


def _written(context: RunContext, split: Path, done: int) -> Iterator[bytes]:
    """Yield the sessions still to be written, one line of JSON each.

    Chats that the target's template refuses are skipped. `done`: sessions that were written before.

    Raises:
        ContentError: the template refuses every chat.
        UsageError: no chat has an assistant's turn.
    """
    teacher, target = context.teacher, context.target
    prompts = _prompts(split, context.s.seed)
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
        torch.manual_seed(context.s.seed * 1_000_003 + made)
        made += 1
        if made > done:
            text = _reply(target, ids, teacher.write_tokens)
            value = {"messages": [*messages, {"role": "assistant", "content": text}]}
            yield Session("chat", value).to_json_line()


def _prompts(split: Path, seed: int) -> list[list[Any]]:
    """Return the messages before a random assistant's turn of each training chat that has one, in random order."""
    rng = random.Random(seed)
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


def _reply(target: Target, ids: list[int], most: int) -> str:
    """Return the target's text after some ids, drawn from its probabilities."""
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
    return str(target.tokenizer.decode(made[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False))
