"""Variables of NCCL that the job's script exports, or that stand in the command that started the job."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import TEXT, find_values

EXPORTED_VARIABLE = {
    **LINE,
    "variable": pl.String(),
    "value": pl.String(),
    "launcher_rank": pl.Int32(),  # of the line
    "is_in_command": pl.Boolean(),  # given to the processes that the command starts, and to no other ones
}


@analysis(EXPORTED_VARIABLE, of=("exported", "launch_command"))
def exported_variable(exported: pl.DataFrame, launch_command: pl.DataFrame) -> pl.DataFrame:
    """Every variable that a script or a command sets, without quotation marks around its value."""
    value = pl.coalesce(text_of("word_value"), text_of("value"), text_of("listed_value"), pl.lit(""))
    scripts = exported.select(
        "source", "line", "launcher_rank", variable=text_of("name"), value=value, is_in_command=False
    )
    firsts = launch_command.select("source", "line", "launcher_rank", variable=text_of("name"), value=text_of("first"))
    others = find_values(launch_command["rest"], "assigned_variable")
    places = launch_command.select("source", "line", "launcher_rank")[others[TEXT]]
    others = places.with_columns(variable=others["variable"].cast(pl.String), value=others["assigned"].cast(pl.String))
    commands = pl.concat([firsts, others]).with_columns(is_in_command=pl.lit(value=True))
    return (
        pl.concat([scripts, commands])
        .with_columns(variable="NCCL_" + pl.col("variable"), value=pl.col("value").str.strip_chars("\"'"))
        .sort("source", "line", maintain_order=True)
        .select(list(EXPORTED_VARIABLE))
    )
