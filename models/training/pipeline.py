"""From sessions to a bundle folder: the stages of a training run, one after the other.

    split       sessions read, held-out ones set apart          student     the model that ships
    tokenizer   learnt, taken from a bundle or from a target    dictionary  zstd, for the fallback coder
    write       a target writes turns anew (if asked for)       export      floats to the integers of the contract
    streams     token streams                                   calibrate   temperatures, on validation sessions
    order       ids put into classes                            evaluate    test sessions, by real decoding
    teacher     a bundle's net, or a larger one of our own      card        what was done and measured
                (if asked for)

The left column is in corpus.py, training in learning.py, and the stages after it in assembly.py. They share
context.py. stages.py defines a stage and how a killed run goes on; settings.py defines the settings. Reading
files and measuring are handed in, because they belong to packages above this one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.folder import publish
from pltz.models.target.checkpoint import resolve, tokenizer_json_of
from pltz.models.training.assembly import Assembly
from pltz.models.training.context import Context, Run, read_json
from pltz.models.training.corpus import Corpus
from pltz.models.training.learning import Learning
from pltz.models.training.settings import Settings
from pltz.models.training.stages import Say, Work
from pltz.models.training.trainer import REPORT
from pltz.models.training.vocabulary import covered
from pltz.plt_codec.errors import UsageError

__all__ = ["Run", "can_teach", "train"]


def train(settings: Settings, run: Run) -> dict[str, Any]:
    """Make a bundle, and return its card.

    Raises:
        UsageError: settings or files that cannot be used, or an output that is there.
        ModelError: a target that cannot teach.
    """
    if run.output.exists() and not run.force and not _ours(run.output):
        raise UsageError(f"{run.output} exists and is no bundle: choose another output")
    with Work(run.work, run.tell) as work:
        return _deliver(_made(Context(settings, run, work)), run, work.say)


def _ours(folder: Path) -> bool:
    return (folder / "bundle.json").is_file()


def _made(c: Context) -> Path:
    """Run every stage, and return the folder of the finished bundle."""
    learning, assembly = Learning(c), Assembly(c)
    learning.check()
    corpus = Corpus(c, learning)
    split = corpus.split()
    streams = corpus.all(split)
    teacher = learning.teacher(streams)
    student = learning.student(streams, teacher)
    training = {"student": read_json(student / REPORT)}
    if teacher and (teacher / REPORT).is_file():
        training["teacher"] = read_json(teacher / REPORT)
    bundle = assembly.export(streams, assembly.dictionary(split, learning.start), student)
    if c.s.calibrate.limit_bytes:
        bundle = assembly.calibrate(split, bundle)
        training["calibration"] = read_json(bundle / "calibration.json")
    figures = assembly.evaluate(split, bundle)
    return assembly.card(split, bundle, read_json(figures / "figures.json"), training)


def _deliver(final: Path, run: Run, say: Say) -> dict[str, Any]:
    """Copy the finished bundle to the output folder, whole or not at all, and return its card."""
    output = run.output
    card: dict[str, Any] = read_json(final / "card.json")
    if _ours(output) and not run.force:
        if (output / "card.json").is_file() and read_json(output / "card.json") == card:
            say(f"{output} is this bundle already")
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
    Bundle.load(output)  # as every user will load it: files, shape and identity hold
    say(f"{output}: bundle {card['name']} {card['id']}")
    return card


def can_teach(target: str, bundle: str) -> bool:
    """Return whether a target has every piece of a bundle's tokenizer, so that its probabilities can be learnt
    in it."""
    return covered(Bundle.load(bundle).tokenizer, tokenizer_json_of(resolve(target)))
