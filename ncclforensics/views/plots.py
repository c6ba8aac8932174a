"""Plots of curves over sizes, drawn with characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ncclforensics.data.names import bytes_text

MIN_SIZES = 5  # fewer sizes are not plotted
HEIGHT, WIDTH = 14, 76  # in characters
TICKS = 6
MARKERS = ("braille", ".")


def plot(curves: Mapping[str, list[tuple[int, float]]], *, levels: Iterable[float] = ()) -> str:
    """Plot up to two named curves, the first as a line, the second as points, and horizontal levels."""
    import plotext  # type: ignore[import-untyped]  # untyped, and imported only when needed

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(WIDTH, HEIGHT)
    plotext.xscale("log")
    for (name, points), marker in zip(curves.items(), MARKERS, strict=False):
        draw = plotext.plot if marker == MARKERS[0] else plotext.scatter
        draw([size for size, _ in points], [value for _, value in points], marker=marker, label=name)
    sizes = sorted({size for points in curves.values() for size, _ in points})
    for value in levels:
        plotext.plot([sizes[0], sizes[-1]], [value, value], marker="-")
    ticks = sizes[:: max(1, -(-len(sizes) // TICKS))]
    plotext.xticks(ticks, [bytes_text(size) for size in ticks])
    plotext.ylim(0, None)
    return str(plotext.uncolorize(plotext.build())).rstrip()
