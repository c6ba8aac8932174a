"""The content of the slow screen: the verdict on a slow job, and how late each rank is in each step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import polars as pl

from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.data.names import certainty_text, printable
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.report.slow import late_cells, late_ranks, slow_answer
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.views.text_slow import sentences


class Cells:
    """The cells of a heat map, of which a row becomes objects only when it is shown."""

    def __init__(self, cells: pl.DataFrame) -> None:
        self._cells = cells
        of_row = cells.group_by("row", maintain_order=True)
        self.rows = of_row.agg(pl.len(), pl.col("rank").min(), pl.col("last_rank").max()).to_dicts()
        self._starts = [0, *accumulate(row["len"] for row in self.rows)]
        of_column = cells.group_by("column").agg(
            pl.col("length_us").median(), pl.col("step").min(), pl.col("last_step").max()
        )
        self.columns = of_column.sort("column").to_dicts()

    def of_row(self, row: int) -> list[Row]:
        """Return the cells of a row; none if there is no such row."""
        if not 0 <= row < len(self.rows):
            return []
        return self._cells.slice(self._starts[row], self.rows[row]["len"]).to_dicts()


@dataclass(frozen=True, slots=True)
class SlowJob:
    """What makes a job slow, and the times of its steps."""

    answer: SlowAnswer | None
    late: pl.DataFrame  # rows of `late_ranks`; where no trace shows ranks, one rank: the step lines
    hosts: dict[int, str]
    usual_us: float  # a usual step

    @property
    def shows_ranks(self) -> bool:
        """Whether traces show single ranks."""
        return bool(self.hosts)

    @property
    def title(self) -> str:
        """Return the verdict, and what it costs."""
        if self.answer is None:
            return ""
        sure = certainty_text(str(self.answer.verdict), self.answer.certainty)
        facts = " ".join(sentences(self.answer))
        return f"{self.answer.verdict.upper()}{sure}  {printable(self.answer.claim)}\n{printable(facts)}"

    def cells(self, most_rows: int, most_columns: int) -> Cells:
        """Return the cells of a heat map with so many rows and columns at most."""
        return Cells(late_cells(self.late, most_rows, most_columns))

    def share(self, cell: Row) -> float:
        """Return the share of a usual step by which a cell is late."""
        return float(cell["late_us"]) / self.usual_us

    def label(self, cell: Row) -> str:
        """Return the name of the row of a cell."""
        if not self.shows_ranks:
            return "step lines"
        return f"rank{_span(cell['rank'], cell['last_rank'])}"

    def detail(self, cell: Row) -> str:
        """Return what a cell shows, in words."""
        late = f"{cell['late_us'] / 1e6:.4g} s longer than {{}}: {self.share(cell) * 100:.1f} % of a usual step"
        steps = f"step{_span(cell['step'], cell['last_step'])}, which takes {cell['length_us'] / 1e6:.4g} s"
        steps = steps if cell["step"] == cell["last_step"] else steps.replace("which takes", "which take in the median")
        if not self.shows_ranks:
            return f"{steps}: {late.format('the median step')}"
        host = printable(self.hosts.get(cell["latest"]) or "an unknown host")
        latest = f"rank {cell['latest']} on {host}"
        most = f"\nthe latest of {self.label(cell)}" * (cell["rank"] != cell["last_rank"])
        return f"{steps}\n{latest} works {late.format('the median rank')}{most}"


def _span(first: int, last: int) -> str:
    return f" {first}" if first == last else f"s {first}-{last}"


def build_slow_job(report: Report, _: Citer) -> SlowJob:
    """Take the lateness of ranks from traces, or else that of steps from the longest series of step lines."""
    own_time, steps = report.run["own_time"], report.run["job_step"]
    if own_time.is_empty():
        longest = steps.filter(pl.col("series") == pl.col("series").mode().min())
        late = longest.select(
            "step",
            rank=0,
            length_us=pl.coalesce("seconds", "pace") * 1e6,
            late_us=(pl.col("pace") / pl.col("pace").median() - 1).clip(lower_bound=0),
        ).with_columns(late_us=pl.col("late_us") * pl.col("length_us").median())
        hosts = {}
    else:
        late = late_ranks(own_time)
        hosts = {row["rank"]: row["host"] for row in report.run["ranked_process"].to_dicts()}
    usual = late.select(pl.col("length_us").median().fill_null(1.0)).item()
    return SlowJob(slow_answer(report), late, hosts, usual)
