"""A heat map of a slow job: by how much each rank works longer than the others, step by step."""

from __future__ import annotations

import altair as alt
import polars as pl

from ncclforensics.report.slow import late_cells, late_ranks
from ncclforensics.views.charts import WIDTH, svg

MOST_ROWS, MOST_STEPS = 64, 120  # of more ranks or steps, neighbours share a cell, which shows the latest of them
ROW = 12  # pixels
FEWEST_STEPS = 3


def late_steps(own_time: pl.DataFrame) -> str:
    """Draw a cell for each rank and step (rows of `own_time`); an empty text for fewer than three steps."""
    if own_time["step"].n_unique() < FEWEST_STEPS:
        return ""
    cells = late_cells(late_ranks(own_time), MOST_ROWS, MOST_STEPS).with_columns(late=pl.col("late_us") / 1000)
    is_grouped = (cells["rank"] != cells["last_rank"]).any()
    chart = (
        alt.Chart(cells)
        .mark_rect(color="var(--orange)")
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("rank:O", title="first of some ranks" if is_grouped else "rank"),
            opacity=alt.Opacity("late:Q", title="longer than the median (ms)", scale=alt.Scale(range=[0.02, 1])),
        )
        .properties(width=WIDTH, height=ROW * cells["row"].n_unique())
    )
    return svg(chart)
