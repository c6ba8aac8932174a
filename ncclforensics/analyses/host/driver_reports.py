"""What drivers in the kernel say that failed: of which device, in which words, and what these are about."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.kernel_events import of_these_days
from ncclforensics.data.driver_topics import DRIVER_TOPICS, OTHER_TOPIC
from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.grammar_file import load

DRIVER_REPORT = {
    **LINE,
    "node": pl.Categorical(),
    "logged": pl.Categorical(),
    "launcher_time": pl.Categorical(),
    "device_kind": pl.String(),  # a key of DEVICE_KINDS
    "busid": pl.Categorical(),
    "device": pl.String(),  # as the line names it beside the address; null without a name
    "statement": pl.String(),  # without the function and the place in its source
    "alike": pl.String(),  # the statement without numbers: equal for repetitions
    "topic": pl.String(),  # a key of DRIVER_TOPICS
    "error_number": pl.Int32(),  # an errno; null without one
}
GRAMMAR = "driverlog"
NAMES = ("interface", "rdma_device", "hfi", "cxi", "switch", "disk", "volume")


@analysis(DRIVER_REPORT, of=("driver_statement",))
def driver_report(driver_statement: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """One row per line in which a driver states a failure, except for those of other days than the run."""
    part = load(GRAMMAR).part_regex
    words = pl.col("statement")
    topics = [name for name in DRIVER_TOPICS if name != OTHER_TOPIC]
    named = [pl.when(words.str.contains(part(f"_topic_{name}"))).then(pl.lit(name)) for name in topics]
    name = pl.coalesce(*(text_of(column) for column in NAMES))
    in_words = text_of("statement").str.extract(f"({part('_gpu')})").str.strip_chars_end(" ,;")
    is_nothing = words.str.contains(part("_of_nothing"))
    number = words.str.extract(f"({part('_error_number')})").str.split("-").list.last()
    return (
        of_these_days(driver_statement, run_days, run_start)
        .with_columns(
            device_kind=text_of("form"),
            device=pl.when(~name.str.starts_with("(")).then(name).otherwise(in_words),
            statement=text_of("statement").str.replace(f"^(?:{part('_head')})", ""),
        )
        .filter(words.str.contains(part("_of_failure")) & (~is_nothing | words.str.contains(part("_of_abort"))))
        .with_columns(
            alike=words.str.replace_all(r"(0x)?[0-9a-f]*[0-9][0-9a-f]*", ""),
            topic=pl.coalesce(*named, pl.lit(OTHER_TOPIC)),
            error_number=number.cast(pl.Int32, strict=False),
        )
        .select(*DRIVER_REPORT)
        .sort("source", "line")
    )
