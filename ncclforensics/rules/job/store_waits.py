"""Ranks that wait for others at the store of PyTorch, do not reach it, or lose it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.identity.rank_numbers import missing_numbers
from ncclforensics.analyses.job.text.torch_text import RENDEZVOUS
from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.networks import is_of_docker
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.step_order import without_steps_behind
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

START_ONCE = (
    "compare WORLD_SIZE with the number of processes that were started (nproc_per_node times nodes), and start each "
    "once; an init_method of file:// needs a new file for each run, a store of TCP a port that no earlier run holds"
)


def too_many_at_store(rows: pl.DataFrame, joined: int, expected: int) -> Finding:
    """Return the finding that more processes came to a barrier at the store than the process group has."""
    title = f"{count_of(joined, 'process')} came to the store of a process group of {expected}"
    detail = "WORLD_SIZE is below the number of started processes, or the store counts those of an earlier run"
    return Finding(title, detail, "certain", remedy=START_ONCE, evidence=evidence_lines(rows))


MOST_AGENTS = 3  # named
LOST_STORE = ["Connection reset", "Connection refused", "Broken pipe", "Connection closed"]  # of errors of the store


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("store_wait",), hang=True)
def torch_ranks_wait_at_store(
    store_wait: pl.DataFrame, store_error: pl.DataFrame, communicator: pl.DataFrame, source: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks wait at the store for others of their process group, and no line shows that these came.

    Means: the store counts who has come to the start of a process group. A rank that waits prints the count every ten
    seconds; a rank that prints nothing did not start, cannot reach the store, or is in other work. Where each printed
    it once, and the output ends there, it is possible.
    Not when: the barrier was completed afterwards; the log was copied while the job started; NCCL began an init.
    Do: read the output of the ranks that are absent; compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK of all.
    Sources: torch/distributed/distributed_c10d.py (_store_based_barrier) of torch 1.8 to 2.7; pytorch-lightning#4420.
    """
    if store_error.filter(pl.col("joined").is_not_null()).height or communicator.height:
        return
    waits = store_wait.filter(form="waiting").sort("source", "line")
    over = store_wait.filter(form="completed").select("source", done="line")
    waits = waits.join(over.group_by("source").agg(pl.col("done").max()), on="source", how="left")
    waits = waits.filter((pl.col("line") > pl.col("done")).fill_null(value=True)).join(
        source.select("source", "lines"), on="source", maintain_order="left"
    )
    for (key,), rows in waits.group_by(text_of("barrier_key"), maintain_order=True):
        counted = rows.drop_nulls("joined")  # the last line may be cut before the count
        if counted.is_empty():
            continue
        joined, expected = counted.select("joined", "expected_clients").row(-1)
        if joined > expected:
            yield too_many_at_store(rows, joined, expected)
            continue
        is_repeated = rows.height > rows["group_rank"].n_unique()
        if joined < expected and (is_repeated or rows["line"][-1] == rows["lines"][-1]):
            ranks = sorted(rows["group_rank"].unique().to_list())
            absent = sorted(set(range(expected)) - set(ranks)) if len(ranks) == joined else []
            names = f": {ranks_text(absent)} did not" if absent else ""
            title = f"{joined} of {expected} processes came to the store of the process group{names}"
            detail = f"{ranks_text(ranks)} {'wait' if len(ranks) > 1 else 'waits'} there ({key})"
            yield Finding(
                title, detail, "likely" if is_repeated else "possible", ranks=absent, evidence=evidence_lines(rows)
            )


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("rank_announced",), hang=True)
def lightning_ranks_absent(rank_announced: pl.DataFrame, communicator: pl.DataFrame) -> Iterator[Finding]:
    """Processes of Lightning began to join the process group, and no line shows that all of its ranks did.

    Means: each process prints its rank before it joins, and rank 0 prints when all have come. Two processes of one
    number were started as the same node: then other numbers are missing, and all wait.
    Not when: the output of other nodes is in other files; all have come, which the first process prints.
    Do: give the output of all nodes; compare RANK, NODE_RANK, LOCAL_RANK, WORLD_SIZE, SLURM_PROCID and SLURM_NTASKS of
    all processes with the number of nodes and devices that the Trainer has; see that a process runs for each rank.
    Sources: Lightning: fabric/utilities/distributed.py (_init_dist_connection); pytorch-lightning#4389.
    """
    begun = rank_announced.filter(pl.col("announced_rank").is_not_null()).sort("source", "line")
    if begun.is_empty() or begun.height < rank_announced.height or communicator.height:
        return
    expected = begun["expected_ranks"][-1]
    numbers = begun["announced_rank"].to_list()
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    absent = missing_numbers(expected, set(numbers))
    if not absent:
        return
    others = f", {ranks_text(twice)} by two processes or more" if twice else ""
    yield Finding(
        title=f"{len(set(numbers))} of {expected} ranks began to join the process group{others};"
        f" no such line of {ranks_text(absent)} was read",
        detail="two processes of one number were started as the same node; the others wait for the missing ones"
        if twice
        else "these did not start, or their output is not here or was not read",
        certainty="likely" if twice else "possible",
        ranks=absent,
        evidence=evidence_lines(begun.filter(pl.col("announced_rank").is_in(twice)) if twice else begun),
    )


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("rendezvous_step",), hang=True, role=Role.CONTEXT)
def torchrun_waits_for_nodes(
    rendezvous_step: pl.DataFrame,
    process_exit: pl.DataFrame,
    exception: pl.DataFrame,
    store_error: pl.DataFrame,
    communicator: pl.DataFrame,
) -> Iterator[Finding]:
    """The agent of torchrun came to the rendezvous, and no line shows that it was joined there.

    Means: an agent waits until the least number of nodes has come (--nnodes), at most as long as its time-out. The
    others did not start, were given another --rdzv-id or --rdzv-endpoint, or do not reach that endpoint.
    Not when: the log was copied while the nodes were starting; the rendezvous was completed, or failed, in a line of
    its own.
    Do: see that torchrun runs on as many nodes as --nnodes says; compare --rdzv-id, --rdzv-endpoint and --rdzv-backend
    of all; from each node test the port of the endpoint (nc -vz HOST PORT).
    Sources: torch/distributed/elastic: rendezvous/dynamic_rendezvous.py, agent/server/api.py of torch 1.9 to 2.15.
    """
    # A program that goes on, or an error, shows that it did not wait to the end.
    if any(frame.height for frame in (process_exit, exception, store_error, communicator)):
        return
    last = rendezvous_step.sort("pos").group_by("source", maintain_order=True).last()
    waiting = last.filter(text_of("form").is_in(["attempts", "waits"]))
    if waiting.is_empty():
        return
    agents = sorted(waiting["agent"].cast(pl.String).unique())
    yield Finding(
        title=f"torchrun's {'agent' if len(agents) == 1 else 'agents'} {some_of(agents, MOST_AGENTS)} came to the "
        f"rendezvous '{waiting['rendezvous'][0]}', and no line shows that all nodes did",
        detail="an agent waits there for the other nodes until its time-out",
        certainty="possible",
        evidence=evidence_lines(waiting),
    )


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("store_error",), hang=True)
def torch_store_failed(
    store_error: pl.DataFrame,
    torch_error: pl.DataFrame,
    c10d_note: pl.DataFrame,
    training_step: pl.DataFrame,
    progress_bar: pl.DataFrame,
) -> Iterator[Finding]:
    """Ranks did not meet at the store of the process group.

    Means: the store counts its clients: fewer than expected came. A rank that waits for a key waits for the rank that
    sets it; for the id of a communicator that is rank 0, which itself waits in TCPStore until all have come. A server
    that is not found, or whose port is taken, stops all.
    Not when: a rank failed before it came; the store's time-outs on the other ranks follow from that; steps stand
    behind it, of a later launch or of the job that has the port.
    Do: compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK of all processes, for torchrun --rdzv-endpoint, which must
    name one of the nodes; look for processes that never started, and for ones of an earlier run on that port
    (ss -ltnp).
    Sources: torch/csrc/distributed/c10d/TCPStore.cpp, socket.cpp; torch/distributed/distributed_c10d.py.
    """
    work = pl.concat([rows.select("source", "pos") for rows in (training_step, progress_bar)])
    store_error = without_steps_behind(store_error, work)
    if store_error.is_empty():
        return
    errors = torch_error.join(store_error.select("source", "line"), on=["source", "line"])
    ranks = sorted(errors["rank"].drop_nulls().unique())
    counted = store_error.filter(pl.col("joined").is_not_null()).sort("joined", "source", "line")
    taken = store_error.filter(form="port_taken")
    closed = store_error.filter(form="no_port")
    unreachable = store_error.filter(pl.col("form").is_in(["server", "server_logged"]))
    if not counted.is_empty():
        joined, expected = counted.select("joined", "expected_clients").row(-1)
        is_of_nodes = not errors.filter(call=RENDEZVOUS).is_empty()
        clients = (
            "nodes came to the store of the rendezvous"
            if is_of_nodes
            else "processes came to the store of the process group"
        )
        title, rows = f"{joined} of {expected} {clients}", counted
        if joined > expected:
            yield too_many_at_store(counted, joined, expected)
            return
    elif not (unknown := store_error.filter(form="no_name")).is_empty():
        reason = unknown["lookup_reason"].cast(pl.String)[0]
        title, rows = f"the name of the store's host (MASTER_ADDR) could not be looked up: {reason}", unknown
    elif not taken.is_empty():
        ports = taken["port"].drop_nulls()
        place = f"port {ports[0]}" if ports.len() else "the port"
        title, rows = f"{place} of the store is taken by another process", taken
    elif not closed.is_empty():
        title, rows = "the store could not listen on its port", closed
    elif not (foreign := store_error.filter(form="other_service").sort("server", nulls_last=True)).is_empty():
        server, port = foreign.select("server", "port").row(0)
        where = f" at {server}:{port}" if server else ""
        title, rows = f"another program than PyTorch's store answers{where}", foreign
    elif not (few := store_error.filter(form="few_nodes")).is_empty():
        title, rows = "too few nodes joined torchrun's rendezvous in time", few
    elif not unreachable.is_empty():
        server, port = unreachable.select("server", "port").row(0)
        title, rows = f"the store at {server}:{port} could not be reached", unreachable
    elif not (late := store_error.filter(form="not_connected")).is_empty():
        allowed = late["timeout"][0]
        within = "in time" if allowed is None else f"within {allowed / 1000:,.0f} s"
        title, rows = f"the store could not be reached {within}", late
    elif store_error.filter(form="no_connection").height == store_error.height:
        title, rows = "the store of the rendezvous could not be reached", store_error
        places = c10d_note.filter(text_of("form").is_in(["refused", "endpoint"])).sort(text_of("form"), "line").tail(1)
        for endpoint, server, port, refusal in places.select("endpoint", "server", "port", "refusal").rows():
            place = endpoint or f"{server}:{port}"
            title = f"the store of the rendezvous at {place} could not be reached" + f": {refusal}" * bool(refusal)
            rows = pl.concat([store_error, places], how="diagonal_relaxed")
    elif not (asked := store_error.filter(form="unique_id")).is_empty():
        title, rows = _title_of_id(asked), asked
    elif not (asked := store_error.drop_nulls("awaited_rank")).is_empty():
        awaited = ranks_text(asked["awaited_rank"].unique().sort())
        title, rows = f"{ranks_text(ranks) or 'ranks'} waited in vain in the store for the address of {awaited}", asked
    elif store_error.filter(form="waited").height == store_error.height:
        server, port, allowed = store_error.select("server", "port", "timeout").row(0)
        place = f"the store at {server}:{port}" if server else "the store"
        within = f" for {allowed / 1000:,.0f} s" if allowed else ""
        title, rows = f"{ranks_text(ranks) or 'ranks'} waited in vain for an answer of {place}{within}", store_error
    else:
        keys = store_error["program_key"].cast(pl.String).drop_nulls()
        key = f"the key {keys[0]}" if keys.len() else "a key"
        title, rows = f"{ranks_text(ranks) or 'ranks'} waited in vain for {key} in the store", store_error
    detail = "the ranks that print this are victims of the process that did not come or did not answer"
    if any(is_of_docker(server) for server in rows["server"].cast(pl.String).drop_nulls()):
        detail += "; that address is of Docker's own bridge, which other hosts do not reach: use one of the network"
    if rows["awaited_rank"].unique().to_list() == [0]:
        detail += "; rank 0, which serves the store, goes on only when every process has come there"
    if rows["form"].is_in(["port_taken", "no_port"]).any():
        detail = "the process that prints this is to serve the store; all others wait for it"
    if rows["form"].is_in(["other_service"]).any():
        detail = "its answer is none of a store: a server or proxy has that port (MASTER_ADDR, MASTER_PORT)"
    if rows["form"].is_in(["few_nodes"]).any():
        detail = (
            "on the others torchrun was not started, or with another --rdzv-id or --rdzv-endpoint, or does not reach "
            "this one"
        )
    if rows["store_reason"].cast(pl.String).fill_null("").str.contains_any(LOST_STORE).any():
        detail = "the process that serves the store, that of rank 0 or its launcher, ended: its own output says why"
    yield Finding(title, detail, "certain", ranks=ranks, role=Role.CONSEQUENCE, evidence=evidence_lines(rows))


def _title_of_id(asked: pl.DataFrame) -> str:
    """Return the title on ranks that did not get the id of a communicator from the rank that makes it."""
    of_same = pl.struct("store_reason", "other_rank")
    alike = asked.sort(pl.col("store_reason").is_null(), "source", "line").filter(of_same == of_same.first())
    other, reason = alike.select("other_rank", text_of("store_reason")).row(0)
    ranks = ranks_text(sorted(alike["group_rank"].drop_nulls().unique().to_list()))
    why = f": {reason.partition('. ')[0].partition(' Exception raised')[0]}" if reason else ""  # it may be cut
    return f"{ranks} of a process group did not get the id of its communicator from rank {other}{why}"


@rule(Category.BOOTSTRAP, Severity.INFO, of=("store_connection",), hang=True, of_failures=True, role=Role.CONSEQUENCE)
def torch_store_connection_lost(store_connection: pl.DataFrame) -> Iterator[Finding]:
    """Processes lost their connection to the store of the process group while a request was open.

    Means: the server, which is rank 0 or the launcher of the first host, closed the connection: it ended, or what
    answers at this port is no store. Every further use of the store fails; running collectives go on.
    Not when: the job had come to its end: then rank 0 ends, and the others print this.
    Do: look at the process that serves the store, and at what listens on its port (ss -ltnp); compare the name with
    that of the first host: a service or proxy in between, as in Kubernetes, accepts connections and closes them.
    Sources: torch/csrc/distributed/c10d/TCPStore.cpp, Utils.hpp (recvBytes), of torch 2.6 to 2.15; trainer#2794.
    """
    if store_connection.is_empty():
        return
    rows = store_connection.sort("source", "line")
    address = pl.coalesce(pl.format("{}:{}", "server", "port"), text_of("server"))
    servers = rows.select(server=address)["server"].drop_nulls()
    ranks = sorted(rows["global_rank"].drop_nulls().unique().to_list())
    reason = (
        str(rows["reason"].cast(pl.String)[0]).partition(" Exception raised")[0].removesuffix(" (function operator())")
    )
    yield Finding(
        title=f"{ranks_text(ranks) or 'a process'} lost the connection to the store"
        + (f" at {servers[0]}" if servers.len() else "")
        + ": the process that serves it ended, or closed it",
        detail=f"the line says: {reason}",
        certainty="certain",
        ranks=ranks,
        evidence=evidence_lines(rows),
    )


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("name_lookup",), hang=True, of_failures=True)
def torch_name_not_found(
    name_lookup: pl.DataFrame, store_error: pl.DataFrame, communicator: pl.DataFrame
) -> Iterator[Finding]:
    """The address of the store of the process group could not be looked up.

    Means: the name of the server is neither in DNS nor in /etc/hosts of this host, or of its container. PyTorch tries
    again until its time-out (30 minutes by default), and the job stands still without an error.
    Where it is a list of nodes, as in SLURM_JOB_NODELIST, no name server knows it.
    Not when: only addresses of IPv6 were not found and the processes met: NCCL began an init, or the job went on.
    Do: getent hosts NAME on the host that prints it, inside its container; give MASTER_ADDR, or --rdzv-endpoint, as an
    address, under Slurm as the first name that scontrol show hostnames prints; under Docker add the host's own name to
    /etc/hosts (--add-host) or use --hostname.
    Sources: torch/csrc/distributed/c10d/socket.cpp, SocketConnectOp::tryConnect; pytorch#74824; scontrol(1).
    """
    if not communicator.is_empty():
        return
    failed = store_error.filter(pl.col("form").is_in(["server", "server_logged", "no_connection"]))
    for (server, port), rows in name_lookup.group_by("server", "port", maintain_order=True):
        only_ipv6 = (rows["family"].cast(pl.String) == "IPv6").all()
        detail = f"the system says: {rows['reason'].cast(pl.String)[0].rstrip(').')}"
        is_list = server.endswith("]")  # of Slurm's names of nodes
        if is_list:
            detail += "; it is a list of nodes of Slurm, and not the name of a host"
        elif only_ipv6:
            detail += "; only addresses of IPv6 were asked for in these lines"
        is_cause = is_list or not failed.is_empty()
        yield Finding(
            title=f"the name of the store's host, {server} (port {port}), could not be looked up",
            detail=detail,
            certainty="likely" if is_cause else "possible",
            severity=Severity.ERROR if is_cause else Severity.WARNING,
            role=Role.CAUSE if is_cause else Role.CONTEXT,
            evidence=evidence_lines(rows),
        )
