"""``python -m pltz.experiments kv`` and ``pltz target calibrate``, on a target with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner, Result

from pltz.cli.root import cli
from pltz.kv.calibrate import measure
from tests.cli.commands import ok
from tests.watch import noted

FEW = ("--rows", "4", "--held-out", "8", "--max-kl", "1e-9", "--max-kl", "0.001")
SMALL = ("--context", "64", "--new", "8", "--dtype", "float32", "--json")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of twelve texts."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("sessions")
    for n in range(12):
        (folder / f"{n}.txt").write_text("".join(rng.choice(list("abcdefgh "), 300)))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Path:
    from pltz.benchmarks.kv import tokenizer_files

    folder = tmp_path_factory.mktemp("llama")
    config: Any = transformers.LlamaConfig(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    source = folder / "bundle_tokenizer.json"
    source.write_bytes(tiny_tokenizer_json(384))
    tokenizer_files.write_tokenizer(source, folder, 256)
    source.unlink()
    return folder


def calibrated(*words: str) -> Result:
    return CliRunner().invoke(cli, ["target", "calibrate", *words], prog_name="pltz")


def test_a_target_is_calibrated_and_measured(
    llama: Path, sessions: Path, tmp_path: Path, run: Callable[..., Result]
) -> None:
    made = calibrated( str(llama), "--data", str(sessions), "-o", str(tmp_path), *FEW, *SMALL)
    assert made.exit_code == 0, made.output
    result = json.loads(made.stdout)
    path = Path(result["file"])
    assert path.stat().st_size == result["bytes"] and (result["rows"], result["held_out"]) == (4, 8)
    assert path.name == f"{result['target']}.predictive-1.{result['digest']}.safetensors"
    assert not list(tmp_path.glob("*.work")) and "receipts are of 8 rows only" in made.stderr
    assert all(row["kl"] <= row["most"] and row["rows"] == 8 for row in result["receipts"])
    tight, loose = result["bounds"]
    assert tight == {"max_kl": 1e-9, "max_kl_recall": 4e-9, "measured": False}
    assert loose["most"] <= 0.001 and loose["most_recall"] <= 0.004 and loose["bits"] > 0
    again = calibrated( str(llama), "--data", str(sessions), "-o", str(tmp_path), *FEW, *SMALL[:-1])
    assert again.exit_code == 0, again.output
    assert f"max_kl=0.001 takes {loose['bits']:.2f} bits per element" in again.stdout and "at -8 " in again.stdout
    assert "max_kl=1e-09: no point keeps to it" in again.stdout
    there = calibrated( str(llama), "--data", str(sessions), "-o", str(path), *SMALL)
    assert there.exit_code == 2 and "--force" in there.output
    done = run(
        "kv", "--target", str(llama), "--calibration", str(path), "--data", str(sessions), "--sessions", "2",
        "--forms", "q8,predictive", *SMALL,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = {row["form"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["control"]["kl"] < 1e-4
    # Eight bits and a scale for each 16 of them; four of 64 tokens are raw.
    assert 8 < rows["q8"]["bits"] <= 11
    assert sum(name.startswith("predictive") for name in rows) == len(result["receipts"]) - 2 >= 10
    point = {row["point"]: row for row in result["receipts"]}[-8]
    bound = run(
        "kv", "--target", str(llama), "--calibration", str(path), "--data", str(sessions), "--sessions", "2",
        "--forms", "predictive", "--max-kl", str(1.01 * point["most"]), "--bits", str(1.01 * point["bits"]), *SMALL,
    )  # fmt: skip
    assert bound.exit_code == 0, bound.output
    _, by_kl, by_bits = json.loads(bound.stdout)["rows"]
    assert by_kl["receipt"]["most"] <= 1.01 * point["most"] and by_kl["receipt"]["bits"] <= point["bits"]
    assert 0.95 * point["bits"] < by_bits["receipt"]["bits"] <= 1.01 * point["bits"]
    assert by_bits["bits"] == pytest.approx(by_bits["receipt"]["bits"], rel=0.3), "other rows, of 64 tokens"
    other = run("kv", "--target", "mini-llama", "--calibration", str(path), "--forms", "predictive", *SMALL)
    assert other.exit_code == 4 and "calibrate" in other.output


def test_what_cannot_be_measured_is_refused(
    llama: Path, sessions: Path, tmp_path: Path, run: Callable[..., Result]
) -> None:
    common = ("--target", str(llama), "--data", str(sessions), *SMALL)
    assert "--calibration" in run("kv", "--forms", "predictive", *common).output
    assert "expected forms among" in run("kv", "--forms", "zip", *common).output
    lost = calibrated( str(llama), "--data", str(tmp_path / "none"), "-o", str(tmp_path / "x"), *SMALL)
    assert lost.exit_code == 2 and "does not exist" in lost.output
    long = ("--context", "250", "--new", "64", "--json")
    many = calibrated( str(llama), "--data", str(sessions), "-o", str(tmp_path / "x"), *long)
    assert many.exit_code == 2 and "256 positions" in many.output
    few = calibrated( str(llama), "--data", str(sessions / "1.txt"), "-o", str(tmp_path / "x"), *SMALL)
    assert few.exit_code == 2 and "give more sessions" in few.output and not (tmp_path / "x.work").exists()


def test_a_run_goes_on_where_it_was(
    llama: Path, sessions: Path, tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    common = ("kv", "--target", str(llama), "--data", str(sessions), "--resume", str(file), *SMALL)
    measured = noted(
        monkeypatch, measure, "compare", lambda _, rows, __, codecs: (len(rows), [name for name, _ in codecs])
    )

    def rows(*options: str) -> dict[str, Any]:
        measured.clear()
        done = ok(run(*common, *options))
        return {row["form"]: row for row in json.loads(done.stdout)["rows"]}

    rows("--sessions", "3", "--forms", "q8")
    assert measured == [(1, ["q8"])] * 3
    first = rows("--sessions", "3", "--forms", "q8,q4")
    assert measured == [(1, ["q4"])] * 3
    whole = file.read_bytes()
    assert rows("--sessions", "3", "--forms", "q8,q4") == first and not measured
    file.write_bytes(whole[:-30])  # killed while it wrote the last line
    again = rows("--sessions", "3", "--forms", "q8,q4")
    assert measured == [(1, ["q4"])] and again["q8"] == first["q8"]
    assert again["q4"]["kl"] == pytest.approx(first["q4"]["kl"], rel=1e-3)
    more = rows("--sessions", "4", "--forms", "q8,q4")
    assert measured == [(1, ["q8", "q4"])] and more["control"]["sessions"] == more["q4"]["sessions"] == 4
    plain = run(*(word for word in common if word not in ("--resume", str(file))), "--sessions", "3", "--forms", "q8")
    assert json.loads(plain.stdout)["rows"][1]["kl"] == pytest.approx(first["q8"]["kl"], rel=1e-3)
    other = run(*common, "--sessions", "3", "--forms", "q8", "--new", "20")
    assert other.exit_code == 2 and "another setting" in other.output
    for broken in (b"{}", b"text\n", whole + b"{}\n", whole + b"\xff\n", whole + b"[1]\n"):
        file.write_bytes(broken)
        assert run(*common, "--sessions", "3", "--forms", "q8").exit_code == 2 and file.read_bytes() == broken, broken
    nowhere = run(*common, "--resume", str(tmp_path / "no" / "file"), "--forms", "q8")
    assert nowhere.exit_code == 2 and "cannot keep rows" in nowhere.output
