"""One line on what was read: ranks, hosts, versions, files and lines."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.text import Text

from ncclforensics.analyses.job.text.recorder_groups import members_of
from ncclforensics.data.names import count_of
from ncclforensics.data.networks import NVLINK
from ncclforensics.data.nouns import PORT, Noun
from ncclforensics.formats import nouns
from ncclforensics.frames.columns import printed_hosts
from ncclforensics.frames.protocol import Frames
from ncclforensics.parsing.parser import COUNTS
from ncclforensics.report.build import Report
from ncclforensics.report.summary import versions


def coverage(report: Report) -> Text:
    """Summarise what was read in one line."""
    tally = report.run.tally.select(*COUNTS).sum().row(0, named=True) if report.run.inputs else {}
    nccl = (tally["recognised"] or 0) + (tally["unrecognised"] or 0)
    (seen, is_least), world = _count_ranks(report.run["rank"]), report.run["member"]["nranks"].max()
    known = report.run["rank"]["host"].unique().cast(pl.String)
    hosts = 0 if known.null_count() or len(printed_hosts(known)) < len(known) else len(known)
    jobs, files = len(report.verdicts), len(report.run.inputs)
    of_world = "" if jobs > 1 else _size_text(report, seen, world)
    partly = [
        reading
        for reading in report.run.inputs
        if (reading.is_read_through or not reading.is_whole) and not reading.problems
    ]
    dropped = sum(reading.outputs_dropped for reading in report.run.inputs)
    of_calls = "calls of " * any(reading.is_read_through for reading in partly)
    items = [
        f"{count} {_kind_of_ports(report.run) * (noun is PORT)}{noun.singular if count == 1 else noun.plural}"
        for noun in nouns()
        if (count := _count(report.run, noun))
    ]
    lines = "NCCL lines" if "nccl-log" in report.run.kinds.values() else "known lines"
    if seen:
        of_hosts = f"{_processes_text(report.run['rank'])} on {hosts} host{'s' * (hosts != 1)}" * bool(hosts)
        counted = f"{'at least ' * is_least}{seen}{of_world} rank{'s' * (seen != 1 or bool(of_world))}"
        if not report.run["rank"]["rank"].drop_nulls().len():  # nor are there as many ranks: one may drive several
            counted = f"{'at least ' * is_least}{count_of(seen, 'process')}{of_world}{' ranks' * bool(of_world)}"
        items.append(f"{counted}{f' in {jobs} jobs' * (jobs > 1)}{of_hosts}")
    items += [
        *_version_items(report),
        f"{files} file{'s' * (files != 1)}" + (f", {of_calls}{len(partly)} read at both ends only" if partly else ""),
        *([f"{dropped:,} outputs between others of the same port or GPU left out"] if dropped else []),
        f"{nccl:,} {lines if nccl > 1 else lines.removesuffix('s')}" + _recognised_text(tally["recognised"] or 0, nccl)
        if nccl
        else "no NCCL lines",
    ]
    items += _launches(report.run["earlier_launch"])
    if tally.get("damaged"):
        items.append(f"{tally['damaged']:,} damaged")
    return Text(" · ".join(items), style="dim")


def _launches(earlier: pl.DataFrame) -> list[str]:
    """Say from which line on a file is judged, where earlier launches stand above it."""
    if earlier.is_empty():
        return []
    within = earlier.drop_nulls("line")
    of_files = f"line {within['line'][0]} on" if within.height == 1 else f"a later line on in {within.height} files"
    begun, over = f", from {of_files}" * bool(within.height), earlier.height - within.height
    return [f"the last launch is judged{begun}" + f", and not {count_of(over, 'file')} of earlier ones" * bool(over)]


def _processes_text(rank: pl.DataFrame) -> str:
    """Count the processes where one drives several ranks; each of which is on another GPU, or in another group."""
    processes = rank.select("host", "pid").n_unique()
    if rank["pid"].has_nulls() or rank.group_by("host", "pid", "job").agg(pl.col("rank").n_unique())["rank"].max() == 1:
        return ""
    return f" of {count_of(processes, 'process')}"


def _kind_of_ports(run: Frames) -> str:
    """Return what tells ports of GPUs from those of a network, where all are of GPUs."""
    layers = set(run["port_state"]["link_layer"])
    return f"{NVLINK} " if layers == {NVLINK} else ""


def _size_text(report: Report, seen: int, world: Any) -> str:
    """Say of how many ranks these are, if that is known to be more: of at least as many as the highest number needs."""
    numbers = report.run["rank"]["rank"].drop_nulls().to_list()
    numbers += [members - 1 for members in report.run["work"]["members"].drop_nulls()]
    numbers += [
        max(members_of(ranks), default=-1) for ranks in report.run["dumped_group"]["ranks"].unique().drop_nulls()
    ]
    for answer in report.verdicts:
        numbers += [*answer.missing, *answer.suspects, *answer.absent]
    least = max(numbers, default=-1) + 1
    if world and world >= least:
        return f" of {world!r}" if world > seen else ""
    return f" of at least {least}" if least > seen else ""


def _recognised_text(recognised: int, lines: int) -> str:
    """Name the share of lines that is recognised, unless it is all of them; never rounded up to all."""
    return f", {min(recognised / lines, 0.999):.{0 if recognised < 0.99 * lines else 1}%} recognised" * (
        recognised < lines
    )


def _count_ranks(rank: pl.DataFrame) -> tuple[int, bool]:
    """Count the ranks, and say whether there may be more.

    A number without a process, as in PyTorch's text, and a process without a number may be one rank; processes of one
    number are one rank, which was started again or has a process for each of its communicators. Lines that name
    neither may be of several.
    """
    rank = rank.filter(pl.col("rank").is_null() | pl.struct("job", "rank").is_first_distinct())
    is_process = pl.col("pid").is_not_null() | pl.col("host").is_not_null()
    has_number = pl.col("rank").is_not_null()
    fewer = min(rank.filter(has_number & ~is_process).height, rank.filter(is_process & ~has_number).height)
    return rank.height - fewer, fewer > 0 or not rank.filter(~is_process & ~has_number).is_empty()


def _version_items(report: Report) -> list[str]:
    """Name the library and its versions; nothing where no line is its own."""
    if found := versions(report.run):
        is_amd = report.run["version"]["form"].cast(pl.String).str.starts_with("rccl").any()
        return [f"{'RCCL' if is_amd else 'NCCL'} {', '.join(found)}"]
    return []


def _count(run: Frames, noun: Noun) -> int:
    for frame, columns in noun.frames:
        rows = run[frame] if run.has(frame) else pl.DataFrame()
        if rows.height:
            return rows.select(columns).hash_rows().n_unique() if columns else rows.height
    return 0
