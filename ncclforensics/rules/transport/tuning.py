"""Settings of algorithm, protocol and buffers, and algorithms that change while the job runs."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.tuning import BUFFER, TOO_MANY, TUNED
from ncclforensics.frames.columns import OWNER, PLACE
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

FORCING = ["NCCL_ALGO", "NCCL_PROTO"]
UNORDERED = ["Socket"]  # networks that may split stores of 128 bytes, as libfabric's provider efa


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def tune_forced_algo(setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable forces the algorithm or the protocol.

    Means: NCCL does not choose by size and topology; the best choice for one size is slow for others. Some collectives
    do not support all algorithms; before 2.22 NCCL silently fell back.
    Not when: the setting was measured on this cluster, with this version.
    Do: run again without the variable and compare; to keep it, measure it again with each new version.
    Sources: nccl#1304, nccl#846; NCCL user guide, NCCL_ALGO and NCCL_PROTO.
    """
    forced = environment_settings(setting).filter(pl.col("variable").is_in(FORCING) & (pl.col("value") != ""))
    for _, rows in forced.sort("source", "line").group_by("variable", "value", maintain_order=True):
        name, value = rows["variable"][0], rows["value"][0]
        choice = "the algorithm" if name == "NCCL_ALGO" else "the protocol"
        yield group_finding(
            rows, rank, f"{name}={value} forces {choice} on {{processes}}", "without it NCCL chooses by size",
            "certain", role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("setting",))
def tune_forced_proto_ll128(
    setting: pl.DataFrame, transport: pl.DataFrame, libfabric: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """LL128 is forced over a network that may split its 128-byte stores.

    Means: the protocol needs 128-byte stores that arrive undivided. Sockets, copies through host memory and EFA may
    split them, and results are silently wrong.
    Not when: all data goes over NVLink or InfiniBand; the variable excludes LL128 (^LL128) or allows all protocols.
    Do: unset NCCL_PROTO, and check the results with nccl-tests (-c 1).
    Sources: nccl#281, nccl#831, nccl#1081, aws-ofi-nccl#850.
    """
    forced = environment_settings(setting).filter(
        (pl.col("variable") == "NCCL_PROTO")
        & pl.col("value").str.to_uppercase().str.contains("LL128", literal=True)
        & ~pl.col("value").str.contains("^", literal=True)
        & ~pl.col("value").str.to_uppercase().str.contains("SIMPLE", literal=True)
    )
    net = transport.filter(pl.col("medium") == "NET")
    efa = libfabric.filter(pl.col("provider") == "efa")
    unfit = net if not efa.is_empty() else net.filter(pl.col("network").is_in(UNORDERED))
    if forced.is_empty() or unfit.is_empty():
        return
    value, network = forced["value"][0], unfit["transport"][0]
    finding = group_finding(
        forced, rank, f"NCCL_PROTO={value} on {{processes}}, and data goes over {network}",
        "LL128 needs a network that does not split 128-byte stores: results may be wrong", "likely",
    )  # fmt: skip
    finding.evidence += evidence_lines(unfit, "the network")[:1]
    yield finding


@rule(Category.ENVIRONMENT, Severity.ERROR, of=("no_algorithm",), hang=True)
def tune_no_algorithm_left(no_algorithm: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL_ALGO and NCCL_PROTO leave no algorithm for a collective.

    Means: the call fails with an internal error or invalid usage: this collective, datatype or number of ranks supports
    none of the allowed algorithms.
    Not when: the application requested symmetric kernels that do not exist; then NCCL uses others.
    Do: unset NCCL_ALGO and NCCL_PROTO, or allow Ring and Simple as well.
    Sources: TensorRT-LLM#953, nccl#1304.
    """
    failed = no_algorithm.filter(pl.col("form").is_in(["none", "token", "prefix"]))
    forced = environment_settings(setting).filter(pl.col("variable").is_in(FORCING)).sort("source", "line")
    for _, rows in failed.sort("source", "line").group_by("form", "collective", "token", maintain_order=True):
        row = rows.row(0, named=True)
        settings = ", ".join(
            f"{name}={value}" for name, value in forced.select("variable", "value").unique().sort("variable").rows()
        )
        call = f"for {row['collective']}" if row["collective"] else "for a call"
        title = f"NCCL does not know {row['token']}" if row["token"] else f"no algorithm is left {call}"
        detail = f"{settings} is set" if settings else "these logs show no variable that forces one"
        finding = group_finding(
            rows, rank, f"{title} on {{processes}}", detail,
            "certain" if settings else "likely",
        )  # fmt: skip
        finding.evidence = finding.evidence[:3] + evidence_lines(forced, "set here")[:1]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def tune_blog_variables(setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Many tuning variables are set at once.

    Means: they were probably copied from another cluster; settings that helped there may be slow here, and override
    NCCL's choices.
    Not when: each was measured here, or the vendor of this platform recommends them.
    Do: run again without them, then add them one by one.
    Sources: nccl#1454, nccl#846; NCCL user guide (discouraged in production).
    """
    tuned = environment_settings(setting).filter(pl.col("variable").is_in(TUNED)).sort("source", "line")
    names = sorted(tuned["variable"].unique())
    if len(names) < TOO_MANY:
        return
    finding = group_finding(
        tuned, rank, f"{len(names)} tuning variables are set on {{processes}}", ", ".join(names), "possible"
    )
    finding.role = Role.CONTEXT
    finding.evidence = evidence_lines(tuned.unique("variable", keep="first", maintain_order=True))
    yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting", "tuning_limit"))
def tune_small_buffer(setting: pl.DataFrame, tuning_limit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The buffers are smaller than NCCL's default, or than a tuner requests.

    Means: large messages are split into more chunks, and links are not fully used.
    Not when: memory is scarce and the loss was measured.
    Do: unset NCCL_BUFFSIZE, or raise it to the size that the tuner requests.
    Sources: NCCL user guide, NCCL_BUFFSIZE (4 MiB); nccl: src/enqueue.cc (chunk size exceeds buffer max).
    """
    sizes = environment_settings(setting).filter(pl.col("variable") == "NCCL_BUFFSIZE")
    small = sizes.filter(pl.col("value").cast(pl.Int64, strict=False).is_between(1, BUFFER - 1))
    for _, rows in small.sort("source", "line").group_by("value", maintain_order=True):
        yield group_finding(
            rows, rank, f"NCCL_BUFFSIZE={rows['value'][0]} on {{processes}}", f"NCCL's default is {BUFFER}", "certain",
            role=Role.CONTEXT,
        )  # fmt: skip
    clamped = tuning_limit.filter(pl.col("form") == "chunk")
    if not clamped.is_empty():
        row = clamped.sort("chunk", descending=True).row(0, named=True)
        yield group_finding(
            clamped, rank, "a tuner requests chunks larger than the buffers on {processes}",
            f"{row['chunk']} bytes, and the buffer holds {row['maximum']}", "certain", role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.ENVIRONMENT, Severity.INFO, of=("algorithm_choice",))
def tune_algorithm_switches(
    algorithm_choice: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Equal calls ran with different algorithms or protocols.

    Means: a tuner plugin changes its choice, or a variable was changed while the job ran; equal calls then differ in
    time.
    Not when: the process has several communicators: the line does not name the communicator.
    Do: compare the times of both; unset NCCL_TUNER_PLUGIN to get NCCL's own choice.
    Sources: nccl: src/enqueue.cc (Algo … proto …); NCCL user guide, NCCL_TUNER_PLUGIN.
    """
    larger = member.filter(pl.col("nranks") > 1).group_by(OWNER).len().filter(pl.col("len") == 1)
    equal = [*OWNER, "collective", "bytes"]
    choices = algorithm_choice.select(*PLACE, "collective", "bytes", "algorithm", "protocol")
    choices = choices.join(larger, on=OWNER, how="semi").drop_nulls(["algorithm", "bytes"])
    algorithm = pl.concat_str(pl.col("algorithm", "protocol").cast(pl.String), separator="/")
    chosen = (
        choices.with_columns(used=algorithm).filter(pl.col("used").n_unique().over(equal) > 1).sort("source", "line")
    )
    for _, rows in chosen.group_by(equal, maintain_order=True):
        row, variants = rows.row(0, named=True), rows.unique("used", keep="first", maintain_order=True)
        call = row["collective"] or "a call"
        yield group_finding(
            variants, rank, f"{call} of {row['bytes']} bytes ran as {' and '.join(variants['used'])} on {{processes}}",
            "NCCL ran equal calls differently", "possible", role=Role.CONTEXT,
        )  # fmt: skip
