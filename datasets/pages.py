"""Pages: turns of a conversation as one HTML file, as Markdown, and what both and a terminal take out of its texts.

A log is hostile input: whoever a session talked to may have written into it. So no text of a log becomes markup, a
link, or a control of a terminal. The HTML has no script and names no other file: its pictures are the ones that the
log holds itself, of four types that hold no script, and a rule in its head forbids all else.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pltz.datasets.conversation import ConversationTurn

if TYPE_CHECKING:
    from pltz.models.session.session import Session

SPEAKERS = ("user", "assistant", "system")  # roles whose texts are words, and not the output of a program
SHOWN = 1 << 20  # bytes of a session that is shown as its lines, at the end of a long one
FOLDED = 12  # lines of a result from which it is folded
PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
JOINERS = "\u200c\u200d"  # within words of some scripts and within emoji
OLD, NEW = ("old_string", "old_str", "oldText", "old_text"), ("new_string", "new_str", "newText", "new_text")
PATCH = re.compile(r"^(?:diff --git |@@ |\*\*\* (?:Begin Patch|Update File)|--- .*\n\+\+\+ )", re.MULTILINE)
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
section{margin:1.2rem 0;padding:.6rem 1rem;border-left:4px solid #bbb}.user{border-color:#2463c4;background:#f3f7fd}
.assistant{border-color:#2a8a55}.system{color:#666}header{font-weight:600}time{font-weight:400;color:#666}
div,pre{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext}pre{font-size:.85rem;margin:.4rem 0}
summary{cursor:pointer;color:#555}img{max-width:100%}ins{color:#116329;text-decoration:none}del{color:#a40e26;
text-decoration:none}@media print{details::details-content{content-visibility:visible;height:auto}section{
break-inside:avoid-page}}"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def clean(text: str) -> str:
    """Return a text without controls: those of a terminal and of writing direction are spelt out.

    >>> clean("a" + chr(27) + "[2J" + chr(0x202E) + chr(13) + chr(10) + "b" + chr(9) + "c")
    'a\\\\x1b[2J\\\\u202e\\nb\\tc'
    """
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or c in JOINERS else _spelt(c) for c in text)


def _spelt(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else ascii(character)[1:-1]


def when(time: int) -> str:
    """Return a time as a reader takes it, in UTC; empty where it is not known."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}" if 0 < time < 1 << 37 else ""


def call_lines(name: str, arguments: dict[str, Any]) -> tuple[str, list[str]]:
    """Return a call of a tool as one line and its body: what an edit takes out and puts in, or a patch.

    >>> call_lines("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})
    ('Edit(file_path="a.py")', ['-1', '+2'])
    """
    body, rest = list[str](), dict[str, Any]()
    for key, value in arguments.items():
        if isinstance(value, str) and key in (*OLD, *NEW):
            body += [("-" if key in OLD else "+") + line for line in clean(value).split("\n")]
        elif isinstance(value, str) and (is_patch(value) or "\n" in value):
            body += clean(value).split("\n")
        else:
            rest[key] = value
    told = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in rest.items())
    return clean(f"{name}({told})").replace("\n", " "), body


def is_patch(text: str) -> bool:
    """Return whether a text is, or holds, a patch: lines that go begin with - and lines that come with +."""
    return PATCH.search(text) is not None


def lines_of(session: Session) -> ConversationTurn:
    """Return a session that has no conversation as one turn of its lines; of a long one the end."""
    return ConversationTurn(1, session.kind, "\n".join(_lines(session)))


def _lines(session: Session) -> Iterator[str]:
    if session.kind == "ids":
        yield " ".join(map(str, session.value.tolist()))
        return
    if session.kind == "chat":
        rows = session.value if isinstance(session.value, list) else [session.value]
        yield from (clean(json.dumps(row, ensure_ascii=False)) for row in rows)
        return
    text = session.value
    if len(text) > SHOWN:
        yield f"(the last {SHOWN:,} of {len(text):,} bytes)"
    yield from map(clean, text[-SHOWN:].decode("utf-8", "replace").splitlines())


def as_html(title: str, note: str, turns: Iterable[ConversationTurn], *, head: str = "") -> Iterator[str]:
    """Yield the lines of an HTML file with turns. ``note``: what they leave out. ``head``: HTML to begin with."""
    name = html.escape(clean(title))
    yield "<!DOCTYPE html>"
    yield f'<html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield f"<title>{name}</title><style>{STYLE}</style></head><body>{head}<h1>{name}</h1>"
    if note:
        yield f"<p>{html.escape(clean(note))}</p>"
    for turn in turns:
        role = turn.role if turn.role in SPEAKERS else "other"
        yield f'<section class="{role}" id="turn-{turn.number}">'
        yield f"<header>{turn.number} {html.escape(clean(turn.role))} <time>{when(turn.time)}</time></header>"
        lines = clean(turn.text).split("\n")
        if turn.role not in SPEAKERS:
            yield _folded(f"{len(lines):,} line{'s' * (len(lines) != 1)}", lines, is_patch(turn.text))
        elif turn.text:
            yield f"<div>{html.escape(chr(10).join(lines))}</div>"
        for url in turn.pictures:
            sound = PICTURE.fullmatch(url)
            yield f'<img alt="picture" src="{url}">' if sound else "<p>[a picture that cannot be shown]</p>"
        for call in turn.calls:
            head, body = call_lines(*call)
            yield _folded(head, body, True) if body else f"<pre>{html.escape(head)}</pre>"
        yield "</section>"
    yield "</body></html>"


def _folded(head: str, lines: list[str], patch: bool) -> str:
    tags = {"+": "ins", "-": "del"} if patch else {}
    marked = (
        f"<{tag}>{html.escape(line)}</{tag}>" if (tag := tags.get(line[:1])) else html.escape(line) for line in lines
    )
    state = "" if len(lines) > FOLDED else " open"
    return f"<details{state}><summary>{html.escape(head)}</summary><pre>{chr(10).join(marked)}</pre></details>"


def as_markdown(title: str, note: str, turns: Iterable[ConversationTurn]) -> Iterator[str]:
    """Yield the lines of a Markdown text with turns. What was said in Markdown stays so, without HTML and links."""
    yield f"# {_inert(clean(title).replace(chr(10), ' '))}\n"
    if note:
        yield f"*{_inert(clean(note))}*\n"
    for turn in turns:
        yield f"## {turn.number} {_inert(clean(turn.role))} {when(turn.time)}".rstrip() + "\n"
        if turn.role not in SPEAKERS:
            yield _fenced(clean(turn.text))
        elif turn.text:
            yield "\n".join(_without_links(clean(turn.text).split("\n"))) + "\n"
        yield from ["*(a picture)*\n"] * len(turn.pictures)
        for call in turn.calls:
            head, body = call_lines(*call)
            yield _fenced("\n".join([head, *body]))


def _fenced(text: str) -> str:
    """Return a text as a block of code, behind a fence that is longer than any in it."""
    fence = "`" * (1 + max(2, *map(len, re.findall("`+", text)), 0))
    return f"{fence}\n{text}\n{fence}\n"


def _without_links(lines: list[str]) -> Iterator[str]:
    """Yield lines of Markdown whose HTML and links do nothing. In blocks of code nothing is changed.

    Only fences at the beginning of a line open such a block: they do so wherever the line stands.
    """
    fence = ""
    for line in lines:
        if fence:
            mark = line.strip(" ")
            if len(line) - len(line.lstrip(" ")) < 4 and len(mark) >= len(fence) and not mark.strip(fence[0]):
                fence = ""
            yield line
        elif opened := re.match(r"(`{3,})[^`]*$|(~{3,})", line):
            fence = opened[1] or opened[2]
            yield line
        else:
            yield _inert(line)
    if fence:
        yield fence


def _inert(line: str) -> str:
    return line.replace("<", "&lt;").replace("](", "]\\(").replace("][", "]\\[").replace("]:", "]\\:")
