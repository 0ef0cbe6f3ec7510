"""The units and the cron line of docs/nightly.md, as they stand there, before those who would read them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOC = Path(__file__).parents[3] / "docs/nightly.md"
COMMAND = "/usr/local/bin/pltz"


def units() -> dict[str, str]:
    """The files that the page shows, by name."""
    found = re.findall(r"^`/etc/systemd/system/([^`]+)`:\n\n((?:    .*\n|\n)+)", DOC.read_text(), re.MULTILINE)
    return {name: re.sub(r"^    ", "", body, flags=re.MULTILINE) for name, body in found}


@pytest.mark.systemd
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    found = units()
    assert sorted(found) == ["pltz-nightly.service", "pltz-nightly.timer"]
    for name, text in found.items():
        assert COMMAND in text or name.endswith(".timer")
        (tmp_path / name).write_text(text.replace(COMMAND, sys.executable))  # one that is here

    def verify() -> str:
        files = [str(tmp_path / name) for name in found]
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *files], check=False, capture_output=True, text=True, timeout=180
        )
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert verify() == "0 "
    (tmp_path / "pltz-nightly.service").write_text(found["pltz-nightly.service"].replace("Nice=", "Nicer="))
    assert "Nicer" in verify()  # it does look


def test_the_cron_line_is_five_fields_a_user_and_a_command() -> None:
    [line] = re.findall(rf"^    ((?:\S+ ){{5}}.*{COMMAND}.*)$", DOC.read_text(), re.MULTILINE)
    *times, user, command = line.split(maxsplit=6)
    assert times == ["30", "2", "*", "*", "*"] and user == "pltz"
    assert command.endswith(f"{COMMAND} nightly --config /etc/pltz/nightly.toml --no-progress")
    assert "%" not in command  # which cron takes for the end of a line
    subprocess.run(["sh", "-n", "-c", command], check=True)
