"""The parts of a training run: settings, stages, splits, vocabularies of targets, teachers, checkpoints (models/training/)."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from pltz.datasets import sample_sessions
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.models.training import (
    dataloader,
    distil,
    net_files,
    prepare,
    records,
    settings,
    stages,
    trainer,
    vocabulary,
)
from pltz.models.training import net as nets
from pltz.models.training.dataloader import load_batches
from pltz.models.training.distributed import Ranks
from pltz.models.training.job import Job, sampling
from pltz.models.training.net import Net
from pltz.models.training.optimisers import clipped, optimisers
from pltz.models.training.plan import Plan
from pltz.models.training.shape import NetConfig
from pltz.models.training.trainer import Place
from pltz.plt_codec.errors import ModelError, UsageError

TINY = NetConfig(vocab=1024, d=32, layers=1, heads=2, kv_heads=1, head_dim=16, hidden=64, memory=64)


def no_say(line: str) -> None:
    """Nobody listens."""


@pytest.fixture
def streams(tmp_path: Path, tiny_tokenizer: BundleTokenizer) -> Path:
    """Token streams of a few sample sessions."""
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer.json)
    out = records.Streams(tmp_path, tiny_tokenizer)
    out.add("train", [records.record(s, "sample.jsonl") for s in sample_sessions()[:20]])
    out.finish()
    return tmp_path


SAMPLING: dict[str, Any] = {"block": 4096, "memory": 64, "power": 0.85, "most": 2.0, "text_share": 0.0}


HERE = Place("cpu", no_say)


def a_job(streams: Path, start: Path | None = None, **plan: Any) -> Job:
    given = {"steps": 6, "rows": 1, "row": 128, "decay": 1.0, "weight_decay": 0.0, **plan}
    return Job(TINY, Plan(**given), SAMPLING, 1, streams, start)


# ---- settings


def test_the_example_is_a_configuration_and_names_every_key(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(settings.EXAMPLE)
    found = settings.load(path)
    assert found.data.files == (str(tmp_path / "chats.jsonl"),) and found.teacher is None
    for table in (settings.Settings, *(f for f in vars(settings).values() if dataclasses.is_dataclass(f))):
        assert isinstance(table, type)
        for field in dataclasses.fields(table):
            assert field.name in settings.EXAMPLE, f"{table.__name__}.{field.name}"
    plain = dataclasses.replace(settings.Student(), seconds=1400.0)
    assert found.student == plain and found.tokenizer == settings.TokenizerSettings()


def test_the_kept_configurations_are_configurations() -> None:
    kept = sorted(Path(settings.__file__).parent.glob("*.toml"))
    assert [path.stem for path in kept] == [settings.load(path).name for path in kept] and kept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[student]\nsteps = 1\nwidth = 3\n", "[student] width: no such key"),
        ('[student]\nsteps = "many"\n', "[student] steps: expected int"),
        ("[student]\nsteps = 1\nseconds = 2\n", "[student] expected either"),
        ('[tokenizer]\nkind = "other"\n', "[tokenizer] kind"),
        ('[tokenizer]\nkind = "target"\n', "needs a [teacher]"),
        ("[tokenizer]\nvocabulary = 1000\n", "multiple of 128"),
        ("[data]\nfiles = []\n", "[data] files"),
        ("[data\n", "expected TOML"),
        ("name = '../x'\n", "plain name"),
        ('[data]\nfiles = ["a"]\n[data.weights]\na = "2"\n', "[data] weights.a: expected float"),
        ('[data]\nfiles = ["a"]\n[data.weights]\na = 0\n', "[data.weights] a: expected a number above 0"),
    ],
)
def test_settings_refuse_by_name(tmp_path: Path, text: str, said: str) -> None:
    whole = "" if "[data" in text else '[data]\nfiles = ["a"]\n'
    rest = "" if "[student" in text else "[student]\nsteps = 1\n"
    path = tmp_path / "c.toml"
    path.write_text(text + whole + rest)
    with pytest.raises(UsageError) as caught:
        settings.load(path)
    assert said in str(caught.value)


def test_a_weight_is_of_a_source_that_is_there(streams: Path) -> None:
    with pytest.raises(UsageError, match="no such source, expected some of"):
        sampling(settings.Data(weights={"other": 2.0}), 4096, 64, streams)
    assert sampling(settings.Data(), 4096, 64, streams)["layouts"] == 0.35


def test_streams_keep_a_bundles_tokenizer_byte_for_byte(
    tmp_path: Path, tiny_tokenizer: BundleTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training that starts from a bundle refuses streams of another tokenizer.json."""
    given, chat = tmp_path / "given.json", tmp_path / "chat.jsonl"
    given.write_bytes(json.dumps(json.loads(tiny_tokenizer.json), indent=3).encode())
    chat.write_text('{"id": "a-1", "messages": [{"role": "user", "content": "hello"}]}\n')
    words = ["prepare", "tokenize", "--chat", str(chat), "--validation", str(chat), "--tokenizer", str(given)]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(tmp_path / "out")])
    prepare.main()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == given.read_bytes()
    assert json.loads((tmp_path / "out" / "sources.json").read_text()) == {"a": 0}


# ---- stages


def test_a_stage_is_built_once_for_each_key_and_appears_whole(tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "x").write_text("1")

    with stages.Work(tmp_path, no_say) as work:
        first = work.stage("a", {"k": 1}, build)
        assert work.stage("a", {"k": 1}, build) == first and len(built) == 1
        assert work.stage("a", {"k": 2}, build) != first and len(built) == 2
    assert sorted(p.name for p in first.iterdir()) == ["x"] and not list(tmp_path.glob("*.part"))
    assert "done before" in (tmp_path / "log.txt").read_text()


def test_a_stage_cut_off_begins_anew_unless_it_resumes(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise KeyboardInterrupt

    def build(folder: Path) -> None:
        (folder / "found").write_text(str((folder / "half").exists()))

    for resumes in (False, True):
        with stages.Work(tmp_path, no_say) as work:
            with pytest.raises(KeyboardInterrupt):
                work.stage("s", resumes, fail, resumes=resumes)
            folder = work.stage("s", resumes, build, resumes=resumes)
        assert (folder / "found").read_text() == str(resumes)


def test_one_run_a_work_folder(tmp_path: Path) -> None:
    with stages.Work(tmp_path, no_say), pytest.raises(UsageError, match="another run"):
        stages.Work(tmp_path, no_say)
    with stages.Work(tmp_path, no_say):
        pass


# ---- records


def test_the_split_is_by_content_and_keeps_copies_together() -> None:
    sessions = sample_sessions()
    parts = [records.part_of(s, 0.2) for s in sessions]
    assert parts == [records.part_of(Session("chat", s.value), 0.2) for s in sessions]
    assert 0.1 < 1 - parts.count("train") / len(parts) < 0.3 and {"test", "validation"} < set(parts)
    wider = [records.part_of(s, 0.4) for s in sessions]
    assert all(w != "train" for w, p in zip(wider, parts, strict=True) if p != "train")


def test_records_come_back(tmp_path: Path) -> None:
    found = [
        records.Record("a", Session("chat", {"messages": [{"role": "user", "content": "h\ud800"}]}), "MIT"),
        records.Record("text:b", Session("text", b"\xff\n\x00"), ""),
        records.Record("c", Session("ids", [1, 2, 1 << 30]), ""),
    ]
    with records.keeper(tmp_path / "r.zst") as keep:
        for one in found:
            keep(one)
    back = list(records.read(tmp_path / "r.zst"))
    assert [(r.source, r.licence) for r in back] == [(r.source, r.licence) for r in found]
    assert all(a.session.difference(b.session) is None for a, b in zip(found, back, strict=True))


def test_streams_leave_out_what_no_tokens_spell(tmp_path: Path, tiny_tokenizer: BundleTokenizer) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    given = [Session("chat", {"messages": [image]}), Session("text", b"hello"), Session("ids", [5])]
    out = records.Streams(tmp_path, tiny_tokenizer)
    sessions, tokens = out.add("train", [records.record(s, "f.txt") for s in given])
    assert sessions == 1 and out.skipped == 2 and list(out.sources) == ["text:f"]
    ids = np.fromfile(tmp_path / "train.bin", np.uint16)
    assert len(ids) == tokens and tiny_tokenizer.decode(ids.astype(np.int32)) == b"hello"


def test_a_record_of_a_text_is_that_text() -> None:
    found = records.record(
        Session("chat", {"id": "book-7", "text": "caf\u00e9", "licence": "MIT"}), "x.jsonl"
    )
    assert (found.source, found.licence) == ("text:book", "MIT")
    assert records.plain(found.session) == Session("text", "caf\u00e9".encode())
    assert records.texts(found.session) == ["caf\u00e9"]


# ---- vocabularies of targets


def test_a_targets_tokenizer_becomes_a_bundles(foreign: Path) -> None:
    raw = (foreign / "tokenizer.json").read_bytes()
    made = BundleTokenizer(vocabulary.from_target(raw))
    assert made.size % 128 == 0 and vocabulary.covered(made, raw)
    theirs = Tokenizer.from_file(str(foreign / "tokenizer.json"))
    known = vocabulary.counterparts(made, raw)
    text = "Hello there, what's a KV cache?\n\n  Zwölf \U0001f600 1234"
    assert known[made.encode(text.encode())].tolist() == theirs.encode(text, add_special_tokens=False).ids
    bridge = Bridge(raw, made)
    chat = Target.load(foreign).render([{"role": "user", "content": text}])
    tokens, patch = bridge.to_bundle(chat)
    assert patch == b"" and len(tokens) == len(chat) and bridge.from_bundle(tokens, patch).tolist() == chat
    assert known[:32].max() == -1 and made.decode(made.encode(b"\xff<|im_start|>")) == b"\xff<|im_start|>"


def test_a_bundles_own_tokenizer_stays_what_it_is(tiny_tokenizer_json: Callable[..., bytes]) -> None:
    """A target that speaks the bundle's vocabulary (its specials added tokens) gives that vocabulary again."""
    from pltz.models.training.train_target import target_tokenizer

    bundle = BundleTokenizer(tiny_tokenizer_json())
    target = json.dumps(target_tokenizer(json.loads(tiny_tokenizer_json()))).encode()
    assert BundleTokenizer(vocabulary.from_target(target)).pieces == bundle.pieces


def changed(raw: bytes, **model: Any) -> bytes:
    tree = json.loads(raw)
    tree["model"].update(model)
    return json.dumps(tree).encode()


def test_tokenizers_that_cannot_be_a_bundles_are_refused_by_name(foreign: Path) -> None:
    raw = (foreign / "tokenizer.json").read_bytes()
    many = {**json.loads(raw)["model"]["vocab"], **{f"x{i}": 600 + i for i in range(1 << 16)}}
    for bad, said in (
        (b"{}", "another kind"),
        (changed(raw, type="Unigram"), "Unigram"),
        (changed(raw, byte_fallback=True), "byte-level"),
        (changed(raw, end_of_word_suffix="</w>"), "suffixes"),
        (changed(raw, vocab={"a": 0}, merges=[]), "are missing"),
        (changed(raw, vocab=many), "at most 65536"),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            vocabulary.from_target(bad)
        assert "bundle's tokenizer instead" in str(caught.value)


# ---- teachers


def test_a_target_reads_a_session_as_its_template_spells_it(foreign: Path) -> None:
    target = Target.load(foreign)
    bundle = BundleTokenizer(vocabulary.from_target(target.tokenizer_json))
    spelling = distil.Spelling(target, bundle)
    from pltz.models.session.transcript import to_tokens

    chat = {
        "messages": [
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": "A cache, 12 of them."},
            {"role": "user", "content": "Thanks"},
        ]
    }
    tokens = to_tokens(Session("chat", chat), bundle).astype(np.int64)
    ids, places = spelling.spell(tokens)
    whole = target.render(chat)
    assert ids.tolist() == whole[: len(ids)]  # all but the end of the last message
    content = tokens >= 32
    assert (places[~content] == -1).all() and (ids[places[content]] == spelling.single[tokens[content]]).all()


def test_the_teachers_probabilities_are_the_targets(foreign: Path, tmp_path: Path) -> None:
    """By hand, for one session in lanes: the target's softmax over the student's pieces, summed into classes."""
    target = Target.load(foreign)
    bundle = BundleTokenizer(vocabulary.from_target(target.tokenizer_json))
    teacher = distil.TargetTeacher(target, bundle)
    session = Session(
        "chat",
        {
            "messages": [
                {"role": "user", "content": "one two"},
                {"role": "assistant", "content": "three four"},
            ]
        },
    )
    from pltz.models.session.transcript import to_tokens

    tokens = to_tokens(session, bundle).astype(np.int64)
    part = dataloader.lay(tokens, 64, lambda t: 2, 0)
    batch = {k: torch.from_numpy(part[i][None].astype(np.int32)) for i, k in enumerate(dataloader.KEYS)}
    first, classes, second, known = teacher._said(batch, bundle.size)
    ids, places = teacher.spelling.spell(tokens)
    with torch.no_grad():
        logits = target.model(input_ids=torch.from_numpy(ids)[None]).logits[0].float()
    for slot in range(part.shape[1]):
        token, at = int(part[1, slot]), int(part[2, slot])
        assert bool(known[slot]) == (token >= 32 and places[at] > 0 if token >= 0 else False)
        if known[slot]:
            row = logits[places[at] - 1]
            mine = torch.full((bundle.size,), -torch.inf)
            has = torch.from_numpy(np.flatnonzero(teacher.spelling.single >= 0))
            mine[has] = row[torch.from_numpy(teacher.spelling.single)[has]]
            p = mine.softmax(0).view(-1, 128)
            assert torch.allclose(first[slot], p.sum(1), atol=1e-5)
            inside = p[classes[slot]] / p[classes[slot]].sum()
            assert torch.allclose(second[slot], inside, atol=1e-5)
    assert known.sum() >= 4


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_against_itself_the_loss_is_the_entropy_and_nothing_is_lower(
    streams: Path, tiny_tokenizer: BundleTokenizer
) -> None:
    """Cross-entropy against a net's own probabilities is its entropy; any other net's is higher."""
    torch.manual_seed(0)
    net, other = Net(TINY), Net(TINY)
    with torch.no_grad():
        for one in (net, other):
            one.classes.normal_(0, 0.5)
            one.member_bias.normal_(0, 0.5)
    sampler = dataloader.Sampler(streams, row=128, seed=0, **SAMPLING)
    batch = {k: torch.from_numpy(v) for k, v in sampler.rows(1).items()}
    with torch.no_grad():
        mask = nets.mask_of(batch, TINY.memory)
        x, table = net.body(batch["input"], batch["position"], mask)
        x = x.flatten(0, 1)
        first = net.class_logits(x).softmax(-1)
        classes = torch.multinomial(first, 1)[:, 0]
        second = distil.member_logits(net, x, table, classes).softmax(-1)
        own = distil.against(net, x, table, first, classes, second)
        entropy = -(first * first.log()).sum(-1) - (second * second.log()).sum(-1)
        assert torch.allclose(own, entropy, atol=1e-4)
        y, there = other.body(batch["input"], batch["position"], mask)
        assert (distil.against(other, y.flatten(0, 1), there, first, classes, second) > own).all()


def test_a_vocabulary_that_does_not_fit_cannot_teach(foreign: Path, tiny_tokenizer: BundleTokenizer) -> None:
    with pytest.raises(ModelError, match="lacks pieces"):
        distil.TargetTeacher(Target.load(foreign), tiny_tokenizer)


# ---- training


def test_a_net_learns_and_a_checkpoint_goes_on(
    streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "REPORT_EVERY", 0.0)
    first = tmp_path / "first"
    first.mkdir()
    report = trainer.fit(a_job(streams, steps=40), first, HERE)
    assert report["steps"] == 40 and report["tokens"] == 40 * 128 and report["done"]
    assert report["bits_per_token"] < 9.7  # 10 by chance

    class Stop(Exception):
        pass

    second, steps = tmp_path / "second", []
    second.mkdir()
    one = trainer._Trainer._one

    def counted(self: Any, batch: Any) -> Any:
        steps.append(self.step)
        if len(steps) == 6:
            raise Stop
        return one(self, batch)

    monkeypatch.setattr(trainer._Trainer, "_one", counted)
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY", 0.0)
    monkeypatch.setattr(trainer, "CHECKPOINT_SHARE", 0)
    with pytest.raises(Stop):
        trainer.fit(a_job(streams, steps=12), second, HERE)
    report = trainer.fit(a_job(streams, steps=12), second, HERE)
    assert steps == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11] and report["steps"] == 12
    assert trainer.fit(a_job(streams, steps=12), second, HERE) == report and len(steps) == 13  # nothing is left


def test_a_call_that_ends_early_leaves_a_net_that_another_machine_goes_on_from(
    streams: Path, tmp_path: Path
) -> None:
    """What travels is the rounded net and fit.json; the optimisers' memory stays behind."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    report = trainer.fit(a_job(streams, steps=100_000), here, Place("cpu", no_say, until=time.monotonic() + 0.5))
    assert not report["done"] and report["steps"] < 100_000
    last = report["steps"] + 3
    for name in (trainer.NET, trainer.CONFIG, trainer.REPORT):
        (there / name).write_bytes((here / name).read_bytes())
    lines: list[str] = []
    report = trainer.fit(a_job(streams, steps=last), there, Place("cpu", lines.append))
    assert (
        report["done"] and report["steps"] == last and any("from the rounded net" in line for line in lines)
    )


@pytest.mark.slow
def test_two_processes_take_one_step_on_the_rows_of_both(streams: Path, tmp_path: Path) -> None:
    """What they end with is what one process makes of the mean of both losses; neither's rows alone give it."""
    start, folder = tmp_path / "start", tmp_path / "two"
    start.mkdir()
    folder.mkdir()
    torch.manual_seed(5)
    net_files.write(nets.rounded_net(Net(TINY)), start)
    job = a_job(streams, start, steps=1, warmup=1)
    report = trainer.fit(job, folder, Place("cpu", no_say, 2))
    assert report["steps"] == 1 and report["tokens"] == 2 * 128
    found = torch.load(folder / "resume.pt", weights_only=True)["net"]

    def stepped(numbers: list[int]) -> dict[str, torch.Tensor]:
        net = nets.built(net_files.read(start))
        made = optimisers(net, job.plan, fused=False)
        options = {**job.sampling, "row": job.plan.row}
        for number in numbers:
            batch = next(load_batches(streams, options, 1, job.seed * 100_003, Ranks(number, 2, "cpu")))
            loss, _ = trainer.Objective(net, None, 0.0).losses(batch, nets.mask_of(batch, TINY.memory))
            (loss / len(numbers)).backward()
        torch.nn.utils.clip_grad_norm_(clipped(net), 1.0)
        for one in made:
            one.step()
        return nets.state(net)

    def apart(other: dict[str, torch.Tensor]) -> float:
        return max(float((found[name] - value).abs().max()) for name, value in other.items())

    assert apart(stepped([0, 1])) < 1e-5
    assert min(apart(stepped([0])), apart(stepped([1]))) > 1e-3


@pytest.mark.parametrize("gated", [False, True])
def test_what_is_dropped_in_training_is_there_again_after_it(
    streams: Path, tmp_path: Path, gated: bool
) -> None:
    job = dataclasses.replace(
        a_job(streams, steps=1, dropout=0.5), config=dataclasses.replace(TINY, gated=gated, step=0.1)
    )
    run = trainer._Trainer(job, tmp_path, HERE, Ranks(0, 1, "cpu"))
    batch = next(load_batches(streams, {**SAMPLING, "row": 128}, 1, 1, run.rank))
    mask = nets.mask_of(batch, TINY.memory)

    def loss(net: Net) -> float:
        with torch.no_grad():
            return float(trainer.Objective(net, None, 0.0).losses(batch, mask)[0])

    for p in run.net.parameters():  # at first the head says the same of everything
        torch.nn.init.normal_(p, 0, 0.3) if p.ndim == 2 else None
    assert len({loss(run.net) for _ in range(4)}) == 4
    after = nets.built(nets.rounded_net(run.net))
    assert len({loss(after) for _ in range(4)}) == 1


def test_a_rounded_net_is_what_was_trained_and_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    for config in (TINY, dataclasses.replace(TINY, gated=True, step=0.28)):
        found = nets.rounded_net(Net(config))
        net_files.write(found, tmp_path)
        back = net_files.read(tmp_path)
        assert back.config == config and sorted(back.rest) == sorted(found.rest)
        for name, matrix in found.matrices.items():
            assert (back.matrices[name].weights == matrix.weights).all(), name
            assert (back.matrices[name].scale == matrix.scale).all(), name
        assert all(np.array_equal(back.rest[name], value) for name, value in found.rest.items())
        nets.built(back)


def test_training_that_cannot_go_on_says_so(
    streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "REPORT_EVERY", 0.0)
    (tmp_path / "resume.pt").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ModelError, match="damaged"):
        trainer.fit(a_job(streams), tmp_path, HERE)
    (tmp_path / "resume.pt").unlink()
    one = Net(TINY)
    with torch.no_grad():
        one.member_bias.fill_(torch.nan)
    start = tmp_path / "start"
    start.mkdir()
    net_files.write(nets.rounded_net(one), start)
    with pytest.raises(UsageError, match="rates"):
        trainer.fit(a_job(streams, start), tmp_path, HERE)


def test_the_rate_falls_to_zero_and_warms_up() -> None:
    falling, steady = Plan(steps=100, decay=1.0), Plan(steps=100, decay=0.0)
    assert falling.factor(0, 0.0) == pytest.approx(0.1) and falling.factor(99, 0.0) == pytest.approx(0.01)
    assert steady.factor(99, 0.0) == 1.0
    timed = Plan(seconds=10.0, decay=1.0)
    assert timed.done(5, 5.0) == 0.5 and timed.factor(100, 5.0) == pytest.approx(0.5)
    assert timed.factor(100, 5.0, first=100) == pytest.approx(
        0.5 / 40
    )  # optimisers that begin with nothing warm up


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_on_a_cpu_is_what_flex_attention_computes(streams: Path) -> None:
    from pltz.models.training.net import block_mask

    torch.manual_seed(0)
    net = Net(TINY)
    sampler = dataloader.Sampler(streams, row=256, seed=0, **SAMPLING)
    batch = {k: torch.from_numpy(v) for k, v in sampler.rows(1).items()}
    with torch.no_grad():
        plain, _ = net.body(batch["input"], batch["position"], nets.mask_of(batch, TINY.memory))
        flexed, _ = net.body(batch["input"], batch["position"], block_mask(batch, TINY.memory))
    kept = batch["target"] >= 0
    assert torch.allclose(plain[kept], flexed[kept], atol=0.02)
