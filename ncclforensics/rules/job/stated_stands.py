"""Programs that stand where they wait for something by their own words."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.rules.finding import Category, Finding, Severity
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
FIRST_STEP = (
    "take the stacks of all ranks, which show who loads data and who is in a collective; set NCCL_DEBUG=INFO; on one "
    "host try NCCL_P2P_DISABLE=1: if that runs, look for ACS or an IOMMU that redirects PCIe"
)
FILES_GROW = (
    "see whether its files grow; on the host that writes them look for processes that wait for the disk "
    "(`ps -eo pid,stat,wchan:32,args | grep ' D'`), and at df, mount and dmesg -T; take the stacks of all ranks"
)


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


@rule(Category.HANG, Severity.WARNING, of=("stated_stand",), hang=True)
def app_ends_in_build(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """The output of a program ends where it builds an extension of PyTorch, or waits for one that is built.

    Means: one process of a folder builds, and the others wait without a word until its lock file is gone. A build that
    was broken off leaves that file, and then all wait for ever. A first build takes minutes.
    Not when: the build went on behind the end of the log.
    Do: look for a compiler that runs (`ps -ef | grep -E "ninja|nvcc"`); if none does, on any host that shares the
    folder, remove the file `lock` there; build before the start (DS_BUILD_OPS=1 for DeepSpeed), or give each host a
    folder of its own (TORCH_EXTENSIONS_DIR).
    Sources: torch/utils/cpp_extension.py (_jit_compile), file_baton.py; Megatron-LM#82; OpenRLHF#208.
    """
    rows = stated_stand.filter(kind="build")
    if rows.is_empty():
        return
    below = rows["what"].drop_nulls().to_list()
    where = f"below {below[0]}" if below else "in the folder of the build"
    yield Finding(
        title="the output ends where an extension of PyTorch is built, or waited for",
        detail=f"so it does in {count_of(rows.height, 'file')}: a build that was broken off leaves a lock, for which "
        "all others wait silently",
        certainty="possible",
        ranks=_ranks(rows),
        remedy=f"if no compiler runs there (`ps -ef | grep -E 'ninja|nvcc'`), remove the file `lock` {where}",
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
    detail = "the program waits for it, and its output ends there"
    yield Finding(title, detail, "likely", remedy=FREE_RESOURCES, evidence=evidence_lines(rows))


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
def app_ends_before_first_step(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """The output ends with a progress bar of which no step is done.

    Means: the program came to its loop, and the first step is not over: the first batch is loaded there, kernels are
    compiled, and the first collectives create NCCL's communicators and connect the GPUs. Where ranks hang there, a
    connection between GPUs or hosts that does not work is as likely as a rank that does not come.
    Not when: the log was copied in the first step; the bar counts files or parts of a model, or another one goes on.
    Do: take the stacks of all ranks: they show who loads data and who is in a collective; set NCCL_DEBUG=INFO; on one
    host try NCCL_P2P_DISABLE=1: if that runs, look for ACS or an IOMMU that redirects PCIe.
    Sources: tqdm; NCCL documentation, troubleshooting (PCI access control services).
    """
    rows = stated_stand.filter(kind="first_step")
    for (steps,), bars in rows.group_by("what", maintain_order=True):
        title = f"the output ends with a progress bar at 0 of {int(str(steps)):,}"
        detail = (
            "if it counts steps: in the first one data are loaded, kernels compiled, and the GPUs connected by NCCL"
        )
        yield Finding(title, detail, "possible", remedy=FIRST_STEP, evidence=evidence_lines(bars))


@rule(Category.HANG, Severity.WARNING, of=("stated_stand",), hang=True)
def app_ends_in_checkpoint(stated_stand: pl.DataFrame) -> Iterator[Finding]:
    """The output ends where a program saves a checkpoint.

    Means: a rank that writes files stands in the file system, and the others wait for it, in the barrier
    behind the checkpoint or in the next step.
    Not when: the log was copied meanwhile: a large checkpoint takes minutes; the program prints nothing until the next
    step, which is where it stands then.
    Do: see whether the files grow; on the host that writes look for processes that wait for the disk (`ps -eo
    pid,stat,wchan:32,args | grep " D"`), at df, mount and dmesg -T; take the stacks of all ranks.
    Sources: Megatron-LM, checkpointing.py; DeepSpeed, engine.py; torch/distributed/checkpoint.
    """
    rows = stated_stand.filter(kind="checkpoint")
    if rows.is_empty():
        return
    ranks = _ranks(rows)
    title = f"the output ends where {ranks_text(ranks) or 'the program'} saves a checkpoint"
    detail = "a rank that stands in the file system keeps the others in the barrier behind it"
    yield Finding(title, detail, "possible", ranks=ranks, remedy=FILES_GROW, evidence=evidence_lines(rows))
