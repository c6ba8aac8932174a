"""What happened when, as far as lines carry times: calls, failures, and conditions of machines, on one axis."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.job.calls.shown_calls import LAST, YEAR
from ncclforensics.analyses.verdict.sources.machines import Part
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.templated import of_template
from ncclforensics.frames.time_range import time_of
from ncclforensics.parsing.templates import CALL_TEMPLATE

MOST_CONDITIONS = 8
LABELS = {
    Part.LINK: "link down",
    Part.PATH: "path lost",
    Part.NIC: "NIC failed",
    Part.SWITCH: "NVSwitch failed",
    Part.BUS: "PCIe error",
    Part.GPU: "GPU failed",
    Part.HOST_MEMORY: "out of memory",
    Part.MEMORY_LIMIT: "memory limit reached",
    Part.BROKEN_MEMORY: "memory error",
    Part.VOLUME: "no space left",
}


class Condition(NamedTuple):
    """A condition of a machine that a job shared, and when a log says that it began."""

    time: datetime
    text: str


class Timeline(NamedTuple):
    """The timed events of one job."""

    calls: pl.DataFrame  # rank_id, time: every call
    ends: pl.DataFrame  # rank_id, time, what: the last call of each rank, and failures
    conditions: list[Condition]

    @property
    def first_silence(self) -> datetime | None:
        """When the first rank made its last call: until then all of them made calls."""
        times: list[datetime] = self.ends.filter(pl.col("what") == LAST)["time"].to_list()
        return min(times, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether fewer than two moments are known, which make no axis."""
        moments = {*self.ends["time"], *(condition.time for condition in self.conditions)}
        return len(moments) < 2


def timeline_of(run: Frames, job: int) -> Timeline:
    """Return the timed events of a job."""
    ends = run["timeline"].filter(pl.col("job") == job).select("rank_id", "time", "what")
    return Timeline(_calls(run, job) if ends.height else ends.clear().drop("what"), ends, _conditions(run, job))


def times_of_calls(run: Frames, pos: pl.Series) -> pl.Series:
    """Return the times of calls by their `pos`, by the clocks of their hosts; null where lines have no times."""
    occurrence = run["call_occurrence"]
    if occurrence.is_empty():
        return pl.Series("time", [None] * pos.len(), pl.Datetime("us"))
    places = occurrence["pos"].search_sorted(pos).clip(upper_bound=occurrence.height - 1)  # positions are in order
    found = occurrence.select("pos", "launcher_time", CALL_TEMPLATE)[places]
    stamps = of_template(found, run["call_template"], "stamp")
    times = [time_of(name, YEAR) for name in ("stamp", "launcher_time")]
    is_found = found["pos"] == pos
    return found.with_columns(stamp=stamps).select(time=pl.when(is_found).then(pl.coalesce(times))).to_series()


def _calls(run: Frames, job: int) -> pl.DataFrame:
    """Return the times of all calls of a job's ranks, as far as lines have times."""
    ranks = run["rank"].filter(pl.col("job") == job)["rank_id"]
    calls = run["call"].filter(pl.col("rank_id").is_in(ranks.implode())).select("rank_id", "pos")
    return calls.with_columns(times_of_calls(run, calls["pos"])).select("rank_id", "time").drop_nulls("time")


def _conditions(run: Frames, job: int) -> list[Condition]:
    of_job = run["condition_of_job"].filter((pl.col("job") == job) & pl.col("is_in_time").fill_null(value=True))
    timed = run["condition"].with_columns(time=pl.coalesce("moment", "earliest")).drop_nulls("time")
    rows = timed.join(of_job.select("source", "line", "kind"), on=["source", "line", "kind"], how="semi")
    shown = rows.unique(["kind", "host", "device", "gpu"], keep="first", maintain_order=True).sort("time")
    return [
        Condition(row["time"], ", ".join(filter(None, (LABELS[Part(row["kind"])], row["host"], row["device"]))))
        for row in shown.head(MOST_CONDITIONS).to_dicts()
    ]
