"""Arguments of the application with which NCCL creates no communicator, or makes no call."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, shown
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import group_finding

REFUSED = {
    "rank": "its rank number {value} is not below the number of ranks, {limit}",
    "rank_of_device": "rank {value} is not below the number of devices, {limit}",
    "device_count": "it asked for {value} devices",
    "no_such_device": "it asked for device {value}, and the host has {limit}",
}


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("argument",), hang=True)
def init_argument_refused(argument: pl.DataFrame, communicator: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A process asked for a rank number or a device that its communicator does not have.

    Means: the launcher gave this process a rank, or the job a size, that do not fit together: RANK and WORLD_SIZE of
    another job or another number of hosts, or the number on the host in place of the rank of the job. NCCL creates no
    communicator for it, and the other ranks wait.
    Not when: the process created a communicator afterwards; then it tried again with other numbers.
    Do: print RANK, LOCAL_RANK and WORLD_SIZE of every process, as the launcher sets them; they must be 0 to WORLD_SIZE
    - 1, each once.
    Sources: nccl: src/init.cc, ncclCommInitRank; pytorch-lightning#20219.
    """
    started = communicator.group_by(OWNER).agg(started=pl.col("pos").max())
    rows = argument.filter(text_of("form").is_in(list(REFUSED))).join(started, on=OWNER, how="left", nulls_equal=True)
    rows = rows.filter((pl.col("started") < pl.col("pos")).fill_null(value=True))
    rows = rows.with_columns(limit=pl.coalesce("nranks", "maximum"))
    for (form,), same in rows.sort("source", "line").group_by("form", maintain_order=True):
        value, limit = (shown(same[name][0]) for name in ("value", "limit"))
        detail = REFUSED[str(form)].format(value=value, limit=limit)
        yield group_finding(same, rank, "NCCL refused the numbers that {processes} asked for", detail, "certain")


# Forms of an argument of a call -> what NCCL found.
REFUSED_IN_CALL = {
    "null": "{argument} is NULL",
    "pointer": "{argument} is not a valid pointer",
    "device": "{argument} is on device {cudadev}, and the communicator on device {other_cudadev}",
    "root": "its root or peer is {value}, and the communicator has {limit}",
    "type": "it names the datatype {value}, which this version does not know",
    "operator": "it names the reduction {value}, which this version does not know",
    "unknown_operator": "the reduction {value} was not created on this communicator",
}


ENDED = -1  # size of a communicator that NCCL freed


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("argument",), hang=True)
def call_argument_refused(argument: pl.DataFrame, nccl_warning: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A call has an argument that NCCL refuses.

    Means: the program, or its framework, passes a root, a peer or a buffer that does not fit the communicator. The call
    is not made on this rank, and the other ranks wait in theirs. A communicator of 0 ranks was never created, or was
    destroyed before; one of -1 was aborted or destroyed (NCCL overwrites its size, commPoison of src/init.cc).
    Not when: the process asked for a communicator, which is a finding of its own; it went on: it made calls afterwards.
    Do: look at the call in the program (py-spy, a traceback): which communicator it uses, with which root or peer.
    Sources: nccl: src/misc/argcheck.cc (ArgsCheck, CudaPtrCheck, PtrCheck); nccl#963.
    """
    fatal = nccl_warning.filter(~pl.col("went_on"))
    rows = argument.filter(text_of("form").is_in(list(REFUSED_IN_CALL))).join(fatal, on=["source", "line"], how="semi")
    for (form, call), same in rows.sort("source", "line").group_by("form", "call", maintain_order=True):
        first = {name: shown(same[name][0]) for name in ("argument", "cudadev", "other_cudadev", "value")}
        size = same["maximum"][0]
        limit = count_of(size, "rank") if size is not None else shown(size)
        detail = REFUSED_IN_CALL[str(form)].format(**first, limit=limit)
        if form == "root" and size == 0:
            detail += ": it was destroyed, or never created"
        elif form == "root" and size == ENDED:
            detail = "its communicator was aborted or destroyed before the call"
        yield group_finding(
            same, rank, f"NCCL refused an argument of {shown(call)} on {{processes}}", detail, "certain"
        )
