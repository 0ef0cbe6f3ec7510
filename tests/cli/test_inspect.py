"""inspect: header, sessions, layout and checks, fast and without a model."""

import json
from pathlib import Path

from pltz.coding.log.log_coder import CHECK
from pltz.plt_codec.container.file import pack
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check
from pltz.plt_codec.container.header import Header
from tests.cli.commands import Run, ok

BUNDLE = bytes(range(16))


def model_frame(tokens: int, data: bytes, fast: bool = False) -> Frame:
    return Frame(Kind.CHAT, Method.MODEL, tokens, 7, data, fast)


def file_of(frames: list[Frame]) -> bytes:
    return pack(Header(bundle_id=BUNDLE, target_fingerprint=bytes(16)), frames)


PLAIN = Frame(Kind.TEXT, Method.BYTES, 2, content_check(Kind.TEXT, Method.BYTES, 2, b"hi"), b"hi")


def test_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.pltz"
    path.write_bytes(file_of([model_frame(40, bytes(10)), PLAIN, model_frame(400, bytes(9), True)]))
    done = ok(run("inspect", path, "--json", "--sessions"))
    found = json.loads(done.stdout)
    assert found["bundle"] == BUNDLE.hex() and found["bundle_name"] is None
    assert found["target"] == bytes(16).hex() and found["tokenizer"] is None
    assert found["sessions"] == 3 and found["kinds"] == {"chat": 2, "text (plain)": 1}
    assert found["tokens"] == 440 and found["bytes"] == path.stat().st_size
    assert found["frame_bytes"] + found["overhead_bytes"] == found["bytes"] and found["checks_ok"] is True
    first, plain, laid_out = found["each"]
    shape = "layout", "blocks", "lanes", "steps"
    assert [first[key] for key in shape] == ["default", 1, 1, 40]
    assert plain["plain_bytes"] == 2 and plain["tokens"] is plain["layout"] is None
    assert [laid_out[key] for key in shape] == ["fast", 1, 5, 80]


def test_text(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.pltz"
    path.write_bytes(file_of([model_frame(40, bytes(10)), PLAIN]))
    done = run("inspect", path, "--sessions")
    assert "not installed here" in done.stdout and "1 chat, 1 text (plain)" in done.stdout
    assert "2.00" in done.stdout, "bits per token of the first session"


def test_empty_file_of_no_sessions_and_stdin(run: Run) -> None:
    done = run("inspect", "-", input=file_of([]))
    assert done.exit_code == 0 and "0: none" in done.stdout


def test_a_flipped_bit_in_a_frame_is_found(run: Run) -> None:
    data = bytearray(file_of([model_frame(40, bytes(10))]))
    data[50] ^= 1
    done = run("inspect", "-", input=bytes(data))
    assert done.exit_code == 3 and done.stderr.startswith("error: ") and "damaged" in done.stderr


def test_logs_are_counted_beside_the_tokens(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.pltz"
    log = Frame(Kind.CHAT, Method.LOG, 5000, 7, bytes(CHECK + 1000))
    path.write_bytes(file_of([model_frame(40, bytes(10)), log, PLAIN]))
    told = run("inspect", path).stdout
    assert "40 coded by the model" in told and "; beside 5.0 kB of logs, not counted in tokens\n" in told
    assert "default: at most 1 lane and 40 steps per session\n" in told
    found = json.loads(run("inspect", path, "--json", "--sessions").stdout)
    assert found["log_bytes"] == 5000 and [one["is_log"] for one in found["each"]] == [False, True, False]
