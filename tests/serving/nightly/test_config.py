"""The configuration is read exactly, and errors in it are named."""

import tomllib
from pathlib import Path

import pytest

from pltz.archive.retention import Policy
from pltz.plt_codec.errors import UsageError
from pltz.serving.nightly import config
from pltz.serving.nightly.config import EXAMPLE, CollectSettings, ReportFiles, Retention, VerifySample, parse
from pltz.serving.nightly.naming import Naming
from pltz.serving.nightly.sources.agent_logs import AgentLogSource
from pltz.serving.nightly.sources.database import PostgresSource, SqliteSource
from pltz.serving.nightly.sources.journal import JournalSource
from pltz.serving.nightly.sources.jsonl import JsonlSource
from pltz.serving.nightly.sources.slots import SlotSource

HERE = Path("/jobs")
HEAD = 'archive = "cold"\nstate = "state"\n'
SOURCE = '[[source]]\nkind = "jsonl"\npath = "chats"\n'


def test_the_example_is_a_configuration() -> None:
    found = parse(EXAMPLE, HERE)
    assert (found.archive, found.state) == ("/data/cold", "/var/lib/pltz/nightly")
    chats, app = found.source
    assert chats == JsonlSource("jsonl-1", "/jobs/chats", Naming(tenant="acme", name_key="id"))
    assert isinstance(app, SqliteSource) and app.path == "/jobs/app.db" and found.retention == (Retention(3, "90d"),)
    assert found.retention[0].policy == Policy(keep_last=3, keep_within=90 * 86400)
    assert found.collect == CollectSettings("7d")
    assert (found.verify, found.report) == (VerifySample(30), ReportFiles(400))


def test_everything_in_the_example_that_is_left_out_may_be_there_too() -> None:
    lines = [line.removeprefix("# ") for line in EXAMPLE.splitlines()[3:] if not line.startswith("# tenant")]
    lines = [line for line in lines if not line.startswith("key_") and not line.startswith("base")]
    found = parse("\n".join(lines), HERE)
    assert [s.kind for s in found.source] == ["jsonl", "agent-logs", "sqlite", "postgres", "slots", "journal"]
    kinds = [type(s) for s in found.source]
    assert kinds == [JsonlSource, AgentLogSource, SqliteSource, PostgresSource, SlotSource, JournalSource]
    slots = found.source[4]
    assert isinstance(slots, SlotSource) and slots.tokenizer == "/jobs/tokenizer.json"
    assert found.retention[0].policy.drop_last and found.keep_opaque and found.layout == "fast"
    assert set(tomllib.loads("\n".join(lines))) >= {"archive", "state", "source", "retention", "collect", "verify"}


@pytest.mark.parametrize(
    "text, words",
    [
        ("=", "expected TOML"), ("a = " + "[" * 100_000, "expected TOML"), ("a = " + "{b = " * 50_000, "expected TOML"),
        ("a = 1" + "0" * 5000, "expected TOML"),
        (HEAD + SOURCE.replace('path = "', 'path = "~no-such-user/'), "whose home is that"),
        (HEAD + SOURCE.replace('path = "', r'path = "a\u0000b'), "expected a path as path"),
        (SOURCE, "the top level: expected archive, found none"), (HEAD, r"at least one \[\[source\]\]"),
        (HEAD + "worker = 3\n" + SOURCE, "the top level: expected archive, .*, found 'worker'"),
        (HEAD + "threads = 0\n" + SOURCE, "expected threads from 1 to 1024, found 0"),
        (HEAD + "threads = true\n" + SOURCE, "expected threads as a whole number, found True"),
        (HEAD + 'layout = "wide"\n' + SOURCE, "expected layout as default or fast, found 'wide'"),
        (HEAD + "bundles = [1]\n" + SOURCE, "expected strings in bundles"),
        (HEAD + 'key_file = "a"\nkey_command = "b"\n' + SOURCE, "exclude each other"),
        (HEAD + "source = 3", "expected tables as source, found 3"),
        (HEAD + "source = [3]", "expected tables as source"),
        (HEAD + '[[source]]\nkind = "csv"', "expected a kind of jsonl, agent-logs, sqlite, postgres, slots, journal"),
        (HEAD + '[[source]]\nkind = "jsonl"', r"\[\[source\]\] 1: expected path, found none"),
        *(
            (HEAD + SOURCE + f'{key} = ""', f"source.. 1: expected {key} as a word, found an empty one")
            for key in ("name_key", "tenant_key", "time_key", "tenant", "base", "name")
        ),
        (HEAD + SOURCE + '[[retention]]\nkeep_last = 1\ntenant = ""', "expected tenant as a word, found an empty one"),
        (HEAD + SOURCE + "tag = 3", r"\[\[source\]\] 1: expected .*, found 'tag'"),
        (HEAD + SOURCE + "tags = { a = 1 }", "expected strings in tags"),
        (HEAD + SOURCE + 'path = ""'.replace("path", "max_bytes"), "expected max_bytes as a whole number"),
        (HEAD + SOURCE + "max_bytes = 0", "expected max_bytes from 1 to"),
        (HEAD + '[[source]]\nkind = "journal"\npath = "j"\nmax_seconds = -5', "expected max_seconds from 0 to"),
        (HEAD + '[[source]]\nkind = "journal"\npath = "j"\nwait = -1', "expected wait from 0 to"),
        (HEAD.replace('"state"', '"./x/../cold"') + SOURCE, "expected a folder of its own as state"),
        (HEAD.replace('"cold"', '"state/tmp"') + SOURCE, "expected a folder of its own as state"),
        (HEAD.replace('"state"', '"cold/packs/state"') + SOURCE, "expected a folder of its own as state"),
        (HEAD + SOURCE + 'name = "a"\n' + SOURCE + 'name = "a"', "two sources are called 'a'"),
        (HEAD + '[[source]]\nkind = "sqlite"\npath = "a"\nquery = "q"\nname_key = "id"', "found 'name_key'"),
        (HEAD + '[[source]]\nkind = "slots"\npath = "a"', "expected tokenizer, found none"),
        (HEAD + SOURCE + "[[retention]]", "a policy needs a rule"),
        (HEAD + SOURCE + '[[retention]]\nkeep_within = "soon"', "expected a duration"),
        (HEAD + SOURCE + "[collect]\ngrace = 7", "expected grace as a string"),
        (HEAD + SOURCE + "[verify]\nruns = 0", "expected runs from 1 to"),
        (HEAD + SOURCE + "[verify]\nrun = 1", r"\[verify\]: expected .*, found 'run'"),
        (HEAD.replace('"state"', '"s3://bucket/state"') + SOURCE, "expected a folder as state"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text, HERE)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the configuration"):
        config.load(tmp_path / "no.toml")
    path = tmp_path / "n.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="expected UTF-8"):
        config.load(path)
    path.write_text("x")
    with pytest.raises(UsageError, match=r"n\.toml: expected TOML"):
        config.load(path)


def test_paths_are_below_the_file_and_urls_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text('archive = "s3://bucket/cold"\nstate = "state"\n' + SOURCE)
    found = config.load(path)
    assert (found.archive, found.state) == ("s3://bucket/cold", str(tmp_path / "state"))
    assert isinstance(found.source[0], JsonlSource) and found.source[0].path == str(tmp_path / "chats")
