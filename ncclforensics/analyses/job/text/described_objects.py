"""Pods and nodes as kubectl describe shows them: which of them, and which container, a line belongs to."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.sampled_outputs import row_above

LONGEST = 600  # lines of one description
DESCRIBED_TITLE = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # valid from here on
    "name": pl.String(),  # of the pod or node; null where it was cut off
    "part": pl.String(),  # form of `described_section`; null above the first of these parts, and in others
    "container": pl.String(),
}


@analysis(DESCRIBED_TITLE, of=("described_section",))
def described_title(
    described_name: pl.DataFrame,
    described_section: pl.DataFrame,
    described_other: pl.DataFrame,
    described_container: pl.DataFrame,
) -> pl.DataFrame:
    """One row per title of a description: what it and the lines below it, until the next title, belong to."""
    indent = text_of("indent").str.len_chars().fill_null(0)
    names = described_name.with_columns(indent=indent)
    outermost = names.filter(pl.col("indent") == pl.col("indent").min().over("source"))  # others are names of volumes
    rows = pl.concat(
        [
            outermost.select("source", "line", title=text_of("described_name"), kind=pl.lit("name")),
            described_section.select("source", "line", title=text_of("form"), kind=pl.lit("part")),
            described_other.select("source", "line", title=pl.lit(None, pl.String), kind=pl.lit("part")),
            described_container.select("source", "line", title=text_of("container"), kind=pl.lit("container")),
        ]
    ).sort("source", "line")
    titles = []
    source, name, part = None, None, None
    for row in rows.to_dicts():
        if row["source"] != source:
            source, name, part = row["source"], None, None
        if row["kind"] == "name":
            name, part = row["title"], None
        elif row["kind"] == "part":
            part = row["title"]
        container = row["title"] if row["kind"] == "container" and part == "containers" else None
        titles.append((source, row["line"], name, part, container))
    return pl.DataFrame(titles, schema=DESCRIBED_TITLE, orient="row")


def with_described(rows: pl.DataFrame, described_title: pl.DataFrame) -> pl.DataFrame:
    """Add to each row the container, pod or node in whose description it stands, in words (`described`)."""
    titles = titles_above(rows, described_title)
    container = pl.format("container {}", "container")
    of_container = pl.concat_str(container, "name", separator=" of ", ignore_nulls=True)
    named = pl.when(pl.col("container").is_null()).then("name").otherwise(of_container)
    return rows.with_columns(titles.select(described=named)["described"])


def titles_above(rows: pl.DataFrame, described_title: pl.DataFrame) -> pl.DataFrame:
    """The name, part and container of the last title above each row; null where none is near."""
    above = row_above(rows["source"], rows["line"], described_title["source"], described_title["line"])
    titles = described_title.select(pl.all().gather(above))
    is_far = rows["line"] - titles["line"] > LONGEST
    return titles.select(pl.when(~is_far).then(name).alias(name) for name in ("name", "part", "container"))
