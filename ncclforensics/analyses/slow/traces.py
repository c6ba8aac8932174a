"""What the traces of all ranks say of a slow job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.slow.step_window import FEWEST_MEMBERS, RARELY, Members, Named, Stalls, StepWindow
from ncclforensics.analyses.slow.transfers import EXPOSED, Transfers
from ncclforensics.analyses.slow.what_if import ALWAYS_LAST, FEWEST_STEPS, uneven_share
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.names import count_of, ranks_text

HOST_BOUND = 0.2  # share of the step in which the GPUs of all ranks wait for a launch
UNEVEN = 0.05  # share of the step that uneven arrival costs, to be told where no rank alone does
COMPUTES = 0.05  # share of the step in kernels that compute, of a job and not only of its calls
CLEAR, LONG_WINDOW = 0.05, 100  # share of the step and number of steps from which on chance explains nothing

COLLECT_REST = "traces of the same steps of the ranks that are missing"
COLLECT_MORE = Request("traces of 20 steps or more: torch.profiler.schedule(wait=5, warmup=2, active=30)")
HOST_CAUSES = """usual causes: data loading, garbage collection, a program that waits for values of the GPU \
(`.item()`, copies), many small kernels"""
COLLECT_STACKS = Request(
    "ten times `py-spy dump` of one rank, a second apart, and the time of a step without the profiler"
)
COLLECT_GROUPS = Request(
    "the Flight Recorder dumps of the same ranks, as these traces do not name process groups", Observation.RECORDER
)


def of_traces(
    processes: pl.DataFrame,
    groups: pl.DataFrame,
    own_time: pl.DataFrame,
    transfers: Transfers,
    why: Callable[[int], str | None],
) -> list[SlowExplanation]:
    """Return what traces explain; nothing without any. Rows of ranked_process, call_group and own_time.

    `why`: what the traces show of the reason why a rank works longer.
    """
    if processes.is_empty():
        return []
    shown = _Traces(processes, groups, own_time, transfers, why)
    if shown.missing:
        return [shown.rank_not_traced()]
    if (reason := shown.reason_undecided) is not None:
        return [shown.undecided(reason)]
    causes = [shown.named(), shown.stalls(), *shown.slow_transfers()]
    conditions = [shown.uneven(), shown.host_bound(), shown.exposed()]
    for found in (causes, conditions):
        if explained := [explanation for explanation in found if explanation is not None]:
            return explained
    return [shown.even()]


class _Traces:
    """The traces of a job, and what they explain."""

    def __init__(
        self,
        processes: pl.DataFrame,
        groups: pl.DataFrame,
        own_time: pl.DataFrame,
        transfers: Transfers,
        why: Callable[[int], str | None],
    ) -> None:
        self.processes, self.groups, self.own_time, self.transfers = processes, groups, own_time, transfers
        self.traced = sorted(processes["rank"].to_list())
        world = processes["world"].max()
        named = {rank for members in groups["members"] for rank in members}
        size = max(int(world) if isinstance(world, int) else 0, max(named, default=-1) + 1)
        self.missing = sorted(set(range(size)) - set(self.traced))
        self.size = max(size, len(self.traced))
        self.window = StepWindow(own_time) if own_time.height else None
        self.why = why
        self.evidence = tuple((int(source), 1) for source in processes["source"])

    @property
    def steps(self) -> StepWindow:
        """The steps; there are some wherever an explanation is made of them."""
        if self.window is None:
            raise ValueError("these traces hold no step")
        return self.window

    @property
    def groups_doubt(self) -> tuple[Doubt, ...]:
        """The doubts about groups that no trace names, and about ranks of which none tells whether they exist."""
        if self.groups["is_known"].all():
            return ()
        is_size_known = self.processes["world"].count() > 0
        assumed = Doubt.GROUPS_LISTED if self.groups["is_one_of_several"].any() else Doubt.GROUPS_ASSUMED
        return (assumed, *(() if is_size_known else (Doubt.RANK_NOT_TRACED,)))

    @property
    def collect_groups(self) -> tuple[Request, ...]:
        """What names the groups that no trace names."""
        return (COLLECT_GROUPS,) if self.groups_doubt else ()

    @property
    def reason_undecided(self) -> str | None:
        """Why these traces decide nothing; None where they suffice."""
        if self.groups.is_empty():
            return "these traces hold no call of NCCL or gloo, and other libraries name their kernels otherwise"
        if len(self.traced) < FEWEST_MEMBERS:
            return f"traces of {ranks_text(self.traced)} alone cannot show who waits: three ranks are the least"
        if self.window is None:
            return "these traces hold no step that all ranks share: no call in which they wait for each other repeats"
        if len(ordinary := self.window.ordinary) < FEWEST_STEPS:
            longer = len(self.window.own) - len(ordinary)
            besides = f" besides {longer} that took far longer" if longer else ""
            few = f"{count_of(len(ordinary), 'step')}{besides}"
            return f"{few}: too few to tell a slow rank from chance, {FEWEST_STEPS} are the least"
        return None

    def rank_not_traced(self) -> SlowExplanation:
        """Return that ranks without a trace leave the question open."""
        calls = ""
        if self.own_time.height:
            share = (pl.col("wait_us") + pl.col("transfer_us")).sum() / pl.col("length_us").sum()
            least = self.own_time.group_by("rank").agg(share=share)["share"].min()
            calls = f", on each of which calls take {least:.0%} of a step or more" if isinstance(least, float) else ""
        return SlowExplanation(
            SlowKind.UNDECIDABLE,
            f"traces of {len(self.traced)} of {self.size} ranks{calls}: the rank they wait for may be a missing one",
            (Doubt.RANK_NOT_TRACED,),
            missing=tuple(self.missing),
            collect=(Request(f"{COLLECT_REST}: {ranks_text(self.missing)}"),),
            evidence=self.evidence,
        )

    def undecided(self, reason: str) -> SlowExplanation:
        """Return that these traces do not suffice."""
        return SlowExplanation(
            SlowKind.UNDECIDABLE, reason, (Doubt.FEW_STEPS,), collect=(COLLECT_MORE,), evidence=self.evidence
        )

    def named(self) -> SlowExplanation | None:
        """Return the ranks that the others wait for."""
        steps = self.steps
        named = steps.named(self._groups(), self._hosts())
        if named is None:
            return None
        ranks = [steps.ranks[place] for place in named.found.members]
        hosts = sorted(set(self.processes.filter(pl.col("rank").is_in(ranks))["host"].drop_nulls()))
        name = self.transfers.label(named.name) if named.kind == "group" else f"{named.kind} {named.name}"
        subject = ranks_text(ranks) if named.kind == "rank" else f"{name} ({ranks_text(ranks)})"
        place = f" on {hosts[0]}" if named.kind == "rank" and hosts else ""
        others = self.size - len(ranks)
        makes = "makes" if named.kind != "rank" or len(ranks) == 1 else "make"
        last = round(named.found.last_share * named.steps)
        since = "" if named.since is None else f" since step {steps.numbers[named.since]}"
        uneven = max(self._uneven(), named.found.step_share)
        return SlowExplanation(
            {"rank": SlowKind.RANK, "host": SlowKind.HOST, "group": SlowKind.GROUP}[named.kind],
            f"{subject}{place} {makes} the other {others} wait in {last} of {named.steps} steps{since}",
            (*self._chance(named), *self._ends(), *self._as_programmed(named), *self.groups_doubt),
            details=(self._own_text(named), f"all uneven arrival together costs {_percent(uneven)} of a step"),
            ranks=tuple(ranks),
            hosts=tuple(hosts),
            group=name if named.kind == "group" else None,
            since_step=None if named.since is None else steps.numbers[named.since],
            since=None if named.since is None else self._moment(named.since),
            step_seconds=self._step_seconds(named.since),
            step_share=named.found.step_share,
            uneven_share=uneven,
            gpus=self.size,
            cause=self.why(ranks[0]) if len(ranks) == 1 else None,
            collect=self.collect_groups,
            evidence=self._evidence_of(ranks),
        )

    def stalls(self) -> SlowExplanation | None:
        """Return long steps at equal distances."""
        found = self.steps.stalls
        if found is None:
            return None
        steps = self.steps
        usual, long = steps.length, median(steps.lengths[place] for place in found.places)
        ranks = [] if found.owner is None else [steps.ranks[found.owner]]
        owner = f"; {ranks_text(ranks)} is the last in {found.owned} of {len(found.places)} of them" if ranks else ""
        return SlowExplanation(
            SlowKind.STALLS,
            f"every {_ordinal(found.period)} step takes {long / usual:.1f} times as long as the others{owner}",
            (Doubt.NAMED_BY_CHANCE if found.chance <= RARELY else Doubt.FEW_STALLS, *self.groups_doubt),
            details=self._stall_details(found),
            ranks=tuple(ranks),
            hosts=tuple(sorted(set(self.processes.filter(pl.col("rank").is_in(ranks))["host"].drop_nulls()))),
            step_seconds=sum(steps.lengths) / len(steps.lengths) / 1e6,
            step_share=found.share,
            gpus=self.size,
            evidence=self._evidence_of(ranks) if ranks else self.evidence,
        )

    def _stall_details(self, found: Stalls) -> tuple[str, ...]:
        numbers = [str(self.steps.numbers[place] or place) for place in found.places]
        return (
            f"the long steps: {', '.join(numbers[:8])}{', …' * (len(numbers) > 8)}",
            "usual causes: garbage collection, data loader workers, logging, checkpoints",
        )

    def slow_transfers(self) -> list[SlowExplanation]:
        """Return calls that take long although no rank works longer than the others."""
        apart = self.steps.apart_us
        ends = f"the ends of the same call lie {apart / 1000:.1f} ms apart, as behind a slow link"
        shared = SlowExplanation(
            SlowKind.COMMUNICATION,
            "",
            self.groups_doubt,
            details=() if self.steps.ends_together else (ends,),
            collect=self.collect_groups,
            step_seconds=self._step_seconds(None),
            uneven_share=self._uneven(),
            gpus=self.size,
            evidence=self.evidence,
        )
        return self.transfers.explanations(shared)

    def uneven(self) -> SlowExplanation | None:
        """Return that ranks take turns in being late."""
        share = self._uneven()
        if share < UNEVEN:
            return None
        late = self.steps.late_ranks()
        subject = "another rank is the last in each step"
        if late:
            subject = f"{ranks_text(late)} usually work{'s' * (len(late) == 1)} longest, but not alone"
        return SlowExplanation(
            SlowKind.UNEVEN,
            f"{subject}: uneven work costs {_percent(share)} of a step, no rank, host or group alone",
            (Doubt.AS_PROGRAMMED, *self.groups_doubt),
            details=("usual causes: sequences of unequal length, experts or stages with unequal load",),
            collect=self.collect_groups if late else (),
            step_seconds=self._step_seconds(None),
            step_share=share,
            uneven_share=share,
            gpus=self.size,
            evidence=self.evidence,
        )

    def host_bound(self) -> SlowExplanation | None:
        """Return that the GPUs of all ranks alike wait much of a step for their hosts to launch a kernel."""
        share = pl.col("unlaunched_us") / pl.col("length_us")
        shares = self.own_time.group_by("rank").agg(share=share.median())["share"]
        least = shares.min()
        if shares.null_count() or not isinstance(least, float) or least < HOST_BOUND or not self._shows_computation:
            return None
        return SlowExplanation(
            SlowKind.HOST_BOUND,
            f"the GPUs of all ranks run no kernel in {_percent(least)} of a step or more, as none is launched yet",
            (Doubt.PROFILED, *self.groups_doubt),
            details=(HOST_CAUSES,),
            collect=(COLLECT_STACKS,),
            step_seconds=self._step_seconds(None),
            step_share=least,
            uneven_share=self._uneven(),
            gpus=self.size,
            evidence=self.evidence,
        )

    def exposed(self) -> SlowExplanation | None:
        """Return that all ranks alike spend much of a step in transfers that no computation hides."""
        share = self.transfers.share
        if share < EXPOSED or not self._shows_computation:
            return None
        is_split = share - self.transfers.share_of("unsplit_us") >= EXPOSED
        return SlowExplanation(
            SlowKind.EXPOSED,
            f"calls that no computation hides take {_percent(share)} of a step on all ranks alike",
            (Doubt.SLOW_BY_DESIGN if is_split else Doubt.WAITS_UNSPLIT, *self.groups_doubt),
            details=tuple(self.transfers.most()) if is_split else (),
            step_seconds=self._step_seconds(None),
            step_share=share,
            uneven_share=self._uneven(),
            gpus=self.size,
            evidence=self.evidence,
        )

    def even(self) -> SlowExplanation:
        """Return that no rank alone costs much."""
        share, calls = self._uneven(), self.transfers.share
        unknown = (
            f"calls take {_percent(calls)} of a step on all ranks alike; whether computation could hide them, these "
            "traces cannot show, as they hold next to no kernel that computes"
        )
        return SlowExplanation(
            SlowKind.EVEN,
            f"no rank, host or group alone costs more than 2 % of a step; all uneven arrival costs {_percent(share)}",
            (Doubt.OTHER_TIMES, *self.groups_doubt),
            details=(unknown,) if calls >= EXPOSED and not self._shows_computation else (),
            step_seconds=self._step_seconds(None),
            uneven_share=share,
            gpus=self.size,
            evidence=self.evidence,
        )

    def _chance(self, named: Named) -> tuple[Doubt, ...]:
        is_steady = named.steps >= LONG_WINDOW or named.found.last_share >= ALWAYS_LAST
        if not is_steady:
            return (Doubt.FEW_STEPS,)
        return () if named.found.step_share >= CLEAR else (Doubt.NAMED_BY_CHANCE,)

    def _as_programmed(self, named: Named) -> tuple[Doubt, ...]:
        """The doubt about ranks that have nothing in common but that they work longer."""
        return (Doubt.AS_PROGRAMMED,) if named.kind == "rank" and len(named.found.members) > 1 else ()

    def _ends(self) -> tuple[Doubt, ...]:
        return () if self.steps.ends_together else (Doubt.ENDS_APART,)

    def _own_text(self, named: Named) -> str:
        steps, members = self.steps, named.found.members
        places = [place for place in steps.ordinary if named.since is None or place >= named.since]
        own = median(max(steps.own[place][rank] for rank in members) for place in places)
        rest = [rank for rank in range(len(steps.ranks)) if rank not in members]
        others = median(median(steps.own[place][rank] for rank in rest) for place in places)
        subject = "it works" if len(members) == 1 else "the last of them works"
        return f"outside of calls {subject} {own / 1e6:.4g} s in a step, the others {others / 1e6:.4g} s (medians)"

    def _evidence_of(self, ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The traces of these ranks first."""
        sources = self.processes.sort(pl.col("rank").is_in(list(ranks)), descending=True)["source"]
        return tuple((int(source), 1) for source in sources)

    def _uneven(self) -> float:
        places = self.steps.ordinary
        return uneven_share([self.steps.own[p] for p in places], [self.steps.lengths[p] for p in places])

    @property
    def _shows_computation(self) -> bool:
        """Whether kernels compute in these steps: CPUs have none, and neither has a measurement of calls alone."""
        return self.transfers.share_of("busy_us") >= COMPUTES

    def _step_seconds(self, since: int | None) -> float:
        places = [place for place in self.steps.ordinary if since is None or place >= since]
        return median(self.steps.lengths[place] for place in places) / 1e6

    def _moment(self, place: int) -> str:
        return datetime.fromtimestamp(self.steps.ended[place] / 1e6, UTC).isoformat(timespec="seconds")

    def _groups(self) -> dict[str, Members]:
        rows = self.groups.filter("is_known").select("key", "members").iter_rows()
        return {key: frozenset(members) for key, members in rows}

    def _hosts(self) -> dict[str, Members]:
        if self.processes["host"].null_count():
            return {}
        hosts = self.processes.group_by("host").agg("rank").iter_rows()
        return {host: frozenset(ranks) for host, ranks in hosts}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
