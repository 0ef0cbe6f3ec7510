"""The documents are short, their links lead somewhere, and their examples run.

Code parses, imports `pltz` alone, and its calls fit the functions that they call. Commands run in the order of their
page (`tests/documents.py`), and print what the page shows.
"""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pltz
from pltz.cli.root import cli
from pltz.cli.ui.groups import EXIT_CODES
from tests.documents import PAGES as RUN, ROOT, Block, Sandbox, blocks, commands, runs
from tests.test_imports import MAY_IMPORT
from tests.warm_pltz import warm_pltz

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for room in ("docs", "examples", *MAY_IMPORT) for page in sorted((ROOT / room).rglob("*.md"))),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# One minute for the README, and one table per question.
WORDS = {"README.md": 900, "docs/performance.md": 1500, "docs/kv.md": 1500, "docs/archive.md": 2000}
CHANGING = re.compile(r"\b[0-9a-f]{16,}\b|\b[\d,.]+ m?s\b|\d{4}-\d\d-\d\dT[\d:]+Z|[0-9a-f]{16}-\d+-[0-9a-f]{16}")


def shown() -> Iterator[tuple[str, str]]:
    """Yield the name and the code of every example file and of every ```python block."""
    for page in PAGES:
        text = page.read_text("utf8")
        for found in BLOCK.finditer(text):
            yield f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[1]
    for file in sorted((ROOT / "examples").glob("*.py")):
        yield str(file.relative_to(ROOT)), file.read_text("utf8")


INSIDE = ("EXTENDING.md", "experiments/")  # show the inside; test_extending.py runs the first
SHOWN = {name: code for name, code in shown() if not name.startswith(INSIDE)}


def faults(code: str) -> list[str]:
    """Return what is wrong with a piece of code, a line each."""
    tree = ast.parse(code)
    kinds: dict[str, Any] = {"pltz": pltz}  # what a name stands for: the package, or an object of a class of it
    found = [f"import pltz, not {name}" for name in _imports(tree) if name.startswith("pltz.")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made = _made(node.value)
            if made is not None:
                kinds[node.targets[0].id] = made
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _dotted(node.value) == ["pltz"] and node.attr not in pltz.__all__:
            found.append(f"pltz.{node.attr} is not public")
        if isinstance(node, ast.Call) and (dotted := _dotted(node.func)) and dotted[0] in kinds:
            found += _misfit(kinds[dotted[0]], dotted, node)
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, none of any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (below := _dotted(node.value)):
        return [*below, node.attr]
    return []


def _made(node: ast.expr) -> Any:
    """Return the class of what ``pltz.Class(...)``, ``.open(...)`` or ``.load(...)`` makes; None for all else."""
    names = _dotted(node.func) if isinstance(node, ast.Call) else []
    if len(names) in (2, 3) and names[0] == "pltz" and names[2:] in ([], ["open"], ["load"]):
        made = getattr(pltz, names[1], None)
        return made if isinstance(made, type) else None
    return None


def _misfit(start: Any, dotted: list[str], call: ast.Call) -> list[str]:
    """Return why a call does not fit what it calls, if it does not."""
    name, value = ".".join(dotted), start
    if start is not pltz and len(dotted) > 2:  # of an attribute of an object nothing is known
        return []
    for part in dotted[1:]:
        value = getattr(value, part, None)
        if value is None:
            return [f"there is no {name}"]
    if not callable(value) or any(isinstance(one, ast.Starred) for one in call.args):
        return []
    given = [None] * (len(call.args) + (start is not pltz and inspect.isfunction(value)))  # self, too
    try:
        inspect.signature(value).bind_partial(*given, **{k.arg: None for k in call.keywords if k.arg})
    except TypeError as exc:
        return [f"{name}: {exc}"]
    return []


def test_there_are_examples_to_check() -> None:
    assert {name.partition(":")[0] for name in SHOWN} >= {
        "docs/quickstart.md", "docs/vllm.md", "examples/llama_server.py",
    }
    assert len(SHOWN) >= 9


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_imports_pltz_alone_and_calls_it_right(name: str) -> None:
    assert faults(SHOWN[name]) == []


@pytest.mark.parametrize(("code", "fault"), [
    ("from pltz.archive.archive import Archive", "import pltz, not pltz.archive.archive.Archive"),
    ("import pltz.api", "import pltz, not pltz.api"),
    ("import pltz\npltz.api.thaw('x')", "pltz.api is not public"),
    ("import pltz\npltz.Archive.make('x')", "there is no pltz.Archive.make"),
    ("import pltz\ncold = pltz.Archive.open('x', creat=True)", "creat"),
    ("import pltz\ncold = pltz.Archive.open('x')\ncold.get('x', 'acme')", "cold.get: too many positional"),
    ("import pltz\ncold = pltz.Archive.open('x')\ncold.fetch('x')", "there is no cold.fetch"),
])
def test_the_check_finds_what_is_wrong(code: str, fault: str) -> None:
    assert any(fault in one for one in faults(code))


@pytest.mark.parametrize("page", WORDS)
def test_pages_stay_short(page: str) -> None:
    assert len((ROOT / page).read_text("utf8").split()) <= WORDS[page]


def test_the_pages_of_users_stay_short_and_say_for_whom_they_are() -> None:
    texts = {page.name: page.read_text("utf8") for page in (ROOT / "docs").glob("*.md")}
    assert sum(len(text.split()) for text in texts.values()) <= 25_000
    assert [name for name, text in texts.items() if not re.match(r"# .+\n\nFor ", text)] == []


def test_performance_has_a_table_for_each_command() -> None:
    """Each question has commands, and no command is without a table."""
    text = (ROOT / "docs/performance.md").read_text("utf8")
    for question in re.split(r"^## ", text, flags=re.MULTILINE)[1:-1]:
        commands, tables = (len(re.findall(what, question, re.MULTILINE)) for what in (r"^```sh", r"^\|-"))
        assert commands and tables >= commands, question.partition("\n")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_the_check_finds_dead_links(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, `code`\n", "utf8")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-heading-code) [b](other.md#b) [c](gone.md) `[d](x)` [e](https://e.org)", "utf8")
    assert dead_links(page) == ["other.md#b", "gone.md"]


def dead_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, or to headings that they do not have."""
    dead = []
    for link in LINK.findall(FENCED.sub("", page.read_text("utf8"))):
        name, _, anchor = link.partition("#")
        if re.match(r"\w+:", name):
            continue
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(link)
    return dead


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and mkdocs give to the headings of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_bits_are_per_byte() -> None:
    old = re.compile(r"\bbits an? (byte|token)", re.IGNORECASE)
    assert [str(page) for page in RUN if old.search(page.read_text("utf8"))] == []


# ---- commands

COMMANDS = {page: [block for block in blocks(page) if block.language in ("sh", "console", "python")] for page in RUN}
PARSED = re.compile(r"^(?:\$ )?pltz ((?:[^\n|<>&#\\;]|\\\n)+)", re.MULTILINE)
BEFORE = {  # names that the code of a page uses and does not make
    "transformers.md": "system_ids = [33, 99]; token_ids = [*system_ids, 101, 7, 8]; caches = {'chat-7': None}\n"
}


def test_exit_codes_are_listed() -> None:
    text = (ROOT / "docs/commands.md").read_text("utf8")
    assert all(f"| {code} | {meaning} |" in text for code, meaning in EXIT_CODES)


def test_every_command_is_shown() -> None:
    shown = {name for page in COMMANDS.values() for block in page for name in re.findall(r"pltz (\w+)", block.code)}
    assert set(cli.list_commands(click.Context(cli))) <= shown


@pytest.mark.parametrize("block", [block for page in COMMANDS.values() for block in page if block.why_not], ids=str)
def test_commands_that_do_not_run_parse(block: Block) -> None:
    for command, words in parsed(block):
        command_of(command).make_context("pltz", words)


def parsed(block: Block) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path and the arguments of each `pltz` command of a block."""
    for line in PARSED.findall(block.code):
        words = shlex.split(line.replace("\\\n", " "))
        count = 2 if isinstance(cli.get_command(click.Context(cli), words[0]), click.Group) else 1
        yield tuple(words[:count]), words[count:]


def command_of(path: tuple[str, ...]) -> click.Command:
    """Return the command of a path. Raises AssertionError where there is none."""
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None, path
    return command


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a warm `pltz` to all pages."""
    with warm_pltz(tmp_path_factory.mktemp("warm")) as found:
        yield found


@pytest.mark.parametrize(
    "page",
    [page for page, found in COMMANDS.items() if any(not block.why_not for block in found)],
    ids=lambda page: page.name,
)
def test_examples_run_and_print_what_is_shown(page: Path, path: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, path)
    for language, code in runs(COMMANDS[page]):
        if language == "python":
            sandbox.python(BEFORE.get(page.name, "") + code)
        elif language == "sh":
            sandbox.bash(code)
        else:
            for command, output in commands(code):
                assert steady(sandbox.bash(command)) == steady(output), command


def steady(output: str) -> str:
    """Return output without times, ids and the widths of columns, which differ from run to run."""
    return re.sub(r" +|-{2,}", " ", CHANGING.sub("...", output))


def test_a_block_that_fails_is_noticed(path: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, path)
    with pytest.raises(AssertionError, match="ended with 2"):
        sandbox.bash("pltz inspect gone.pltz\necho not reached")
    with pytest.raises(AssertionError, match="UsageError"):
        sandbox.python("import pltz\npltz.open('gone.pltz')")


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/library.html").read_text("utf8")
    assert all(f'id="{home}"' in page for home in ("pltz.archive.archive.Archive.put", "pltz.api.compress"))
    page = (tmp_path / "site/commands.html").read_text("utf8")
    assert "pltz archive put chats.jsonl --tenant acme" in page, "examples of a command"


SPECIFICATIONS = [page for page in PAGES if page.name == "FORMAT.md"]
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


@pytest.mark.parametrize("page", SPECIFICATIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_field_of_a_format_has_a_name(page: Path) -> None:
    """A table of bytes at offsets names each field, as `Magic_Number` in the specification of zstd."""
    table: list[list[str]] = []
    for line in [*page.read_text("utf8").splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            continue
        if table and table[0][0].startswith(("offset", "size")):
            assert "field" in table[0], f"{page.name}: {table[0]}"
            names = [row[table[0].index("field")] for row in table[2:]]
            assert all(re.fullmatch(r"(`[A-Z][a-z0-9]*(_[A-Z][a-z0-9]*)*`(, )?)+", name) for name in names), names
        table = []


def test_the_archive_is_explained_by_six_words() -> None:
    terms = (ROOT / "archive/format/FORMAT.md").read_text("utf8").split("## Terms")[1].split("\n## ")[0]
    assert len(ROW.findall(terms)) == 2 + 6
