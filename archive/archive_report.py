"""The page of an archive: its state, what it holds and what it saves. It looks like that of a nightly run.

Names of sessions and tenants are on the page. Nothing is decoded, unless the content is counted.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.archive.catalog.stat import disk_bytes
from pltz.archive.html_page import Colour, can_plot, page, plot, when
from pltz.archive.humanize import counted, size
from pltz.archive.version_sizes import VersionSizes, tokens_in_words
from pltz.models.session.session import content_bytes
from pltz.plt_codec.errors import PltzError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive, SessionVersion

MOST_LABELS = 100  # on an axis of dates
SHOWN = 20  # sessions and tenants in a table
STEPS = (100, 300, 1_000, 3_000, 10_000, 100_000)  # bytes: the bars of sizes

BODY = """
<h2>Tenants</h2>
<div class="scroll"><table>
<tr><th>tenant</th><th>sessions</th><th>versions</th><th>tokens</th><th>frozen to</th><th>newest</th></tr>
{% for t in tenants[:shown] -%}
<tr><td>{{ t.name }}</td><td>{{ "{:,}".format(t.sessions) }}</td><td>{{ "{:,}".format(t.versions) }}</td>
<td>{{ tokens(t.tokens, t.bytewise) }}</td><td>{{ size(t.bytes) }}</td><td>{{ when(t.newest) }}</td></tr>
{% endfor -%}
</table></div>
{% if tenants|length > shown %}<p>{{ "{:,}".format(tenants|length) }} in all.</p>
{% endif -%}
{% for head, rows in lists %}<h2>{{ head }}</h2>
<div class="scroll"><table>
<tr><th>session</th><th>tenant</th><th>version</th><th>method</th><th>tokens</th>
{%- if counted %}<th>content</th>{% endif %}<th>frozen to</th>
{%- if counted %}<th>ratio</th>{% endif %}<th>time</th></tr>
{% for r in rows -%}
<tr><td>{{ r.version.name }}</td><td>{{ r.version.tenant }}</td><td>{{ r.version.version }}</td><td>{{ r.method }}</td>
<td>{{ "{:,}".format(r.tokens) }}{{ " B" if r.bytewise else "" }}</td>
{%- if counted %}<td>{{ size(r.content) if r.content else "-" }}</td>{% endif %}
<td>{{ size(r.bytes) }}</td>
{%- if counted %}<td>{{ "%.1f" % (r.content / r.bytes) if r.content and r.bytes else "-" }}</td>
{%- endif %}<td>{{ when(r.version.time) }}</td></tr>
{% endfor -%}
</table></div>
{% endfor -%}
{% if problems %}<h2>Damaged or gone</h2>
<ul>
{% for words in problems %}<li class="bad">{{ words }}</li>
{% endfor %}</ul>
<p>pltz archive verify says what it costs, and pltz archive repair mends what it can from parity or a copy.</p>
{% endif -%}
"""


@dataclass(frozen=True)
class _Row:
    """A version with its tokens and the bytes of its bitstrings, both 0 where damage hides them, and its method.

    ``content``: bytes of its content where it was decoded, 0 where it was not. ``bytewise``: its tokens are bytes.
    """

    version: SessionVersion
    tokens: int
    bytes: int
    method: str
    content: int
    bytewise: bool


@dataclass
class _Tenant:
    name: str
    sessions: int = 0
    versions: int = 0
    tokens: int = 0
    bytewise: int = 0
    bytes: int = 0
    newest: int = 0


def archive_page(
    cold: Archive, place: str, *, content: bool = False, seen: Callable[[], object] | None = None
) -> bytes:
    """Return the page of an archive, as the bytes of a file.

    Args:
        place: where the archive is, for the heading.
        content: decode the last version of each session, to count the bytes of its content.
        seen: called after each session that was decoded.

    Raises:
        PltzError: the archive cannot be read, or with ``content`` a session.
    """
    # a row per version; content is counted only where it was asked for
    sizes = VersionSizes(cold)
    contents = _contents(cold, seen) if content else {}
    rows = []
    for version in cold.list(history=True, partial=True):
        found = sizes.of(version)
        known = found["tokens"] or 0, found["size"] or 0, found["method"] or "?"
        rows.append(_Row(version, *known, contents.get(version.id, 0), bool(found["bytewise"])))
    # the figures at the head of the page
    stat, problems = cold.stat(), _problems(cold)
    names = {(row.version.tenant, row.version.name) for row in rows}
    stored, packed = disk_bytes(cold.parts.store), size(stat.pack_bytes + stat.index_bytes)
    facts = [
        ("sessions", f"{len(names):,}", counted(len(rows), "version")),
        ("on disk", size(stored), f"packs and indexes {packed}, the rest parity and reserve"),
        *_shared(sizes),
    ]
    if content:
        total = sum(contents.values())
        saved = f"of {size(total)}, {total / stored:.1f} times the bytes on disk" if stored else ""
        facts.append(("saved", size(max(0, total - stored)), saved))
    # the badge, and the page
    now = cold.parts.store.now()
    state: tuple[Colour, str, str] = ("good", "OK", "No part is known to be missing or damaged.")
    if problems:
        state = ("bad", "DAMAGED", f"{counted(len(problems), 'part')} damaged or gone: see below.")
    return page(
        BODY,
        title=f"{state[1]}: pltz archive, {when(now)}",
        heading=f"pltz archive {place}, {when(now)}",
        badge=state,
        facts=facts,
        plots=_plots(rows) if can_plot() else None,
        foot=f"Archive {stat.archive.hex()}. pltz archive verify --decode checks its content.",
        tenants=_tenants(rows),
        tokens=tokens_in_words,
        lists=[(head, found) for head, found in _lists(rows) if found],
        problems=problems,
        counted=content,
        shown=SHOWN,
    )


def _problems(cold: Archive) -> list[str]:
    """Return the parts that are known to be damaged or gone, in words."""
    from pltz.archive.errors import ArchiveError

    found = [f"{p.kind} {p.name}: {p.what}" for p in cold.parts.catalog.damage.problems]
    try:
        cold.directory.want_whole("this page shows the rest")
    except ArchiveError as error:
        found.append(str(error))
    return found


def _shared(sizes: VersionSizes) -> list[tuple[str, str, str]]:
    try:
        found = sizes.shared()
    except PltzError:
        return []
    saved = found["frozen_bytes_unshared"] - found["frozen_bytes"]
    return [
        ("tokens", tokens_in_words(found["tokens"], found["tokens_bytewise"]), f"in {size(found['frozen_bytes'])}"),
        ("saved by sharing", size(saved), f"of {size(found['frozen_bytes_unshared'])}"),
    ]


def _contents(cold: Archive, seen: Callable[[], object] | None) -> dict[bytes, int]:
    """Return the bytes of the content of the last version of each session, by the id of the version."""
    found = {}
    for version in cold.directory.ls():
        found[version.id] = content_bytes(cold.sessions.read(version))
        if seen:
            seen()
    return found


def _tenants(rows: Sequence[_Row]) -> list[_Tenant]:
    """Return the tenants, those with the most bytes first."""
    found: dict[str, _Tenant] = {}
    sessions: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        tenant = found.setdefault(row.version.tenant, _Tenant(row.version.tenant))
        sessions[tenant.name].add(row.version.name)
        tenant.versions += 1
        tenant.tokens += row.tokens
        tenant.bytewise += row.tokens if row.bytewise else 0
        tenant.bytes += row.bytes
        tenant.newest = max(tenant.newest, row.version.time)
    for tenant in found.values():
        tenant.sessions = len(sessions[tenant.name])
    return sorted(found.values(), key=lambda tenant: (-tenant.bytes, tenant.name))


def _lists(rows: Sequence[_Row]) -> list[tuple[str, list[_Row]]]:
    newest = sorted(rows, key=lambda row: -row.version.time)[:SHOWN]
    largest = sorted(rows, key=lambda row: -row.bytes)[:SHOWN]
    return [("Newest versions", newest), ("Largest versions", largest if len(rows) > SHOWN else [])]


def _plots(rows: Sequence[_Row]) -> list[str]:
    """Plot versions by date and by size; none without versions."""
    if not rows:
        return []
    days = [when(row.version.time)[:10] for row in rows]
    labels = next(cut for length in (10, 7, 4, 0) if len(set(cut := [day[:length] for day in days])) <= MOST_LABELS)
    put = Counter(labels)
    order = sorted(put)
    plots = []
    if len(order) > 1:
        sums = list(itertools.accumulate(put[label] for label in order))
        heights = {"versions": [put[label] for label in order]}
        plots.append(plot("versions by time of the session", order, heights, bars=True))
        plots.append(plot("versions, in all", order, {"versions": sums}))
    bars = Counter(sum(row.bytes >= step for step in STEPS) for row in rows)
    names = [f"< {size(step)}" for step in STEPS] + [f"≥ {size(STEPS[-1])}"]
    used = range(min(bars), max(bars) + 1)
    counts = [bars[number] for number in used]
    sizes = [names[number] for number in used]
    return [*plots, plot("versions by frozen size", sizes, {"versions": counts}, bars=True)]
