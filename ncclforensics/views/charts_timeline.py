"""The timeline of a postmortem: calls of each rank over time, last calls, failures and conditions on one axis."""

from __future__ import annotations

from datetime import datetime, timedelta

import altair as alt
import polars as pl

from ncclforensics.analyses.job.calls.shown_calls import LAST
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import known
from ncclforensics.report.build import Report
from ncclforensics.report.timeline import Timeline, timeline_of
from ncclforensics.views.charts import CULPRIT, WIDTH, cut, svg

MOST_ROWS = 48  # ranks, or hosts where ranks are more
BINS = 60  # of the time that calls take
ROW, LABEL, LEAST_HEIGHT = 14, 13, 120  # pixels
FAILURE = "failure"
CALLS = "calls"
SHORT = timedelta(seconds=5)  # shorter times are shown with milliseconds


def timeline(report: Report, answer: Answer) -> str:
    """Draw what happened when; nothing where lines carry no times."""
    events = timeline_of(report.run, answer.job)
    rows, unit = _rows(report, answer)
    ends = events.ends.join(rows, on="rank_id")
    if events.is_empty or ends.is_empty():
        return ""
    order = rows["row"].unique(maintain_order=True).to_list()
    moments = [*ends["time"], *events.calls["time"].sort().gather([0, -1] if events.calls.height else [])]
    moments += [condition.time for condition in events.conditions]
    is_short = max(moments) - min(moments) < SHORT
    axis = alt.Axis(format="%H:%M:%S.%L" if is_short else "%H:%M:%S", labelOverlap=True)
    title = f"time, by each host's own clock{_date(min(moments))}"
    time = alt.X("time:T", title=title, axis=axis, scale=alt.Scale(domain=[*map(_exact, (min(moments), max(moments)))]))
    row = alt.Y("row:N", title=unit, sort=order, axis=alt.Axis(labelOverlap=True))
    colour = alt.Color(
        "role:N", title=None, scale=alt.Scale(domain=[CULPRIT, "others"], range=["var(--red)", "var(--blue)"])
    )
    layers = [*_call_layers(events, rows, time, row, colour), *_rules(events, time)]
    legend = alt.Legend(symbolFillColor="var(--ink)", symbolStrokeColor="var(--ink)")
    shape = alt.Shape(
        "kind:N", title=None, legend=legend, scale=alt.Scale(domain=[LAST, FAILURE], range=["circle", "triangle"])
    )
    kind = pl.when(pl.col("what") == LAST).then(pl.lit(LAST)).otherwise(pl.lit(FAILURE))
    points = ends.select("row", "role", "time", kind=kind).unique(maintain_order=True)
    layers.append(
        alt.Chart(points).mark_point(filled=True, size=60, opacity=1).encode(x=time, y=row, shape=shape, color=colour)
    )
    return svg(alt.layer(*layers).properties(width=WIDTH, height=max(LEAST_HEIGHT, ROW * len(order))))


def _rows(report: Report, answer: Answer) -> tuple[pl.DataFrame, str]:
    """Return the row and the role of each rank: its number, or its host where ranks are many; culprits first of these.

    Of more hosts than there are rows, those with culprits and some of the others are shown.
    """
    ranks = report.run["rank"].filter(pl.col("job") == answer.job).sort("rank", nulls_last=True)
    is_culprit = pl.col("rank_id").is_in(list(answer.culprits))
    ranks = ranks.with_columns(role=pl.when(is_culprit).then(pl.lit(CULPRIT)).otherwise(pl.lit("others")))
    if ranks.height <= MOST_ROWS:
        names = ["?" if number is None else str(number) for number in ranks["rank"]]
        return ranks.select("rank_id", "role", row=pl.Series(names, dtype=pl.String)), "rank"
    hosts = ranks.select("rank_id", "role", row=pl.Series([known(host) for host in ranks["host"]], dtype=pl.String))
    first = hosts.filter(pl.col("role") == CULPRIT)["row"].unique(maintain_order=True).head(MOST_ROWS // 2)
    others = hosts.filter(~pl.col("row").is_in(first.implode()))["row"].unique(maintain_order=True)
    step = -(-len(others) // (MOST_ROWS - len(first)))
    shown = pl.concat([first, others.gather_every(step)])
    kept = hosts.filter(pl.col("row").is_in(shown.implode()))
    unit = "host" if kept["row"].n_unique() == hosts["row"].n_unique() else f"{len(shown)} of the hosts"
    return kept, unit


def _call_layers(events: Timeline, rows: pl.DataFrame, time: alt.X, row: alt.Y, colour: alt.Color) -> list[alt.Chart]:
    """Return the calls of each row as bars in intervals of time: the darker, the more calls."""
    calls = events.calls.join(rows, on="rank_id")
    if calls["time"].n_unique() < 2:
        return []
    first, last = calls.select(first=pl.col("time").min(), last=pl.col("time").max()).row(0)
    width = max((last - first) / BINS, timedelta(microseconds=1))
    number = ((pl.col("time") - first) / width).cast(pl.Int64).clip(0, BINS - 1)
    counted = calls.with_columns(interval=number).group_by("row", "role", "interval", maintain_order=True).len("calls")
    begins = pl.lit(first) + pl.col("interval") * width
    bars = counted.with_columns(time=begins, end=begins + width)
    opacity = alt.Opacity("calls:Q", legend=None, scale=alt.Scale(range=[0.25, 0.75]))
    return [alt.Chart(bars).mark_rect().encode(x=time, x2="end:T", y=row, color=colour, opacity=opacity)]


def _rules(events: Timeline, time: alt.X) -> list[alt.Chart]:
    """Return vertical lines with their labels: when the first rank fell silent, and when conditions began."""
    marks = [(condition.time, cut(condition.text)) for condition in events.conditions]
    silence = events.first_silence
    marks += [(silence, "first rank silent")] if silence is not None else []
    layers: list[alt.Chart] = []
    for place, (moment, text) in enumerate(marks):
        frame = pl.DataFrame({"time": [moment], "text": [text]}, schema_overrides={"time": pl.Datetime("us")})
        base = alt.Chart(frame).encode(x=time)
        label = base.mark_text(align="right", dx=-4, baseline="top", fontSize=11)
        layers.append(base.mark_rule(strokeDash=[4, 3], stroke="var(--orange)"))
        layers.append(label.encode(text="text:N", y=alt.value(-LABEL * (len(marks) - place))))
    return layers


def _exact(moment: datetime) -> alt.DateTime:
    return alt.DateTime(
        year=moment.year, month=moment.month, date=moment.day, hours=moment.hour, minutes=moment.minute,
        seconds=moment.second, milliseconds=moment.microsecond // 1000,
    )  # fmt: skip


def _date(moment: datetime) -> str:
    """Name the day of an axis; nothing for a clock that prints no year."""
    return "" if moment.year == 2000 else f", {moment:%Y-%m-%d}"
