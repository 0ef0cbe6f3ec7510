"""The frame of pltz's pages: one self-contained HTML file, in light and dark, with plots as inline SVG.

`archive_report.py` fills it. A body is a template of jinja2, which escapes all text, as
names and reasons come from strangers. A page has no script and loads nothing. Plots are drawn by matplotlib (extra
``plots``); where it is missing the page says so.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from pltz.archive.humanize import size

FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<title>{{ title }}</title>
<style>
:root { --ink: #222; --soft: #667; --line: #ddd; --paper: #fff; --card: #f5f6f8;
  --good: #17692c; --warn: #8a5200; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --soft: #9aa; --line: #444; --paper: #17191c;
  --card: #22262b; --good: #6cc784; --warn: #e5a94f; --bad: #ff8a80 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } .scroll { overflow-x: auto }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
td:first-child, th:first-child, .words td, .words th { text-align: left; overflow-wrap: anywhere; min-width: 5rem }
.badge { display: inline-block; padding: .1rem .8rem; border-radius: 1rem; border: 2px solid; font-weight: 600;
  margin-right: .6rem }
.good { color: var(--good) } .warn { color: var(--warn) } .bad { color: var(--bad) } .soft { color: var(--soft) }
.facts, .plots { display: grid; gap: .8rem; margin: 1rem 0 }
.facts { grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)) }
.facts div { background: var(--card); border-radius: .4rem; padding: .5rem .8rem }
.facts dt { color: var(--soft); font-size: .85rem } .facts dd { margin: 0; font-size: 1.25rem; font-weight: 600 }
.facts small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft) }
.plots { grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)) }
svg { width: 100%; height: auto } svg text { fill: currentColor }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
<p><span class="badge {{ colour }}">{{ badge }}</span> {{ verdict }}</p>
<dl class="facts">
{% for name, value, more in facts %}<div><dt>{{ name }}</dt><dd>{{ value }}<small>{{ more }}</small></dd></div>
{% endfor %}</dl>
{% if plots is none %}<p class="soft">No plots: pip install 'pltz[plots]'.</p>
{% elif plots %}<div class="plots">
{% for plot in plots %}<div>{{ plot }}</div>
{% endfor %}</div>
{% endif %}{% block body %}{% endblock -%}
<p class="soft">{{ foot }}</p>
</body>
</html>
"""
COLOURS = ("#4a90c2", "#e08a3c", "#5aa469", "#a98ac9", "#c25b6e", "#8a8f98", "#b8a13a")  # legible on white and black
INK = "#123456"  # stands for the colour of the text
Colour = Literal["good", "warn", "bad"]


def page(
    body: str,
    *,
    title: str,
    heading: str,
    badge: tuple[Colour, str, str],
    facts: Sequence[tuple[str, str, str]],
    plots: Sequence[str] | None,
    foot: str,
    **values: Any,
) -> bytes:
    """Return a page as the bytes of a file.

    Args:
        body: template of the rest of the page, with ``values``.
        badge: colour, word and sentence of the state.
        facts: name, value and remark of the figures on top.
        plots: made by `plot`; None where matplotlib is missing.
    """
    templates = {"frame": FRAME, "page": '{% extends "frame" %}{% block body %}' + body + "{% endblock %}"}
    environment = Environment(loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined)
    colour, word, verdict = badge
    frame = {"title": title, "heading": heading, "facts": facts, "plots": plots, "foot": foot}
    state = {"colour": colour, "badge": word, "verdict": verdict}
    text = environment.get_template("page").render(**frame, **state, **values, size=size, when=when)
    return clean(text).encode()


def when(seconds: float) -> str:
    """Return seconds since 1970 as a date and time.

    >>> when(0)
    '1970-01-01 00:00 UTC'
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}"


def clean(text: str) -> str:
    """Replace characters that HTML and XML may not hold: control characters and lone surrogates."""
    return "".join(
        c if c in "\n\t" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff\x7f") else "\ufffd"
        for c in text
    )


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def dates(times: Sequence[float]) -> list[str]:
    """Return times as short labels: dates, with the time of day where two are of one day.

    >>> dates([0, 86400]), dates([0, 60])
    (['1970-01-01', '1970-01-02'], ['01-01 00:00', '01-01 00:01'])
    """
    days = [when(seconds)[:10] for seconds in times]
    return days if len(set(days)) == len(days) else [when(seconds)[5:16] for seconds in times]


def plot(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    bars: bool = False,
    byte_scale: bool = False,
) -> str:
    """Return a plot as markup: lines, or bars on top of each other, over evenly spaced labels.

    Args:
        labels: what stands below, such as dates. Those that have room are shown.
        series: values by name, one for each label; None is left out.
        byte_scale: show values in kB, MB and GB.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    # ink is replaced by the colour of the page's text at the end
    places = range(len(labels))
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(4.6, 2.9), layout="constrained")
        axes = figure.subplots()
        below = [0.0] * len(labels)
        for (name, values), colour in zip(series.items(), COLOURS, strict=False):
            if bars:
                heights = [value or 0.0 for value in values]
                axes.bar(places, heights, 0.8, bottom=below, label=name, color=colour)
                below = [a + b for a, b in zip(below, heights, strict=True)]
            else:
                there = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
                mark = "o" if len(there) <= 31 else None
                line = [place for place, _ in there], [value for _, value in there]
                axes.plot(*line, color=colour, marker=mark, markersize=3, label=name)
        # values from zero, with some room above
        axes.set_title(title, fontsize=10)
        most = axes.dataLim.y1 if axes.dataLim.y1 > 0 else 1.0
        axes.set_ylim(0, 1.1 * most)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.spines[["top", "right"]].set_visible(False)
        room = 7 if max(map(len, labels)) < 9 else 4
        axes.xaxis.set_major_locator(MaxNLocator(room, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: labels[int(at)] if at in places else ""))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: size(y) if byte_scale else f"{y:,.12g}"))
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        # markup without names of its own, so that several plots stand in one page
        data = io.StringIO()
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    text = data.getvalue()
    text = re.sub(r'<g id="[^"]*">', "<g>", text[text.index("<svg") :]).replace(INK, "currentColor")
    return Markup(text)
