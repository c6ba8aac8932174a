"""What parsing gives of stretches of lines, beside parsed frames: who printed them, which were only counted, or repeat.

The pieces are placed as those of parsed frames: from the start of their input, with `pos`, the order of all lines.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.assemble import with_positions
from ncclforensics.frames.columns import ORIGIN, SOURCE_BITS, TAIL_OFFSET
from ncclforensics.frames.process_names import ProcessNames
from ncclforensics.inputs.lines import LAST
from ncclforensics.parsing.calls_between import CALLS_BETWEEN
from ncclforensics.parsing.launcher_prefixes import VOICE
from ncclforensics.parsing.learned_tags import RANK
from ncclforensics.parsing.load import Records
from ncclforensics.parsing.parser import SPEAKER
from ncclforensics.parsing.repeated_lines import REPEATED

SPEAKER_COLUMNS = {**ORIGIN, **SPEAKER, "last_pos": pl.Int64()}
CALLS_BETWEEN_COLUMNS = {**CALLS_BETWEEN, "pos": pl.Int64(), "last_pos": pl.Int64()}
REPEATED_COLUMNS = {**ORIGIN, **REPEATED, "last_pos": pl.Int64()}
VOICE_COLUMNS = {**ORIGIN, **VOICE}


def speakers(records: Records, names: ProcessNames, ends: pl.Series) -> pl.DataFrame:
    """The stretches of lines of one process. `ends`: one more than the lines of each input, 0 while that is unknown."""
    ends_of_stretches = pl.col("last", "dropped_line")
    stretches = pl.concat(records.speakers).with_columns(ends_of_stretches - pl.col("line"))
    placed = with_positions(names.without_ambiguous(stretches), ends)
    del stretches  # millions of processes have as many
    placed = placed.with_columns(ends_of_stretches + pl.col("line"), last_pos=pl.col("pos") + pl.col("last"))
    if not placed["pos"].is_sorted():
        placed = placed.sort("pos")
    return names.replace_in(placed.select(list(SPEAKER_COLUMNS)))


def calls_between(records: Records, names: ProcessNames, ends: pl.Series) -> pl.DataFrame:
    """The calls that were counted and not kept, with the places of the first and the last of each row."""
    parsed = names.replace_in(names.without_ambiguous(records.parsed_calls))
    counted = pl.concat([records.counted_calls, parsed])
    lines = (pl.col("last") - pl.col("line")).fill_null(0)
    placed = with_positions(counted.with_columns(last=lines), ends)
    between = pl.col("source").cast(pl.Int64) * (1 << SOURCE_BITS) + (TAIL_OFFSET >> 1)
    placed = placed.with_columns(pos=pl.coalesce("pos", between))
    placed = placed.with_columns(last=pl.col("line") + pl.col("last"), last_pos=pl.col("pos") + pl.col("last"))
    return placed.select(list(CALLS_BETWEEN_COLUMNS))


def repeated_lines(records: Records, names: ProcessNames, ends: pl.Series) -> pl.DataFrame:
    """The lines that stand for many equal ones."""
    stretches = records.repeated.with_columns(pl.col(LAST) - pl.col("line"))
    placed = with_positions(stretches, ends)
    placed = placed.with_columns(pl.col(LAST) + pl.col("line"), last_pos=pl.col("pos") + pl.col(LAST))
    return names.replace_in(placed.select(list(REPEATED_COLUMNS)).sort("pos"))


def voices(records: Records, _names: ProcessNames, ends: pl.Series) -> pl.DataFrame:
    """The last line of a program's own text in each input, and of each rank and label in front of its lines."""
    own = ["rank", RANK, "is_relayed"]
    placed = with_positions(pl.concat(records.voices), ends).select(list(VOICE_COLUMNS)).sort("pos", *own)
    return placed.unique(["source", *own], keep="last", maintain_order=True)
