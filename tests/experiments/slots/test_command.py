"""``python -m pltz.experiments slot``: slot files through files, and nothing written where a base is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.experiments.slots.test_slot_delta import made


def test_the_commands_go_through_files(tmp_path: Path, run: Callable[..., Result]) -> None:
    names = {"platform.bin": made(8), "community.bin": made(12, shared=8, seed=1)}
    names["bot.bin"] = made(14, shared=8, seed=1)
    for name, data in names.items():
        (tmp_path / name).write_bytes(data)
    paths = {name.partition(".")[0]: str(tmp_path / name) for name in names}
    for below, above in (("platform", "community"), ("community", "bot")):
        done = run("slot", "delta", paths[below], paths[above], "-o", str(tmp_path / f"{above}.delta"))
        assert done.exit_code == 0 and "spliced back and compared" in done.output
    deltas = [str(tmp_path / f"{name}.delta") for name in ("community", "bot")]
    done = run("slot", "splice", paths["platform"], *deltas, "-o", str(tmp_path / "again.bin"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "again.bin").read_bytes() == names["bot.bin"]
    wrong = run("slot", "splice", paths["platform"], deltas[1], "-o", str(tmp_path / "wrong.bin"))
    assert wrong.exit_code == 2 and not (tmp_path / "wrong.bin").exists()
    missing = run("slot", "delta", paths["platform"], str(tmp_path / "none"), "-o", str(tmp_path / "x"))
    assert missing.exit_code == 2
