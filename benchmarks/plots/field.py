"""Draw the figure of `python -m pltz.benchmarks field` with matplotlib (extra ``plots``)."""

from typing import Any

from pltz.benchmarks.plots import figure as canvas


def rates(runs: dict[str, dict[str, Any]], suffix: str) -> bytes:
    """Return the figure as the bytes of a file: bits per byte against speed, one panel per run, by its title.

    Raises:
        UsageError: ``suffix`` is neither .png nor .svg.
    """
    figure = canvas.blank(suffix, 6 * len(runs), 4.5)
    for axes, (name, found) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        for number, coder in enumerate(found["coders"]):
            speeds = [coder["encode_bytes_per_s"], coder["decode_bytes_per_s"]]
            rate, colour = coder["bits_per_byte"], f"C{number}"
            axes.plot(speeds, [rate, rate], "-", color=colour, linewidth=1)
            axes.plot(speeds[:1], [rate], "o", color=colour, markerfacecolor="white")
            axes.plot(speeds[1:], [rate], "o", color=colour)
            place = max(speeds), rate
            axes.annotate(coder["name"], place, (7, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set(
            xscale="log", xlabel="bytes per CPU second: encode hollow, decode filled", ylabel="bits per byte"
        )
        axes.margins(x=0.25)
        title = f"{name}: {found['sessions']:,} sessions, {found['content_bytes'] / 1000:,.0f} kB"
        axes.set_title(title, fontsize=9)
        canvas.finish(axes)
    return canvas.drawn(figure, suffix)
