"""A heat map of a slow job: by how much each rank works longer than the others, step by step."""

from __future__ import annotations

import altair as alt
import polars as pl

from ncclforensics.views.charts import WIDTH, svg

MOST_ROWS, MOST_STEPS = 64, 120  # of more ranks or steps, neighbours share a cell, which shows the latest of them
ROW = 12  # pixels
FEWEST_STEPS = 3


def late_steps(own_time: pl.DataFrame) -> str:
    """Draw a cell for each rank and step (rows of `own_time`); an empty text for fewer than three steps."""
    if own_time["step"].n_unique() < FEWEST_STEPS:
        return ""
    late = own_time.select(
        "rank",
        "step",
        "number",
        late=(pl.col("own_us") - pl.col("own_us").median().over("step")).clip(lower_bound=0) / 1000,
    )
    ranks, steps = late["rank"].rank("dense") - 1, late["step"].rank("dense") - 1
    wide, long = 1 + late["rank"].n_unique() // MOST_ROWS, 1 + late["step"].n_unique() // MOST_STEPS
    cells = (
        late.with_columns(row=ranks // wide, column=steps // long)
        .group_by("row", "column")
        .agg(
            pl.col("late").max(),
            rank=pl.col("rank").min(),
            step=pl.coalesce("number", "step").min(),
        )
        .sort("row", "column")
    )
    chart = (
        alt.Chart(cells)
        .mark_rect(color="var(--orange)")
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("rank:O", title="rank" if wide == 1 else f"first of {wide} ranks"),
            opacity=alt.Opacity("late:Q", title="longer than the median (ms)", scale=alt.Scale(range=[0.02, 1])),
        )
        .properties(width=WIDTH, height=ROW * cells["row"].n_unique())
    )
    return svg(chart)
