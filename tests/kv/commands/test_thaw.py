"""thaw: a session of a file or of an archive goes into a target's cache, with its figures, and the target continues."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pltz.kv.commands.thaw import Result
from pltz.kv.store import kv_file
from pltz.kv.store.trie import root_of
from pltz.plt_codec.container.file import Reader, pack
from pltz.plt_codec.container.header import Header
from tests.cli.commands import Run, chat, lines
from tests.datasets.test_conversation import LOST


def test_figures_and_continuation(run: Run, frozen: Path) -> None:
    done = run("thaw", frozen, "--session", 0, "--continue", 5, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["tokens"] > 10
    assert found["kv_bytes"] == found["tokens"] * 2 * 2 * 2 * 8 * 4, "2 layers, K and V, 2 heads of 8, float32"
    assert {"load_ms", "read_ms", "decode_ms", "prefill_ms", "total_ms", "continue_ms"} <= found.keys()
    assert isinstance(found["continuation"], str)


@pytest.mark.parametrize(("text", "ended", "shown"), [
    ("Hello.", False, "says next:\n\nHello."), ("Hello.", True, "says next and ends its turn:\n\nHello."),
    ("", True, "says nothing: it ends its turn at once"), (None, False, "read    1.0 ms"),
])
def test_what_is_said_is_not_mistaken_for_a_mark(text: str | None, ended: bool, shown: str) -> None:
    """Thaw the session of README's example, which ends with an answer: its target said only a bare <|user|>."""
    assert Result(1, 1, {"read": 1.0}, text, ended, None, "").text().endswith(shown)


def test_another_target_is_refused(run: Run, frozen: Path, tmp_path: Path) -> None:
    reader = Reader(frozen.read_bytes())
    header = Header(reader.header.bundle_id, target_fingerprint=bytes(16))
    path = tmp_path / "theirs.pltz"
    path.write_bytes(pack(header, reader))
    refused = run("thaw", path, "--session", 0)
    assert refused.exit_code == 4 and "--any-target" in refused.stderr
    assert run("thaw", path, "--session", 0, "--any-target").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"), [(["--session", 9], 2), (["--session", 3], 5), (["--session", 0, "--target", "/nope"], 6)]
)
def test_refusals(run: Run, frozen: Path, words: list[object], code: int) -> None:
    done = run("thaw", frozen, *words)
    assert done.exit_code == code, done.output
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


pytestmark = pytest.mark.usefixtures("bundle_at_hand")


def test_thaw_from_an_archive_is_that_of_a_file(run: Run, cold: Path, frozen: Path) -> None:
    run("archive", "put", "-r", cold, frozen, "--tenant", "acme")
    words = ("--tenant", "acme", "--continue", 5, "--json")
    found = json.loads(run("thaw", "--archive", cold, "chats/1", *words).stdout)
    expected = json.loads(run("thaw", frozen, "--session", 1, "--continue", 5, "--json").stdout)
    assert [found[k] for k in ("tokens", "continuation")] == [expected[k] for k in ("tokens", "continuation")]
    assert run("thaw", "--archive", cold, "nobody").exit_code == 8
    assert run("thaw", "--archive", cold, "chats/1", "--session", 1).exit_code == 2


def test_a_hot_folder_serves_the_second_thaw(run: Run, cold: Path, frozen: Path, tmp_path: Path) -> None:
    run("archive", "put", "-r", cold, frozen)
    words = ["thaw", "--archive", cold, "chats/1", "--hot", tmp_path / "hot", "--continue", 5, "--json"]
    first, second = (json.loads(run(*words).stdout) for _ in range(2))
    assert (first["hot_tokens"], second["hot_tokens"]) == (0, (first["tokens"] - 1) // 16 * 16)
    assert first["continuation"] == second["continuation"]
    assert {"read_ms", "lookup_ms", "decode_ms", "prefill_ms", "insert_ms", "total_ms"} <= second.keys()
    assert "hot" in run(*words[:-1]).stdout and not run(*words).stderr
    words[5:6] = [tmp_path / "small", "--hot-budget", "1e-6"]
    assert "of KV did not go into --hot DIR. Later thaws compute it again" in run(*words).stderr
    assert run("thaw", frozen, "--session", 1, "--hot", tmp_path).exit_code == 2
    (tmp_path / "file").write_text("")
    assert run("thaw", "--archive", cold, "chats/1", "--hot", tmp_path / "file").exit_code == 2


def test_a_sealed_archive_is_thawed_over_files_until_something_is_erased(
    run: Run, frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS", "correct horse")
    keyed = ("-r", tmp_path / "sealed", "--passphrase-env", "WORDS")
    assert run("archive", "init", *keyed).exit_code == run("archive", "put", *keyed, frozen).exit_code == 0
    words = ("thaw", *keyed, "chats/1", "--hot", tmp_path / "hot", "--json")
    first, second = (json.loads(run(*words).stdout) for _ in range(2))
    assert (first["hot_tokens"], second["hot_tokens"]) == (0, (first["tokens"] - 1) // 16 * 16)
    assert run("archive", "erase", *keyed, "--tenant", "default", "--name", "chats/0", "--yes").exit_code == 0
    third, fourth = (json.loads(run(*words).stdout) for _ in range(2))
    assert (third["hot_tokens"], fourth["hot_tokens"]) == (0, second["hot_tokens"])


def test_whole_caches_of_a_target_with_windows_serve_the_second_thaw(
    run: Run, cold: Path, frozen: Path, tiny_tokenizer_json: Callable[..., bytes], tmp_path: Path
) -> None:
    from tests.cli.conftest import make_target

    make_target(tmp_path / "windows", tiny_tokenizer_json(1024))
    config = tmp_path / "windows/config.json"
    said = json.loads(config.read_text()) | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config.write_text(json.dumps(said | {"sliding_window": 8}))
    run("archive", "put", "-r", cold, frozen)
    words = ["thaw", "--archive", cold, "chats/1", "--target", tmp_path / "windows", "--continue", 5, "--json"]
    alone = json.loads(run(*words).stdout)
    first, second = (json.loads(run(*words, "--hot", tmp_path / "hot").stdout) for _ in range(2))
    assert (first["hot_tokens"], second["hot_tokens"]) == (0, first["tokens"])
    assert alone["continuation"] == first["continuation"] == second["continuation"]


def test_what_is_forgotten_or_erased_goes_from_a_hot_folder(
    run: Run, cold: Path, frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the tenant's KV and tokens go, whoever wrote them, and nothing of others."""
    hot, other, sealed = tmp_path / "hot", tmp_path / "other", tmp_path / "sealed"

    def tenants() -> set[bytes]:
        found = [kv_file.peek(path) for folder in (hot, other) for path in folder.glob("*/*.safetensors")]
        assert not found or {"ids"} < {file.form for file in found}, "tokens and runs"
        return {file.tenant for file in found}

    def thaw(tenant: str) -> None:
        for folder in (hot, other):
            assert run("thaw", "-r", cold, "chats/1", "--tenant", tenant, "--hot", folder).exit_code == 0

    for tenant in ("a", "b", "c"):
        run("archive", "put", "-r", cold, frozen, "--tenant", tenant)
        thaw(tenant)
    words = ("archive", "forget", "-r", cold, "chats/1", "--tenant", "a", "--hot", hot, "--hot", other)
    assert run(*words, "--dry-run").exit_code == 0 and tenants() == {root_of(one) for one in "abc"}
    missing = run(*words, "--hot", tmp_path)
    assert missing.exit_code == 2 and "no" in missing.stderr and run("thaw", *words[2:7]).exit_code == 0
    assert run(*words).exit_code == 0 and tenants() == {root_of("b"), root_of("c")}
    monkeypatch.setenv("PLTZ_HOT", f"{hot}:{other}")
    assert run("archive", "forget", "-r", cold, "--tenant", "c", "--keep-last", 1).exit_code == 0
    assert root_of("c") in tenants(), "nothing was forgotten"
    monkeypatch.setenv("WORDS", "correct horse")
    keyed = ("-r", sealed, "--passphrase-env", "WORDS")
    assert run("archive", "init", *keyed).exit_code == 0
    assert run("archive", "put", *keyed, frozen, "--tenant", "b").exit_code == 0
    assert run("archive", "erase", *keyed, "--tenant", "b", "--matching", ".", "--yes").exit_code == 0
    assert tenants() == {root_of("c")} and run("archive", "put", *keyed, frozen, "--tenant", "c").exit_code == 0
    assert run("archive", "erase", *keyed, "--tenant", "c", "--name", "chats/0", "--yes").exit_code == 0
    assert tenants() == set()


def log(turns: int, words: str) -> bytes:
    """Return a log of Claude Code, spelt as pltz would not, so that zstd keeps its bytes."""
    rows: list[dict[str, Any]] = []
    for n in range(turns):
        role = ("user", "assistant")[n % 2]
        message = {"role": role, "content": f"{n} {words}"}
        rows.append({"type": role, "sessionId": "s", "uuid": f"u{n}", "parentUuid": f"u{n - 1}" if n else None})
        rows[-1]["message"] = message
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_log_is_thawed_as_the_conversation_that_it_tells(run: Run, cold: Path, tmp_path: Path) -> None:
    from pltz.models.target.target import Target

    model = Target.load("mini-llama")
    said = [{"role": ("user", "assistant")[n % 2], "content": f"{n} where is my bicycle?"} for n in range(4)]
    for name, words in (("values", ()), ("bytes", ("--exact",))):
        path = tmp_path / f"logs/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(log(4, "where is my bicycle?"))
        assert run("archive", "put", "-r", cold, path, *words).exit_code == 0
        thawed = json.loads(run("thaw", "--archive", cold, f"logs/{name}", "--json").stdout)
        assert thawed["tokens"] == len(model.render(said))
        assert run("compress", path, *words, "-o", tmp_path / f"{name}.pltz").exit_code == 0
        again = json.loads(run("thaw", tmp_path / f"{name}.pltz", "--session", 0, "--json").stdout)
        assert again["tokens"] == thawed["tokens"]
    rows = lines(run("archive", "put", "-r", cold, path, "--target", "mini-llama", "--tenant", "ids", "--json"))
    assert (rows[0]["kind"], rows[0]["tokens"]) == ("ids", len(model.render(said)))


def test_what_a_broken_log_leaves_out_is_told(run: Run, cold: Path, tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text("".join(json.dumps(event) + "\n" for event in LOST))
    note = "shows 2 of 4 messages, because the parent of one is not in the log"
    [row] = lines(run("archive", "put", "-r", cold, path, "--json"))
    assert run("compress", path, "-o", tmp_path / "a.pltz").exit_code == 0
    for source in (row["name"], "-r", cold), (tmp_path / "a.pltz", "--session", 0):
        done = run("thaw", *source, "--json")
        assert json.loads(done.stdout)["left_out"] == note and done.stderr == f"note: {note}\n"


def test_a_log_longer_than_the_target_is_refused_before_anything_is_loaded(
    run: Run, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.models.target.target import Target
    from tests.cli.conftest import POSITIONS

    path = tmp_path / "long.jsonl"
    path.write_bytes(log(40, "where is my bicycle? " * POSITIONS))
    assert run("archive", "put", "-r", cold, path, "--name", "long", "--level", 6).exit_code == 0
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("loaded"))
    done = run("thaw", "--archive", cold, "long")
    assert done.exit_code == 5 and f"{POSITIONS:,} positions" in done.stderr and "--target" in done.stderr
    before, _ = done.stderr.splitlines()
    assert before.startswith("session 'long' is a log of ") and "will hardly fit" in before


@pytest.fixture
def stranger(tiny_tokenizer_json: Callable[..., bytes], tmp_path: Path) -> Path:
    """Make a target whose tokenizer is not the bundle's."""
    from tests.cli.conftest import make_target

    make_target(tmp_path / "stranger", tiny_tokenizer_json(900))
    return tmp_path / "stranger"


def test_a_target_with_another_tokenizer(run: Run, cold: Path, chats: Path, stranger: Path, tmp_path: Path) -> None:
    from pltz.models.target.target import Target

    chats.write_text(json.dumps(chat(2)) + "\n" + json.dumps(chat(3)) + "\n")
    rows = lines(run("archive", "put", "-r", cold, chats, "--target", stranger, "--json"))
    assert [(row["kind"], row["method"]) for row in rows] == [("ids", "model")] * 2
    model = Target.load(stranger)
    wanted = [list(model.render(chat(n))) for n in (2, 3)]
    got = run("archive", "get", "-r", cold, "chats/0", "chats/1", "--tokenizer", stranger)
    assert [json.loads(line) for line in got.stdout.splitlines()] == wanted
    assert lines(run("archive", "put", "-r", cold, chats, "--target", stranger, "--json"))[0]["unchanged"]
    done = run("thaw", "--archive", cold, "chats/1", "--target", stranger, "--json")
    assert json.loads(done.stdout)["tokens"] == len(wanted[1])
    checked = lines(run("archive", "verify", "-r", cold, "--decode", "--tokenizer", stranger, "--json"))[-1]
    assert checked["decoded"] and not checked["undecoded"]
    for refused in (
        run("archive", "get", "-r", cold, "chats/0"),
        run("thaw", "--archive", cold, "chats/1", "--any-target"),
        run("archive", "get", "-r", cold, "-o", tmp_path / "x.pltz", "--tokenizer", stranger),
    ):
        assert refused.exit_code not in (0, 1) and "tokenizer" in refused.stderr, refused.output
    other = tmp_path / "other"
    assert run("archive", "init", "-r", other).exit_code == 0
    assert run("archive", "copy", "-r", cold, other, "--tokenizer", stranger).exit_code == 0
    again = run("archive", "get", "-r", other, "chats/1", "--tokenizer", stranger / "tokenizer.json")
    assert json.loads(again.stdout) == wanted[1]
