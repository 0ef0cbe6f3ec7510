"""The page of a run: one self-contained HTML file, with plots of this and earlier runs.

Plots are inline SVG (extra ``plots``). Names and reasons come from strangers. All text is escaped by jinja2,
and the page has no script.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from pltz.archive.humanize import counted, size

Report = dict[str, Any]
SHOWN = 100  # refused sessions on a page

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>pltz nightly, run {{ now.run }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
td:first-child, th:first-child, .words td, .words th { text-align: left; overflow-wrap: anywhere }
.state { font-weight: 600 } .bad { color: #a30 } .good { color: #070 }
svg { max-width: 100%; height: auto }
</style>
</head>
<body>
<h1>pltz nightly, run {{ now.run }}, {{ when(now.started) }}</h1>
<p class="state {{ 'good' if now.exit_code == 0 else 'bad' }}">{{ verdict }}</p>
<table>
<tr><th>source</th><th>met</th><th>known</th><th>frozen</th><th>refused</th><th>content</th><th>frozen to</th>
<th>ratio</th><th>seconds</th></tr>
{% for s in now.sources + [dict(now.totals, name="all", kind="")] -%}
<tr><td>{{ s.name }}{{ " (" + s.kind + ")" if s.kind }}</td><td>{{ "{:,}".format(s.seen) }}</td>
<td>{{ "{:,}".format(s.known) }}</td>
<td>{{ "{:,}".format(s.frozen) }}</td><td>{{ "{:,}".format(s.refused) }}</td><td>{{ size(s.bytes) }}</td>
<td>{{ size(s.frozen_bytes) }}</td>
<td>{{ s.ratio if s.ratio is not none else "" }}</td><td>{{ "{:,.1f}".format(s.seconds) }}</td></tr>
{% endfor -%}
</table>
{% if plots %}<h2>This run and those before it</h2>
{{ plots }}
{% else %}<p>No plots: pip install 'pltz[plots]'.</p>
{% endif -%}
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
{% endif -%}
{% if now.refused %}<h2>Refused sessions</h2>
<table class="words">
<tr><th>source</th><th>where</th><th>name</th><th>reason</th></tr>
{% for r in now.refused[:shown] -%}
<tr><td>{{ r.source }}</td><td>{{ r.where }}</td><td>{{ r.name or "" }}</td><td>{{ r.error }}: {{ r.reason }}</td></tr>
{% endfor -%}
</table>
{% if now.totals.refused > shown %}<p>{{ "{:,}".format(now.totals.refused) }} in all:
the folder quarantine has a file for each.</p>
{% endif %}{% endif -%}
</body>
</html>
"""
VERDICTS = {
    0: "All is well.",
    3: "The sample that was verified is damaged: pltz archive verify says what it costs, pltz archive repair mends it.",
    5: "Some sessions were refused; all others are in the archive.",
    7: "Something could not be done: run it again.",
}


def page(reports: Sequence[Report]) -> bytes:
    """Return the page of the last of these reports, as the bytes of a file. ``reports``: oldest first."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    now = reports[-1]
    names = {
        "size": size,
        "when": _when,
        "shown": SHOWN,
        "verdict": VERDICTS[now["exit_code"]],
        "dict": dict,
    }
    text = environment.from_string(PAGE).render(
        now=now, plots=_plots(reports, environment), steps=_steps(now), **names
    )
    return _clean(text).encode()


def _steps(now: Report) -> list[tuple[str, str]]:
    """Describe the steps after freezing, in words."""
    rows = []
    if done := now["retention"]:
        rows.append(
            ("retention", f"{done['forgotten']:,} of {counted(done['versions'], 'version')} forgotten")
        )
    if done := now.get("merge"):
        merged = f"{done['merged']:,} of {counted(done['sessions'], 'cold session')}"
        rows.append(("merge", f"{merged}, {counted(done['segments'], 'segment')}"))
    if done := now["collect"]:
        rows.append(
            (
                "collect",
                (f"{counted(done['deleted'], 'pack')} deleted, {size(max(0, done['freed']))} freed, "
                f"{done['condemned']:,} condemned"),
            )
        )
    if done := now["verify"]:
        state = (
            "sound"
            if done["sound"]
            else f"{counted(len(done['problems']), 'problem')}, {counted(len(done['lost']), 'version')} lost"
        )
        rows.append(
            (
                "verify",
                f"{counted(done['packs'], 'pack')}, {counted(done['decoded'], 'segment')} decoded: {state}",
            )
        )
    where = now["archive"]
    if "packs" in where:
        total = size(where["pack_bytes"] + where["index_bytes"])
        rows.append(
            (
                "archive",
                (f"{where['place']}: {counted(where['sessions'], 'version')}, "
                f"{counted(where['packs'], 'pack')}, {total}"),
            )
        )
    if now["totals"]["lag_mean"] is not None:
        rows.append(
            (
                "lag",
                (f"{now['totals']['lag_mean']:,.0f} s in the mean from last change to durable, "
                f"{now['totals']['lag_max']:,.0f} s at most"),
            )
        )
    rows.append(("peak memory", f"{now['peak_memory_mb']:,} MB"))
    return rows


def _plots(reports: Sequence[Report], environment: Environment) -> Any:
    """Plot sessions, bytes, ratio, speed and failures by run, as markup; "" without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ImportError:
        return ""
    runs = [report["run"] for report in reports]
    totals = [report["totals"] for report in reports]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pltz", "font.size": 8}):
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        (sessions, content), (ratio, speed), (failures, held) = figure.subplots(3, 2)
        below = [0] * len(runs)
        for name, colour in (("known", "#9bb"), ("frozen", "#268"), ("refused", "#c52")):
            counts = [total[name] for total in totals]
            sessions.bar(runs, counts, bottom=below, label=name, color=colour)
            below = [a + b for a, b in zip(below, counts, strict=True)]
        sessions.set_title("sessions seen")
        sessions.legend()
        _line(content, runs, [total["bytes"] for total in totals], "content")
        _line(content, runs, [total["frozen_bytes"] for total in totals], "frozen to")
        content.set_title("bytes of new sessions")
        content.legend()
        _line(ratio, runs, [total["ratio"] for total in totals])
        ratio.set_title("ratio, content to frozen")
        rates = [
            t["frozen"] / s if (s := r["steps"]["freeze"]["seconds"]) and t["frozen"] else None
            for r, t in zip(reports, totals, strict=True)
        ]
        _line(speed, runs, rates)
        speed.set_title("sessions frozen per second")
        failures.bar(
            runs,
            [total["refused"] + len(r["failures"]) for r, total in zip(reports, totals, strict=True)],
            color="#c52",
        )
        failures.set_title("refused sessions and failures")
        sizes = [
            r["archive"].get("pack_bytes", 0) + r["archive"].get("index_bytes", 0) or None for r in reports
        ]
        _line(held, runs, sizes)
        held.set_title("bytes of the archive")
        for axes in (content, held):
            axes.yaxis.set_major_formatter(EngFormatter())
        for axes in figure.axes:
            axes.set_ylim(0, 1.05 * max(axes.get_ylim()[1], 1e-9))
            axes.set_xlabel("run")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        data = io.StringIO()
        figure.savefig(data, format="svg", metadata={"Date": None})
    from markupsafe import Markup

    text = data.getvalue()
    return Markup(text[text.index("<svg") :])


def _line(axes: Any, runs: Sequence[int], values: Sequence[float | None], label: str | None = None) -> None:
    """Plot a line with a mark at each run. Missing values are left out."""
    rows = [(run, value) for run, value in zip(runs, values, strict=True) if value is not None]
    axes.plot([run for run, _ in rows], [value for _, value in rows], marker="o", markersize=3, label=label)


def _clean(text: str) -> str:
    """Replace characters that HTML and XML may not hold: control characters and lone surrogates."""
    return "".join(
        c
        if c in "\n\t" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff\x7f")
        else "\ufffd"
        for c in text
    )


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
