"""Slow, not hung: ranks that come late, and init that takes long."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.data.thresholds import LATE_CALLS, LATE_SECONDS, LATE_SHARE, LONG_INIT, LONG_PHASE
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.degraded_links import degraded_hosts
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import shown, together

MEETING = ["bootstrap", "allgathers"]  # phases in which ranks wait for one another
OWN = ["kernels", "alloc", "topo", "graphs", "connections"]


@rule(Category.STRAGGLER, Severity.WARNING, of=("lag",))
def slow_rank_comes_late(lag: pl.DataFrame, port_state: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Some ranks come to most collectives long after the others.

    Means: the others wait for them in every step. The cause lies outside NCCL: input, a throttled or shared GPU, the
    CPU, a checkpoint, uneven work.
    Not when: it happens a few times (checkpoints, evaluation); the clocks of hosts cannot be compared; the difference
    is below what the stamps tell apart (whole seconds by default).
    Do: on the hosts named nvidia-smi -q -d PERFORMANCE,CLOCK; compare step times and data loading; py-spy dump.
    Sources: field guides (over 1 s at a barrier: the peers are late); NCCL user guide, NCCL_DEBUG_TIMESTAMP_FORMAT.
    """
    enough = LATE_SECONDS + pl.col("clock_resolution")
    habit = lag.group_by("job", "key", "rank_id", maintain_order=True).agg(
        pl.len().alias("calls"),
        share=(pl.col("lag") > enough).mean(),
        late=pl.col("lag").filter(pl.col("lag") > enough).median(),
        longest=pl.col("lag").max(),
    )
    slow = habit.filter((pl.col("calls") >= LATE_CALLS) & (pl.col("share") >= LATE_SHARE))
    members = habit.group_by("job", "key").agg(pl.len().alias("ranks"))
    few = slow.join(members, on=["job", "key"]).filter(
        pl.len().over("job", "key") * 2 < pl.col("ranks")  # half of the ranks are not late: they are two groups
    )
    seen: set[str] = set()
    for _, rows in few.sort("late", descending=True).group_by("job", "key", maintain_order=True):
        ours = rank.join(rows.select("rank_id"), on="rank_id", how="semi")
        ranks = sorted(ours["rank"].drop_nulls().to_list())
        if str(ranks) in seen:
            continue
        seen.add(str(ranks))
        worst = rows.row(0, named=True)
        calls = lag.filter((pl.col("key") == worst["key"]) & (pl.col("rank_id") == worst["rank_id"])).sort(
            "lag", descending=True
        )
        others = lag.filter(
            (pl.col("key") == worst["key"])
            & (pl.col("nth") == calls["nth"][0])
            & (pl.col("rank_id") != worst["rank_id"])
        ).sort((pl.col("host") != calls["host"][0]), "lag")  # of one host, whose clock is the same
        hosts = sorted(ours["host"].cast(pl.String).unique())
        verb = "comes" if len(ranks) == 1 else "come"
        finding = Finding(
            title=f"{ranks_text(ranks)} on {', '.join(hosts[:4])} {verb} {worst['late']:.1f} s after the others",
            detail=f"in {worst['share']:.0%} of {worst['calls']} collectives, by up to {worst['longest']:.1f} s",
            certainty="likely",
            ranks=ranks,
            hosts=hosts,
            communicator=worst["key"],
            evidence=[*shown(calls.head(1), "late"), *shown(others.head(1), "the same call")],
        )
        yield from explain_by_dumps([finding], degraded_hosts(port_state))


@rule(Category.STRAGGLER, Severity.INFO, of=("init_timing",))
def boot_slow_init(init_timing: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The creation of communicators took long, and the timings tell where.

    Means: bootstrap and allgathers are waiting: they are long on all ranks but the one that came late. The other phases
    are a rank's own: `kernels` is the loading of modules, `topo` the reading of /sys.
    Not when: thousands of ranks meet, which takes tens of seconds; the wait is a few seconds, as processes start
    unevenly.
    Do: see why the ranks named began late (image pull, imports, file system); CUDA_MODULE_LOADING=LAZY for `kernels`.
    Sources: NCCL user guide, logging (Init timings, 2.22 and later).
    """
    numbered = init_timing.join(
        rank.group_by("host", "pid").agg(number=pl.col("rank").first(), n=pl.len()), on=OWNER, how="left"
    )
    waits = pl.sum_horizontal(MEETING)
    for _, rows in (
        numbered.with_columns(waited=waits)
        .sort("source", "line")
        .unique([*OWNER, "creator", "nranks"], keep="first", maintain_order=True)
        .group_by("creator", "nranks", maintain_order=True)
    ):
        longest = rows.sort("total", descending=True).row(0, named=True)
        most, least = max(rows["waited"].to_list()), min(rows["waited"].to_list())
        severity = Severity.WARNING if longest["total"] >= LONG_INIT else Severity.INFO
        few = rows.filter(pl.col("waited") <= least + (most - least) / 10)
        is_whole = rows.height == longest["nranks"]
        if is_whole and most - least >= LONG_PHASE and few.height * 2 <= rows.height:
            finding = together(
                few, rank, f"{{who}} came to {longest['creator']} {most - least:.0f} s after the others",
                f"the others waited {most:.0f} s for it in bootstrap and allgathers", "likely", severity=severity,
            )  # fmt: skip
            other = rows.sort("waited", descending=True).row(0, named=True)
            finding.evidence = [*finding.evidence[:2], Line(other["source"], other["line"], "waited")]
            yield finding
        for phase in OWN:
            slow = rows.filter(pl.col(phase) >= LONG_PHASE)
            if not slow.is_empty():
                share = max(slow[phase].to_list())
                yield together(
                    slow, rank, f"{phase} took {share:.0f} s of init on {{who}}",
                    f"{longest['creator']} took {longest['total']:.0f} s in all", "certain", severity=severity,
                    role=Role.CAUSE if severity is Severity.WARNING else Role.CONTEXT,
                )  # fmt: skip
