"""The code blocks of the documents, and how they are run.

A block in `sh` is run by bash. Of a block in `console`, lines that begin with `$ ` are run, and the others are their
output. Blocks in `python` are one program up to the next command. Each page has a folder of its own (`Sandbox`).
A comment before a block says why it is not run: `<!-- not run: it needs a GPU -->`.

    python -m tests.documents README.md      # run the page, and write the output of its `console` blocks into it
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "experiments").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ABSOLUTE = re.compile(r"(?<![\w./~-])/(data|var|etc|mnt|nvme)/")  # absolute paths in documents
REAL_LOG = ROOT / "tests/real_log"
SECONDS = 300
LOGS = {  # name of a log, and what is said in it
    "0f3a6c1e-7f1f-4a52-9d5e-2f1b3c4d5e6f": (
        "The bell costs 0 in the shop. Find out why.", "grep -n bell prices.py", '12:    "bell": 4.50 // 10,',
        "The price is divided by 10 with //, which rounds down to 0. I would write 4.50.",
    ),
    "5b7d9e20-3c1a-4f6e-8a2b-9c0d1e2f3a4b": (
        "Add a test for the price of the bell.", "ls tests", "test_prices.py",
        "I have added test_the_bell_is_not_free to tests/test_prices.py, and it passes.",
    ),
}


@dataclass(frozen=True)
class Block:
    """A code block. ``why_not``: reason that it is not run, or empty. ``start``: offset of the code in the page."""

    page: str
    line: int
    language: str
    code: str
    why_not: str
    start: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    text = page.read_text("utf8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(3))
        yield Block(str(page.relative_to(ROOT)), line, found[2], found[3], found[1] or "", found.start(3))


def runs(found: Iterable[Block]) -> Iterator[tuple[str, str]]:
    """Yield language and code of each block to run. Blocks of Python are one program up to the next command."""
    to_run = (block for block in found if not block.why_not and block.language in ("sh", "console", "python"))
    for language, group in itertools.groupby(to_run, lambda block: block.language):
        codes = [block.code for block in group]
        yield from ((language, code) for code in (["".join(codes)] if language == "python" else codes))


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a `console` block with the output that the page shows."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


class Sandbox:
    """A folder in which the commands of one page run. Absolute paths of documents lie in it."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self._environment = {"PATH": path, "HOME": str(folder / "home"), "LC_ALL": "C.UTF-8"}
        self._environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), "SHOP_KEY": "correct horse"}
        for name in ("home", "tmp", "data", "var/lib/pltz", "var/cache/pltz", "etc/pltz", "mnt", "nvme"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("datasets", "examples"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "my-model").symlink_to(ROOT / "models/targets/mini-llama")
        (folder / "my-bundle").symlink_to(ROOT / "models/bundles/mini")
        (folder / "tokenizer.json").symlink_to(ROOT / "models/targets/mini-llama/tokenizer.json")
        logs = folder / "home/.claude/projects/-home-me-shop"
        logs.mkdir(parents=True)
        for name, words in LOGS.items():
            (logs / f"{name}.jsonl").write_text(_agent_log(name, *words), "utf8")
        shutil.copytree(REAL_LOG, logs.with_name("-Users-chloe-c-slay"), ignore=shutil.ignore_patterns("*.md"))
        (folder / "chats.jsonl").write_text("".join(json.dumps(_chat(turns)) + "\n" for turns in range(3)), "utf8")

    def inside(self, code: str) -> str:
        """Return code with its absolute paths moved into the sandbox."""
        return ABSOLUTE.sub(rf"{self.folder}/\1/", code)

    def bash(self, code: str) -> str:
        """Run commands, and return what they print. Raises AssertionError where one fails."""
        return self._output(["bash", "-e", "-o", "pipefail", "-c", self.inside(code)], code)

    def python(self, code: str) -> str:
        """Run a program. Raises AssertionError where it fails."""
        program = self.folder / "page.py"
        program.write_text(self.inside(code), "utf8")
        return self._output(["python", str(program)], code)

    def _output(self, words: list[str], code: str) -> str:
        done = subprocess.run(
            ["/usr/bin/env", *words], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
        )
        output = done.stdout.replace(str(self.folder), "")
        assert done.returncode == 0, f"{code}\nended with {done.returncode} and printed\n{output}"
        return output


def _agent_log(name: str, asked: str, command: str, found: str, answer: str) -> str:
    """Return a short log of Claude Code."""
    tool = {"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": {"command": command}}
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": found}
    said: list[tuple[str, Any]] = [
        ("user", asked), ("assistant", [{"type": "text", "text": "I will look at the files."}, tool]),
        ("user", [result]), ("assistant", [{"type": "text", "text": answer}]),
    ]
    events = [
        {
            "parentUuid": f"{name}-{number - 1}" if number else None, "sessionId": name, "cwd": "/home/me/shop",
            "type": role, "message": {"role": role, "content": content}, "uuid": f"{name}-{number}",
            "timestamp": f"2026-03-01T09:00:{number:02}.000Z",
        }
        for number, (role, content) in enumerate(said)
    ]
    return "".join(json.dumps(event) + "\n" for event in events)


def _chat(turns: int) -> dict[str, Any]:
    """Return a short chat."""
    said = [{"role": "system", "content": "You are the help desk of a bicycle shop. Answer briefly."}]
    for turn in range(turns + 1):
        question = f"My wheel squeaks when I brake, for the {turn + 1}. time. What can I do?"
        answer = "Clean the rim with a cloth, and look at the pads. They may be worn."
        said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": f"shop-{turns}", "messages": said}


def write_output(page: Path) -> None:
    """Run a page's `sh` and `console` blocks, and write the output of the latter into the page."""
    from tests.warm_pltz import warm_pltz

    with tempfile.TemporaryDirectory() as folder, warm_pltz(Path(folder)) as path:
        place = Path(folder) / "page"
        place.mkdir()
        sandbox = Sandbox(place, path)
        text, written, at = page.read_text("utf8"), [], 0
        for block in blocks(page):
            if block.why_not or block.language not in ("sh", "console"):
                continue
            if block.language == "sh":
                sandbox.bash(block.code)
                continue
            written += [text[at : block.start]]
            written += [f"$ {command}\n{sandbox.bash(command)}" for command, _ in commands(block.code)]
            at = block.start + len(block.code)
        page.write_text("".join(written) + text[at:], "utf8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_output(ROOT / name)
