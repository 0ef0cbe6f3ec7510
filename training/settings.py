"""One configuration file for a whole training run: TOML to checked settings.

Every table is a dataclass here. Its fields are the keys, and their defaults apply to keys left out. An
unknown key, or a value of the wrong kind, is refused by name. Paths are relative to the folder of the file.
example.toml is a complete file with a comment on each key.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pltz.models import Bundle
from pltz.plt_codec import UsageError
from pltz.training.nets.checkpoint import NetShape
from pltz.training.run.schedule import Schedule

T = TypeVar("T")
EXAMPLE = Path(__file__).with_name("example.toml")


@dataclass(frozen=True)
class Data:
    """`[data]`: the sessions, and how training draws from them."""

    files: tuple[str, ...] = ()  # files and folders, any format `pltz compress` reads
    validation: tuple[str, ...] = ()  # files of their own; none: a share of `files`
    test: tuple[str, ...] = ()  # likewise
    held_out: float = 0.1  # share of the sessions in `files` kept for validation and test, half each
    text_share: float = 0.2  # share of the tokens that plain texts get, where there are chats too
    power: float = 0.85  # a source of size n is drawn in proportion to n^power
    most: float = 2.0  # but at most so many times its share
    augment: float = 0.05  # share of chats rewritten (dataloader.Augment)
    prefix: float = 0.1  # share of sessions whose beginning is a context
    layouts: float = 0.35  # share of blocks in any layout rather than the default one
    weights: dict[str, float] = field(default_factory=dict)  # source -> factor on how often it is drawn


@dataclass(frozen=True)
class TokenizerSettings:
    """`[tokenizer]`: the source of the vocabulary."""

    kind: str = "train"  # train; bundle: that of `bundle`; target: that of the teacher's target
    vocabulary: int = 16384  # train: ids, a multiple of 128
    bundle: str = "mini"  # bundle: a name or a folder
    sample_bytes: int = 4_000_000  # train: at most so many bytes per source
    order_steps: int = 300  # train: steps of the quick model whose embeddings put ids into classes; 0: no order


@dataclass(frozen=True)
class Teacher:
    """`[teacher]`: the model whose probabilities the student learns beside the data: a target or a bundle.

    Without the table there is none.
    """

    target: str = ""  # a Hugging Face causal LM (folder, name, hub name)
    bundle: str = ""  # or a bundle of the same tokenizer, or the folder of a net (origin.py)
    share: float = 0.5  # of the loss, where the teacher has a say
    temperature: float = 1.0
    repeat: int = 1  # times that what the teacher says on a batch is learnt
    write: int = 0  # sessions whose next turn the target writes, as more training data
    write_tokens: int = 256  # tokens of such a turn, at most


@dataclass(frozen=True)
class Student(NetShape, Schedule):
    """`[student]`: shape (checkpoint.py) and training (schedule.py) of the model that ships."""

    start: str = ""  # a bundle of the same tokenizer, or a net (origin.py), whose shape it takes; empty: random


@dataclass(frozen=True)
class Calibrate:
    """`[calibrate]`: temperatures fitted on validation sessions with the integer engine."""

    limit_bytes: int = 20_000  # content bytes per source; 0: no calibration


@dataclass(frozen=True)
class Dictionary:
    """`[dictionary]`: the zstd dictionary of the fallback coder."""

    bytes: int = 1 << 20
    sample_bytes: int = 10_000_000  # at most so many bytes per source


@dataclass(frozen=True)
class Evaluate:
    """`[evaluate]`: held-out figures by real decoding, for the card."""

    limit_bytes: int = 300_000  # content bytes per source


@dataclass(frozen=True)
class Card:
    """`[card]`: the description of the bundle for people."""

    licence: str = "not stated"
    about: str = ""  # a sentence or two
    sources: dict[str, str] = field(default_factory=dict)  # source -> licence, where the records do not say


@dataclass(frozen=True)
class TrainSettings:
    """The whole file.

    Raises:
        UsageError: the settings contradict each other, or a value is out of range.
    """

    name: str = "bundle"
    seed: int = 1
    data: Data = field(default_factory=Data)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    teacher: Teacher | None = None
    student: Student = field(default_factory=Student)
    calibrate: Calibrate = field(default_factory=Calibrate)
    dictionary: Dictionary = field(default_factory=Dictionary)
    evaluate: Evaluate = field(default_factory=Evaluate)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        """Refuse settings that cannot be carried out.

        Raises:
            UsageError: the settings contradict each other, or a value is out of range.
        """
        kinds = ("train", "bundle", "target")
        if self.tokenizer.kind not in kinds:
            raise UsageError(f"[tokenizer] kind: expected one of {', '.join(kinds)}, found {self.tokenizer.kind!r}")
        if not self.data.files:
            raise UsageError("[data] files: expected at least one file or folder, found none")
        if not 0 < self.data.held_out < 1 and not (self.data.validation and self.data.test):
            raise UsageError(f"[data] held_out: expected a share between 0 and 1, found {self.data.held_out}")
        for name, weight in self.data.weights.items():
            if not 0 < weight < float("inf"):
                raise UsageError(f"[data.weights] {name}: expected a number above 0, found {weight:g}")
        steps, seconds = self.student.steps, self.student.seconds
        if (steps > 0) == (seconds > 0):
            raise UsageError(f"[student] expected either steps or seconds above 0, found {steps} and {seconds:g}")
        if self.tokenizer.kind == "target" and not (self.teacher and self.teacher.target):
            raise UsageError('[tokenizer] kind "target" needs a [teacher] with a target')
        if self.teacher and self.teacher.write and not self.teacher.target:
            raise UsageError("[teacher] write: only a target can write, and none is named")
        if self.teacher and bool(self.teacher.target) == bool(self.teacher.bundle):
            found = "both" if self.teacher.target else "neither"
            raise UsageError(f"[teacher] expected either a target or a bundle, found {found}")
        if self.teacher and self.teacher.repeat < 1:
            raise UsageError(f"[teacher] repeat: expected 1 or more, found {self.teacher.repeat}")
        if self.tokenizer.vocabulary % 128 or not 384 <= self.tokenizer.vocabulary <= 1 << 16:
            raise UsageError(
                "[tokenizer] vocabulary: expected a multiple of 128 from 384 to 65,536, found "
                f"{self.tokenizer.vocabulary}"
            )
        if not (self.name and Path(self.name).name == self.name):
            raise UsageError(f"name: expected a plain name, found {self.name!r}")


def load(path: Path) -> TrainSettings:
    """Return the settings of a file, paths made absolute.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has unknown keys or values of the wrong kind.
        ModelError: a net that it names cannot be read.
    """
    try:
        tree = tomllib.loads(path.read_text("utf8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: cannot be read ({exc})") from exc
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"{path}: expected TOML: {exc}") from exc
    settings = _made(TrainSettings, tree, "")
    base = path.resolve().parent
    data: dict[str, Any] = {
        name: tuple(str(base / Path(file).expanduser()) for file in getattr(settings.data, name))
        for name in ("files", "validation", "test")
    }
    s, t, k = settings.student, settings.teacher, settings.tokenizer
    start = _near(base, s.start)
    return dataclasses.replace(
        settings,
        data=dataclasses.replace(settings.data, **data),
        student=dataclasses.replace(s, start=start, **_inherited(start, tree.get("student", {}))),
        tokenizer=dataclasses.replace(k, bundle=_near(base, k.bundle)),
        teacher=dataclasses.replace(t, target=_near(base, t.target), bundle=_near(base, t.bundle)) if t else None,
    )


def _near(base: Path, name: str) -> str:
    """Return a folder beside the configuration file by its path.

    Any other name (of a bundle that ships, a hub name) is returned as it is.
    """
    return str(base / name) if name and name not in Bundle.names() and (base / name).is_dir() else name


def _inherited(start: str, student: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the shape that a net takes from its start, unless the file sets them.

    Raises:
        UsageError: there is no such start.
        ModelError: it cannot be read.
    """
    if not start:
        return {}
    from pltz.training.nets.origin import Origin

    return {k: v for k, v in Origin(start, "[student] start").shape().items() if k not in student}


def _made(kind: type[T], tree: dict[str, Any], table: str) -> T:
    """Return a dataclass from a TOML table."""
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(tree) - set(hints))
    if unknown:
        raise UsageError(f"{_place(table, unknown[0])}: no such key; expected some of {', '.join(hints)}")
    return kind(**{key: _value(hints[key], value, _place(table, key)) for key, value in tree.items()})


def _place(table: str, key: str) -> str:
    return f"[{table}] {key}" if table else key


def _value(hint: Any, value: Any, place: str) -> Any:
    """Return one value in the type of its field."""
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return _made(hint, value, place)
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif typing.get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif typing.get_origin(hint) is dict:
        if isinstance(value, dict):
            of = typing.get_args(hint)[1]
            return {key: _value(of, item, f"{place}.{key}") for key, item in value.items()}
    elif type(value) is hint:
        return value
    wanted = getattr(hint, "__name__", str(hint)) if not typing.get_origin(hint) else str(hint)
    raise UsageError(f"{place}: expected {wanted}, found {value!r}")
