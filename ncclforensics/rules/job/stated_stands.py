"""Programs that stand where they wait for something by their own words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.processes import REQUESTED_ENDS
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 3  # paths
OTHERS_WAIT = "it does not come to the next collective, in which the other ranks wait"
BEYOND_PROMPT = (
    "type `c` there, or take breakpoint() and pdb.set_trace() out of the program; PYTHONBREAKPOINT=0 ignores the first"
)
ANSWERS = {
    "remote_code": "pass trust_remote_code=True where the program loads a model or data, if you trust that code",
    "key": "set WANDB_API_KEY, or WANDB_MODE=offline; for Hugging Face HF_TOKEN",
    "host_key": "log in once from this host to that one, or put its key into known_hosts (ssh-keyscan), for all hosts",
    "password": "give the account that starts the job a key or a token which needs no typing (ssh-copy-id, ssh-agent)",
    "other": "start the program with the option that answers the question, or answer it in a terminal",
}
FREE_RESOURCES = (
    "compare what is asked for with `ray status` and `ray list nodes`: nodes that did not join, GPUs that another job "
    "or a dead actor holds"
)
ALL_COME = (
    "count the processes that were started, and compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK of all; see that "
    "each host reaches that port (`nc -vz HOST PORT`); NCCL_DEBUG=INFO shows whether they came past it"
)
STACKS = "take the stacks of all ranks, which show who loads data and who is in a collective; set NCCL_DEBUG=INFO"
FIRST_COLLECTIVE = (
    f"{STACKS}; on one host try NCCL_P2P_DISABLE=1: if that runs, look for ACS or an IOMMU that redirects PCIe"
)
FILES_GROW = (
    "see whether its files grow; on the host that writes them look for processes that wait for the disk "
    "(`ps -eo pid,stat,wchan:32,args | grep ' D'`), and at df, mount and dmesg -T; take the stacks of all ranks"
)


class Phase(NamedTuple):
    """A part of the work of a program: where an output ends, what comes next, and what to look at."""

    place: str
    then: str
    remedy: str


PHASES = {
    "start": Phase(
        "where processes of the job start",
        "next they load libraries, and come to the start of their process group, which returns when all have come",
        f"take the stacks of all ranks; {ALL_COME}",
    ),
    "workers": Phase(
        "where a program gets its workers",
        "it waits until Ray or the engine has started them, and they have come to their process group",
        f"look at `ray status`, and at the logs of the workers; {ALL_COME}",
    ),
    "joined": Phase(
        "behind the start of the process group",
        "next come the first collective, which creates NCCL's communicator and connects the GPUs, and the model",
        FIRST_COLLECTIVE,
    ),
    "build": Phase(
        "where an extension of PyTorch is built, or waited for",
        "a build that was broken off leaves a lock, for which all others wait silently",
        "if no compiler runs there (`ps -ef | grep -E 'ninja|nvcc'`), remove the file `lock` {where}",
    ),
    "set_up": Phase(
        "where the training is set up",
        "model and optimizer are made then, and spread over the ranks by the first collectives",
        FIRST_COLLECTIVE,
    ),
    "data": Phase(
        "where data sets are prepared",
        "mostly one rank does it, and the others wait for it in a barrier, or for the lock of a cache",
        f"{STACKS}; see whether files of the data sets or of their cache grow",
    ),
    "weights": Phase(
        "where weights are loaded",
        "a rank that reads slowly, or does not come to it, keeps the others in the next collective",
        f"see whether the memory of the GPUs grows (nvidia-smi), and how fast the files are read; {STACKS}",
    ),
    "warm_up": Phase(
        "where an engine makes its first pass through the model",
        "kernels are compiled in it, memory is measured, and the first collectives connect the GPUs",
        FIRST_COLLECTIVE,
    ),
    "capture": Phase(
        "where CUDA graphs are captured",
        "each is made with the collectives of the model, so that all ranks must come to the same one",
        f"{STACKS}; try without graphs (vLLM: --enforce-eager, SGLang: --disable-cuda-graph)",
    ),
    "first_step": Phase(
        "before the first step",
        "in it data are loaded, kernels compiled, and the GPUs connected by NCCL",
        FIRST_COLLECTIVE,
    ),
    "bar": Phase(
        "with a progress bar at 0 of {what}",
        "if it counts steps: in the first one data are loaded, kernels compiled, and the GPUs connected by NCCL",
        FIRST_COLLECTIVE,
    ),
    "first_steps": Phase(
        "in the first steps",
        "the first one is over, and DistributedDataParallel has its gradients in buckets; where the program is in the "
        "next ones, it does not print",
        FIRST_COLLECTIVE,
    ),
    "next_step": Phase(
        "where more steps begin",
        "of another epoch, or another training: loaders of data start their workers then, and a rank whose data do not "
        "come keeps the others in its first step",
        STACKS,
    ),
    "epoch_end": Phase(
        "behind the last step of an epoch",
        "ranks with more batches than the others are still in it, and wait for them in a step that these do not make",
        f"{STACKS}; compare the number of batches of all ranks",
    ),
    "evaluation": Phase(
        "in an evaluation",
        "ranks with fewer batches than the others leave it, and do not come to the collectives of the next ones",
        STACKS,
    ),
    "gather": Phase(
        "where the results of an evaluation are gathered",
        "the ranks that are done wait for the others to end their part, and for what each of them sends",
        STACKS,
    ),
    "checkpoint": Phase(
        "where the program saves a checkpoint",
        "a rank that stands in the file system, or does not come to it, keeps the others in the barrier behind it",
        FILES_GROW,
    ),
}


def _ranks(rows: pl.DataFrame) -> list[int]:
    return sorted(rows["rank"].drop_nulls().unique().to_list())


@rule(Category.HANG, Severity.ERROR, of=("stated_stand",), hang=True)
def app_stands_in_debugger(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """A program stands at the prompt of Python's debugger.

    Means: the program called breakpoint(), pdb.set_trace() or torch.distributed.breakpoint, or an exception opened the
    debugger. The process waits until somebody types, and the other ranks wait for it in their next collective.
    Not when: the program went on behind the prompt.
    Do: type `c` at the prompt; take the call out of the program; PYTHONBREAKPOINT=0 ignores breakpoint(), not
    pdb.set_trace().
    Sources: Python, pdb.py, sys.breakpointhook; torch/distributed/__init__.py (breakpoint).
    """
    for _, rows in stated_stand.filter(kind="debugger").group_by("source", maintain_order=True):
        ranks, what = _ranks(rows), rows["what"][-1]
        title = f"{ranks_text(ranks) or 'a program'} stands at the prompt of a debugger{f', at {what}' if what else ''}"
        detail = f"it goes on when somebody types there; until then {OTHERS_WAIT}"
        yield Finding(title, detail, "likely", ranks=ranks, remedy=BEYOND_PROMPT, evidence=evidence_lines(rows))


@rule(Category.HANG, Severity.ERROR, of=("stated_stand",), hang=True)
def app_waits_for_answer(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """A program asks a person a question, and its output ends there.

    Means: the program reads from the terminal: for a key, a password, or whether to go on. A job that nobody watches
    gets no answer; the process stands there, and the other ranks wait for it.
    Not when: somebody answered, and the program went on; the question stands in a text, such as a help.
    Do: give the answer before the start, as an option or a variable, or answer it in a terminal.
    Sources: transformers, dynamic_module_utils.py; wandb, sdk/lib/apikey.py; OpenSSH, sshconnect.c.
    """
    for (form,), rows in stated_stand.filter(kind="question").group_by("form", maintain_order=True):
        ranks = _ranks(rows)
        title = f"{ranks_text(ranks) or 'a program'} asks a person a question, and its output ends there"
        detail = f"without an answer it stands there: {OTHERS_WAIT}"
        yield Finding(title, detail, "likely", ranks=ranks, remedy=ANSWERS[str(form)], evidence=evidence_lines(rows))


@rule(Category.HANG, Severity.ERROR, of=("stated_stand",), hang=True)
def app_waits_for_lock(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """A program waits for a lock on a file, and its output ends there.

    Means: another process holds the lock, or an earlier run was ended while it held it and left its file; on some
    shared file systems locks do not work. All ranks that need the file wait.
    Not when: the lock was free again, and the program went on: locks are held while a process downloads or builds.
    Do: on the host look whether a process holds it (`lsof FILE`, `fuser -v FILE`); if none does, on no host that shares
    the folder, remove it; put caches (HF_HOME, TORCH_EXTENSIONS_DIR) on a disk of the host.
    Sources: filelock, _api.py; huggingface_hub, utils/_fixes.py; torch/utils/file_baton.py; datasets#3983.
    """
    rows = stated_stand.filter(kind="lock")
    if rows.is_empty():
        return
    ranks, files = _ranks(rows), rows["what"].unique(maintain_order=True).to_list()
    times = f" for {waited[-1]} s" if (waited := rows["waited"].drop_nulls()).len() else ""
    yield Finding(
        title=f"{ranks_text(ranks) or 'a program'} waits{times} for the lock {some_of(files, SHOWN)}",
        detail="another process holds it, or an earlier run was ended with it and left the file",
        certainty="likely",
        ranks=ranks,
        remedy=f"look which process holds it: `lsof {files[0]}`; if none does on any host that shares it, remove it",
        evidence=evidence_lines(rows),
    )


@rule(Category.MISSING_RANK, Severity.ERROR, of=("stated_stand",), hang=True)
def app_waits_for_resources(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """Ray has no free resources for a task or an actor, and the output ends there.

    Means: the ranks that the task or actor was to hold do not start, and the program waits for them without an error.
    Not when: resources became free, or nodes came, and the program went on.
    Do: compare what is asked for with `ray status` and `ray list nodes`: nodes that did not join, GPUs that another job
    or a dead actor holds.
    Sources: Ray, autoscaler/_private/autoscaler.py; vllm#1058, vllm#8908.
    """
    rows = stated_stand.filter(kind="resources")
    if rows.is_empty():
        return
    wanted = rows["what"].unique(maintain_order=True).to_list()
    title = f"Ray has no place for what the program asks for: {{{some_of(wanted, 1)}}}"
    detail = "the program waits for it, until its output ends or it gives up"
    yield Finding(title, detail, "likely", remedy=FREE_RESOURCES, evidence=evidence_lines(rows))


@rule(Category.MISSING_RANK, Severity.ERROR, of=("ray_demand",), hang=True)
def ray_lacks_gpus(ray_demand: pl.DataFrame) -> Iterator[Finding]:
    """`ray status` shows a placement group, a task or an actor that asks for more GPUs than the cluster has free.

    Means: Ray places a group only as a whole. Where it asks for more GPUs than all nodes have, it waits for ever, and
    the ranks that it was to hold do not start: a node did not join, or Ray sees no GPU on it. Where other jobs hold
    them, it waits for these.
    Not when: nodes join later; the output is of before the program began.
    Do: compare the GPUs of each node in `ray status -v` and `ray list nodes` with nvidia-smi there; start Ray on a node
    that does not join (`ray start --address`), and with --num-gpus where it sees none.
    Sources: Ray, autoscaler/_private/util.py; vllm, ray_utils.py.
    """
    for row in ray_demand.filter(pl.col("asked") > pl.col("gpus") - pl.col("held")).iter_rows(named=True):
        is_too_few = row["asked"] > row["gpus"]
        has_none = row["gpus"] == 0  # as no line shows one, which a text may have left out
        free = f", {row['gpus'] - row['held']:g} of them free" * (not is_too_few)
        yield Finding(
            title=f"Ray has {count_of(int(row['gpus']), 'GPU')} in all{free}, and {row['asked']:g} are asked for",
            detail="a node did not join, or Ray sees no GPU on one" if is_too_few else "others hold them",
            certainty="certain" if is_too_few and not has_none else "likely",
            remedy=FREE_RESOURCES,
            evidence=[Line(row["source"], row["line"]), Line(row["source"], row["gpus_line"])],
        )


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("stated_stand",), hang=True)
def app_ends_at_join(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """The output ends where processes come to the start of their process group.

    Means: init_process_group, or what other frameworks have for it, returns when all processes have come. One that did
    not start, or has another address, port or number of ranks, keeps all others there.
    Not when: the log was copied while the job started; the program prints nothing until its first step is over: then
    it may have come further, and stand in its first collective.
    Do: count the processes that were started; compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK of all; see that
    each host reaches that port; set NCCL_DEBUG=INFO, whose first lines show that the process group was there.
    Sources: torch/distributed/distributed_c10d.py; DeepSpeed, comm/comm.py; JAX, distributed.py.
    """
    rows = stated_stand.filter(kind="join")
    if rows.is_empty():
        return
    waiting = ranks_text(_ranks(rows)) or "processes"
    title = f"{waiting} came to the start of the process group, and the output ends there"
    detail = "it returns when all have come; how many there are, these lines do not say"
    if absent := rows["what"].drop_nulls().to_list():
        title = f"{waiting} wait for {absent[-1]} at the start of the process group, and the output ends there"
        detail = "no process listens there, or it is not reached from here"
    is_repeated = rows.filter(form="peers").height > 1
    certainty = "likely" if is_repeated else "possible"
    yield Finding(title, detail, certainty, remedy=ALL_COME, evidence=evidence_lines(rows))


@rule(Category.HANG, Severity.WARNING, of=("stated_stand",), hang=True)
def app_ends_in_phase(
    stated_stand: pl.DataFrame, exception: pl.DataFrame, process_exit: pl.DataFrame, program_end: pl.DataFrame
) -> Iterator[Finding]:
    """The output ends with a line by which a program begins a part of its work, or ends one, or with a bar at 0.

    Means: the program came as far as that line, and did not print the next one: that of the first step, mostly. What it
    does in between is known by the part: it waits for workers, builds an extension, loads weights, captures CUDA
    graphs, takes its first step, gathers results, or saves a checkpoint. Where ranks hang there, a rank that does not
    come is as likely as a connection between GPUs or hosts that does not work, or a file system that does not answer.
    Not when: the log was copied meanwhile: large models load for minutes, and so do first builds and checkpoints; the
    program prints nothing in between, so that it may have come further; another file shows steps, or an end that was
    not asked for.
    Do: take the stacks of all ranks: they show who loads data and who is in a collective; set NCCL_DEBUG=INFO, whose
    lines show the first collective. In a first step, on one host try NCCL_P2P_DISABLE=1: if that runs, look for ACS or
    an IOMMU that redirects PCIe. In a build, look for a compiler that runs (`ps -ef | grep -E "ninja|nvcc"`): if none
    does, remove the file `lock` in its folder. In a checkpoint, see whether its files grow, and look on the host that
    writes for processes that wait for the disk (`ps -eo pid,stat,wchan:32,args | grep " D"`).
    Sources: Megatron-LM, training.py; transformers, trainer.py; torch/utils/cpp_extension.py; vllm.
    """
    rows = stated_stand.filter(pl.col("kind").is_in(list(PHASES)))
    unasked = process_exit.filter(~pl.col("signal").is_in(REQUESTED_ENDS).fill_null(value=False))
    has_ended = exception.height or unasked.height or program_end.height
    if rows.is_empty() or has_ended:
        return
    for (part, what), ends in rows.group_by("kind", "what", maintain_order=True):
        place, then, remedy = PHASES[str(part)]
        ranks = _ranks(ends)
        yield Finding(
            title=f"the output ends {place.format(what=f'{int(str(what)):,}' if part == 'bar' else '')}",
            detail=then,
            certainty="possible",
            ranks=ranks,
            remedy=remedy.format(where=f"below {what}" if what else "in the folder of the build"),
            evidence=evidence_lines(ends),
        )
