"""Plots of every kept result, drawn again with matplotlib (extra ``plots``).

    python -m pltz.benchmarks.plots

Each file in benchmarks/results holds the lines of JSON of these commands, run on the machine that the line names.
`bench` stands for python -m pltz.benchmarks, `experiments` for python -m pltz.experiments:

    bench speed --threads 1 --rounds 6 --linear 1048576 --llama --engines --startup --json > speed.json
    bench speed --threads 1 --rounds 3 --linear 262144 --llama --engines --startup --json > speed_avx2.json
    bench speed --device cuda --together 1,4,16,1024 --rounds 2 --linear 1048576 --json > speed_cuda.json
    experiments thaw --device cuda --shape llama-8b --json > thaw.json; experiments thaw --json >> thaw.json
    experiments thaw --device cuda --shape llama-8b --turns 1,4,8,40 --json > thaw_turns.json
    experiments archive --full --writers 2 --json > archive.json
    experiments archive --growing --json > archive_growing.json
    bench field --json > field.json, field_sample.json
    bench nightly --full --json > nightly.json
    python -m pltz.experiments.communities.measure_distances > distances.json
    python -m pltz.benchmarks.archive.simulate_scale > scale.json
    python -m pltz.experiments.slots.measure_slots http://127.0.0.1:8080 SLOTS mini-llama > slots.json
    experiments joint --calibration mini-llama.kv.safetensors --rows 16 --context 256 --new 48 ... --json > joint.json
    experiments stack --thaws 8 --json > stack.json
    python -m pltz.benchmarks.kv.measure_kv --calibration smollm2.kv.safetensors --json > kv_device.json
    python -m pltz.benchmarks.kv.measure_first_token smollm2 --turns 0 --rounds 1 --warm-up 0 > first_token.json
    python -m pltz.benchmarks.kv.measure_first_token llama-8b --device cuda --turns 0 ... >> first_token.json
    pltz bundle train --config training/mini.toml ...: the lines of its log.txt, as training_mini.json
    experiments kv --target smollm2 --calibration ... --data chat_test.jsonl.zst --device cuda --json > kv.json
    python -m pltz.experiments.learned_kv decoder mini-llama mini.npz --device cuda --batch 32 > universal_decoder.json
    python -m pltz.experiments.learned_kv decoder smollm2 smollm2.npz --device cuda --batch 16 >> universal_decoder.json
    python -m pltz.experiments.learned_kv decoder ... --seconds 0 >> universal_decoder.json: readers solved alone
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
Result = dict[str, Any]
Panel = tuple[Callable[["Axes", Any], None], Any]  # what draws it, and of what

# ---- one style: no frame, legends below the data, from zero

THEME = (
    "<style>svg{--ink:#24292f;--paper:#fff;color:var(--ink);fill:var(--ink)}"
    "@media (prefers-color-scheme:dark){svg{--ink:#d5dbe1;--paper:#0d1117}}</style>"
)
INK, PAPER = ("#000000", "#000", "black"), ("#ffffff", "#fff", "white")
# the colours of matplotlib's cycle, in shades that are legible on white and on black
SHADES = {"#1f77b4": "#4a90c2", "#ff7f0e": "#e08a3c", "#2ca02c": "#5aa469", "#d62728": "#c25b6e", "#9467bd": "#a98ac9"}


def blank(suffix: str, width: float, height: float) -> Figure:
    """Return an empty figure, sizes in inches.

    Raises:
        UsageError: ``suffix`` of its file is neither .png nor .svg, or matplotlib is not installed.
    """
    if suffix not in (".png", ".svg"):
        raise UsageError(f"cannot draw {suffix or 'a file without suffix'}: name a .png or .svg")
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise UsageError("drawing needs matplotlib: pip install 'pltz[plots]'") from exc
    return Figure(figsize=(width, height), layout="constrained")


def finish(axes: Axes, *, columns: int = 2) -> None:
    """Give some axes the common style, with the legend, if anything has a label, below them in ``columns``.

    A linear axis of values begins at zero and has thousands set apart. A logarithmic one says 10 k and not 10^4.
    """
    from matplotlib.ticker import EngFormatter, FuncFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.title.set_fontsize(9)
    for axis, scale, most in (
        (axes.xaxis, axes.get_xscale(), axes.dataLim.x1),
        (axes.yaxis, axes.get_yscale(), axes.dataLim.y1),
    ):
        axis.label.set_fontsize(9)
        if _is_named(axis):
            continue
        if scale == "log":
            axis.set_minor_formatter("")
        large = scale == "log" or most >= 1e6
        axis.set_major_formatter(EngFormatter(sep="") if large else FuncFormatter(lambda value, _: f"{value:,.12g}"))
    if axes.get_yscale() == "linear" and not _is_named(axes.yaxis):
        axes.set_ylim(0, 1.06 * axes.dataLim.y1)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, fontsize=8, frameon=False)


def _is_named(axis: Axis) -> bool:
    """Return whether the places of an axis have names of their own, and no numbers made of their values."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    return isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator)


def drawn(figure: Figure, suffix: str) -> bytes:
    """Return the figure as the bytes of a file. ``suffix``: .png or .svg."""
    import matplotlib

    data = io.BytesIO()
    if suffix == ".png":
        figure.savefig(data, format="png", dpi=150)
        return data.getvalue()
    with matplotlib.rc_context({"svg.hashsalt": "pltz"}):
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    return _themed(data.getvalue().decode()).encode()


def _themed(svg: str) -> str:
    """Return a drawing whose black and white are those of the reader's scheme."""
    colours = dict.fromkeys(INK, "currentColor") | dict.fromkeys(PAPER, "var(--paper)") | SHADES
    svg = re.sub(r"(?<=[:\" ])(#[0-9a-f]{6}|#[0-9a-f]{3}|black|white)(?=[;\"])", lambda m: colours.get(m[1], m[1]), svg)
    head = svg.index(">", svg.index("<svg")) + 1
    return svg[:head] + THEME + svg[head:]


def machine_of(result: Result) -> str:
    """Return the name of the GPU, or of the processor."""
    on = result["machine"]
    return str(on["cpu"] if on["device"] == "cpu" else on["device"])


def by_title(results: Iterable[Result], title: Callable[[Result], str]) -> list[tuple[str, list[Result]]]:
    """Return the results of each title, in the order of their first."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(title(result), []).append(result)
    return list(found.items())


def at_counts(axes: Axes, counts: Sequence[int]) -> None:
    """Let an axis of counts name those that were measured."""
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xticks([], minor=True)


def milliseconds(
    axes: Axes,
    rows: Sequence[Result],
    least: float,
    name: str,
    own: Collection[str] = (),
    note: Callable[[Result], str] = lambda row: "",
) -> None:
    """Draw a line from ``least`` to ``ms`` for each row, from below up. ``own``: names in the second colour."""
    for place, row in enumerate(rows):
        colour = "C1" if row[name] in own else "C0"
        axes.hlines(place, least, row["ms"], color=colour, linewidth=1.5)
        axes.plot(row["ms"], place, "o", color=colour)
        text = f"{row['ms']:,.1f} ms{note(row)}"
        axes.annotate(text, (row["ms"], place), (7, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row[name] for row in rows])


# ---- speed of the engines

WAYS = ("encode", "decode")


def speed(results: list[Result]) -> Iterable[Panel]:
    """Yield tokens/s by sessions together, microseconds per token by stage and by length, and seconds by engine.

    A panel is left out where a run did not measure it: the CUDA engine counts no stages, and --linear and --engines
    are optional.
    """
    found = results[0]
    on_gpu = found["machine"]["device"] != "cpu"
    yield _on(on_gpu, rates), found["rows"]
    if all(row[f"{way}_us_per_token"] for row in found["rows"] for way in WAYS):
        yield _on(on_gpu, stages), found["rows"]
    if found["linear"]:
        yield _on(on_gpu, costs), found["linear"]
    if found.get("engines"):
        yield _on(on_gpu, engines), found["engines"]


def _on(gpu: bool, draw: Callable[[Axes, Any], None]) -> Callable[[Axes, Any], None]:
    """Return a panel of which no label says CPU where the run was on a GPU."""

    def drawn(axes: Axes, data: Any) -> None:
        draw(axes, data)
        if gpu:
            axes.set_xlabel(axes.get_xlabel().replace("CPU ", ""))
            axes.set_ylabel(axes.get_ylabel().replace("CPU ", ""))

    return drawn


def speed_title(results: list[Result]) -> str:
    """Return machine, threads and engine of a run."""
    on = results[0]["machine"]
    threads = "1 thread" if on["threads"] == 1 else f"{on['threads']} threads"
    return f"{on['cpu']}, {threads}, {on['engine']}" if on["device"] == "cpu" else str(on["device"])


def rates(axes: Axes, rows: list[Result]) -> None:
    """Draw tokens/s by sessions together."""
    for way in WAYS:
        together = [str(row["sessions"]) for row in rows]
        axes.plot(together, [row[f"{way}_tokens_per_s"] for row in rows], "o-", label=way)
    axes.set(xlabel="sessions side by side", ylabel="tokens/s")


def stages(axes: Axes, rows: list[Result]) -> None:
    """Draw microseconds per token, with the stages stacked."""
    bars = [(f"{way}\n{row['sessions']}", row[f"{way}_us_per_token"]) for way in WAYS for row in rows]
    floor = [0.0] * len(bars)
    for stage in bars[0][1]:
        height = [split[stage] for _, split in bars]
        axes.bar([name for name, _ in bars], height, bottom=floor, label=stage)
        floor = [a + b for a, b in zip(floor, height, strict=True)]
    axes.set(ylabel="µs per token")


def costs(axes: Axes, lengths: list[Result]) -> None:
    """Draw microseconds per token by length of one session."""
    for way in WAYS:
        cost = [1e6 * one[f"{way}_processor_s"] / one["tokens"] for one in lengths]
        axes.plot([one["tokens"] for one in lengths], cost, "o-", label=way)
    axes.set(xlabel="tokens of one session", ylabel="CPU µs per token", xscale="log")


def engines(axes: Axes, rows: list[Result]) -> None:
    """Draw CPU seconds of one session by engine, as points on a logarithmic axis."""
    for way in WAYS:
        seconds = [row[f"{way}_processor_s"] for row in rows]
        axes.plot(seconds, range(len(rows)), "o", label=way)
    axes.set_yticks(range(len(rows)), [row["engine"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", linewidth=0.3)
    axes.set(xlabel="CPU seconds, one session", xscale="log")


# ---- sizes and training


def field(axes: Axes, found: Result) -> None:
    """Draw bits per byte of each coder against its speed."""
    for number, coder in enumerate(found["coders"]):
        speeds = [coder["encode_bytes_per_s"], coder["decode_bytes_per_s"]]
        rate, colour = coder["bits_per_byte"], f"C{number}"
        axes.plot(speeds, [rate, rate], "-", color=colour, linewidth=1)
        axes.plot(speeds[:1], [rate], "o", color=colour, markerfacecolor="white")
        axes.plot(speeds[1:], [rate], "o", color=colour)
        place = max(speeds), rate
        axes.annotate(coder["name"], place, (7, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(xscale="log", xlabel="bytes per CPU second: encode hollow, decode filled", ylabel="bits per byte")
    axes.margins(x=0.25)
    name = found["data"] if found["data"] == "sample sessions" else "unseen test sessions"
    axes.set_title(f"{name}: {found['sessions']:,} sessions, {found['content_bytes'] / 1000:,.0f} kB", fontsize=9)


NEAR = 9  # lines of the log in a mean


def training(axes: Axes, result: Result) -> None:
    """Draw bits per token of the training data, and a running mean, by tokens."""
    tokens = np.array(result["steps"]) * result["tokens_per_step"] / 1e6
    bits = np.array(result["bits_per_token"])
    axes.plot(tokens, bits, ".", color="C0", markersize=3, alpha=0.5, label="a few seconds")
    mean = np.convolve(bits, np.ones(NEAR) / NEAR, "valid")
    axes.plot(tokens[NEAR // 2 : NEAR // 2 + len(mean)], mean, "-", color="C1", label=f"mean of {NEAR}")
    axes.set(xlabel="million tokens", ylabel="bits per token, training data", title=result["run"])


def distances(axes: Axes, result: Result) -> None:
    """Draw bytes of each session after each other one, over its bytes alone. The sessions stand group by group."""
    count, groups = len(result["alone"]), result["groups"]
    order = sorted(range(count), key=lambda n: (n % groups, n))
    share = np.array(result["after"], float) / np.array(result["alone"], float)[:, None]
    share = share[np.ix_(order, order)]
    np.fill_diagonal(share, np.nan)  # a session is no neighbour of itself
    image = axes.imshow(share, cmap="viridis", interpolation="none")
    ends = np.cumsum([sum(n % groups == g for n in range(count)) for g in range(groups)])
    middles = (ends + np.concatenate([[0], ends[:-1]])) / 2 - 0.5
    names = [f"group {g + 1}" for g in range(groups)]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.set(xlabel="coded after", ylabel=f"{count} {result['source']}")
    axes.tick_params(length=0)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("bytes, over the bytes alone", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    axes.set_title("d_T: bytes of one session after another")


# ---- archive and nights


def sharing(axes: Axes, rows: Sequence[Result]) -> None:
    """Draw bytes per session against sessions, as the paper's Table 1."""
    for kind in dict.fromkeys(row["prompts"] for row in rows):
        mine = [row for row in rows if row["prompts"] == kind]
        axes.plot(
            [row["sessions"] for row in mine],
            [row["bytes_per_session"] for row in mine],
            marker="o",
            linestyle="--" if kind is None else "-",
            label="flat" if kind is None else f"{kind} shared prompt{'s' * (kind > 1)}",
        )
    axes.set(xscale="log", xlabel="sessions", ylabel="bytes per session, every file counted")


def growing(seconds: bool) -> Callable[[Axes, Any], None]:
    """Return the panel of bytes stored, or of seconds spent, per session, as turns arrive."""

    def draw(axes: Axes, rows: Sequence[Result]) -> None:
        for row in rows:
            label = row["way"] if row["sessions"] == 1 else f"{row['sessions']} sessions {row['way']}"
            spent = [s / row["sessions"] for s in row["seconds_after_put"]]
            values = spent if seconds else row["bytes_per_session_after_put"]
            axes.plot(row["tokens_after_put"], values, "-", marker="o" if row["puts"] == 1 else ".", label=label)
        what = "seconds per session, all puts so far" if seconds else "bytes per session, every file counted"
        axes.set(xlabel="tokens of a session", ylabel=what)
        axes.set_xlim(left=0)

    return draw


NIGHTS = {"new": ("-", "new sessions"), "known": ("--", "nothing new")}


def night_memory(axes: Axes, rows: Sequence[Result]) -> None:
    """Draw the peak memory of nights against sessions."""
    for night, (style, label) in NIGHTS.items():
        mine = [row for row in rows if row["night"] == night]
        counts = [row["sessions"] for row in mine]
        axes.plot(counts, [row["peak_memory_mb"] for row in mine], style, marker="o", label=label)
        freezing = [row["freeze_peak_memory_mb"] for row in mine]
        axes.plot(counts, freezing, ":", marker=".", label=f"{label}, freezing alone")
    axes.set(xscale="log", xlabel="sessions in the source", ylabel="peak memory of a night, MB")


def night_speed(axes: Axes, rows: Sequence[Result]) -> None:
    """Draw sessions per second of nights against sessions."""
    for night, (style, label) in NIGHTS.items():
        mine = [row for row in rows if row["night"] == night]
        axes.plot([row["sessions"] for row in mine], [row["per_s"] for row in mine], style, marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="sessions in the source", ylabel="sessions per second")


COSTS: dict[str, Callable[[dict[str, float]], float]] = {
    "requests": lambda cost: sum(cost[kind] for kind in ("GET", "PUT", "LIST", "DELETE")),
    "bytes read and written": lambda cost: cost["read"] + cost["written"],
    "dollars": lambda cost: cost["dollars"],
}


def scale(label: str) -> Callable[[Axes, Any], None]:
    """Return the panel of a cost against sessions. Sizes that were not made are hollow."""

    def draw(axes: Axes, rows: Sequence[Result]) -> None:
        for name in rows[-1]["costs"]:
            mine = [row for row in rows if name in row["costs"]]
            counts, found = [row["sessions"] for row in mine], [COSTS[label](row["costs"][name]) for row in mine]
            [line] = axes.plot(counts, found, label=name)
            for modelled, face in ((False, line.get_color()), (True, "none")):
                chosen = [n for n, row in enumerate(mine) if row["modelled"] == modelled]
                points = [counts[n] for n in chosen], [found[n] for n in chosen]
                axes.plot(*points, "o", color=line.get_color(), markerfacecolor=face, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="sessions in the archive", ylabel=label)

    return draw


# ---- thaws and KV

THAWS = "thaw", "thaw, fast layout"  # the thaws of a cold session


def thaw(axes: Axes, result: Result) -> None:
    """Draw milliseconds of each way to the KV."""
    rows = result["rows"][::-1]
    least = min(row["ms"] for row in rows) / 2
    own = {row["way"] for row in rows} & set(THAWS)
    milliseconds(axes, rows, least, "way", own, lambda row: f", {_stored(row['stored_bytes'])}")
    axes.set(xscale="log", xlabel="milliseconds")
    axes.set_xlim(least, 100 * max(row["ms"] for row in rows))
    fast = f", fast layout {result['fast_over_prefill']:.2f}" if "fast_over_prefill" in result else ""
    axes.set_title(
        f"{result['shape']}, {result['tokens']:,} tokens\n"
        f"{machine_of(result)}: thaw / prefill = {result['thaw_over_prefill']:.2f}{fast}",
        fontsize=9,
    )


def _stored(count: int) -> str:
    """Return the bytes stored for a way, as text."""
    if not count:
        return "nothing stored"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count:,} B"


def thaw_turns(axes: Axes, panel: tuple[str, list[Result]]) -> None:
    """Draw thaw over prefill by the turns that a session was archived in, a line per bundle and layout."""
    title, found = panel
    for result in found:
        for layout, lying in dict.fromkeys((row["layout"], _lying(row)) for row in result["turns"]):
            rows = [r for r in result["turns"] if (r["layout"], _lying(r)) == (layout, lying)]
            name = f"{result.get('bundle_name', 'mini')}, {layout} layout{'' if lying == 'apart' else f', {lying}'}"
            style = {"apart": "o-", "joined": "o:", "merged": "o--"}[lying]
            axes.plot([row["turns"] for row in rows], [row["over_prefill"] for row in rows], style, label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="turns in which the session was archived", ylabel="thaw / bare prefill")
    at_counts(axes, sorted({row["turns"] for result in found for row in result["turns"]}))
    axes.set(yscale="log")
    axes.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.set_yticks([], minor=True)
    axes.set_title(title, fontsize=9)


def _lying(row: Result) -> str:
    """Return how the turns of a row lie. Results before 2026-11-28 only say whether they were merged."""
    return str(row.get("turns_are", "merged" if row.get("merged") else "apart"))


def first_token(axes: Axes, panel: tuple[str, list[Result]]) -> None:
    """Draw seconds to the first token by the length of the session, a line per way."""
    title, results = panel
    found = sorted(results, key=lambda one: int(one["tokens"]))
    for number, way in enumerate(("cold", "archive", "warm", "warm, small", "hot")):
        points = [(one["tokens"], row["s"]) for one in found for row in one["rows"] if row["way"] == way]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=way)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the session", ylabel="seconds to the first token")
    at_counts(axes, [one["tokens"] for one in found])
    axes.set_title(title, fontsize=9)


OWN = "predictive"
TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)  # bits
LINE, COLUMN, TOP = 0.036, 0.82, 0.98  # height of a name, left of their column and its top, in parts of the axes
HIDDEN = ("control", "pca-2")  # outside of the figure: no loss, and all of it


def kv(axes: Axes, result: Result) -> None:
    """Draw KL against bits per element."""
    rows = [row for row in result["rows"] if row["form"] not in HIDDEN]
    own = sorted((row["bits"], row["kl"]) for row in rows if row["form"].startswith(OWN))
    axes.plot(*zip(*own, strict=True), "o-", color="C1", label=OWN, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="bits per element, all side data counted")
    others = [row for row in rows if not row["form"].startswith(OWN)]
    for row in others:
        colour = "C1" if row["form"] in ("q8", "q4") else "C0"
        axes.plot(row["bits"], row["kl"], "o", color=colour, markersize=4)
    least, most = axes.dataLim.x0 / 1.2, 4 * axes.dataLim.x1  # room for the column of names
    ticks = [bits for bits in TICKS if least <= bits <= most]
    axes.set_xticks(ticks, [f"{bits:g}" for bits in ticks])
    axes.set_xlim(least, most)
    axes.set_ylim(axes.get_ylim())
    _name(axes, [(row["form"], row["bits"], row["kl"]) for row in others])
    axes.set_ylabel("KL, bits per token")
    note = result.get("note", f"{result['sessions']} rows")
    axes.set_title(f"{result['target']}, {result['context']:,} tokens: {note}", fontsize=8)
    axes.grid(which="both", linewidth=0.2)


def _name(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names in a column at the right, in the order of the losses of their points, with a thin line to each."""
    to_axes = axes.transData + axes.transAxes.inverted()
    rows = sorted(points, key=lambda point: point[2])
    levels = list[float]()
    for _, bits, loss in rows:
        levels.append(max([float(to_axes.transform((bits, loss))[1]), *(levels[-1:] and [levels[-1] + LINE])]))
    top = TOP
    for number in reversed(range(len(levels))):  # down again where the column is too high
        levels[number] = min(levels[number], top)
        top = levels[number] - LINE
    line = {"arrowstyle": "-", "linewidth": 0.3, "color": "0.6"}
    for (name, bits, loss), level in zip(rows, levels, strict=True):
        place = (COLUMN, level)
        axes.annotate(name, (bits, loss), place, textcoords="axes fraction", fontsize=6, va="center", arrowprops=line)


def kv_device(axes: Axes, result: Result) -> None:
    """Draw milliseconds of a thaw from each form and tier."""
    rows = sorted(result["rows"], key=lambda row: -row["ms"])
    own = {row["way"] for row in rows if row["way"].startswith(OWN)}
    milliseconds(axes, rows, 1, "way", own, lambda row: f", {row['bytes'] / 1e6:,.0f} MB" if row["bytes"] else "")
    axes.set(xscale="log", xlabel="milliseconds, median")
    axes.set_xlim(1, 10 * max(row["ms"] for row in rows))
    axes.set_title(f"{result['shape']}, {result['tokens']:,} tokens, {result['machine']['device']}", fontsize=9)


# ---- experiments

SERIES = {"kv_alone": "KV, each session its own", "kv": "KV, shared", "coded": "coded tokens"}


def stack_bytes(axes: Axes, result: Result) -> None:
    """Draw bytes at every level."""
    levels = result["levels"]
    for place, (name, label) in enumerate(SERIES.items()):
        places = [n + 0.27 * (place - 1) for n in range(len(levels))]
        axes.barh(places, [row[name] for row in levels], 0.25, label=label)
    segments = [f"{row['segments']:,} {row['level']}{'s' * (row['segments'] > 1)}" for row in levels]
    axes.set_yticks(range(len(levels)), [name.replace("communitys", "communities") for name in segments])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="bytes")
    axes.set_title(f"{result['target']}, {result['kv_per_token']:,} bytes of KV per token")


def stack_tiers(axes: Axes, result: Result) -> None:
    """Draw milliseconds to each tier."""
    tiers = result["tiers"][::-1]
    least = min(row["ms"] for row in tiers) / 2
    milliseconds(axes, tiers, least, "tier")
    axes.set(xscale="log", xlabel="milliseconds to a session's KV")
    axes.set_xlim(least, 10 * max(row["ms"] for row in tiers))


def slots(axes: Axes, result: Result) -> None:
    """Draw bytes of plain slot files and of what is kept, against bots."""
    rows = result["rows"]
    bots = [row["bots"] for row in rows]
    for name, label in (("plain", "plain slot files"), ("kept", "one base and deltas")):
        axes.plot(bots, [row[name] for row in rows], "o-", markersize=4, label=label)
    for row in rows:
        share = f"{row['kept'] / row['plain']:.1%}"
        axes.annotate(share, (row["bots"], row["kept"]), (0, -12), textcoords="offset points", ha="center", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="bots", ylabel="bytes")
    axes.set_ylim(min(row["kept"] for row in rows) / 2, 2 * max(row["plain"] for row in rows))
    axes.set_title(f"{result['target']}, {result['platform_tokens']:,} tokens of the platform's prompt")


LEAST = 1e-5  # KL below which a point stands at the lower edge
FUSED = {
    "bff": "blocks of 8 sessions fused",
    "bff, centred": "the same, without the mean key",
    "cff": "8 chunks of a session fused",
}


def joint(axes: Axes, result: Result) -> None:
    """Draw KL against bits per element, of fused blocks and of smaller forms."""
    for strategy, label in FUSED.items():
        rows = sorted((one for one in result["fused"] if one["strategy"] == strategy), key=lambda one: one["bits"])
        losses = [max(float(one["kl"]), LEAST) for one in rows]
        axes.plot([one["bits"] for one in rows], losses, "o-", markersize=3, label=label)
    forms = by_title(sorted(result["forms"], key=lambda one: one["bits"]), lambda one: one["form"].split()[0])
    for name, rows in forms:
        losses = [max(float(one["kl"]), LEAST) for one in rows]
        axes.plot([one["bits"] for one in rows], losses, "s--", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bits per number of KV, all bytes", ylabel="KL, bits per token")
    axes.set_title(f"{result['target']}, {result['rows']} contexts of {result['context']} tokens")


ENDS = {"another session": "the KV of another session", "q4": "q4, which is stored"}
AIM = 0.1  # KL that the experiment was to reach


def universal_decoder(axes: Axes, panel: tuple[str, list[Result]]) -> None:
    """Draw KL of each decoder against its share of the prefill's compute: trained, or with readers solved alone."""
    target, runs = panel
    for number, (trained, label) in enumerate(((True, "trained"), (False, "readers solved alone"))):
        points = [
            (100 * row["share"], row["loss"]["kl"], row["name"])
            for run in runs for row in run["decoders"]
            if "loss" in row and (row["trained"]["steps"] > 0) == trained
        ]  # fmt: skip
        if points:
            x, y, _ = zip(*points, strict=True)
            axes.plot(x, y, "so"[trained], color=f"C{number}", label=label)
        for n, (share, kl, name) in enumerate(sorted(points)):  # above right, then below left
            at, side = (((3, 5), "left"), ((-3, -11), "right"))[n % 2]
            axes.annotate(name, (share, kl), at, textcoords="offset points", ha=side, fontsize=6)
    found = {row["form"]: row["kl"] for run in runs for row in run.get("ends", [])}
    for number, (name, label) in enumerate(ENDS.items()):
        if name in found:
            axes.axhline(found[name], color=f"C{2 + number}", linestyle="--", linewidth=1, label=label)
    axes.axhline(AIM, color="grey", linewidth=0.6)
    axes.set(xlim=(0, 105), yscale="log", xlabel="compute, % of the prefill", ylabel="KL, bits per token")
    axes.set_title(target)


# ---- the table


class Plot(NamedTuple):
    """A figure.

    Attributes:
        panels: what is drawn of the kept results, panel by panel.
        width, height: inches; the width of each panel where it is ``each``.
        columns: of the legend.
        title: of the figure.
        kl: whether the axis of values is one of KL, which needs no prefixes.
    """

    panels: Callable[[list[Result]], Iterable[Panel]]
    width: float
    height: float
    each: bool = False
    columns: int = 2
    title: Callable[[list[Result]], str] | None = None
    kl: bool = False


def single(draw: Callable[[Axes, Any], None], *key: str) -> Callable[[list[Result]], Iterable[Panel]]:
    """Return the panels of a figure with one panel, of the first result or of a field of it."""
    return lambda results: [(draw, results[0][key[0]] if key else results[0])]


def every(draw: Callable[[Axes, Any], None]) -> Callable[[list[Result]], Iterable[Panel]]:
    """Return the panels of a figure with a panel for each result."""
    return lambda results: [(draw, result) for result in results]


def titled(
    draw: Callable[[Axes, Any], None], title: Callable[[Result], str]
) -> Callable[[list[Result]], Iterable[Panel]]:
    """Return the panels of a figure with a panel for the results of each title."""
    return lambda results: [(draw, panel) for panel in by_title(results, title)]


SPEED = Plot(speed, 4, 4.2, each=True, title=speed_title)
PLOTS = {  # name of a figure and of the results kept for it
    "speed": SPEED,
    "speed_avx2": SPEED,
    "speed_cuda": SPEED,
    "thaw": Plot(every(thaw), 11, 4.2),
    "thaw_turns": Plot(
        titled(thaw_turns, lambda r: f"{r['shape']}, {r['tokens']:,} tokens, {machine_of(r)}"), 5, 4, each=True
    ),
    "sharing": Plot(single(sharing, "sharing"), 6, 4),
    "archive_growing": Plot(lambda r: [(growing(s), r[0]["growing"]) for s in (False, True)], 9, 4),
    "field": Plot(every(field), 6, 4.5, each=True),
    "nightly": Plot(lambda r: [(night_memory, r[0]["nights"]), (night_speed, r[0]["nights"])], 9, 4.2),
    "distances": Plot(single(distances), 5.6, 4.6),
    "kv": Plot(lambda r: [(kv, x) for x in r if x["target"] in ("smollm2", "key-bias")], 5.5, 4.2, each=True),
    "kv_device": Plot(every(kv_device), 6.5, 4, each=True),
    "universal_decoder": Plot(titled(universal_decoder, lambda r: r["target"]), 5.4, 4.4, each=True, kl=True),
    "first_token": Plot(titled(first_token, lambda r: f"{r['target']}, {machine_of(r)}"), 5, 4, each=True, columns=3),
    "training_mini": Plot(single(training), 6.4, 3.6),
    "scale": Plot(lambda rows: [(scale(label), rows) for label in COSTS], 10, 4.4),
    "stack": Plot(lambda r: [(stack_bytes, r[0]), (stack_tiers, r[0])], 11, 4, columns=1),
    "slots": Plot(single(slots), 6, 3.6),
    "joint": Plot(single(joint), 7, 4.2, columns=3),
}
KEPT = {"sharing": ("archive",), "field": ("field", "field_sample")}  # files of results, if not of the figure's name


def draw(name: str, results: list[Result], suffix: str = ".svg") -> bytes:
    """Return a figure as the bytes of a file. Raises UsageError where ``suffix`` is neither .png nor .svg."""
    plot = PLOTS[name]
    panels = list(plot.panels(results))
    figure = blank(suffix, plot.width * (len(panels) if plot.each else 1), plot.height)
    for axes, (panel, data) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, data)
        finish(axes, columns=plot.columns)
        if plot.kl:
            axes.yaxis.set_major_formatter("{x:g}")
    if plot.title is not None:
        figure.suptitle(plot.title(results), fontsize=9)
    return drawn(figure, suffix)


def kept(name: str) -> list[Result]:
    """Return the results kept for a figure, none where there are none."""
    paths = [RESULTS / f"{file}.json" for file in KEPT.get(name, (name,))]
    return [json.loads(line) for path in paths if path.is_file() for line in path.read_text("utf8").splitlines()]


def main() -> None:
    """Draw every figure whose results are kept."""
    for name in PLOTS:
        if results := kept(name):
            (RESULTS / f"{name}.svg").write_bytes(draw(name, results))
            print(RESULTS / f"{name}.svg")


if __name__ == "__main__":
    main()
