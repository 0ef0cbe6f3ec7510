"""The benchmark of MB/s: phases do not count what runs inside them, chats and logs are read, a file is measured."""

import json
import time
from pathlib import Path
from typing import Any

from pltz.benchmarks.speed.measure_throughput import Phases, as_text, measured, measured_put, sessions_of
from pltz.coding.codec import Codec
from pltz.datasets.given import as_sessions
from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from tests.coding.fake_coder import FakeBundle, NeighbourCoder
from tests.coding.log.logs import claude

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Where is my bicycle? " * 30}]}


def test_a_phase_does_not_count_the_phases_inside_it() -> None:
    phases = Phases()
    inner = phases.timed("inner", lambda: time.sleep(0.05))
    phases.timed("outer", lambda: [inner(), inner()])()
    assert phases.seconds["inner"] >= 0.1 and phases.main >= phases.seconds["inner"] + phases.seconds["outer"] - 1e-6
    assert phases.seconds["outer"] < phases.main - 0.09


def test_chats_and_logs_are_read_and_measured(tiny_tokenizer: BundleTokenizer, tmp_path: Path) -> None:
    data = tmp_path / "mixed.jsonl"
    log = {"kind": "claude-code", "text": claude().decode()}
    data.write_text("".join(json.dumps(one) + "\n" for one in (CHAT, log, CHAT)))
    sessions = sessions_of(str(data), None)
    assert len(sessions) == 3 and len(sessions_of(str(data), 1e-6)) == 1
    found = measured(Codec(FakeBundle(tiny_tokenizer), NeighbourCoder()), sessions, "default")
    assert found["raw"] == sum(len(one.to_bytes()) for one in sessions) and found["sessions"] == 3
    assert {"encode", "decode", "tokenise", "split logs", "join logs"} <= found["phases_s"].keys()
    assert "split logs" in as_text({"data": "mixed", **found})


def test_a_put_is_measured() -> None:
    sessions = [*as_sessions(claude(), exact=True), *(Session("chat", CHAT) for _ in range(3))]
    for alone in (True, False):
        found = measured_put(Bundle.load("nano"), sessions, "cpu", 1, alone=alone)
        assert found["file"] > 0 and found["workers"] == 0 and {"encode", "decode"} <= found["phases_s"].keys()
