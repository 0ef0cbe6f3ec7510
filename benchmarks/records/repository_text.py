"""Text of repositories: make training records of code and documents of public repositories, without held-out lines.

    python -m pltz.benchmarks.records.repository_text clones data/code_and_languages.jsonl chat_test.jsonl.zst \\
        chat_validation.jsonl.zst text_test.jsonl.zst text_validation.jsonl.zst agents_test.jsonl.zst \\
        agents_validation.jsonl.zst

CLONES has a clone of each repository, OWNER/NAME, that has the commit which training/SOURCES.md names. The files of
HELD_OUT are those of the validation and test splits. A line of 30 characters or more that stands in one of them is left
out, and a file where more than 3 in 10 such lines do. Ids are code-LANGUAGE-NUMBER and lang-LANGUAGE-NUMBER.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import click

from pltz.datasets.loaders import load
from pltz.plt_codec.errors import UsageError

LICENCES: Final = Path(__file__).resolve().parents[2] / "training" / "SOURCES.md"
ROW: Final = re.compile(r"\| (?:code|other languages) \| (\S+/\S+) @ ([0-9a-f]{10}) \| (\S+) \|")
LINE: Final = 30  # characters of a line that says where it comes from
SHARE: Final = 0.3  # of the lines of a file, at most, that are held out
LEAST: Final = 200  # characters of a record
CODE_BYTES: Final = 2_500_000  # per computer language
TEXT_BYTES: Final = 3_000_000  # per human language, but for those of `MORE`
MORE: Final = {"lang-it": 12_000_000, "lang-es": 4_500_000, "lang-fr": 4_500_000, "lang-pt-br": 4_500_000}
PAGES: Final = 12  # of tldr in one record
CODE: Final = {  # the endings of files that are taken
    "tokio-rs/tokio": "rs",
    "square/okhttp": "kt java",
    "laravel/framework": "php",
    "JamesNK/Newtonsoft.Json": "cs",
    "vuejs/core": "ts",
    "rails/rails": "rb",
    "apple/swift-nio": "swift",
    "phoenixframework/phoenix": "ex exs",
    "nlohmann/json": "hpp cpp",
    "libuv/libuv": "c h",
    "TheAlgorithms/Java": "java",
    "ohmyzsh/ohmyzsh": "zsh sh",
    "playframework/playframework": "scala",
    "LuaLS/lua-language-server": "lua",
    "tidyverse/dplyr": "R",
    "gin-gonic/gin": "go",
    "expressjs/express": "js",
    "dart-lang/http": "dart",
    "haskell/cabal": "hs",
    "PowerShell/PSScriptAnalyzer": "ps1 psm1",
}
LANGUAGES: Final = {
    "rs": "rust",
    "kt": "kotlin",
    "cs": "csharp",
    "ts": "typescript",
    "rb": "ruby",
    "ex": "elixir",
    "exs": "elixir",
    "hpp": "cpp",
    "h": "c",
    "zsh": "shell",
    "sh": "shell",
    "R": "r",
    "js": "javascript",
    "hs": "haskell",
    "ps1": "powershell",
    "psm1": "powershell",
}
TRANSLATION: Final = re.compile(r"\.(\w\w-\w\w)$")  # repositories of one translation, such as docs.it-it
REGION: Final = re.compile(r"^(\w\w)-(?:\1|jp)$")  # a region that says nothing: it-it, ja-jp
ENGLISH: Final = {"reactjs": "src/content/", "withastro": "src/content/docs/en/"}  # originals, owner -> folder


class SourceFile(NamedTuple):
    """A file of a commit."""

    path: str
    blob: str
    size: int  # bytes


class Repository:
    """A commit of a clone.

    Raises:
        UsageError: the clone is missing, or lacks the commit.
    """

    def __init__(self, clone: Path, commit: str) -> None:
        self.clone, self.commit = clone, commit
        listed = self._git("ls-tree", "-r", "-l", "-z", commit).decode("utf-8", "replace")
        rows = [row.partition("\t") for row in listed.split("\0") if row]
        fields = [(path, *facts.split()) for facts, _, path in rows]
        # a submodule has no size, nor has a large file where the clone lacks those
        self.files = [SourceFile(path, blob, int(size)) for path, _, _, blob, size in fields if size.isdecimal()]

    def texts(self, files: list[SourceFile]) -> Iterator[tuple[str, str]]:
        """Yield path and text of these files; those that are no UTF-8 are left out.

        Raises:
            UsageError: the clone lacks one.
        """
        answer = self._git("cat-file", "--batch", given="".join(f"{file.blob}\n" for file in files).encode())
        at = 0
        for file in files:
            head, at = answer[at : answer.index(b"\n", at)], answer.index(b"\n", at) + 1
            if head.split() != [file.blob.encode(), b"blob", b"%d" % file.size]:
                raise UsageError(f"{self.clone}: expected a whole clone, found none of the bytes of {file.path}")
            data, at = answer[at : at + file.size], at + file.size + 1
            try:
                yield file.path, data.decode("utf-8")
            except UnicodeDecodeError:
                continue

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["git", "-C", str(self.clone), *arguments]
        found = subprocess.run(command, input=given, capture_output=True, check=False)
        if found.returncode:
            why = found.stderr.decode("utf-8", "replace").strip()
            raise UsageError(f"{self.clone}: expected a clone that has commit {self.commit}: {why}")
        return found.stdout


class RecordWriter:
    """The records of a file: each text without held-out lines, up to a limit per source."""

    def __init__(self, path: Path, held: set[int]) -> None:
        self._file, self._held = path.open("w", encoding="utf-8", newline="\n"), held
        self.bytes: Counter[str] = Counter()
        self.records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, source: str, text: str, licence: str, limit: int) -> None:
        """Write one text, unless its source has `limit` bytes or the text is mostly held out."""
        lines = text.split("\n")
        told = [_told(line) for line in lines]
        bad = [line in self._held for line in told]
        if self.bytes[source] >= limit or sum(bad) > SHARE * sum(line is not None for line in told):
            return
        kept = "\n".join(line for line, out in zip(lines, bad, strict=True) if not out)
        if len(kept) >= LEAST:
            record = {"id": f"{source}-{self.records}", "license": licence, "text": kept}
            self._file.write(json.dumps(record) + "\n")
            self.records += 1
            self.bytes[source] += len(kept.encode())


def _told(line: str) -> int | None:
    """Return what stands for a line in the set of held-out ones; None for a short one."""
    line = line.strip()
    return hash(line) if len(line) >= LINE else None


def told_lines(text: str) -> list[int]:
    """Return what stands for the long lines of a text."""
    return [told for line in text.split("\n") if (told := _told(line)) is not None]


def held_out(files: Iterable[str]) -> set[int]:
    """Return the long lines of all strings in the records of files."""
    found: set[int] = set()
    for file in files:
        for session in load(file, "jsonl"):
            value = session.value.decode("utf-8", "replace") if session.kind == "text" else session.value
            found.update(told for text in _strings(value) for line in text.split("\n") if (told := _told(line)))
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def language_of(repository: str, path: str) -> str | None:
    """Return the human language of a document; None for English and for what is no document."""
    parts = path.split("/")
    if repository == "fastapi/fastapi":
        name = parts[1] if parts[0] == "docs" and len(parts) > 3 and parts[1] != "en" else None
    elif repository == "github/opensource.guide":
        name = parts[1] if parts[0] == "_articles" and len(parts) == 3 else None
    elif repository == "withastro/docs":
        name = parts[3] if path.startswith("src/content/docs/") and len(parts) > 4 and parts[3] != "en" else None
    elif repository == "microsoft/TypeScript-Website-Localizations":
        name = parts[2] if parts[0] == "docs" and len(parts) > 3 and parts[2] != "vo" else None
    elif repository == "electron/i18n":
        name = REGION.sub(r"\1", parts[1].lower()) if parts[0] == "content" and parts[1] != "en-US" else None
    elif ending := TRANSLATION.search(repository):
        name = REGION.sub(r"\1", ending[1].lower())
    elif repository == "tldr-pages/tldr":
        name = parts[0].removeprefix("pages.") if parts[0].startswith("pages.") else None
    else:
        name = repository.split("/")[1].split(".")[0] if path.startswith("src/content/") else None
    if name is None:
        return None
    return name.replace("_", "-").lower().replace("zh-hant", "zh-tw").replace("zh-hans", "zh")


def add_code(out: RecordWriter, name: str, repository: Repository, licence: str, draw: random.Random) -> None:
    """Write the code of a repository, files in random order."""
    endings = {f".{ending}" for ending in CODE[name].split()}
    files = [f for f in repository.files if Path(f.path).suffix in endings and 300 < f.size < 200_000]
    files = [file for file in files if "/generated" not in file.path]
    draw.shuffle(files)
    for path, text in repository.texts(files):
        ending = path.rpartition(".")[2]
        out.add(f"code-{LANGUAGES.get(ending, ending)}", text, licence, CODE_BYTES)


def english_lines(name: str, repository: Repository, clones: Path) -> set[int]:
    """Return the long lines of the English originals of a repository's documents; none where it is not in `ENGLISH`.

    Those of the translations of React stand in a repository of their own, at any commit.
    """
    owner = name.split("/")[0]
    if owner not in ENGLISH:
        return set()
    originals = Repository(clones / "reactjs/react.dev", "HEAD") if owner == "reactjs" else repository
    files = [f for f in originals.files if f.path.startswith(ENGLISH[owner]) and f.path.endswith((".md", ".mdx"))]
    return {line for _, text in originals.texts(files) for line in told_lines(text)}


def translated(text: str, english: set[int]) -> bool:
    """Return whether at most a half of the long lines stand in the English originals (code is often left as it is)."""
    told = told_lines(text)
    return sum(line in english for line in told) * 2 <= len(told)


def add_documents(
    out: RecordWriter, name: str, repository: Repository, licence: str, draw: random.Random, clones: Path
) -> None:
    """Write the documents of a repository in languages other than English, short pages several to a record."""
    files = [file for file in repository.files if file.path.endswith((".md", ".mdx")) and file.size < 300_000]
    draw.shuffle(files)
    files = [file for file in files if language_of(name, file.path)]
    english = english_lines(name, repository, clones)
    pages: dict[str, list[str]] = {}
    for path, text in repository.texts(files):
        if not translated(text, english):
            continue
        source = f"lang-{language_of(name, path)}"
        bag = pages.setdefault(source, [])
        bag.append(text)
        if len(bag) == (PAGES if name == "tldr-pages/tldr" else 1):
            out.add(source, "\n".join(pages.pop(source)), licence, MORE.get(source, TEXT_BYTES))


@click.command()
@click.argument("clones", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("held", nargs=-1, required=True, metavar="HELD_OUT...")
def main(clones: Path, target: Path, held: tuple[str, ...]) -> None:
    """Write records of the repositories in CLONES to TARGET, and print the bytes per source as JSON."""
    draw = random.Random(5)
    with RecordWriter(target, held_out(held)) as out:
        for name, commit, licence in ROW.findall(LICENCES.read_text(encoding="utf-8")):
            repository = Repository(clones / name, commit)
            if name in CODE:
                add_code(out, name, repository, licence, draw)
            else:
                add_documents(out, name, repository, licence, draw, clones)
    click.echo(json.dumps({"records": out.records, "bytes": dict(sorted(out.bytes.items()))}))


if __name__ == "__main__":
    main()
