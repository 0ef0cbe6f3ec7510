"""``pltz show``: read a session, in the terminal, as HTML or as Markdown."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.shared import one_meant, open_archive, redactor, tell_redacted
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import ArchiveCommand
from pltz.cli.ui.output import printable, write_text
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.catalog.lookup import VersionName
    from pltz.datasets.conversation import Conversation, ConversationTurn

COLOURS = {"user": "blue", "assistant": "green", "tool": "yellow"}
PATCH_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
LINE = 160  # characters of a line of a call that is folded


@click.command(
    cls=ArchiveCommand,
    short_help="Read a session: in the terminal, as HTML, as Markdown.",
    examples=[
        "pltz show -r /data/cold '0f3a6c1e*'",
        "pltz show chats/7 --turns 40..60 --full",
        "pltz show chats/7 --html > seven.html",
    ],
)
@click.argument("name")
@shared.TENANT
@shared.VERSION
@click.option("--part", metavar="PATH", default="", help="Another part of the session, as the log of a sub-agent.")
@click.option("--turns", "asked", metavar="N..M", help="Only turns N to M, or N; N.. and ..M too: of all branches.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N turns.")
@click.option("--all", "every", is_flag=True, help="Also branches that were left, and what a compaction replaced.")
@click.option("--full", is_flag=True, help="Fold nothing.")
@click.option("--html", "form", flag_value="html", help="Print one HTML file.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown.")
@shared.REDACT
@options.JSON
def show(
    name: str,
    tenant: str,
    number: "VersionName | None",
    part: str,
    asked: str | None,
    last: int | None,
    every: bool,
    full: bool,
    form: str | None,
    redact: bool,
    as_json: bool,
) -> None:
    """Show the conversation of the session NAME: who said what, and when (UTC).

    NAME may end with *, where one session alone begins so. Calls of tools are a line each and their results are
    folded, unless --full is given. Of a log the last branch is shown, of one over 16 MiB its end. What is left out is
    said, and turns count back from -1 then. A session without a conversation is shown as its lines. On a terminal a
    pager has it; PAGER names another one.
    """
    from pltz.datasets.conversation import conversation_of, is_long, numbered
    from pltz.datasets.pages import as_html, as_markdown, lines_of

    chosen, marked = _range(asked, last), redactor(redact)
    cold = open_archive()
    name = one_meant(cold, name, tenant)
    found = cold.directory.version(name, tenant, number, part)
    session = cold.sessions.parted(found)
    session = marked.session(session) if marked else session
    if asked and is_long(session):
        talk, chosen = numbered(session, chosen), slice(None)
    else:
        talk = conversation_of(session, every=every or asked is not None, least=last or 1)
    turns = talk.turns
    if not talk.agent:
        click.echo("no conversation could be read: the session is shown as its lines", err=True)
        turns = (lines_of(session),)
    if not (picked := turns[chosen]):
        click.echo(f"{name!r} has {counted(talk.messages or 1, 'turn')}, none of them among {asked}", err=True)
    note = talk.note + "; --turns 1.. shows all" * any(turn.number < 0 for turn in picked)
    title = f"{name}/{part}" if part else name
    counts = tell_redacted(marked)
    if as_json:
        write_text(json.dumps(_facts(title, found.version, talk, picked) | counts, ensure_ascii=True))
    elif form:
        _out(f"{line}\n" for line in (as_html if form == "html" else as_markdown)(title, note, picked))
    elif not talk.agent:
        _out(f"{turn.text}\n" for turn in picked)
    else:
        _out(_text(note, picked, full))


def _range(turns: str | None, last: int | None) -> slice:
    """Return the turns to show. Raises UsageError."""
    if turns is None:
        return slice(-last if last else None, None)
    begin, _, end = turns.partition("..") if ".." in turns else (turns, "..", turns)
    if last or not (begin or end) or not all(word == "" or (word.isdecimal() and int(word)) for word in (begin, end)):
        raise UsageError("expected turns as 40..60, 40.., ..60 or 40, from 1, and no --last beside")
    return slice(int(begin or 1) - 1, int(end) if end else None)


def _facts(title: str, version: int, talk: "Conversation", picked: "Iterable[ConversationTurn]") -> dict[str, object]:
    said = [
        {
            "turn": turn.number,
            "role": turn.role,
            "time": turn.time or None,
            "text": turn.text,
            "calls": [{"name": name, "arguments": arguments} for name, arguments in turn.calls],
            "pictures": len(turn.pictures),
        }
        for turn in picked
    ]
    head = {"name": title, "version": version, "agent": talk.agent or None, "messages": talk.messages}
    return head | {"left_out": talk.note or None, "turns": said}


def is_terminal() -> bool:
    """Return whether somebody looks at stdout."""
    return sys.stdout.isatty()


def _out(pieces: Iterable[str]) -> None:
    """Print pieces: by a pager on a terminal, else as they are, without colours."""
    if not is_terminal():
        write_text(click.unstyle("".join(pieces)))
    else:
        click.echo_via_pager(map(click.unstyle, pieces) if os.environ.get("NO_COLOR") else pieces)


def _text(note: str, turns: "Iterable[ConversationTurn]", full: bool) -> Iterator[str]:
    """Yield turns as lines of a terminal. Nothing of a log is a control of it."""
    from pltz.datasets.pages import FOLDED, call_lines, clean, is_patch, when

    if note:
        yield click.style(f"{printable(note)}\n", fg="red")
    for turn in turns:
        head = f"{turn.number}  {printable(turn.role)}  {when(turn.time)}".rstrip()
        text = clean(turn.text).expandtabs(4)
        lines = text.split("\n") if text else []
        if turn.role == "tool" and not full:
            first = next((line for line in lines if line.strip()), "")[:LINE]
            more = f"  (and {len(lines) - 1:,} more lines)" if len(lines) > 1 else ""
            yield click.style(f"  {head}  {first}{more}\n", dim=True)
            continue
        yield click.style(f"\n{head}\n", fg=COLOURS.get(turn.role), bold=True)
        paint = _painted if is_patch(turn.text) else str
        yield "".join(f"{paint(line)}\n" for line in lines)
        yield "[a picture]\n" * len(turn.pictures)
        for name, arguments in turn.calls:
            call, body = call_lines(name, arguments)
            yield click.style(f"  > {call if full or len(call) <= LINE else call[:LINE] + ' ...'}\n", fg="yellow")
            shown = body if full or len(body) <= FOLDED else body[:FOLDED]
            yield "".join(f"    {_painted(line)}\n" for line in shown)
            if len(shown) < len(body):
                yield click.style(f"    (and {len(body) - len(shown):,} more lines)\n", dim=True)


def _painted(line: str) -> str:
    return click.style(line, fg=PATCH_COLOURS.get(line[:1]))
