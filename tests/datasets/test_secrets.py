"""Secrets: what has a known shape is marked, a log stays JSON, and what only looks like one stays as it is."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("detect_secrets", reason="needs the extra secrets")

from pltz.datasets import secrets
from pltz.datasets.secrets import Redactor, rules, secrets_in
from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError

KEYS = {  # put together here, so that no scanner of this file takes them for some
    "aws-key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "anthropic-key": "sk-ant-" + "api03-" + "aB3_-" * 8,
    "openai-key": "sk-" + "proj-" + "Zx9" * 10,
    "google-key": "AIza" + "Sy0-_aB" * 5,
    "huggingface-token": "hf_" + "aB" * 17,
    "github-token": "ghp_" + "a1B2" * 9,
    "gitlab-token": "glpat-" + "x" * 20,
    "slack-token": "xoxb-" + "123-456-abc",
    "stripe-key": "sk_" + "live_" + "a1" * 20,
    "npm-token": "npm_" + "Q7" * 18,
    "jwt": "eyJ" + "hbGciOiJI" + ".eyJ" + "zdWIiOiIx" + ".c2ln-_",
    "sendgrid-key": "SG." + "a" * 22 + "." + "b" * 43,
}
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA\n" * 9 + "-----END RSA " + "PRIVATE KEY-----"


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("frame", ["{}", "key={} and", '"{}"', "({})", "a\n{}\nb", "https://x/?k={}&l=1", "`{}`."])
def test_a_key_is_marked_wherever_it_stands(kind: str, frame: str) -> None:
    for text in (frame.format(KEYS[kind]), json.dumps({"content": frame.format(KEYS[kind])})):
        found = Redactor()
        marked = found.text(text)
        assert KEYS[kind] not in marked and f"[redacted: {kind}]" in marked and found.counts == {kind: 1}
        assert found.report() == f"1 {kind}"
    assert json.loads(marked) == {"content": frame.format(f"[redacted: {kind}]")}


def test_passwords_and_private_keys_are_marked() -> None:
    found = Redactor()
    assert found.text("postgres://ada:hunter2secret@db/x") == "postgres://ada:[redacted: basic-auth]@db/x"
    header = 'curl -H "Authorization: Bearer 0123456789abcdef0123"'
    assert found.text(header) == 'curl -H "Authorization: Bearer [redacted: bearer-token]"'
    assert json.loads(found.text(json.dumps({"h": {"Authorization": "Bearer 0123456789abcdef0123"}, "x": header}))) == {
        "h": {"Authorization": "Bearer [redacted: bearer-token]"},
        "x": 'curl -H "Authorization: Bearer [redacted: bearer-token]"',
    }
    assert found.text(f"a\n{PEM}\nb") == "a\n[redacted: private-key]\nb"
    assert json.loads(found.text(json.dumps([PEM, "next"]))) == ["[redacted: private-key]", "next"]
    assert found.text(PEM[:90] + '"') == '[redacted: private-key]"'  # one that is cut off
    assert found.counts == {"basic-auth": 1, "bearer-token": 3, "private-key": 3}


def test_what_is_no_secret_stays() -> None:
    image = base64.b64encode(bytes(range(256)) * 40).decode()
    amid = "x" + KEYS["aws-key"], "Ab3" + KEYS["google-key"], "\\\\n" + KEYS["aws-key"]
    text = f"{image} {' '.join(amid[:2])} https://example.org:443/a@b sk-learn hf_hub AKIA ghp_ {'0f' * 20}"
    assert secrets_in(text) == [] and Redactor().text(text) is text
    assert Redactor().text(amid[2]) == amid[2]  # a backslash and an n, not a line end
    assert Redactor().report() == "nothing"


def test_sessions_are_marked_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, found = KEYS["aws-key"], Redactor()
    chat = Session("chat", {"messages": [{"role": "user", "content": f"it is\n{key}"}], "n": 1.50})
    assert found.session(chat).value == {
        "messages": [{"role": "user", "content": "it is\n[redacted: aws-key]"}],
        "n": 1.50,
    }
    plain = Session("chat", {"messages": []})
    assert found.session(plain) is plain
    log = f'{{"a":"{key}"}}\n'.encode() + b"\xff\x00 torn\n"
    assert found.session(Session("text", log)).value == b'{"a":"[redacted: aws-key]"}\n\xff\x00 torn\n'
    path = tmp_path / "long"
    path.write_bytes(log * 200_000)
    long = found.session(Session("text", LongText.of(path)))
    assert long.value == b'{"a":"[redacted: aws-key]"}\n\xff\x00 torn\n' * 200_000
    assert found.counts == {"aws-key": 200_002}
    monkeypatch.setattr(secrets, "PIECE", 1 << 12)
    for secret in (*KEYS.values(), PEM, "postgres://ada:hunter2secret@db"):
        for cut in 1, 20, len(secret) - 1:
            path.write_bytes(b"-" * ((1 << 12) - cut - 1) + f" {secret} ".encode() + b"-" * 9000)
            long = found.session(Session("text", LongText.of(path)))
            assert secret[-12:].encode() not in bytes(long.value[:]) and len(long.value) > 12_000
    with pytest.raises(ContentError, match="token ids cannot be redacted"):
        found.session(Session("ids", [1, 2]))


WORDS = "://ada:hunter2secret@db", '"', "\\", "\n", "'", "Bearer ", "é", ":"
PIECES = st.sampled_from([*KEYS.values(), PEM, *WORDS])


@settings(max_examples=300, deadline=None)
@given(st.recursive(st.lists(PIECES).map(" ".join), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_stays_json_of_the_same_shape(value: object) -> None:
    def shape(one: object) -> object:
        if isinstance(one, dict):
            return [shape(inner) for inner in one.values()]
        return [shape(inner) for inner in one] if isinstance(one, list) else ""

    marked = json.loads(Redactor().text(json.dumps(value)))
    assert shape(marked) == shape(value) and not [key for key in KEYS.values() if key in json.dumps(marked)]


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(secrets.DETECTORS, "aws-key", "no_such_module:Detector")
    rules.cache_clear()
    with pytest.raises(UsageError, match=r"pltz\[secrets\]"):
        Redactor()
    monkeypatch.undo()
    rules.cache_clear()
