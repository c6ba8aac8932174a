"""Slow but not hanging: ranks that call late, and slow init."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.hang.stragglers import MIN_RANKS
from ncclforensics.data.names import ranks_text
from ncclforensics.data.thresholds import LATE_CALLS, LATE_SHARE, LONG_PHASE, OWN_SECONDS
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.degraded_links import degraded_hosts
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

WAITING_PHASES = ["bootstrap", "allgathers"]  # phases in which ranks wait for each other
LOCAL_PHASES = ["kernels", "alloc", "topo", "graphs", "connections"]


@rule(Category.STRAGGLER, Severity.WARNING, of=("lag",))
def slow_rank_comes_late(
    lag: pl.DataFrame, port_state: pl.DataFrame, rank: pl.DataFrame, threshold: pl.DataFrame
) -> Iterator[Finding]:
    """Some ranks make most collectives long after the others.

    Means: the others wait for them in every step. The cause is outside NCCL: input, a throttled or shared GPU, the
    CPU, a checkpoint, uneven work.
    Not when: it happens only a few times (checkpoints, evaluation); the clocks of the hosts cannot be aligned; the lag
    is below the resolution of the time stamps (whole seconds by default).
    Do: run nvidia-smi -q -d PERFORMANCE,CLOCK on the named hosts; compare step times and data loading; py-spy dump.
    Sources: field guides (over 1 s at a barrier: the peers are late); NCCL user guide, NCCL_DEBUG_TIMESTAMP_FORMAT.
    """
    most = threshold["late_seconds"][0] + pl.col("clock_resolution")
    by_rank = lag.group_by("job", "key", "rank_id", maintain_order=True).agg(
        pl.len().alias("calls"),
        share=(pl.col("lag") > most).mean(),
        late=pl.col("lag").filter(pl.col("lag") > most).median(),
        longest=pl.col("lag").max(),
    )
    slow = by_rank.filter((pl.col("calls") >= LATE_CALLS) & (pl.col("share") >= LATE_SHARE))
    members = by_rank.group_by("job", "key").agg(pl.len().alias("ranks"))
    minority = slow.join(members, on=["job", "key"]).filter(
        pl.len().over("job", "key") * 2 < pl.col("ranks")  # if half of the ranks are late, these are two groups
    )
    seen: set[str] = set()
    for _, rows in minority.sort("late", descending=True).group_by("job", "key", maintain_order=True):
        slow_ranks = rank.join(rows.select("rank_id"), on="rank_id", how="semi")
        ranks = sorted(slow_ranks["rank"].drop_nulls().to_list())
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
        ).sort((pl.col("host") != calls["host"][0]), "lag")  # on the same host first: it has the same clock
        hosts = sorted(slow_ranks["host"].cast(pl.String).unique())
        verb = "calls" if len(ranks) == 1 else "call"
        finding = Finding(
            title=f"{ranks_text(ranks)} on {', '.join(hosts[:4])} {verb} {worst['late']:.1f} s after the others",
            detail=f"in {worst['share']:.0%} of {worst['calls']} collectives, by up to {worst['longest']:.1f} s",
            certainty="likely",
            ranks=ranks,
            hosts=hosts,
            communicator=worst["key"],
            evidence=[*evidence_lines(calls.head(1), "late"), *evidence_lines(others.head(1), "the same call")],
        )
        yield from explain_by_dumps([finding], degraded_hosts(port_state))


@rule(Category.STRAGGLER, Severity.WARNING, of=("time_between_calls",))
def capture_rank_is_slow(
    time_between_calls: pl.DataFrame, rank: pl.DataFrame, threshold: pl.DataFrame
) -> Iterator[Finding]:
    """A rank of a capture needs more time than the others from the return of one call to the next call.

    Means: all other ranks wait for it in every step. Between two steps of a capture a rank has nothing to do: its
    process does not get the CPU, is stopped, or its GPU finishes late.
    Not when: a later rule names the same ranks, because the delay is above a second and there are three ranks or more;
    more than half of the ranks are slow; other programs run on a rehearsal's CPUs.
    Do: run top, and nvidia-smi -q -d PERFORMANCE,CLOCK, on the named hosts; compare the CPU binding of the ranks.
    Sources: the journal of a capture (docs/capture.md): both times are of the rank's own clock.
    """
    per_rank = time_between_calls.group_by("job", "rank_id", maintain_order=True).agg(
        pl.col("nranks").first(),
        calls=pl.len(),
        share=(pl.col("excess") > OWN_SECONDS).mean(),
        late=pl.col("excess").median(),
        own=pl.col("seconds").median(),
        source=pl.col("source").last(),
        line=pl.col("line").last(),
    )
    is_slow = (pl.col("calls") >= LATE_CALLS) & (pl.col("share") >= LATE_SHARE) & (pl.col("late") > OWN_SECONDS)
    is_named_elsewhere = (pl.col("late") > threshold["late_seconds"][0]) & (pl.col("nranks") >= MIN_RANKS)
    is_minority = pl.len().over("job") * 2 < pl.col("nranks") + 1
    slow = per_rank.filter(is_slow & ~is_named_elsewhere).filter(is_minority)
    for row in slow.join(rank.select("rank_id", "rank", "host"), on="rank_id", maintain_order="left").to_dicts():
        yield Finding(
            title=f"{ranks_text([row['rank']])} on {row['host']} keeps the others waiting {row['late'] * 1e3:.0f} ms "
            "in every step",
            detail=f"it needs {row['own'] * 1e3:.0f} ms between two calls, the median of the others is "
            f"{(row['own'] - row['late']) * 1e3:.0f} ms ({row['calls']} calls)",
            certainty="certain",
            ranks=[row["rank"]],
            hosts=[row["host"]],
            evidence=[Line(row["source"], row["line"], "late")],
        )


@rule(Category.STRAGGLER, Severity.INFO, of=("init_timing",))
def boot_slow_init(init_timing: pl.DataFrame, rank: pl.DataFrame, threshold: pl.DataFrame) -> Iterator[Finding]:
    """The creation of communicators took long, and NCCL's timings show in which phase.

    Means: in bootstrap and allgathers ranks wait: they are long on all ranks except the late one. The other phases are
    local to a rank: `kernels` loads CUDA modules, `topo` reads /sys.
    Not when: thousands of ranks connect, which takes tens of seconds; the wait is a few seconds, because processes
    start at different times.
    Do: find out why the named ranks began late (image pull, imports, file system); CUDA_MODULE_LOADING=LAZY for
    `kernels`.
    Sources: NCCL user guide, logging (Init timings, 2.22 and later).
    """
    numbered = init_timing.join(
        rank.group_by("host", "pid").agg(number=pl.col("rank").first(), n=pl.len()), on=OWNER, how="left"
    )
    waits = pl.sum_horizontal(WAITING_PHASES)
    for _, rows in (
        numbered.with_columns(waited=waits)
        .sort("source", "line")
        .unique([*OWNER, "creator", "nranks"], keep="first", maintain_order=True)
        .group_by("creator", "nranks", maintain_order=True)
    ):
        longest = rows.sort("total", descending=True).row(0, named=True)
        most, least = max(rows["waited"].to_list()), min(rows["waited"].to_list())
        severity = Severity.WARNING if longest["total"] >= threshold["long_init_seconds"][0] else Severity.INFO
        few = rows.filter(pl.col("waited") <= least + (most - least) / 10)
        is_whole = rows.height == longest["nranks"]
        if is_whole and most - least >= LONG_PHASE and few.height * 2 <= rows.height:
            finding = group_finding(
                few, rank, f"{{processes}} joined {longest['creator']} {most - least:.0f} s after the others",
                f"the other ranks waited {most:.0f} s in bootstrap and allgathers", "likely", severity=severity,
            )  # fmt: skip
            other = rows.sort("waited", descending=True).row(0, named=True)
            finding.evidence = [*finding.evidence[:2], Line(other["source"], other["line"], "waited")]
            yield finding
        for phase in LOCAL_PHASES:
            slow = rows.filter(pl.col(phase) >= LONG_PHASE)
            if not slow.is_empty():
                share = max(slow[phase].to_list())
                yield group_finding(
                    slow, rank, f"{phase} took {share:.0f} s of init on {{processes}}",
                    f"{longest['creator']} took {longest['total']:.0f} s in all", "certain", severity=severity,
                    role=Role.CAUSE if severity is Severity.WARNING else Role.CONTEXT,
                )  # fmt: skip
