"""Problems of the output of fabric tools: missing headings, failed tools, ports that did not answer."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above
from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.frames.registry import analysis

MOST_FAILURES = 3  # of one source; more are reported as one problem


@analysis(
    PROBLEM,
    of=("counter_line", "map_port", "tool_failure", "counters_summary", "link_line", "adapter_field", "counters_port"),
)
def fabric_problem(
    counter_head: pl.DataFrame,
    counter_line: pl.DataFrame,
    counters_of: pl.DataFrame,
    counters_port: pl.DataFrame,
    counters_summary: pl.DataFrame,
    map_node: pl.DataFrame,
    map_port: pl.DataFrame,
    linked_node: pl.DataFrame,
    link_line: pl.DataFrame,
    adapter: pl.DataFrame,
    adapter_port: pl.DataFrame,
    tool_failure: pl.DataFrame,
) -> pl.DataFrame:
    """Problems of dumps as text: missing headings, failed tools, ports that did not answer."""
    switch_links = link_line.filter(pl.col("guid").is_null() & pl.col("node").is_null() & pl.col("peer_guid").is_null())
    headless = [
        (counter_line, counter_head, "counters before the first heading: their port is unknown"),
        (counters_port, counters_of, "a port before the first `Errors for`: its node is unknown"),
        (map_port, map_node, "links before the first node: their node is unknown"),
        (switch_links, linked_node, "links before the first node: their node is unknown"),
        (adapter_port, adapter, "a port before the first adapter: its device is unknown"),
    ]
    problems = []
    for rows, heads, words in headless:
        lost = add_heading_above(_beginnings(rows), heads.select(*OUTPUT_KEY, "line")).filter(
            pl.col("head_line").is_null()
        )
        first = lost.group_by("source", maintain_order=True).agg(pl.col("line").min())
        problems.append(first.select("source", "line", problem=pl.format("line {}: " + words, "line")))
    of_device = pl.concat_str("subject", "error", separator=": ", ignore_nulls=True)
    message = pl.coalesce("message", "unopened", of_device).str.strip_chars().str.slice(0, 120)
    # A device that did not answer is a finding; the tool went on.
    failed = tool_failure.filter(pl.col("form") != "unanswered")
    failures = failed.with_columns(problem=pl.format("line {}: the tool failed: {}", "line", message))
    several = failures.group_by("source", maintain_order=True).agg(
        pl.col("line").first(), count=pl.len(), problem=pl.col("problem").first()
    )
    more = pl.format("{} (and {} similar lines)", "problem", pl.col("count") - 1)
    problems.append(
        several.select(
            "source", "line", problem=pl.when(pl.col("count") > MOST_FAILURES).then(more).otherwise("problem")
        )
    )
    unanswered = counters_summary.filter(pl.col("failures") > 0)
    problems.append(
        unanswered.select("source", "line", problem=pl.format("line {}: {} ports did not answer", "line", "failures"))
    )
    return pl.concat(problems, how="vertical_relaxed").unique(maintain_order=True)


def _beginnings(rows: pl.DataFrame) -> pl.DataFrame:
    """The places of rows that do not continue the output of the row above: the first without a heading is one."""
    is_other = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in OUTPUT_KEY)
    return rows[:, [*OUTPUT_KEY, "line"]].filter(is_other | (pl.col("line") < pl.col("line").shift()))
