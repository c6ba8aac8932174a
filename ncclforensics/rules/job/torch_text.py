"""Lost connections and time-outs of PyTorch's process groups, and models that differ."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.text.torch_text import CLOSED, CONNECT, TIMED_OUT
from ncclforensics.analyses.verdict.vocabulary import How
from ncclforensics.data.failure_topics import TOPICS
from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.processes import SECOND_HAND_MESSAGES, SECOND_HAND_PARTS, STORE
from ncclforensics.data.torch_failures import WITHOUT_GPU
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import numbers_of_ranges
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.survival import of_open_inputs
from ncclforensics.rules.shared.verdict_finding import answers_on, verdict_finding

LOOPBACK = ("127.", "::1")  # how an address begins that is of the same host
MOST_PEERS = 2  # addresses in a title
MAX_MESSAGE = 120  # characters of a message in a title


def _victims(rows: pl.DataFrame, what: str, detail: str) -> Iterator[Finding]:
    """Report the ranks of these errors, and the calls they were in."""
    if rows.is_empty():
        return
    ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
    rows = rows.with_columns(call=pl.coalesce("call", "place"))
    by_call = rows.drop_nulls("call").group_by("call").agg(pl.col("rank").drop_nulls().unique()).sort("call")
    calls = {call: ranks_text(numbers) for call, numbers in by_call.iter_rows()}
    if elsewhere := sorted(set(ranks).difference(*by_call["rank"])):
        calls["a call whose name was not read"] = ranks_text(elsewhere)
    where = f" in {', '.join(calls)}" if by_call.height else ""
    if by_call.height and len(calls) > 1 and all(calls.values()):
        where = f": {'; '.join(f'{numbers} in {call}' for call, numbers in calls.items())}"
    title = f"{ranks_text(ranks) or 'ranks'} {what}{where}"
    yield Finding(title, detail, "certain", ranks=ranks, role=Role.CONSEQUENCE, evidence=evidence_lines(rows))


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("model_difference",), hang=True)
def torch_models_differ(
    model_difference: pl.DataFrame, job_diagnosis: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """DistributedDataParallel found that the ranks do not have the same model.

    Means: the number or the shapes of parameters differ between ranks. Without this check the gradients would not
    match: ranks would wait for each other or mix up parameters.
    Not when: all ranks but the first report one difference from rank 0: then rank 0 is the one that differs.
    Do: print the names and shapes of the parameters on the named ranks; look for layers that depend on the rank, on a
    configuration file, or on a checkpoint that one rank loaded.
    Sources: torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes; torch 1.9 to 2.15.
    """
    counted = model_difference.filter(form="counts").sort("source", "line")
    if job_diagnosis.is_empty() and counted.height:  # a pasted line that shows no rank of the job
        row = counted.row(0, named=True)
        yield Finding(
            "the models of ranks of a process group differ",
            f"rank {row['group_rank']} has {row['count']} parameters, rank {row['other_rank']} {row['other_count']}; "
            "the numbers are those of the group",
            "certain",
            evidence=evidence_lines(counted),
        )
    for answer in answers_on(job_diagnosis, "collective-mismatch"):
        if answer.how is How.COMPARED and not model_difference.is_empty():
            has_culprits = answer.culprits or answer.missing
            title = (
                "the model of {ranks} differs from that of the others" if has_culprits else "the models of ranks differ"
            )
            yield verdict_finding(answer, rank, title)


@rule(Category.PEER_LOST, Severity.WARNING, of=("torch_error",), hang=True, of_failures=True)
def torch_connection_closed(torch_error: pl.DataFrame, failure: pl.DataFrame) -> Iterator[Finding]:
    """Ranks lost a connection of gloo, PyTorch's transport for CPUs.

    Means: another process of the job ended or its host became unreachable. The ranks that print this are victims; the
    address belongs to the other end, and on one host several ranks share it.
    Not when: the job was started again and did not fail then; a rank that ended on purpose closes its connections, too.
    Do: look for the rank that ended first: the launcher's table of failures, the kernel log, the rank that printed
    another exception or nothing.
    Sources: gloo/transport/tcp/pair.cc; torch 1.8 to 2.15.
    """
    lost = torch_error.filter(pl.col("kind") == CLOSED)
    peers = sorted(peer for peer in lost["peer"].drop_nulls().unique() if not peer.startswith(LOOPBACK))
    what = f"lost a connection to another rank{f' at {some_of(peers, MOST_PEERS)}' if peers else ''}"
    detail = "they are victims: the other end closed it, mostly because its process ended"
    closed = failure.filter(form="local_closed").unique(["host", "localrank"], keep="first", maintain_order=True)
    for finding in _victims(lost, what, detail):
        if closed.height == 1:  # at an orderly end each of them does
            host, number = closed.select("host", "localrank").row(0)
            finding.detail += f"; NCCL saw local rank {number} of {host} close its connection"
            finding.evidence = [*evidence_lines(closed), *finding.evidence]
        yield finding


@rule(Category.TIMEOUT, Severity.ERROR, of=("torch_error",), hang=True, of_failures=True)
def torch_call_timed_out(torch_error: pl.DataFrame, monitored_barrier: pl.DataFrame) -> Iterator[Finding]:
    """A call over gloo did not complete in time.

    Means: these ranks waited for others until the time-out of the process group; they are victims. A rank that printed
    nothing, or that was in another call, is where to look.
    Not when: the job was started again and did not fail then.
    Do: take the stacks of all ranks while they wait (py-spy dump); TORCH_DISTRIBUTED_DEBUG=DETAIL names absent ranks.
    Sources: gloo/transport/tcp/unbound_buffer.cc; torch.distributed, monitored_barrier.
    """
    detail = "they waited for other ranks"
    if monitored_barrier["group_rank"].is_not_null().any():
        detail += "; at a monitored barrier, where rank 0 prints which rank did not come"
    yield from _victims(torch_error.filter(pl.col("kind") == TIMED_OUT), "timed out", detail)


@rule(Category.LAGGING_RANK, Severity.ERROR, of=("monitored_barrier",), hang=True)
def torch_barrier_names_ranks(monitored_barrier: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """A monitored barrier names ranks that did not come, in a text that shows no ranks of the job.

    Means: rank 0 of the process group hears every rank in turn; the named ones had not come when its time-out was over.
    Not when: a verdict is decided, or lines show which rank printed what: then it names the absent ranks. A barrier
    that names one rank alone may have stopped at the first that was absent; the numbers are those of the process group.
    Do: take the stacks of the named ranks, or read the end of their output; TORCH_DISTRIBUTED_DEBUG=DETAIL puts such a
    barrier in front of every collective.
    Sources: torch.distributed, monitored_barrier; ProcessGroupGloo.cpp of torch 1.8 to 2.15.
    """
    naming = monitored_barrier.filter(pl.col("ranks").is_not_null())
    came = monitored_barrier.filter(pl.col("group_rank").is_not_null()).sort("source", "line")
    if verdict.filter(pl.col("verdict") != "undecidable").height or monitored_barrier.is_empty():
        return
    if naming.is_empty() and not came.is_empty():
        ranks = ranks_text(came["group_rank"].unique().sort())
        yield Finding(
            title=f"{ranks} of a process group came to a barrier, and rank 0 did not answer there",
            detail="rank 0 prints which rank did not come, unless it was late itself",
            certainty="likely",
            role=Role.CONSEQUENCE,
            remedy="read the output of rank 0 of this process group: its error, and what it did before the barrier",
            evidence=evidence_lines(came),
        )
    if naming.is_empty() or verdict.height:
        return
    absent = sorted({number for text in naming["ranks"].cast(pl.String) for number in numbers_of_ranges(text)})
    names_all = text_of("form").str.starts_with("all_absent")
    which = "" if naming.select(names_all.any()).item() else "it names the first absent rank alone; "
    title = f"{ranks_text(absent)} of a process group did not come to the barrier"
    detail = f"{which}numbers within the group, not those of the job"
    yield Finding(title, detail, "likely", evidence=evidence_lines(naming))


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("gloo_error",), hang=True, of_failures=True)
def torch_mesh_not_connected(
    gloo_error: pl.DataFrame,
    store_error: pl.DataFrame,
    torch_error: pl.DataFrame,
    group_note: pl.DataFrame,
    process_exit: pl.DataFrame,
) -> Iterator[Finding]:
    """Ranks could not connect to each other over gloo, PyTorch's transport for CPUs.

    Means: each rank publishes an address and connects to all others; an address could not be reached. Mostly it is that
    of the wrong interface, such as 127.0.1.1 from /etc/hosts, a bridge of Docker or a VPN, or a firewall is between.
    Not when: another process ended before, or waited for the address of yet another one: then this is a consequence.
    Do: set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the interface between the hosts; test a high port with nc -l;
    let `hostname -i` give an address that the others reach. List the interfaces of the host with `ip addr`: one that is
    named and not there, or has no address, stops gloo at once.
    Sources: gloo/transport/tcp/pair.cc, device.cc; ProcessGroupGloo.cpp; pytorch#15592, sglang#3226.
    """
    failed = torch_error.filter(kind=CONNECT)
    if failed.is_empty():
        return
    ranks = sorted(failed["rank"].drop_nulls().unique().to_list())
    refused = gloo_error.filter(form="refused").sort("source", "line")
    reasons = gloo_error.sort("source", "line")["reason"].cast(pl.String).drop_nulls().to_list()
    where = f" at {refused['address'][0]}" if not refused.is_empty() else ""
    has_waited = store_error["awaited_rank"].is_not_null().any()
    has_ended = has_waited or not process_exit.filter(pl.col("is_first") & pl.col("is_final")).is_empty()
    title = f"{ranks_text(ranks) or 'ranks'} could not connect to another rank over gloo{where}"
    detail = f"gloo reports: {reasons[0]}" if reasons else ""
    loopback = group_note.filter(form="loopback").sort("source", "line").head(1)
    if not loopback.is_empty():
        detail = "a host's name has no address on it, so gloo took the loopback address, which other hosts cannot reach"
    if (names := gloo_error["interface"].cast(pl.String).drop_nulls().unique().sort()).len():
        title = f"gloo finds no address of the interface {', '.join(names)}"
        detail = "GLOO_SOCKET_IFNAME, or the name of the host, asks for it; this host lacks it, or it has no address"
    yield Finding(
        title=title,
        detail=detail,
        certainty="certain",
        ranks=ranks,
        role=Role.CONSEQUENCE if has_ended else Role.CAUSE,
        evidence=[*evidence_lines(failed), *evidence_lines(loopback)],
    )


NO_SWITCHES = "system not yet initialized"  # cudaErrorSystemNotReady
OTHER_BUILD = (
    'install a PyTorch that is built for CUDA there (python -c "import torch; print(torch.version.cuda)" prints None)'
)
LOOK_AT_GPUS = "run nvidia-smi there; in a container check --gpus, the device plugin and CUDA_VISIBLE_DEVICES"
REMEDIES = {
    "old_driver": "update the driver of that host, or install a PyTorch that is built for a CUDA that it supports",
    "no_cuda": OTHER_BUILD,
    "no_nccl": OTHER_BUILD,
}


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("torch_without_gpu",), hang=True)
def torch_finds_no_gpu(torch_without_gpu: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch cannot use any GPU in a process that wants one.

    Means: the driver is absent from the host or not mounted into the container, older than the CUDA that PyTorch was
    built with, or not ready (error 802: the fabric manager does not run); or PyTorch was installed without CUDA or
    NCCL, as builds for the CPU, for Windows and for some boards are.
    Not when: the program goes on without a GPU on purpose.
    Do: run nvidia-smi and python -c "import torch; print(torch.version.cuda)" there; in a container check --gpus, the
    device plugin and CUDA_VISIBLE_DEVICES; for error 802 systemctl status nvidia-fabricmanager.
    Sources: torch/cuda/__init__.py (_check_driver), c10/cuda/CUDAFunctions.cpp; CUDA runtime API, cudaError_t.
    """
    for (form,), rows in torch_without_gpu.sort("source", "line").group_by("form", maintain_order=True):
        ranks = sorted(rows["global_rank"].drop_nulls().unique().to_list())
        message = rows["cuda_message"].cast(pl.String).drop_nulls().to_list()
        driver = rows["driver"].drop_nulls().to_list()
        yield Finding(
            title=WITHOUT_GPU[str(form)] + f" ({ranks_text(ranks)})" * bool(ranks),
            detail=f"CUDA reports: {message[0]}"
            if message
            else f"the driver supports CUDA {driver[0] // 1000}.{driver[0] % 1000 // 10}"
            if driver
            else f"{count_of(rows.height, 'process')} reported it",
            certainty="certain",
            ranks=ranks,
            evidence=evidence_lines(rows),
            remedy=TOPICS["switches"].remedy
            if message and NO_SWITCHES in message[0]
            else REMEDIES.get(str(form), LOOK_AT_GPUS),
        )


@rule(Category.PEER_LOST, Severity.WARNING, of=("rendezvous_lost",), hang=True, of_failures=True, role=Role.CONSEQUENCE)
def torch_rendezvous_lost(
    rendezvous_lost: pl.DataFrame,
    process_exit: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    program_end: pl.DataFrame,
) -> Iterator[Finding]:
    """Agents of torchrun lost the store of their rendezvous.

    Means: the agent that serves it, mostly that of the first host, ended or became unreachable; the workers of the
    other agents may go on for a while, or hang. An agent that shuts the rendezvous down, and tells of no worker that
    failed, had ended its work: it came after the agent that serves the store (info).
    Not when: the job had ended well: then the agents end one after the other.
    Do: look at the host of --rdzv-endpoint first: its agent, its kernel log, its network.
    Sources: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py; pytorch#76287.
    """
    rendezvous_lost = of_open_inputs(rendezvous_lost, program_end)
    if rendezvous_lost.is_empty():
        return
    agents = sorted(rendezvous_lost["agent"].cast(pl.String).unique().to_list())
    title = f"{count_of(len(agents), 'agent')} of torchrun lost the store of the rendezvous"
    detail = f"it gave no answer to {', '.join(agents[:2])}"
    finding = Finding(title, detail, "likely", evidence=evidence_lines(rendezvous_lost))
    has_shut_down = rendezvous_lost.filter(form="shutdown")["agent"].n_unique() == len(agents)
    if has_shut_down and process_exit.filter("is_first").is_empty() and elastic_failure.is_empty():
        finding.title += " as it ended" if len(agents) == 1 else " as they ended"
        finding.detail = "the agent that serves it had ended before, as where a job ends"
        finding.severity = Severity.INFO
        finding.remedy = "if the job did not come to its end, read the output of the host of --rdzv-endpoint"
    yield finding


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("watchdog_failure",), hang=True)
def torch_watchdog_failed(watchdog_failure: pl.DataFrame, work: pl.DataFrame) -> Iterator[Finding]:
    """The watchdog thread of a process group ended with an error that is neither a time-out nor NCCL's.

    Means: the watchdog thread met an error and ends the process; the other ranks lose their connection to it. A failed
    assertion is an error in PyTorch's own code, mostly in its debugging aids.
    Not when: a collective had timed out before: then the debugging aid ran for that, and a rank that did not come is
    the cause; the message passes on an error of NCCL, CUDA, gloo or the store: these are left out, for another process
    or a GPU is the cause; the rank's own time-out stands in the same file: the message is the rest of that.
    Do: read the whole message where it stands; of a failed assertion, search for it in PyTorch's issues, and unset
    TORCH_NCCL_DESYNC_DEBUG (NCCL_DESYNC_DEBUG).
    Sources: ProcessGroupNCCL.cpp of torch 1.13 to 2.15, ncclCommWatchdog; pytorch#105287.
    """
    text = pl.coalesce(text_of("assertion"), text_of("error"))
    failed = watchdog_failure.with_columns(text=text).sort("source", "line")
    is_passed_on = pl.col("text").str.contains_any([*SECOND_HAND_MESSAGES, *SECOND_HAND_PARTS, STORE])
    timed_out = work.filter("has_timed_out")
    is_of_timeout = pl.col("source").is_in(timed_out["source"].implode()) & pl.col("assertion").is_null()
    for (message,), rows in failed.filter(~is_passed_on & ~is_of_timeout).group_by("text", maintain_order=True):
        ranks = sorted(rows["global_rank"].drop_nulls().unique().to_list())
        is_assertion = rows["assertion"].is_not_null().any()
        yield Finding(
            title=f"the watchdog thread of {ranks_text(ranks) or 'a rank'} ended with an error:"
            f" {str(message)[:MAX_MESSAGE]}",
            detail="a failed assertion of PyTorch's own, which ends the process; debugging aids run after a time-out"
            if is_assertion
            else "it ends the process; the message may be the consequence of another failure",
            remedy="" if is_assertion else "read the whole message where it stands, and what the other ranks printed",
            certainty="likely" if is_assertion else "possible",
            ranks=ranks,
            evidence=evidence_lines(rows),
        )
