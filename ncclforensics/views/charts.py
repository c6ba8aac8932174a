"""Charts for the postmortem, drawn as SVG by Altair and vl-convert without a browser or the network.

Colours are CSS variables of the page, so that charts are readable on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import atan2, degrees
from typing import Any, Literal

import altair as alt
import polars as pl
import vl_convert

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import bytes_text, printable, short_ranks, shortened
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.views.rank_map import Part

WIDTH = 600  # pixels; narrow pages shrink charts
CULPRIT, WAITS = str(Part.CULPRIT), str(Part.WAITS)
COLOURS = ["var(--blue)", "var(--orange)", "var(--green)", "var(--purple)", "var(--brown)", "var(--grey)"]
MOST_NODES = 12  # groups of ranks in the waiting graph
MOST_RANKS = 64  # larger matrices show hosts instead of ranks
MOST_CELLS = 4096  # of a matrix
MOST_TICKS = 6
LONGEST = 30  # characters of a label
COLUMN, STEP = 60, 52  # pixels from the middle of a graph to its two columns, and between the nodes of a column

Node = tuple[int, ...]  # rank_ids


def svg(chart: alt.TopLevelMixin) -> str:
    """Render a chart as an SVG element in the colours of the page."""
    ink, paper = "var(--ink)", "var(--paper)"
    styled = (
        chart.properties(background="transparent")
        .configure(font="system-ui, sans-serif", aria=False)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=12,
            labelColor=ink,
            titleColor=ink,
            gridColor="var(--line)",
            domainColor=ink,
            tickColor=ink,
        )
        .configure_legend(labelFontSize=12, labelColor=ink, titleColor=ink, labelLimit=0, orient="bottom")
        .configure_view(stroke=None)
        .configure_text(color=ink)
        .configure_point(stroke=paper)
    )
    return str(vl_convert.vegalite_to_svg(styled.to_dict()))


def waiting(report: Report, answer: Answer) -> str:
    """Draw the waiting graph: groups of ranks with arrows to the ranks for which they wait."""
    nodes, edges = _groups(report, answer)
    if not edges or len(nodes) > MOST_NODES:
        return ""
    places = _columns(nodes, edges)
    node_rows = [
        {
            "x": x,
            "y": y,
            "label": cut(short_ranks(report.numbers(list(node)), LONGEST) or f"{len(node)} ranks"),
            "what": cut(nodes[node]),
            "role": CULPRIT if set(node) & set(answer.culprits) else WAITS,
        }
        for node, (x, y) in places.items()
    ]
    arrows = [_arrow(places[a], places[b]) for a, b in edges]
    half = max(abs(y) for _, y in places.values()) + STEP // 2

    def at(x: str, y: str) -> dict[str, Any]:
        return {
            "x": alt.X(f"{x}:Q", axis=None, scale=alt.Scale(domain=[-WIDTH / 2, WIDTH / 2])),
            "y": alt.Y(f"{y}:Q", axis=None, scale=alt.Scale(domain=[half, -half])),
        }

    lines = alt.Chart(pl.DataFrame(arrows))
    role_colour = alt.Color(
        "role:N",
        title=None,
        scale=alt.Scale(domain=[CULPRIT, WAITS], range=["var(--red)", "var(--orange)"]),
    )
    groups = alt.Chart(pl.DataFrame(node_rows))
    left_of_node: Literal["right"] = "right"
    right_of_node: Literal["left"] = "left"
    texts = [
        side.mark_text(align=align, dx=dx, dy=dy, fontSize=size).encode(**at("x", "y"), text=text)
        for side, align, dx in (
            (groups.transform_filter("datum.x < 0"), left_of_node, -16),
            (groups.transform_filter("datum.x > 0"), right_of_node, 16),
        )
        for text, dy, size in (("label:N", -6, 13), ("what:N", 9, 11))
    ]
    return svg(
        alt.layer(
            lines.mark_rule(color="var(--ink)", strokeWidth=1.5).encode(**at("x", "y"), x2="x2", y2="y2"),
            lines.mark_point(shape="triangle", filled=True, size=140, color="var(--ink)", opacity=1).encode(
                **at("at_x", "at_y"), angle=alt.Angle("turn:Q", scale=None)
            ),
            groups.mark_circle(size=420, opacity=1).encode(**at("x", "y"), color=role_colour),
            *texts,
        ).properties(width=WIDTH, height=2 * half)
    )


def _groups(report: Report, answer: Answer) -> tuple[dict[Node, str], list[tuple[Node, Node]]]:
    """Group ranks that wait in the same call for the same ranks; return (node -> call, edges)."""
    waits = {wait.waiter: wait for wait in report.job(answer.job).waits}
    awaited = {wait.waits_for: number for number, wait in enumerate(waits.values())}  # set of ranks -> its number
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank_id in sorted({*waits, *(target for ranks in awaited for target in ranks)}):
        wait = waits.get(rank_id)
        awaited_in = () if wait else tuple(number for ranks, number in awaited.items() if rank_id in ranks)
        what = wait.call_text if wait else ""
        targets = wait.waits_for if wait else ()
        alike.setdefault((what, wait.key if wait else "", targets, awaited_in), []).append(rank_id)
    nodes = {tuple(members): str(key[0]) for key, members in alike.items()}
    targets_of = {tuple(members): set(key[2]) for key, members in alike.items()}
    edges = [(a, b) for a in nodes for b in nodes if a != b and not targets_of[a].isdisjoint(b)]
    return nodes, edges


def _columns(nodes: Iterable[Node], edges: list[tuple[Node, Node]]) -> dict[Node, tuple[float, float]]:
    """Return the positions of the nodes: who waits on the left, who waits for no rank on the right.

    In a circle, where all wait, every second node is on the right.
    """
    waiting = {start for start, _ in edges}
    columns: tuple[list[Node], list[Node]] = ([], [])
    is_circle = all(node in waiting for node in nodes)
    for number, node in enumerate(nodes):
        columns[number % 2 if is_circle else node not in waiting].append(node)
    return {
        node: ((-COLUMN, COLUMN)[side], STEP * (row - (len(column) - 1) / 2))
        for side, column in enumerate(columns)
        for row, node in enumerate(column)
    }


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> Row:
    (x, y), (x2, y2) = start, end
    head = 0.68  # position on the line, so that opposite arrows are distinguishable
    turn = degrees(atan2(y2 - y, x2 - x)) + 90
    return {"x": x, "y": y, "x2": x2, "y2": y2, "at_x": x + head * (x2 - x), "at_y": y + head * (y2 - y), "turn": turn}


def cut(text: str) -> str:
    """Shorten a label."""
    return shortened(printable(text), LONGEST)


def connections(report: Report, job: int) -> tuple[str, str]:
    """Draw the matrix of transports between ranks or hosts; return the SVG and the unit of a row."""
    memberships = report.run["rank"].filter(pl.col("job") == job).select("rank_id", "rank", "host")
    unit = "rank" if memberships.height <= MOST_RANKS else "host"
    named = memberships.select("rank_id", name=pl.col(unit).cast(pl.String))
    job_connections = report.run["rank_connection"].filter(pl.col("job") == job)
    cells = (
        job_connections.join(named, on="rank_id")
        .join(named.rename({"rank_id": "peer", "name": "to"}), on="peer")
        .group_by("name", "to", "transport")
        .agg(pl.col("connections").sum())
        .sort("name", "to", "connections", "transport", descending=[False, False, True, False])
        .unique(["name", "to"], keep="first", maintain_order=True)
    )
    if cells.is_empty() or cells.height > MOST_CELLS:
        return "", ""
    order = (
        memberships.sort("rank", nulls_last=True)[unit]
        .drop_nulls()
        .cast(pl.String)
        .unique(maintain_order=True)
        .to_list()
    )
    labels = alt.Axis(labelOverlap=True, grid=False, labelLimit=120, titlePadding=24 if unit == "host" else 8)
    size = max(160, min(WIDTH - 160, 16 * len(order)))
    chart = (
        alt.Chart(cells.select("name", "to", "transport"))
        .mark_rect(stroke="var(--paper)")
        .encode(
            x=alt.X("to:N", title=f"to {unit}", sort=order, scale=alt.Scale(domain=order), axis=labels),
            y=alt.Y("name:N", title=f"from {unit}", sort=order, scale=alt.Scale(domain=order), axis=labels),
            color=alt.Color("transport:N", title=None, scale=alt.Scale(range=COLOURS)),
        )
        .properties(width=size, height=size)
    )
    return svg(chart), unit


def curve(row: Row, measured: pl.DataFrame, expected: tuple[float, ...]) -> str:
    """Draw the bus bandwidth of a benchmark over size, with the expected range of the machine."""
    points = measured.filter((pl.col("size") > 0) & pl.col("busbw").is_finite()).sort("size")
    if points["size"].n_unique() < 2:
        return ""
    ticks = points["size"].unique().sort()
    shown = ticks.gather_every(-(-ticks.len() // MOST_TICKS)).to_list()
    names = {size: bytes_text(size) for size in shown}
    label_expression = " : ".join(f"datum.value == {size} ? '{name}'" for size, name in names.items())
    lines = (
        alt.Chart(points.select("size", "busbw", "half"))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "size:Q",
                title="size",
                scale=alt.Scale(type="log", base=2, nice=False),
                axis=alt.Axis(values=shown, labelExpr=f"{label_expression} : ''", grid=False),
            ),
            y=alt.Y("busbw:Q", title="bus bandwidth, GB/s", scale=alt.Scale(zero=True)),
            color=alt.Color("half:N", title=None, scale=alt.Scale(range=COLOURS[:2])),
        )
    )
    limits = pl.DataFrame({"busbw": list(expected)}, schema={"busbw": pl.Float64})
    rules = alt.Chart(limits).mark_rule(color="var(--green)", strokeDash=[6, 4], strokeWidth=1.5).encode(y="busbw:Q")
    return svg(alt.layer(rules, lines).properties(width=WIDTH - 60, height=220))


def increases(rows: list[tuple[str, int]]) -> str:
    """Draw the increases of counters as logarithmic bars: (port and counter, increase)."""
    shown = pl.DataFrame(rows, schema={"counter": pl.String, "increase": pl.Int64}, orient="row")
    shown = shown.with_columns(
        label=pl.col("increase").map_elements(lambda value: f"{value:,}", return_dtype=pl.String)
    )
    order = shown["counter"].to_list()
    bars = alt.Chart(shown).encode(y=alt.Y("counter:N", title=None, sort=order, axis=alt.Axis(labelLimit=0)))
    length = alt.X(
        "increase:Q", title="increase", scale=alt.Scale(type="symlog"), axis=alt.Axis(tickCount=5, format="~s")
    )
    return svg(
        alt.layer(
            bars.mark_bar(color="var(--orange)").encode(x=length),
            bars.mark_text(align="left", dx=4, fontSize=11).encode(x=length, text="label:N"),
        ).properties(width=WIDTH // 2, height=max(40, 22 * len(rows)))
    )
