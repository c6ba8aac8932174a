"""Group equal lines of many processes into one finding with their ranks, hosts and lines of evidence."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.redaction_rules import EVERYWHERE
from ncclforensics.frames.columns import MADE_UP, OWNER, printed_hosts, printed_pid, text_of
from ncclforensics.rules.finding import Finding, Line, Nic

UNNAMED = "a process"  # no line names its rank or its host
WORKERS = 8  # of an engine, in a title
SHOWN = 4  # lines of evidence; the first line of each host comes first


def group_finding(
    rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str, **fields: Any
) -> Finding:
    """Return one finding on all rows of a parsed frame (columns `host`, `pid`, `source`, `line`).

    `{processes}` in the title becomes the ranks, or if none is known the hosts, or the only process of several on its
    host; `fields`: others of the finding.
    """
    if "host" in rows:
        reporting = rank.join(rows.select("host", "pid").unique(), on=OWNER, how="semi")
        ranks = sorted(reporting["rank"].drop_nulls().unique().to_list())
        hosts = printed_hosts(sorted(rows["host"].cast(pl.String).drop_nulls().unique().to_list()))
        has_others = rank.filter(text_of("host").is_in(hosts))["pid"].n_unique() > rows["pid"].n_unique()
    else:  # lines of a script name no process
        known = rows["launcher_rank"] if "launcher_rank" in rows else pl.Series(dtype=pl.Int32)
        ranks, hosts, has_others = sorted(known.drop_nulls().unique().to_list()), [], False
    processes = processes_text(ranks, hosts, rank)
    if has_others and not ranks:
        processes = printed_process(rows, processes)
    return Finding(
        title=titled(title, processes),
        detail=detail,
        certainty=certainty,
        ranks=ranks,
        hosts=hosts,
        nics=_nics(rows),
        evidence=evidence_lines(rows),
        **fields,
    )


def _nics(rows: pl.DataFrame) -> set[Nic]:
    """Return the NICs of rows that name a NIC (`hca`, or `device` and `port`); none where a row names none."""
    ports = ["port"] if "port" in rows else []
    columns = [name for name in ("hca", *(["device"] if ports else [])) if name in rows]
    if "host" not in rows or not columns:
        return set()
    device = pl.coalesce(text_of(name) for name in columns)
    named = rows.select(text_of("host"), device=device, port=pl.coalesce(*ports, pl.lit(None, pl.Int64))).unique()
    has_all = not named["host"].has_nulls() and not named["device"].has_nulls()
    return set(named.iter_rows()) if has_all else set()


def error_finding(rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """Return one finding on all processes with the same error (columns `rank`, `host`, `pid`, `source`, `line`).

    `{processes}` in the title becomes the ranks, or the only process, or the hosts if no rank is known.
    """
    ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
    hosts = printed_hosts(sorted(rows["host"].cast(pl.String).drop_nulls().unique().to_list()))
    # Of processes on several hosts some have no known rank: the hosts name all of them.
    has_others = len(hosts) > 1 and rows["rank"].has_nulls()
    processes = processes_text([] if has_others else ranks, hosts, rank)
    if not ranks:
        processes = printed_process(rows, processes)
    place = next(iter(rows["place"].drop_nulls()), "") if "place" in rows else ""
    evidence = evidence_lines(rows)
    return Finding(
        titled(title, processes), detail, certainty, ranks=ranks, hosts=hosts, place=place, evidence=evidence
    )


def printed_process(rows: pl.DataFrame, processes: str) -> str:
    """Name a process without a rank by its pid, and as an engine or Ray names it (column `worker`), if it is one.

    `processes`: the text for its host, which is returned where several processes or none are named.
    """
    if local := local_processes(rows, processes):
        return local
    if "host" in rows:  # with the name of a host, its pids are made up, too
        rows = rows.filter(~text_of("host").str.starts_with(MADE_UP).fill_null(False))
    pids = rows["pid"].drop_nulls().unique().to_list() if "pid" in rows else []
    pids = [pid for pid in pids if printed_pid(pid) is not None]
    workers = sorted(set(rows["worker"].drop_nulls()) - {""}) if "worker" in rows else []
    if len(workers) > 1 and processes == UNNAMED:
        return some_of(workers, WORKERS)
    if len(pids) > 1 or len(workers) > 1 or not (pids or workers):
        return processes
    number = f"process {pids[0]}" if pids else ""
    name = f"({workers[0]})" if number and workers else "".join(workers)
    return " ".join(filter(None, (number, name, "" if processes == UNNAMED else f"on {processes}")))


def local_processes(rows: pl.DataFrame, processes: str) -> str:
    """Name processes by their ranks on a host, of which `processes` is the text; nothing where none is known."""
    local_ranks = sorted(rows["local_rank"].drop_nulls().unique()) if "local_rank" in rows else []
    return f"local {ranks_text(local_ranks)}, {processes}".removesuffix(f", {UNNAMED}") if local_ranks else ""


def evidence_lines(rows: pl.DataFrame, label: str = "") -> list[Line]:
    """Return up to SHOWN distinct lines of the rows, from as many hosts as possible."""
    ordered = rows.sort("source", "line")
    if "host" in rows:  # sorted by name: independent of the order of files
        ordered = rows.with_columns(_host=text_of("host")).sort("_host", "pid" if "pid" in rows else "source", "line")
        nth_of_host = pl.int_range(pl.len()).over("_host")
        ordered = ordered.with_columns(_nth=nth_of_host).sort("_nth", "_host", maintain_order=True)
    places = ordered.select("source", "line").unique(maintain_order=True).head(SHOWN)
    return [Line(source, line, label) for source, line in places.iter_rows()]


def first_value(column: pl.Series) -> Any:
    """Return the first value that is not null, or None."""
    return column.first(ignore_nulls=True)


def titled(title: str, processes: str) -> str:
    """Return a title with these `{processes}`; without ` on {processes}` or `{processes}: ` if none is named."""
    if processes == UNNAMED:
        title = title.replace(" on {processes}", "").removeprefix("{processes}: ")
    if processes.startswith("process "):
        title = title.replace(" on {processes}", " in {processes}")
    if processes.startswith("ranks ") or processes.partition(" ")[0].isdigit():
        title = title.replace("{processes} was ", "{processes} were ") if title.startswith("{processes}") else title
    return title.replace("{processes}", processes)


def processes_text(ranks: list[int], hosts: list[str], rank: pl.DataFrame) -> str:
    """Format ranks and hosts: `ranks 0-7 on node1`, `3 hosts (a, b, c)`; without hosts where all known ranks are meant.

    `localhost`, as torchrun calls the host of a job on one, is no host beside one with a name.
    """
    hosts = [host for host in hosts if host not in EVERYWHERE] or hosts
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts ({some_of(hosts, SHOWN)})" if hosts else ""
    if not ranks:
        is_word = len(hosts) == 1 and hosts[0].isalpha()  # a name such as gpu reads as something else
        return "host " * is_word + where.removeprefix("on ") or UNNAMED
    if len(hosts) > 1 and set(ranks) == set(rank["rank"].drop_nulls()):
        return ranks_text(ranks)
    return f"{ranks_text(ranks)} {where}".strip()
