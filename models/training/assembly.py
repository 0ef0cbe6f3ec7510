"""The stages that make a bundle of a trained net: dictionary, export, calibration, figures, card."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import zstandard

from pltz.models.bundle.bundle import Bundle, read_weights, write_bundle
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens_many
from pltz.models.training import net_files, records
from pltz.models.training.calibrate import calibrate
from pltz.models.training.card import own_card, own_markdown
from pltz.models.training.context import Context, read_json, write_json
from pltz.models.training.export import export
from pltz.models.training.origin import Origin
from pltz.models.training.settings import Settings
from pltz.models.training.stages import Say, digest
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.zstd import Fallback


class Assembly:
    """The stages after training; each method returns the folder of its stage."""

    def __init__(self, context: Context) -> None:
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
            weights = export(net_files.read(student))
            tokenizer = (streams / "tokenizer.json").read_bytes()
            words, packed = (dictionary / "dictionary").read_bytes(), weights.shape.gated
            write_bundle(folder, self.s.name, weights, tokenizer, words, {}, packed=packed)
            self.say(f"  {weights.shape.macs / 1e6:.2f} M multiply-adds a token outside attention")

        return self.work.stage("export", [streams.name, dictionary.name, student.name, self.s.name], build)

    def calibrate(self, split: Path, exported: Path) -> Path:
        """Write the bundle with temperatures fitted on validation sessions."""
        limit = self.s.calibrate.limit_bytes

        def build(folder: Path) -> None:
            bundle = Bundle.load(exported)
            chosen = [records.plain(s) for s in records.sample(records.read(split / "validation.zst"), limit)]
            tokens = _tokens([s for s in chosen if s.kind != "ids"], bundle.tokenizer)
            weights, report = calibrate(bundle.weights, tokens, lambda line: self.say("  " + line))
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
            self.say(f"  {total['content_bytes']:,} bytes of content: {total['bits_per_byte']} bits a byte")
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
            made = own_card(read_json(bundle / "bundle.json"), weights, described, facts, training, figures)
            write_json(folder / "card.json", made)
            (folder / "CARD.md").write_text(own_markdown(made), "utf8")

        return self.work.stage("card", key, build)


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
    """Train a zstd dictionary of at most `size` bytes."""
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
    """Return the settings as the card has them: files, target and bundles by name, without their folders on this
    machine."""
    out = dataclasses.asdict(s)
    for key in ("files", "validation", "test"):
        out["data"][key] = [Path(name).name for name in out["data"][key]]
    named = [("student", "start"), ("tokenizer", "bundle")]
    named += [("teacher", key) for key in ("target", "bundle", "start")] if s.teacher else []
    for table, key in named:
        out[table][key] = Path(out[table][key]).name
    return out
