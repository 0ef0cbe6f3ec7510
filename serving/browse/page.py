"""The pages of a browser of sessions, as HTML. All that an archive holds is hostile, and is escaped here."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from urllib.parse import urlencode

from pltz.archive import SearchHit, counted, folder_of, size
from pltz.datasets import as_html, clean, when
from pltz.serving.browse.shelf import Listed, Reading, Row

TEMPLATE = Path(__file__).with_name("page.html").read_text("utf8")
ROWS, TURNS = 50, 500  # of a page
WIDTH, HEIGHT = 720, 80  # of the plot, in its own units
OFFERED = 200  # projects that the filter offers
LAST = "base-uri 'none'; frame-ancestors 'none'"


def _digest(tag: str) -> str:
    [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", TEMPLATE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


LIST_POLICY = (
    f"default-src 'none'; style-src {_digest('style')}; script-src {_digest('script')}; connect-src 'self'; "
    f"form-action 'self'; {LAST}"
)
READ_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; {LAST}"


def shown(text: str) -> str:
    """Return a text of an archive as HTML: no markup, and no control.

    >>> shown('<b title="x">' + chr(27))
    '&lt;b title=&quot;x&quot;&gt;\\\\x1b'
    """
    return html.escape(clean(text))


def link(path: str, words: object, **given: object) -> str:
    """Return a link within the pages. What is empty or None is left out of the address.

    >>> link("read", "<7>", name="a/7", part="")
    '<a href="read?name=a%2F7">&lt;7&gt;</a>'
    """
    path, mark, place = path.partition("#")
    query = urlencode({key: value for key, value in given.items() if value not in ("", None)}, errors="replace")
    return f'<a href="{html.escape(f"{path}?{query}{mark}{place}")}">{shown(str(words))}</a>'


def list_page(rows: Sequence[Row], whole: Listed, page: int, asked: dict[str, str]) -> str:
    """Return the page of a list. ``rows``: those of the ``whole`` list that were chosen by what was ``asked``."""
    options = "".join(
        f'<option value="{shown(agent)}"{" selected" * (agent == asked["agent"])}>{shown(agent)} ({count:,})</option>'
        for agent, count in whole.agents.most_common()
    )
    offered = "".join(f'<option value="{shown(one)}">' for one, _ in whole.projects.most_common(OFFERED))
    form = (
        f'<form><input name="q" type="search" value="{shown(asked["q"])}" autofocus autocomplete="off"'
        ' placeholder="words, said or in a name" aria-label="Words">'
        f'<select name="agent" aria-label="Agent"><option value="">all agents</option>{options}</select>'
        f'<input name="project" value="{shown(asked["project"])}" list="projects" placeholder="project" '
        f'aria-label="Project"><datalist id="projects">{offered}</datalist></form>'
    )
    total = sum(row.size for row in rows)
    of = f" of {len(whole.rows):,}" if len(rows) < len(whole.rows) else ""
    told = f"{counted(len(rows), 'session')}{of}, {size(total)} as they were; the archive has {size(whole.stored)}"
    pages = range(max(1, -(-len(rows) // ROWS)))
    page = min(max(page, 0), pages[-1])
    body = "".join(map(_row, rows[page * ROWS : (page + 1) * ROWS]))
    ways = (("newer", page - 1), ("older", page + 1))
    turning = [link("./", words, **asked, page=at) for words, at in ways if at in pages]
    where = f"<span>page {page + 1:,} of {len(pages):,}</span>" if len(pages) > 1 else ""
    listed = (
        f'<section id="list"><figure>{plot(rows)}<figcaption>{told}</figcaption></figure>'
        f"<table>{body}</table><nav>{where}{''.join(turning)}</nav></section>"
    )
    return Template(TEMPLATE).substitute(main=f'{form}<section id="said"></section>{listed}')


def _row(row: Row) -> str:
    tenant = f"{row.tenant}: " if row.tenant != "default" else ""
    title = link("read", row.title or row.name, tenant=row.tenant, name=row.name)
    name = f"<small>{shown(tenant + row.name)}</small>"
    project = f'<span title="{shown(row.project)}">{shown(folder_of(row.project))}</span>'
    counts = f"{row.turns:,}" if row.turns else "", size(row.size) if row.size else ""
    cells = (f"<time>{when(row.last)}</time>", f"{title}{name}", project, shown(row.agent), *counts)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def plot(rows: Sequence[Row]) -> str:
    """Return the bytes of sessions over the time at which they were talked in last, summed, as SVG.

    ``rows``: the newest first.
    """
    if len(rows) < 2 or rows[0].last == rows[-1].last:
        return ""
    begin, span, sums, total = rows[-1].last, rows[0].last - rows[-1].last, dict[int, int](), 0
    for row in reversed(rows):
        total += row.size
        sums[(row.last - begin) * WIDTH // span] = total
    points = " ".join(f"{x},{HEIGHT - y * (HEIGHT - 4) / max(1, total) - 2:.1f}" for x, y in sums.items())
    label = f"{size(total)} from {when(begin)[:10]} to {when(rows[0].last)[:10]}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<title>{label}</title><polyline points="{points}"/></svg>'
    )


def said_part(hits: Iterable[tuple[SearchHit, int]], note: str, *, again: bool = False) -> str:
    """Return what a search found. ``again``: to be asked for once more soon."""
    items = []
    for hit, more in hits:
        where = f"read#turn-{hit.turn}" if hit.turn else "read"
        place = link(where, hit.name, tenant=hit.tenant, name=hit.name, part=hit.part, turn=hit.turn or "")
        facts = filter(None, [when(hit.time), hit.agent, folder_of(hit.project), hit.role, hit.part])
        also = f" (and {counted(more, 'turn')} more)" if more else ""
        items.append(f"<li>{place} <small>{shown(' · '.join(facts))}{also}</small><br>{shown(hit.line)}</li>")
    found = f"<ol>{''.join(items)}</ol>" if items else ""
    told = f'<p class="none">{shown(note)}</p>' if note else ""
    return f'<section id="said"{" data-again=1" * again}>{found}{told}</section>'


def read_page(reading: Reading, parts: Sequence[str], versions: Sequence[int], begin: int) -> str:
    """Return the page of a session. ``begin``: number of turns before those that it shows."""
    version, turns = reading.version, reading.turns
    session = {"tenant": version.tenant, "name": version.name}
    this = session | {"part": version.part, "version": version.id.hex()}
    rows = [link("./", "all sessions")]
    rows += [link(f"get/{form}", words, **this) for form, words in DOWNLOADS.items()]
    if len(turns) > TURNS:
        rows.append(f"<span>turns {begin + 1:,} to {min(begin + TURNS, len(turns)):,} of {len(turns):,}</span>")
    for words, at in (("earlier", begin - TURNS), ("later", begin + TURNS)):
        if -TURNS < at < len(turns):
            rows.append(link("read", words, **this, turn=max(0, at) + 1))
    head = [" · ".join(rows)]
    if len(versions) > 1:
        ways = (link("read", one, **session, part=version.part, version=one) for one in versions)
        head.append("versions: " + " ".join(ways))
    if len(parts) > 1:
        head.append("parts: " + " · ".join(link("read", one or "main", **session, part=one) for one in parts))
    nav = "".join(f"<nav>{one}</nav>" for one in head)
    return "\n".join(as_html(title_of(reading), reading.talk.note, turns[begin : begin + TURNS], head=nav))


DOWNLOADS = {"original": "original file", "markdown": "Markdown", "html": "HTML"}  # by form


def title_of(reading: Reading) -> str:
    """Return the heading of a session: its name, and the path of a part."""
    return "/".join(filter(None, (reading.version.name, reading.version.part)))
