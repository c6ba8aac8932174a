"""The summary of a run: the `run` object of the JSON contract. Unknown values are None, never 0 or a guess."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.data.names import version_text
from ncclforensics.data.versions import version_of_torch
from ncclforensics.formats import nccl
from ncclforensics.frames.columns import Row, printed_hosts, text_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.questions import ASKED_WITH, QUESTIONS
from ncclforensics.rules.finding import Finding


def _world_size(largest: pl.DataFrame, ranks: Iterable[int], positions: pl.DataFrame) -> int | None:
    """Return the size of the largest communicator; None where a rank outside of it shows that it is not the world's.

    `ranks`: those that are known and those that findings name. `positions`: those in Flight Recorder dumps, which
    list the members of process groups.
    """
    sizes = largest["nranks"] if largest.height else positions["members"].list.len()
    size: int | None = max(sizes.drop_nulls().to_list(), default=None)
    highest = max(ranks, default=-1)
    return None if size is None or highest >= size else size


def summary(run: Frames, findings: Iterable[Finding]) -> Row:
    """Build the `run` object of a run and what was found in it."""
    ranks, member = run["rank"], run["member"]
    hosts = printed_hosts(sorted(run["process"]["host"].cast(pl.String).unique().to_list()))
    largest = member.filter(pl.col("nranks") == pl.col("nranks").max())
    seen = set(ranks["rank"].drop_nulls().to_list())
    named = {rank for finding in findings for rank in finding.ranks}
    absent = sorted({number for numbers in run["verdict"]["absent"].to_list() for number in numbers})
    printed_nodes = run["placement"].filter(pl.col("nranks") == pl.col("nranks").max())["nnodes"].max()
    return {
        "nccl_versions": versions(run),
        "world_size": _world_size(largest, {*seen, *named, *absent}, run["recorded_position"]),
        "ranks_seen": sorted(seen),
        "ranks_missing": absent,
        "hosts": hosts,
        "nodes": len(hosts) if hosts and not absent else printed_nodes,
        "networks": sorted(run["milestone"]["network"].drop_nulls().unique().to_list()),
        "gdr": _gdr(run["transport"]),
        "transports": _transports(run["transport"]),
        "channels": _channels(run["channels"], largest),
        "communicators": _communicators(run),
        "debug": {"level": _level(run), "subsystems_seen": _subsystems(run)},
    }


def versions(run: Frames) -> list[str]:
    """Return NCCL's versions from the logs; without any, from RAS reports, errors of PyTorch or nccl-tests."""
    printed = sorted(run["version"]["version"].cast(pl.String).unique().to_list())
    if not printed:
        printed = sorted(run["recorder_dump"]["library"].cast(pl.String).drop_nulls().unique().to_list())
    if not printed:
        printed = sorted(run["ras_snapshot"]["version"].drop_nulls().unique().to_list())
    if not printed:
        printed = sorted(set(map(version_of_torch, run["call_error"]["version"].cast(pl.String).drop_nulls())))
    return printed or [version_text(code) for code in sorted(run["benchmark"]["library"].drop_nulls().unique())]


def _gdr(transport: pl.DataFrame) -> str:
    """Return how many of the connections over an RDMA-capable network use GPUDirect RDMA."""
    if transport.is_empty():
        return "unknown"
    over_network = transport.filter(pl.col("medium").is_in(["NET", "COLLNET"]))
    rdma = over_network.filter(~text_of("network").str.contains("Socket", literal=True))
    if rdma.is_empty():
        return "not-applicable"
    return "all" if rdma["is_gdr"].all() else "some" if rdma["is_gdr"].any() else "none"


def _transports(transport: pl.DataFrame) -> dict[str, int] | None:
    counted = transport.group_by("transport").agg(pl.col("connections").sum()).sort("transport")
    return dict(counted.iter_rows()) or None


def _channels(channels: pl.DataFrame, largest: pl.DataFrame) -> dict[str, int | None]:
    """Return the channels of the largest communicator: the maximum over its ranks."""
    of_largest = channels.join(largest.select("key").unique(), on="key", how="semi")
    most: dict[str, int | None] = of_largest.select(pl.col("coll", "nvls", "p2p").max()).row(0, named=True)
    return most


def _communicators(run: Frames) -> list[Row]:
    opened = run["channels"].group_by("key").agg(pl.col("coll").max().alias("channels"))
    member = run["member"].join(run["last_call"], on=["rank_id", "key"], how="left").join(opened, on="key", how="left")
    groups = member.group_by("key", maintain_order=True).agg(
        pl.col("nranks").max(),
        pl.col("rank").n_unique().alias("seen"),
        pl.col("creator").drop_nulls().first().cast(pl.String),
        pl.col("parent_key").first(),
        pl.col("channels").first(),
        pl.col("calls").fill_null(0).min().alias("min"),
        pl.col("calls").fill_null(0).max().alias("max"),
    )
    groups = groups.with_columns(is_largest=pl.col("nranks") == pl.col("nranks").max())
    return [
        {
            "id": row["key"],
            "kind": _kind(row),
            "nranks": row["nranks"],
            "ranks_seen": row["seen"],
            "channels": row["channels"],
            "operations": {"min": row["min"], "max": row["max"]},
        }
        for row in groups.to_dicts()
    ]


def _kind(communicator: Row) -> str:
    """Return how a communicator came to be; of those without a parent, the largest are the world."""
    if communicator["parent_key"]:
        return (communicator["creator"] or "").removeprefix("ncclComm").lower()
    return "world" if communicator["is_largest"] else "group"


def _level(run: Frames) -> str | None:
    if run.has("replay") or run.has("request"):
        return "TRACE"
    if run.has("communicator") or run.has("operation") or run.has("milestone"):
        return "INFO"
    return "WARN" if run.has("warning") or run.has("failure") else None


def _subsystems(run: Frames) -> list[str]:
    return [name for name, frames in nccl.SUBSYSTEMS.items() if any(run.has(frame) for frame in frames)]


def not_shown(run: Frames) -> list[Row]:
    """Return the questions on the subjects of these logs that they cannot answer, and what to set for the next ones."""
    subjects = {question.subject for question in QUESTIONS if question.is_answered(run)}
    # What jobs and their launchers print when something happens stands beside questions on jobs and on machines.
    beside = {question.subject for question in QUESTIONS if any(map(run.has, question.related))}
    subjects |= {"job" if subject == "machine" else subject for subject in beside}
    subjects = subjects or {"job"}
    asked = {subject for shown in subjects for subject in ASKED_WITH[shown]}
    return [
        {"question": question.text, "needs": question.needs}
        for question in QUESTIONS
        if question.subject in asked and not question.is_answered(run)
    ]
