"""thaw: one session goes into a target's cache, with its figures, and the target continues."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result as Done

from pltz.kv.commands.thaw import Result
from pltz.plt_codec.container.file import Reader, pack
from pltz.plt_codec.container.header import Header

Run = Callable[..., Done]


def test_figures_and_continuation(run: Run, frozen: Path) -> None:
    done = run("thaw", frozen, "--session", 0, "--continue", 5, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["tokens"] > 10
    assert found["kv_bytes"] == found["tokens"] * 2 * 2 * 2 * 8 * 4, ("2 layers, K and V, 2 heads of 8, float32")
    assert {"load_ms", "read_ms", "decode_ms", "prefill_ms", "total_ms", "continue_ms"} <= found.keys()
    assert isinstance(found["continuation"], str)


@pytest.mark.parametrize(
    ("text", "ended", "shown"),
    [
        ("Hello.", False, "says next:\n\nHello."),
        ("Hello.", True, "says next and ends its turn:\n\nHello."),
        ("", True, "says nothing: it ends its turn at once"),
        (None, False, "read    1.0 ms"),
    ],
)
def test_what_is_said_is_not_mistaken_for_a_mark(text: str | None, ended: bool, shown: str) -> None:
    """Thaw the session of README's example, which ends with an answer: its target said only a bare <|user|>."""
    assert Result(1, 1, {"read": 1.0}, text, ended, None).text().endswith(shown)


def test_the_mark_that_ends_a_turn_is_no_text() -> None:
    model = SimpleNamespace(
        kv_bytes=lambda n: n,
        eos_ids={9},
        decode=lambda ids: "".join(map(str, ids)),
        generate=lambda *a, **k: [4, 2, 9],
    )
    thawed = SimpleNamespace(token_ids=[1], timings={}, cache=None, logits=None)
    found = Result.of(thawed, model, 5, 0.0).as_json()  # type: ignore[arg-type]
    assert (found["continuation"], found["ended"]) == ("42", True)


def test_text(run: Run, frozen: Path) -> None:
    done = run("thaw", frozen, "--session", 1)
    assert "prefill" in done.stdout and "KV" in done.stdout


def test_from_stdin(run: Run, frozen: Path) -> None:
    assert run("thaw", "-", "--session", 1, input=frozen.read_bytes()).exit_code == 0


def test_another_target_is_refused(run: Run, frozen: Path, tmp_path: Path) -> None:
    reader = Reader(frozen.read_bytes())
    header = Header(reader.header.contract, reader.header.bundle_id, target_fingerprint=bytes(16))
    path = tmp_path / "theirs.pltz"
    path.write_bytes(pack(header, reader))
    refused = run("thaw", path, "--session", 0)
    assert refused.exit_code == 4 and "--any-target" in refused.stderr
    assert run("thaw", path, "--session", 0, "--any-target").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--session", 9], 2), (["--session", 3], 5), (["--session", 0, "--target", "/nope"], 6)],
)
def test_refusals(run: Run, frozen: Path, words: list[object], code: int) -> None:
    done = run("thaw", frozen, *words)
    assert done.exit_code == code, done.output
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_session_must_be_named(run: Run, frozen: Path) -> None:
    done = run("thaw", frozen)
    assert done.exit_code == 2 and "--session" in done.stderr
