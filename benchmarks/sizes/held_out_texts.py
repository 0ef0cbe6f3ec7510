"""Held-out texts: pieces of 1,200 characters of projects that no bundle learnt from, by language and kind.

    python -m pltz.benchmarks.sizes.held_out_texts clones held_out.jsonl
    pltz bench codec --bundle mini --data held_out.jsonl

CLONES has a clone of each repository, OWNER/NAME, with the commit of `SOURCES`. ``lang-`` are translations of the
documentation of Vue (pages that were left in English are left out), ``rag-docs`` is that documentation, English with
code, as it stands in a prompt of retrieved pages, and ``code-`` is code. At most two pieces of a file are taken, and a
small project has fewer pieces than asked. `pltz bench codec` codes each piece alone.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final, NamedTuple

import click

from pltz.benchmarks.records.repository_text import Repository, told_lines, translated

LENGTH: Final = 1200  # characters of a piece
SIZES: Final = range(1501, 200_000)  # bytes of the files that are taken
COPIES: Final = ("vendor", "dist/", "third")  # folders with code of others


class TextSource(NamedTuple):
    """A source of pieces: its name, a repository and its commit, a folder in it, endings of files, and the pieces."""

    name: str
    repository: str
    commit: str
    folder: str
    endings: str
    pieces: int


ENGLISH: Final = "rag-docs"  # the source that the translations are compared with
SOURCES: Final = (
    TextSource("lang-ja", "vuejs-translations/docs-ja", "c627102bfa", "src/", ".md", 24),
    TextSource("lang-ko", "vuejs-translations/docs-ko", "6e646acb56", "src/", ".md", 24),
    TextSource("lang-zh", "vuejs-translations/docs-zh-cn", "c2715ff75b", "src/", ".md", 24),
    TextSource("lang-fr", "vuejs-translations/docs-fr", "f944e8479b", "src/", ".md", 24),
    TextSource("lang-ru", "vuejs-translations/docs-ru", "ed53a951b6", "src/", ".md", 24),
    TextSource("lang-it", "vuejs-translations/docs-it", "cc16618076", "src/", ".md", 24),
    TextSource("lang-pt", "vuejs-translations/docs-pt", "782d14bbeb", "src/", ".md", 24),
    TextSource("lang-uk", "vuejs-translations/docs-uk", "28b6af923a", "src/", ".md", 24),
    TextSource("rag-docs", "vuejs/docs", "01e098a967", "src/", ".md", 48),
    TextSource("code-python", "psf/black", "8947c48ef2", "", ".py", 12),
    TextSource("code-go", "spf13/cobra", "adbc881390", "", ".go", 12),
    TextSource("code-javascript", "axios/axios", "23a25af068", "", ".js", 12),
    TextSource("code-rust", "serde-rs/serde", "1023d07751", "", ".rs", 12),
    TextSource("code-java", "google/gson", "9835b6f901", "", ".java", 12),
    TextSource("code-cpp", "fmtlib/fmt", "60ccad511f", "", ".h .cc", 12),
    TextSource("code-php", "Seldaek/monolog", "57eb102834", "", ".php", 12),
    TextSource("code-ruby", "sinatra/sinatra", "cb22afd790", "", ".rb", 12),
    TextSource("code-csharp", "DapperLib/Dapper", "6d48ef664a", "", ".cs", 12),
    TextSource("code-swift", "Alamofire/Alamofire", "7595cbcf59", "", ".swift", 12),
    TextSource("code-shell", "nvm-sh/nvm", "b17550a0b9", "", ".sh", 12),
    TextSource("code-c", "redis/hiredis", "29ea2791c1", "", ".c .h", 12),
    TextSource("code-typescript", "pmndrs/zustand", "f094eebe9b", "", ".ts .tsx", 12),
    TextSource("code-kotlin", "InsertKoinIO/koin", "fff5291f33", "", ".kt", 12),
)


def pieces(source: TextSource, clones: Path, english: set[int] | None, draw: random.Random) -> list[str]:
    """Return the pieces of a source in random order. `english`: lines of pages that are no translations, or None.

    Raises:
        UsageError: the clone is missing, or lacks the commit.
    """
    repository = Repository(clones / source.repository, source.commit)
    endings = tuple(source.endings.split())
    files = [f for f in repository.files if f.path.startswith(source.folder) and f.path.endswith(endings)]
    skipped = COPIES if source.name.startswith("code-") else ()
    files = [f for f in files if f.size in SIZES and not any(name in f.path for name in skipped)]
    found = []
    for _, text in repository.texts(files):
        whole = len(text) // LENGTH
        if not whole or (english is not None and not translated(text, english)):
            continue
        starts = [draw.randrange(whole)]
        if whole > 4 and (other := draw.randrange(whole)) != starts[0]:
            starts.append(other)
        found += [text[start * LENGTH : (start + 1) * LENGTH] for start in starts]
    draw.shuffle(found)
    return found[: source.pieces]


@click.command()
@click.argument("clones", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def main(clones: Path, target: Path) -> None:
    """Write pieces of the repositories in CLONES to TARGET, and print their number per source as JSON."""
    draw = random.Random(7)
    original = next(source for source in SOURCES if source.name == ENGLISH)
    pages = Repository(clones / original.repository, original.commit)
    files = [f for f in pages.files if f.path.startswith(original.folder) and f.path.endswith(original.endings)]
    english = {line for _, text in pages.texts(files) for line in told_lines(text)}
    counts = {}
    with target.open("w", encoding="utf-8", newline="\n") as out:
        for source in SOURCES:
            found = pieces(source, clones, english if source.name.startswith("lang-") else None, draw)
            counts[source.name] = len(found)
            for number, text in enumerate(found):
                out.write(json.dumps({"id": f"{source.name}-{number}", "text": text}, ensure_ascii=False) + "\n")
    click.echo(json.dumps(counts))


if __name__ == "__main__":
    main()
