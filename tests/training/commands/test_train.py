"""bundle train and distill: make a bundle that codes from sessions, by the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from pltz.datasets.loaders import sample_path
from pltz.training.data.records import LabelledSession
from pltz.training.run import distil
from tests.cli.commands import Run, ok

SESSIONS = 50  # a quarter of the sample
CONFIG = """
name = "tiny"
[data]
files = ["sessions.jsonl"]
held_out = 0.2
augment = 0.5
[tokenizer]
vocabulary = 512
order_steps = 2
[student]
d = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
hidden = 32
memory = 64
steps = {steps}
rows = 1
row = 256
[calibrate]
limit_bytes = 3000
[dictionary]
bytes = 2000
[evaluate]
limit_bytes = 5000
[card]
licence = "CC-BY-SA-4.0"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with SESSIONS of the sample and a configuration."""
    lines = sample_path().read_text("utf8").splitlines(True)
    (tmp_path / "sessions.jsonl").write_text("".join(lines[:: len(lines) // SESSIONS]), "utf8")
    (tmp_path / "tiny.toml").write_text(CONFIG.format(steps=4))
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path / "added"))
    return tmp_path


def test_example_is_what_the_library_has(run: Run) -> None:
    from pltz.training.settings import EXAMPLE

    assert run("bundle", "train", "--example").stdout == EXAMPLE.read_text("utf8")


def test_train_measure_compress_decompress(run: Run, project: Path) -> None:
    """Train a bundle on the sample on a CPU, check its card and figures, and code sessions with it."""
    output, config = project / "mine", project / "tiny.toml"
    call = ("bundle", "train", "--config", config, "--output", output, "--device", "cpu", "--threads", 1)
    done = ok(run(*call, "--json", "--progress"))
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["id"] == json.loads((output / "bundle.json").read_text())["id"]
    assert told["test"]["pltz_bytes"] > 0 and "student: done" in done.stderr
    log = (project / "mine.work" / "log.txt").read_text()
    assert all(f"{stage}: done in" in log for stage in ("split", "order", "student", "calibrate", "evaluate"))

    card = json.loads((output / "card.json").read_text())
    assert card["licence"] == "CC-BY-SA-4.0" and card["test"]["sources"]
    assert {d["source"]: d["licence"] for d in card["data"]}["taskmaster3"].startswith("CC-BY-4.0")
    assert card["id"] in (output / "CARD.md").read_text()
    assert all(str(project) not in (output / name).read_text() for name in ("card.json", "CARD.md"))

    assert run("bundle", "show", output).exit_code == 0
    again = run(*call, "--progress")  # no stage runs twice, and the results are right
    assert again.exit_code == 0 and "is this bundle already" in again.stderr and "begins" not in again.stderr

    chats = project / "some.jsonl"
    chats.write_text("".join(sample_path().read_text("utf8").splitlines(True)[:3]), "utf8")
    packed, back = project / "some.pltz", project / "back.jsonl"
    assert run("compress", chats, "-o", packed, "--bundle", output).exit_code == 0
    assert run("bundle", "add", output).exit_code == 0 and run("decompress", packed, "-o", back).exit_code == 0
    assert [json.loads(a) for a in back.open()] == [json.loads(a) for a in chats.open()]

    data = project / "more"
    data.mkdir()
    chats.rename(data / "some.jsonl")
    (data / "notes.txt").write_text("plain words\n" * 30)
    words = ("--data", data, "--limit-bytes", 9000, "--json")
    done = ok(run("bench", "codec", "--bundle", output, *words))
    found = json.loads(done.stdout)
    assert found["bundle"] == card["id"] and found["peers"]["zstd+dict"]["settings"].startswith("level 19")
    by = {row["source"]: row for row in found["sources"]}
    assert by["notes"]["content_bytes"] == 360 and by["notes"]["sessions"] == 1
    assert sum(row["pltz_bytes"] for row in by.values()) == pytest.approx(found["file_bytes"], abs=1)


def test_a_run_that_dies_goes_on(project: Path) -> None:
    """Cut a run off where each stage begins and ends, and start again: each gets further, and the bundle is whole."""
    from pltz.cli.ui import options
    from pltz.models.bundle.bundle import Bundle
    from pltz.training import pipeline, settings
    from pltz.training.commands import train

    (project / "tiny.toml").write_text(CONFIG.format(steps=2))
    found, output = settings.load(project / "tiny.toml"), project / "mine"
    lines, runs = list[str](), 0

    class Cut(BaseException):
        pass

    def tell(line: str) -> None:
        text = line.split("s  ", 1)[1]
        lines.append(text)
        if text not in lines[:-1] and (text.endswith(": begins") or ": done in" in text):
            raise Cut

    def measure(bundle: Path, records: list[LabelledSession], limit: int) -> dict[str, object]:
        return train.measured(options.load_codec(str(bundle), "cpu", 1), records, limit, shown=False)

    def run() -> pipeline.TrainingRun:
        return pipeline.TrainingRun(output, project / "work", train.read, measure, "cpu", 1, False, tell)

    while runs < 200:
        runs += 1
        assert not output.exists() or Bundle.load(output).id
        try:
            card = pipeline.train(found, run())
            break
        except Cut:
            continue
    assert runs > 20 and card["id"] == Bundle.load(output).id.hex()
    assert sum(line.startswith("split: done in") for line in lines) <= 2


def test_held_out_files_are_not_trained_on(run: Run, project: Path) -> None:
    """Remove the sessions of a separate test file from the training set, though its file holds them too."""
    import zstandard

    lines = (project / "sessions.jsonl").read_text("utf8").splitlines(True)
    for name, part in (("v", lines[:10]), ("t", lines[10:30])):
        (project / f"{name}.jsonl").write_text("".join(part), "utf8")
    config = CONFIG.format(steps=1).replace("held_out = 0.2", 'validation = ["v.jsonl"]\ntest = ["t.jsonl"]')
    (project / "tiny.toml").write_text(config.replace("order_steps = 2", "order_steps = 0"))
    call = ("bundle", "train", "--config", project / "tiny.toml", "--output", project / "b", "--device", "cpu")
    ok(run(*call, "--no-progress"))
    split = next((project / "b.work").glob("split-*"))
    counts = {
        part: zstandard.ZstdDecompressor().stream_reader((split / f"{part}.zst").open("rb")).read().count(b"\n")
        for part in ("train", "validation", "test")
    }
    assert counts == {"train": SESSIONS - 30, "validation": 10, "test": 20}


START = """
[data]
files = ["sessions.jsonl"]
held_out = 0.2
[tokenizer]
kind = "{kind}"
bundle = "{start}"
[student]
start = "{start}"
steps = 2
rows = 1
row = 256
relative_rate = 0.0
muon_rate = 0.0
adam_rate = 0.0
weight_decay = 0.0
{more}
[calibrate]
limit_bytes = 0
[evaluate]
limit_bytes = 3000
"""


def other_bundle(folder: Path, tokenizer: bytes) -> Path:
    """Write a tiny bundle of contract 2, with rotary rates that are not the default."""
    from pltz.models.bundle.bundle import write_bundle
    from pltz.training.nets.checkpoint import NetConfig
    from pltz.training.nets.export import export
    from pltz.training.nets.net import Net, rounded_net

    size = {"d": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "hidden": 32, "memory": 64}
    net = rounded_net(Net(NetConfig(vocab=1024, **size, rope_base=100000.0, gated=True)))
    write_bundle(folder, "other", export(net), tokenizer, b"words " * 50, {})
    return folder


def test_train_from_a_bundle(run: Run, tiny: Path, project: Path, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    """Start from a bundle by name, and from one of the other contract by a folder next to the configuration.

    The configuration needs no keys for the shape. The bundle by name is tiny here.
    """
    other = other_bundle(project / "other", tiny_tokenizer_json())
    for start, folder in (("mini", tiny / "bundles/mini"), ("other", other)):
        (project / "tiny.toml").write_text(START.format(kind="bundle", start=start, more=""))
        call = ("bundle", "train", "--config", project / "tiny.toml", "--device", "cpu", "--progress")
        done = ok(run(*call, "--output", project / f"{start}-2"))
        assert "start: done" in done.stderr
        head, old = (json.loads((f / "bundle.json").read_text()) for f in (project / f"{start}-2", folder))
        assert head["shape"] == old["shape"] and head["contract"] == old["contract"]
        card = (project / f"{start}-2/card.json").read_text()
        assert json.loads(card)["settings"]["student"]["start"] == start and str(project) not in card


@pytest.mark.parametrize(("kind", "more", "said"), [
    ("train", "", "learnt anew fits no net"),
    ("bundle", "d = 64", "another shape: leave the keys of its shape out, or set d = 32"),
])
def test_a_start_that_does_not_fit_is_refused_before_anything(
    run: Run, tiny: Path, project: Path, kind: str, more: str, said: str
) -> None:
    (project / "tiny.toml").write_text(START.format(kind=kind, start="mini", more=more))
    done = run("bundle", "train", "--config", project / "tiny.toml", "--output", project / "b")
    assert done.exit_code == 2 and said in done.stderr and not list((project / "b.work").glob("split*"))


def test_data_that_cannot_do(run: Run, project: Path) -> None:
    many = CONFIG.format(steps=1).replace("vocabulary = 512", "vocabulary = 65408")
    (project / "tiny.toml").write_text(many)
    done = run("bundle", "train", "--config", project / "tiny.toml", "--output", project / "b", "--device", "cpu")
    assert done.exit_code == 2 and "give more text" in done.stderr
    (project / "sessions.jsonl").write_text('{"messages": []}\n')
    done = run("bundle", "train", "--config", project / "tiny.toml", "--output", project / "b", "--device", "cpu")
    assert done.exit_code == 2 and "no session for" in done.stderr and not (project / "b").exists()


def distilled(run: Run, project: Path, *words: object) -> tuple[dict[str, Any], str]:
    """Distil a few steps into the folder ``d`` of a project, and return the card and what was told on the way."""
    small = ("--rows", 1, "--row", 256, "--device", "cpu", "--output", project / "d", "--progress")
    done = ok(run("bundle", "distill", "--data", project / "sessions.jsonl", *small, *words))
    return json.loads((project / "d/card.json").read_text()), done.stderr


def test_distill_with_the_targets_probabilities(run: Run, tiny: Path, project: Path) -> None:
    """Distil from a target with the bundle's vocabulary: probabilities, written turns and the bundle's weights.

    The embedded target is a tiny one here.
    """
    words = ("--target", tiny / "targets/mini-llama", "--steps", 5, "--write", 2, "--write-tokens", 8)
    card, told = distilled(run, project, *words)
    assert "starting from mini" in told and "probabilities" in told
    assert card["settings"]["teacher"]["share"] == 0.5 and card["shape"]["vocab"] == 1024
    written = next((project / "d.work").glob("write-*/written.jsonl")).read_text().splitlines()
    assert len(written) == 2 and json.loads(written[0])["messages"][-1]["role"] == "assistant"
    packed = project / "x.pltz"
    assert run("compress", sample_path(), "-o", packed, "--bundle", project / "d", "--no-progress").exit_code == 0


def test_distill_in_the_targets_own_tokenizer(run: Run, foreign: Path, project: Path) -> None:
    """Distil from a target with another vocabulary. The student has it, and that target's ids need no patch."""
    card, told = distilled(run, project, "--target", foreign, "--size", "tiny", "--steps", 5)
    assert "with the target's tokenizer" in told
    assert card["shape"]["vocab"] % 128 == 0 and card["settings"]["teacher"]["target"] == foreign.name
    packed, chats = project / "x.pltz", project / "few.jsonl"
    chats.write_text("".join(sample_path().read_text("utf8").splitlines(True)[:3]), "utf8")
    ok(run("compress", chats, "-o", packed, "--bundle", project / "d", "--target", foreign))
    assert run("bundle", "add", project / "d").exit_code == 0
    ok(run("decompress", packed, "-o", project / "ids.jsonl", "--target", foreign))


def test_distill_refuses_what_it_cannot_do(run: Run, tiny: Path, foreign: Path, project: Path) -> None:
    common = ("--data", project / "sessions.jsonl", "--output", project / "d")
    done = run("bundle", "distill", "--target", project, *common)
    assert done.exit_code == 6 and done.stderr.startswith("error: ")
    both = ("--steps", 5, "--seconds", 5)
    done = run("bundle", "distill", "--target", tiny / "targets/mini-llama", *common, *both)
    assert done.exit_code == 2 and "exclude each other" in done.stderr
    done = run("bundle", "distill", "--target", tiny / "targets/mini-llama", *common, "--size", "tiny")
    assert done.exit_code == 2 and "leave out --size tiny" in done.stderr
    for words in (("--tokenizer", "target"), ("--share", 0.3), ("--write", 2)):
        done = run("bundle", "distill", *common, *words)
        assert done.exit_code == 2 and "none is named with --target" in done.stderr
    done = run("bundle", "distill", "--target", foreign, *common, "--tokenizer", "bundle", "--share", 0.3)
    assert done.exit_code == 2 and "its probabilities do not fit" in done.stderr
    done = run("bundle", "distill", "--target", foreign, *common, "--write-tokens", 9)
    assert done.exit_code == 2 and "name both" in done.stderr


def test_train_with_a_bundle_that_teaches(
    run: Run, project: Path, tiny_tokenizer_json: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train a student that learns the probabilities of a larger bundle of the same tokenizer.

    With so few steps the test only checks that it runs and improves.
    """
    from pltz.training.run import trainer

    monkeypatch.setattr(trainer, "REPORT_EVERY", 0.0)  # the figure then covers only the last step
    other_bundle(project / "other", tiny_tokenizer_json())
    config = CONFIG.format(steps=60).replace("vocabulary = 512", 'kind = "bundle"\nbundle = "other"')
    (project / "tiny.toml").write_text(config + '[teacher]\nbundle = "other"\nrepeat = 2\n')
    call = ("--config", project / "tiny.toml", "--output", project / "mine", "--device", "cpu", "--no-progress")
    ok(run("bundle", "train", *call))
    card = json.loads((project / "mine/card.json").read_text())
    assert (card["settings"]["teacher"]["bundle"], card["settings"]["teacher"]["repeat"]) == ("other", 2)
    assert "- teacher: the bundle other, 0.5 of the loss" in (project / "mine/CARD.md").read_text()
    assert card["training"]["student"]["bits_per_token"] < 10.0  # by chance


def test_a_run_that_stops_in_time_says_how_to_go_on(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pltz.training.run import trainer

    one = trainer.Trainer._one

    def late(self: trainer.Trainer, lesson: distil.Lesson) -> Tensor:
        self.deadline = 0.0
        return one(self, lesson)

    output = project / "mine"
    call = ("bundle", "train", "--config", project / "tiny.toml", "--output", output, "--device", "cpu", "--threads", 1)
    monkeypatch.setattr(trainer.Trainer, "_one", late)
    done = run(*call, "--stop-after", 10_000)
    assert done.exit_code == 0 and "stopped after step 1" in done.stdout and "same command again" in done.stdout
    assert not output.exists() and list(project.glob("mine.work/*.part/**/resume-000000001/000"))
    monkeypatch.undo()
    done = run(*call, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["id"] and output.is_dir()
