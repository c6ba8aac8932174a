"""What each rank printed last, of its program's own text: its last line before it went silent."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.identity.torch_ranks import labels_are_ranks
from ncclforensics.frames.agent_folders import ranks_of_agents
from ncclforensics.frames.columns import ORIGIN, count_behind
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import step_rank

LAST_LINES = 4  # of a file: blank ones stand there, and what the launcher prints
LAST_WORD = {**ORIGIN, "rank": pl.Int32()}


@analysis(LAST_WORD, of=("voice", "training_step"))
def last_word(
    voice: pl.DataFrame,
    training_step: pl.DataFrame,
    source: pl.DataFrame,
    exception: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    file_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and input: its last line, of those that name it by a tag, or whose file is named after it.

    So is the last line below the name of such a file, where one text holds the ends of several.

    The label of a launcher is a rank where PyTorch prints the same number behind it; of torchrun's agents it is not. Of
    the file of a rank it is one of the last lines: one of NCCL's or PyTorch's behind it says more of the rank.
    """
    files = source.select("source", "lines", hint=pl.col("hint").cast(pl.Int32))
    label = pl.col("launcher_rank") if labels_are_ranks(exception, elastic_failure) else pl.lit(None, pl.Int32)
    spoken, steps = (rows.with_columns(launcher_rank=label).join(files, on="source") for rows in (voice, training_step))
    spoken = spoken.with_columns(rank=pl.coalesce("rank", "launcher_rank", "hint"))
    columns = [*ORIGIN, "lines", "hint", "rank"]
    both = [rows.select(columns) for rows in (spoken, steps.with_columns(rank=step_rank()))]
    both += [_headed_ends(file_heading, files, exception).select(columns)] if file_heading.height else []
    named = pl.concat(both).drop_nulls("rank").sort("pos")
    last = named.unique(["source", "rank"], keep="last", maintain_order=True)
    ends_file = pl.col("hint").is_null() | (count_behind() < LAST_LINES)
    return last.filter(ends_file).select(LAST_WORD.keys())


def _headed_ends(file_heading: pl.DataFrame, files: pl.DataFrame, exception: pl.DataFrame) -> pl.DataFrame:
    """The last line below each name of a file that tail or head prints, with the `rank` that the name tells."""
    headings = file_heading.filter(pl.col("line") > 0).sort("pos").with_row_index("part").join(files, on="source")
    next_line = pl.col("line").shift(-1).over("source")  # above it stands an empty line
    headings = headings.with_columns(
        pl.col("part").cast(pl.Int32), last=pl.coalesce(next_line - 2, pl.col("lines").cast(pl.Int32))
    )
    below = exception.select("source", "pos", "rank").sort("pos")
    parts = below.join_asof(headings.select("source", "pos", "part"), on="pos", by="source", check_sortedness=False)
    agents: dict[str, dict[int, int]] = {}
    of_agents = headings.drop_nulls("local_rank").cast({"agent_folder": pl.String})
    for folder, local, part in of_agents.select("agent_folder", "local_rank", "part").iter_rows():
        agents.setdefault(folder, {})[part] = local
    ranks = ranks_of_agents(agents, [parts.select("rank", source="part")])
    rank = pl.coalesce(pl.col("part").replace_strict(ranks, default=None, return_dtype=pl.Int32), "rank")
    placed = headings.with_columns(rank=rank, pos=pl.col("pos") + pl.col("last") - pl.col("line"))
    return placed.filter(pl.col("last") > pl.col("line")).with_columns(line="last", hint=pl.lit(None, pl.Int32))
