"""Variables of NCCL as the processes print them, and names that are similar to a misspelt one."""

from __future__ import annotations

from difflib import get_close_matches

import polars as pl

from ncclforensics.data.variable_catalogue import names_in_use

PRINTED_FORMS = ["environment", "parsed"]  # of `setting`: lines such as `NCCL_ALGO set by environment to Ring.`
SIMILARITY = 0.85  # of a misspelt name to the name that was meant


def environment_settings(setting: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that print a variable read from the environment, with `variable` and `value` as text."""
    return setting.filter(pl.col("form").is_in(PRINTED_FORMS)).with_columns(pl.col("variable", "value").cast(pl.String))


def similar_variable(name: str) -> str | None:
    """Return the variable of NCCL whose name is most similar, or None."""
    return next(iter(get_close_matches(name, sorted(names_in_use()), n=1, cutoff=SIMILARITY)), None)
