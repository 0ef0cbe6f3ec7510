"""One configuration file for a whole training run: TOML to checked settings.

Every table is a dataclass here. Its fields are the keys, and their defaults apply to keys left out. An
unknown key, or a value of the wrong kind, is refused by name. Paths are relative to the folder of the file.
`EXAMPLE` is a complete file with a comment on each key.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pltz.models.bundle import bundle as bundles
from pltz.models.training.plan import Plan
from pltz.models.training.shape import NetShape, NetSize
from pltz.plt_codec.errors import UsageError

T = TypeVar("T")


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
    augment: float = 0.05  # share of chats rewritten (augment.py)
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
    order_steps: int = (
        300  # train: steps of the quick model whose embeddings put ids into classes; 0: no order
    )


@dataclass(frozen=True)
class Teacher(NetSize):
    """`[teacher]`: the model whose probabilities the student learns beside the data.

    Without the table there is none.
    """

    target: str = ""  # a Hugging Face causal LM (folder, name, hub name)
    bundle: str = ""  # a bundle of the same tokenizer; neither: a larger net of our own
    share: float = 0.5  # of the loss, where the teacher has a say
    temperature: float = 1.0
    write: int = 0  # sessions whose next turn the target writes, as more training data
    write_tokens: int = 256  # tokens of such a turn, at most
    d: int = 512  # own net: as for the student
    layers: int = 12
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 2048
    start: str = ""  # own net: a net to start from (origin.py), whose shape it takes; empty: random weights
    rows: int = 0  # own net: rows per batch; 0: as the student's
    relative_rate: float = 0.0  # own net, gated: 0: as the student's
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Student(NetShape, Plan):
    """`[student]`: shape (shape.py) and training (plan.py) of the model that ships."""

    start: str = ""  # a bundle of the same tokenizer, or a net (origin.py), whose shape it takes; empty: random weights


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
class Settings:
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
            raise UsageError(
                f"[tokenizer] kind: expected one of {', '.join(kinds)}, found {self.tokenizer.kind!r}"
            )
        if not self.data.files:
            raise UsageError("[data] files: expected at least one file or folder, found none")
        if not 0 < self.data.held_out < 1 and not (self.data.validation and self.data.test):
            raise UsageError(f"[data] held_out: expected a share between 0 and 1, found {self.data.held_out}")
        for name, weight in self.data.weights.items():
            if not 0 < weight < float("inf"):
                raise UsageError(f"[data.weights] {name}: expected a number above 0, found {weight:g}")
        _one_budget("student", self.student)
        if self.tokenizer.kind == "target" and not (self.teacher and self.teacher.target):
            raise UsageError('[tokenizer] kind "target" needs a [teacher] with a target')
        if self.teacher and self.teacher.write and not self.teacher.target:
            raise UsageError("[teacher] write: only a target can write, and none is named")
        if self.teacher and self.teacher.target and self.teacher.bundle:
            raise UsageError("[teacher] expected a target or a bundle, found both")
        if self.teacher and not self.teacher.target and not self.teacher.bundle:
            _one_budget("teacher", self.teacher)
        if self.tokenizer.vocabulary % 128 or not 384 <= self.tokenizer.vocabulary <= 1 << 16:
            raise UsageError(
                "[tokenizer] vocabulary: expected a multiple of 128 from 384 to 65,536, found "
                f"{self.tokenizer.vocabulary}"
            )
        if not (self.name and Path(self.name).name == self.name):
            raise UsageError(f"name: expected a plain name, found {self.name!r}")


def _one_budget(table: str, part: Student | Teacher) -> None:
    if (part.steps > 0) == (part.seconds > 0):
        raise UsageError(
            f"[{table}] expected either steps or seconds above 0, found {part.steps} and {part.seconds:g}"
        )


def load(path: Path) -> Settings:
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
    settings = _made(Settings, tree, "")
    base = path.resolve().parent
    data: dict[str, Any] = {
        name: tuple(str(base / Path(file).expanduser()) for file in getattr(settings.data, name))
        for name in ("files", "validation", "test")
    }
    s, t, k = settings.student, settings.teacher, settings.tokenizer
    start = _near(base, s.start)
    if t:
        begin, sizes = _near(base, t.start), {f.name for f in dataclasses.fields(NetSize)}
        shape = _inherited(begin, tree.get("teacher", {}), "[teacher] start")
        t = dataclasses.replace(t, start=begin, **{k: v for k, v in shape.items() if k in sizes})
    return dataclasses.replace(
        settings,
        data=dataclasses.replace(settings.data, **data),
        student=dataclasses.replace(
            s, start=start, **_inherited(start, tree.get("student", {}), "[student] start")
        ),
        tokenizer=dataclasses.replace(k, bundle=_near(base, k.bundle)),
        teacher=dataclasses.replace(t, target=_near(base, t.target), bundle=_near(base, t.bundle))
        if t
        else None,
    )


def _near(base: Path, name: str) -> str:
    """Return a folder beside the configuration file by its path.

    Any other name (of a bundle that ships, a hub name) is returned as it is.
    """
    return (
        str(base / name) if name and name not in bundles.Bundle.names() and (base / name).is_dir() else name
    )


def _inherited(start: str, given: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the keys of the shape that a net takes from its start, unless the file sets them.

    Raises:
        UsageError: there is no such start.
        ModelError: it cannot be read.
    """
    if not start:
        return {}
    from pltz.models.training.origin import Origin

    return {k: v for k, v in Origin(start, place).shape().items() if k not in given}


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


EXAMPLE = """\
# pltz bundle train --config this-file --output my-bundle
# Every key may be left out but files and the budgets; what stands here is the default unless it says otherwise.

name = "mine"                 # the bundle's name
seed = 1

[data]
files = ["chats.jsonl"]       # no default. Files and folders, in any format that pltz compress reads
validation = []               # files of their own for calibration; none: half of what is held out
test = []                     # files of their own for the card's figures; none: the other half
held_out = 0.1                # share of the sessions that training never sees, chosen by content: copies stay together
text_share = 0.2              # share of the tokens that plain texts get beside chats
power = 0.85                  # a source of n tokens is drawn as n^power,
most = 2.0                    # but at most at twice its share: small sources are not learnt by heart
augment = 0.05                # share of chats rewritten into other forms (templates, ShareGPT, keys)
prefix = 0.1                  # share of sessions whose beginning is a context of the rest
layouts = 0.35                # share of blocks in any layout rather than the default one
[data.weights]                # a source is drawn so many times as often ("text:" before the name of one of plain texts)
# chats = 1.0

[tokenizer]
kind = "train"                # or "bundle": that of the bundle below; or "target": that of the teacher's target
vocabulary = 16384            # a multiple of 128, at most 65536
bundle = "mini"
sample_bytes = 4_000_000      # at most so many bytes a source to learn it from
order_steps = 300             # steps of a quick first model; its embeddings say which ids share a class

# [teacher]                   # whose probabilities the student learns beside the data. No table: none
# target = ""                 # a folder with a Hugging Face causal LM,
# bundle = ""                 # or a bundle of the same tokenizer. Neither: a larger net of our own, trained first
# share = 0.5                 # of the loss, where the teacher has a say
# temperature = 1.0
# write = 0                   # training chats whose next turn the target writes anew, as more data
# write_tokens = 256
# d = 512                     # shape (keys of [student]) and budget of our own net
# layers = 12
# heads = 8
# kv_heads = 4
# hidden = 2048
# start = ""                  # a net that our own starts from (transplant.py --teacher: a pretrained Llama or Qwen 2), whose shape it has
# rows = 0                    # 0: as the student's; likewise
# relative_rate = 0.0
# seconds = 1200

[student]
d = 384                       # at most 512; gated: 576
layers = 7
heads = 6
kv_heads = 3
head_dim = 64                 # at most 64
hidden = 1664
rope_base = 10000.0
gated = false                 # a Llama's layers (numeric contract 2), for pretrained weights
bias = false                  # gated: of queries, keys and values, and
quant = true                  # the integers' roundings in training: a teacher may have biases and do without roundings, a student not
step = 0.0                    # gated: smallest step of a weight, in root mean squares of its row: what compresses the weights
block = 4096                  # tokens that see each other, and
memory = 1024                 # how many of the block before they see
start = ""                    # a bundle of the same tokenizer to go on from: "mini", "base", a folder; its shape is taken: leave the keys above out, or ask for more layers and hidden units
seconds = 1400                # no default: seconds, or steps
rows = 16                     # a batch is rows times row tokens, on each GPU
row = 8192
warmup = 40                   # steps until the full rate, at most a tenth of steps
decay = 0.5                   # share of the budget, the last, over which the rate falls to zero
muon_rate = 0.02              # of the matrices
adam_rate = 0.004             # of the rest
weight_decay = 0.03
dropout = 0.0                 # share of what each layer adds to the residual that is left out at random, where data is seen many times
relative_rate = 0.003         # gated: of a matrix, in root mean squares of it; the other rates are not used

[calibrate]
limit_bytes = 20_000          # validation bytes a source for fitting temperatures; 0: none

[dictionary]                  # of the fallback coder (zstd)
bytes = 1_048_576
sample_bytes = 10_000_000     # at most so many bytes a source

[evaluate]
limit_bytes = 300_000         # test bytes a source for the card's figures

[card]
licence = "not stated"        # of the bundle
about = ""
[card.sources]                # licence of each source whose records do not say
# chats = "CC-BY-4.0"
"""
