"""The page of a run of the nightly job: its state, what to do, and this and earlier runs by their dates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pltz.archive.html_page import Colour, can_plot, dates, page, plot, when
from pltz.archive.humanize import counted, duration, size

Report = dict[str, Any]
SHOWN = 100  # refused sessions on a page

BODY = """
<h2>Sources</h2>
<div class="scroll"><table>
<tr><th>source</th><th>met</th><th>known</th><th>frozen</th><th>refused</th><th>content</th><th>frozen to</th>
<th>ratio</th><th>seconds</th></tr>
{% for s in now.sources + [dict(now.totals, name="all", kind="")] -%}
<tr><td>{{ s.name }}{{ " (" + s.kind + ")" if s.kind }}</td><td>{{ "{:,}".format(s.seen) }}</td>
<td>{{ "{:,}".format(s.known) }}</td>
<td>{{ "{:,}".format(s.frozen) }}</td><td>{{ "{:,}".format(s.refused) }}</td><td>{{ size(s.bytes) }}</td>
<td>{{ size(s.frozen_bytes) }}</td>
<td>{{ s.ratio if s.ratio is not none else "" }}</td><td>{{ "{:,.1f}".format(s.seconds) }}</td></tr>
{% endfor -%}
</table></div>
<h2>After freezing</h2>
<table class="words">
{% for name, words in steps -%}
<tr><td>{{ name }}</td><td>{{ words }}</td></tr>
{% endfor -%}
</table>
{% if now.failures %}<h2>Not done</h2>
<ul>
{% for words in now.failures %}<li class="bad">{{ words }}</li>
{% endfor %}</ul>
<p>The next run does it, once the cause is gone: {{ again }}</p>
{% endif -%}
{% if now.refused %}<h2>Refused sessions</h2>
<p>They stay in their sources, and each run tries them again.</p>
<div class="scroll"><table class="words">
<tr><th>source</th><th>where</th><th>name</th><th>reason</th><th>what to do</th></tr>
{% for r in now.refused[:shown] -%}
<tr><td>{{ r.source }}</td><td>{{ r.where }}</td><td>{{ r.name or "" }}</td><td>{{ r.error }}: {{ r.reason }}</td>
<td>{{ advice.get(r.error, mend) }}</td></tr>
{% endfor -%}
</table></div>
{% if now.totals.refused > shown %}<p>{{ "{:,}".format(now.totals.refused) }} in all:
the folder quarantine has a file for each.</p>
{% endif %}{% endif -%}
"""
BADGES: dict[int, tuple[Colour, str, str]] = {
    0: ("good", "OK", "All is well."),
    3: ("bad", "DAMAGED", "The sample is damaged: see pltz archive verify, and mend it by pltz archive repair."),
    5: ("warn", "REFUSED", "Some sessions were refused; all others are in the archive."),
    7: ("bad", "NOT DONE", "Something could not be done: see below, and run it again."),
}
AGAIN = "pltz nightly --config FILE, with the configuration of this job."
MEND = "Mend it in its source."
ADVICE = {
    "OpaqueContentError": "Set keep_opaque = true to keep it as plain bytes, or remove the part in its source.",
    "LimitError": "Split it in its source, or store it as text: docs/limits.md.",
    "UsageError": "Mend it in its source: it is no session as it stands there.",
    "CorruptError": "Restore it in its source from a backup, or remove it there.",
    "FormatError": "Restore it in its source from a backup, or remove it there.",
    "VersionError": "Update pltz: a newer one wrote it.",
    "TokenizerMismatch": "Name the tokenizer of its ids in this source: tokenizer = FILE.",
    "ModelError": "Run pltz doctor, and reinstall the bundle that it names.",
}
"""Advise what to do about a refused session, by the class of its error."""


def nightly_page(reports: Sequence[Report]) -> bytes:
    """Return the page of the last of these reports, as the bytes of a file. ``reports``: oldest first."""
    now = reports[-1]
    colour, word, verdict = BADGES[now["exit_code"]]
    if refused := now["totals"]["refused"]:
        word = f"{word}: {counted(refused, 'session')} refused" if now["exit_code"] != 5 else f"{refused:,} REFUSED"
    return page(
        BODY,
        title=f"{word}: pltz nightly, {when(now['started'])}",
        heading=f"pltz nightly, {when(now['started'])}",
        badge=(colour, word, verdict),
        facts=_facts(now),
        plots=_plots(reports) if can_plot() else None,
        foot=f"Run {now['run']} of this job. {_reach(reports)}",
        now=now,
        steps=_steps(now),
        shown=SHOWN,
        advice=ADVICE,
        mend=MEND,
        again=AGAIN,
        dict=dict,
    )


def _reach(reports: Sequence[Report]) -> str:
    """Say which runs the plots show."""
    if len(reports) == 1:
        return "Plots of the runs appear from the second run on."
    return f"The plots show {counted(len(reports), 'run')} since {when(reports[0]['started'])[:10]}."


def _facts(now: Report) -> list[tuple[str, str, str]]:
    """Return the figures on top of the page."""
    totals, held, so_far = now["totals"], now["archive"], now.get("so_far")
    share = f"{size(totals['bytes'])} to {size(totals['frozen_bytes'])}"
    facts = [("frozen tonight", f"{totals['frozen']:,}", share), ("refused", f"{totals['refused']:,}", "")]
    if so_far and so_far["bytes"]:
        saved = so_far["bytes"] - so_far["frozen_bytes"]
        share = f"of {size(so_far['bytes'])}, since {when(so_far['since'])[:10]}, without parity and indexes"
        facts.append(("saved so far", size(max(0, saved)), share))
    if "packs" in held:
        stored = size(held.get("disk_bytes", held["pack_bytes"] + held["index_bytes"]))
        facts.append(("archive", stored, counted(held["sessions"], "version")))
    return [*facts, ("took", duration(now["seconds"]), f"{now['peak_memory_mb']:,.0f} MB of memory")]


def _steps(now: Report) -> list[tuple[str, str]]:
    """Describe the steps after freezing, in words."""
    rows = []
    if done := now["retention"]:
        rows.append(("retention", f"{done['forgotten']:,} of {counted(done['versions'], 'version')} forgotten"))
    if done := now.get("merge"):
        merged = f"{done['merged']:,} of {counted(done['sessions'], 'cold session')}"
        rows.append(("merge", f"{merged}, {counted(done['segments'], 'segment')}"))
    if done := now.get("cluster"):
        chosen = f"{counted(done['medoids'], 'session')} chosen, {done['sessions']:,} looked at"
        rows.append(("cluster", f"{chosen}, {counted(done['tenants'], 'tenant')}, {size(done['file_bytes'])}"))
    if done := now["collect"]:
        freed = f"{counted(done['deleted'], 'pack')} deleted, {size(max(0, done['freed']))} freed"
        rows.append(("collect", f"{freed}, {done['condemned']:,} condemned"))
    if done := now["verify"]:
        lost = f"{counted(len(done['problems']), 'problem')}, {counted(len(done['lost']), 'version')} lost"
        looked = f"{counted(done['packs'], 'pack')}, {counted(done['decoded'], 'segment')} decoded"
        rows.append(("verify", f"{looked}: {'sound' if done['sound'] else lost}"))
    where = now["archive"]
    if "packs" in where:
        total = size(where.get("disk_bytes", where["pack_bytes"] + where["index_bytes"]))
        held = f"{counted(where['sessions'], 'version')}, {counted(where['packs'], 'pack')}, {total}"
        rows.append(("archive", f"{where['place']}: {held}"))
    if now["totals"]["lag_mean"] is not None:
        mean, most = duration(now["totals"]["lag_mean"]), duration(now["totals"]["lag_max"])
        rows.append(("lag", f"{mean} in the mean from last change to durable, {most} at most"))
    return rows


def _plots(reports: Sequence[Report]) -> list[str]:
    """Plot sessions, bytes, duration, ratio, failures and the archive by the dates of the runs; none for one run."""
    if len(reports) < 2:
        return []
    days = dates([report["started"] for report in reports])
    totals = [report["totals"] for report in reports]
    names = [name for name in reports[-1]["steps"] if any(r["steps"].get(name, {}).get("seconds") for r in reports)]
    seconds = {name: [r["steps"].get(name, {}).get("seconds") for r in reports] for name in names}
    held = [r["archive"].get("pack_bytes", 0) + r["archive"].get("index_bytes", 0) or None for r in reports]
    met = {name: [total[name] for total in totals] for name in ("known", "frozen", "refused")}
    content = {"content": [t["bytes"] for t in totals], "frozen to": [t["frozen_bytes"] for t in totals]}
    return [
        plot("sessions met", days, met, bars=True),
        plot("bytes of new sessions", days, content, byte_scale=True),
        plot("duration, seconds", days, seconds, bars=True),
        plot("ratio of content to frozen", days, {"ratio": [total["ratio"] for total in totals]}),
        plot("bytes of the archive", days, {"archive": held}, byte_scale=True),
        plot("failures", days, {"failures": [len(report["failures"]) for report in reports]}, bars=True),
    ]
