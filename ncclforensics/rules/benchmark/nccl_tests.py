"""Failures that nccl-tests reports or shows: wrong results, a missing footer, timeouts, a test without MPI."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.warnings import OFTEN_HARMLESS
from ncclforensics.data.names import bytes_text, ranks_text, some_of, version_text
from ncclforensics.data.nccl_sources import topic
from ncclforensics.frames.columns import Row, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.benchmark_text import called, rows_of
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines


def _ends(test_end: pl.DataFrame, benchmark_line: pl.DataFrame, row: Row, form: str) -> list[Line]:
    """Cite the lines of this form in a run's footer."""
    footer = benchmark_line.filter((pl.col("benchmark") == row["benchmark"]) & (pl.col("frame") == "test_end"))
    ends = test_end.filter(pl.col("form") == form).join(footer, on=["source", "line"], how="semi")
    return evidence_lines(ends)


# What NCCL calls its results -> a category, where the result alone shows it.
RESULT_CATEGORIES = {
    "unhandled cuda error": Category.CUDA_ERROR,
    "invalid argument": Category.APPLICATION_ERROR,
    "invalid usage": Category.APPLICATION_ERROR,
}
REMOTE_ERROR = "remote process exited"
LEAST_OF_A_COPY = 0.1  # GB/s; of two ranks that are so fast busbw is printed as 0.05 or more
AFTER_FAILURE = "run again with NCCL_DEBUG=WARN at least, which prints why the call failed"


@rule(Category.BENCHMARK_WRONG, Severity.ERROR, of=("benchmark",))
def bench_wrong_results(
    benchmark: pl.DataFrame, measurement: pl.DataFrame, test_end: pl.DataFrame, benchmark_line: pl.DataFrame
) -> Iterator[Finding]:
    """A test received wrong results.

    Means: received data differs from what was sent, or sums are wrong. Training on this machine would be corrupted in
    the same way. Known causes: PCIe access control (ACS) between NIC and GPU, the protocol LL128
    where the hardware does not keep its order, mismatched libraries, broken GPU memory or links.
    Not when: the column shows N/A (results were not checked: -c 0, or the in-place half of alltoall and sendrecv).
    Do: run again with NCCL_PROTO=Simple, then with NCCL_P2P_DISABLE=1, then with NCCL_NET_GDR_LEVEL=LOC: the setting
    that removes the errors shows the faulty path; then halve the hosts until one is left.
    Sources: nccl-tests, src/common.cu; nccl#831, nccl-tests#294.
    """
    wrong = measurement.filter(pl.col("wrong") > 0)
    is_wrong = pl.col("benchmark").is_in(wrong["benchmark"].unique().implode())
    for row in benchmark.filter(is_wrong | (pl.col("failed_checks") > 0)).to_dicts():
        bad = rows_of(wrong, row)
        sizes = bad["size"].unique().sort().to_list()
        where = f" at {', '.join(map(bytes_text, sizes[:SHOWN]))}" + f" and {len(sizes) - SHOWN} more sizes" * (
            len(sizes) > SHOWN
        )
        counted = f"{row['wrong']:,.0f} elements are wrong{where}" if sizes else ""
        checks = f"{row['failed_checks']} checks failed (one per rank and row)" if row["failed_checks"] else ""
        yield Finding(
            title=f"{called(row)} received wrong results",
            detail="; ".join(filter(None, [counted, checks])),
            certainty="certain",
            hosts=row["hosts"] or [],
            evidence=[*evidence_lines(bad, "wrong"), *_ends(test_end, benchmark_line, row, "bounds")],
        )


@rule(Category.BENCHMARK_WRONG, Severity.WARNING, of=("benchmark",))
def bench_not_mpi(benchmark: pl.DataFrame, measurement: pl.DataFrame, test_device: pl.DataFrame) -> Iterator[Finding]:
    """Every process printed its own table, or one has a single rank: the test was built or started without MPI.

    Means: no table measures traffic between the processes. With one rank busbw is 0 and algbw is that of a copy within
    the GPU; with several GPUs in one process it is that of the node while the other copies run.
    Not when: the tables were printed one after the other; several tests were meant to run at once on separate GPUs; a
    test of one rank was wanted.
    Do: build with MPI=1 MPI_HOME=...; start with mpirun or srun --mpi=pmix; the list of devices must show all ranks. In
    one process, -g is the number of GPUs.
    Sources: nccl-tests README (MPI=1), doc/PERFORMANCE.md (the factors are 0 for one rank); nccl-tests#71, #249, #294.
    """
    runs = benchmark.filter((pl.col("listed_devices") > 0) & (pl.col("parameters") != "")).sort("source", "line")
    ends_later = pl.col("last_line").cum_max().shift() > pl.col("line")  # an equal run that began before it
    begins_within = pl.col("line").shift(-1) < pl.col("last_line")
    is_copy = (ends_later.fill_null(value=False) | begins_within.fill_null(value=False)).over("source", "parameters")
    beside_others: list[int] = []
    for source, rows in runs.filter(is_copy).group_by("source", maintain_order=True):
        copies = rows.to_dicts()
        if len(copies) < 2:
            continue
        size = max(row["listed_devices"] for row in copies)
        starts = test_device.filter((pl.col("source") == source[0]) & (pl.col("rank") == 0))
        yield Finding(
            title=f"{len(copies)} copies of {copies[0]['collective'] or 'a test'} ran at the same time, each on "
            + ("one rank" if size == 1 else f"{size} ranks"),
            detail="each process is rank 0 of its own run: the test was built without MPI=1, or with a different MPI",
            certainty="likely",
            hosts=sorted({host for row in copies for host in row["hosts"]}),
            evidence=evidence_lines(starts, "rank 0"),
        )
        beside_others.extend(rows["benchmark"])
    speeds = measurement.group_by("benchmark").agg(pl.col("algbw").max(), pl.col("busbw").max())
    of_one_rank = speeds.filter((pl.col("algbw") >= LEAST_OF_A_COPY) & (pl.col("busbw") == 0))["benchmark"].implode()
    for row in benchmark.filter(pl.col("benchmark").is_in(of_one_rank)).sort("benchmark").to_dicts():
        if row["benchmark"] not in beside_others:
            yield Finding(
                title=f"{called(row | {'nranks': 1})}: nothing crossed a link, and busbw is 0 at every size",
                detail="what is measured is a copy within one GPU",
                certainty="certain",
                hosts=row["hosts"] or [],
                evidence=evidence_lines(rows_of(measurement, row).tail(1), "busbw"),
            )


@rule(Category.BENCHMARK_WRONG, Severity.WARNING, of=("test_device",))
def bench_shared_gpu(
    benchmark: pl.DataFrame, test_device: pl.DataFrame, benchmark_line: pl.DataFrame
) -> Iterator[Finding]:
    """Several ranks of a test ran on the same GPU.

    Means: NCCL was allowed to do so (NCCL_MULTI_RANK_GPU_ENABLE=1). Kernels of different processes take turns on a GPU,
    for milliseconds each, and nothing crosses a link between these ranks: no figure of the table is that of a link.
    Not when: the GPU is divided (MIG; partitions of AMD's GPUs); several ranks on one GPU are what was to be measured.
    Do: start one process for each GPU: nccl-tests takes the GPU of the process's number on its host, of those that the
    process sees (CUDA_VISIBLE_DEVICES, srun --gpus-per-task). For kernels at the same time on one GPU, start MPS.
    Sources: nccl-tests, src/common.cu; nccl: src/init.cc (NCCL_MULTI_RANK_GPU_ENABLE); CUDA MPS, time-slicing.
    """
    of_runs = benchmark.filter(pl.col("sharing_ranks").list.len() > 1, pl.col("rows") > 0)
    for columns, runs in of_runs.group_by("collective", "nranks", "sharing_ranks", "hosts", maintain_order=True):
        row = dict(zip(("collective", "nranks", "ranks", "hosts"), columns, strict=True))
        of_lists = benchmark_line.filter(pl.col("benchmark").is_in(runs["benchmark"].implode()), frame="test_device")
        devices = test_device.join(of_lists, on=["source", "line"], how="semi").sort("source", "line")
        shared = devices.filter(pl.col("rank").is_in(row["ranks"]))
        gpus = shared.select("host", "bus").unique(maintain_order=True).rows()
        names = some_of([f"{bus} on {host}" for host, bus in gpus], SHOWN)
        times = f" ({runs.height} runs)" * (runs.height > 1)
        yield Finding(
            title=f"{called(row)}: {ranks_text(row['ranks'])} share GPU{'s' * (len(gpus) > 1)} {names}{times}",
            detail="their kernels take turns there, unless MPS runs; no figure is that of a link between them",
            certainty="certain",
            ranks=row["ranks"],
            hosts=row["hosts"] or [],
            evidence=evidence_lines(shared),
        )


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("benchmark",))
def bench_below_minimum(
    benchmark: pl.DataFrame, test_end: pl.DataFrame, benchmark_line: pl.DataFrame
) -> Iterator[Finding]:
    """The average bus bandwidth is below the minimum that was set for the test.

    Means: NCCL_TESTS_MIN_BW was set, and the average of all rows and both halves is below nine tenths of it.
    Not when: the variable is not set (neither OK nor FAILED follows the average).
    Do: the average includes small sizes: judge the largest sizes, and compare with a run of the same -b and -e.
    Sources: nccl-tests, src/common.cu.
    """
    for row in benchmark.filter("is_below_minimum").to_dicts():
        title = f"{called(row)}: the average of {row['average']:g} GB/s is below NCCL_TESTS_MIN_BW"
        detail = "the test printed FAILED"
        yield Finding(
            title, detail, "certain", hosts=row["hosts"] or [], evidence=_ends(test_end, benchmark_line, row, "average")
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("benchmark",))
def bench_run_cut_off(benchmark: pl.DataFrame, benchmark_line: pl.DataFrame) -> Iterator[Finding]:
    """A table has no footer: the test did not finish, or its output was cut off.

    Means: the measurement of the size after the last row did not finish. Rank 0 prints a row when the row is complete,
    unless its output is flushed earlier.
    Not when: only a part of the output was copied, or the test was still running.
    Do: look at the processes of this test if they still exist; run again with -T 60, which ends a test that hangs.
    Sources: nccl-tests, src/common.cu (stdout is line-buffered).
    """
    for row in benchmark.filter(~pl.col("is_complete")).to_dicts():
        lines = benchmark_line.filter(pl.col("benchmark") == row["benchmark"])
        table = lines.filter(pl.col("frame").is_in(["table_row", "row_rest", "table_head"]))
        if not row["rows"]:
            continue
        size = row["unfinished_size"]
        is_excerpt = not (row["parameters"] or row["listed_devices"] or row["has_failed"])
        rows = f"{row['rows']} rows, the last of {bytes_text(row['last_size'])}"
        if row["has_failed"]:
            measurement = f": the measurement of {bytes_text(size)} did not return" if size is not None else ""
            title, detail = f"{called(row)} did not finish{measurement}", "the test printed that a call failed"
        else:
            before = f"before {bytes_text(size)}" if size is not None else "without a footer"
            title = f"the output of {called(row)} ends {before}"
            detail = "the test stood still there or was ended, or this is only a part of its output"
        yield Finding(
            title=title,
            detail=f"{rows}, and no footer; {detail}",
            certainty="certain",
            hosts=row["hosts"] or [],
            role=Role.CONSEQUENCE if row["has_failed"] else Role.CONTEXT,
            remedy="give the whole output of the test, from its list of devices to its footer" * is_excerpt,
            evidence=evidence_lines((table if table.height else lines).tail(1), "last"),
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("benchmark",), hang=True)
def bench_run_without_result(
    benchmark: pl.DataFrame, benchmark_line: pl.DataFrame, test_refusal: pl.DataFrame
) -> Iterator[Finding]:
    """A test printed its settings, its devices or the head of its table, and no row.

    Means: the first size did not finish: the init of the communicator, or its first call, does not return. The head of
    the table follows the init of the communicator.
    Not when: only a part of the output was copied, or the test was still running; the test refused to run.
    Do: look at the processes of this test if they still exist (gdb -batch -ex 'thread apply all bt'); run again with
    NCCL_DEBUG=INFO, and with -T 60, which ends a test that hangs.
    Sources: nccl-tests, src/common.cu (stdout is line-buffered).
    """
    refused = set(test_refusal["source"])
    for row in benchmark.filter(~pl.col("is_complete") & (pl.col("rows") == 0)).to_dicts():
        lines = benchmark_line.filter(pl.col("benchmark") == row["benchmark"])
        has_head = (lines["frame"] == "table_head").any()
        has_begun = row["min_bytes"] is not None or ((row["listed_devices"] or has_head) and not row["has_failed"])
        if not has_begun or row["source"] in refused:
            continue
        place = "in its first size" if has_head else "in init or in its first size"
        yield Finding(
            title=f"{called(row)} did not finish: no result was read"
            if row["has_failed"]
            else f"the output of {called(row)} ends before its first result",
            detail="the test printed that a call failed"
            if row["has_failed"]
            else f"the test stood still {place} or was ended, or this is a part of its output",
            remedy=AFTER_FAILURE if row["has_failed"] else "",
            certainty="certain",
            hosts=row["hosts"] or [],
            role=Role.CONSEQUENCE if row["has_failed"] else Role.CONTEXT,
            evidence=evidence_lines(lines.tail(1), "last"),
        )


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("test_failure",), hang=True)
def bench_call_failed(
    test_failure: pl.DataFrame, nccl_warning: pl.DataFrame, failure_event: pl.DataFrame
) -> Iterator[Finding]:
    """A test ended because a call of NCCL failed, and no line of NCCL says why.

    Means: the test prints the result of the call and NCCL's last error, which is the text of its last warning.
    Not when: the logs hold NCCL's own errors, or warnings other than advice on the host, which have findings of their
    own; a process was lost, or the network failed (a finding of its own).
    Do: run again with NCCL_DEBUG=WARN at least; the first warning on any rank is the reason.
    Sources: nccl-tests, src/common.h (NCCLCHECK); nccl: src/init.cc (ncclGetErrorString, ncclGetLastError).
    """
    reasons = nccl_warning.filter(pl.col("frame").is_in(list(OFTEN_HARMLESS)).not_() | (pl.col("chain").list.len() > 0))
    if reasons.height or failure_event.height:
        return
    failed = test_failure.filter(pl.col("result").is_not_null()).with_columns(
        cause=text_of("last_error").str.strip_suffix("'").str.strip_chars("/ "), result=text_of("result")
    )
    for (result, cause), rows in failed.sort("source", "line").group_by("result", "cause", maintain_order=True):
        name = str(result).partition(" (")[0].partition(" - ")[0]
        if name.startswith(REMOTE_ERROR):
            continue
        hosts = sorted(rows["node"].cast(pl.String).drop_nulls().unique().to_list())
        yield Finding(
            title=f"a test failed in a call of NCCL{f' on {some_of(hosts, SHOWN)}' * bool(hosts)}: {cause or name}",
            detail=f"NCCL returned: {name}" + "; no last error of NCCL was read" * (not cause),
            certainty="certain",
            category=RESULT_CATEGORIES.get(name, Category(topic(None, cause))),
            hosts=hosts,
            role=Role.CAUSE if cause else Role.CONSEQUENCE,
            evidence=evidence_lines(rows),
        )


@rule(Category.TIMEOUT, Severity.ERROR, of=("test_failure",), hang=True, role=Role.CONSEQUENCE)
def bench_timed_out(test_failure: pl.DataFrame) -> Iterator[Finding]:
    """A test gave up waiting for an operation.

    Means: with -T a test exits when an operation takes longer than the given number of seconds: it hung. All ranks
    wait, so that the host that reports the timeout need not be the cause.
    Not when: the given time is shorter than the largest operation needs.
    Do: run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL on every rank, and analyse those logs with `hang`.
    Sources: nccl-tests, src/common.cu (testTimeout, exit code 4).
    """
    rows = test_failure.filter(pl.col("form") == "timeout").sort("source", "line")
    if rows.is_empty():
        return
    hosts = sorted(rows["node"].cast(pl.String).drop_nulls().unique().to_list())
    seconds = rows.select(pl.col("seconds").max().fill_null(0)).item()
    title = f"a test timed out after {seconds} s" + (f" on {', '.join(hosts[:SHOWN])}" if hosts else "")
    detail = "an operation did not finish within the time given by -T"
    yield Finding(title, detail, "certain", hosts=hosts, evidence=evidence_lines(rows))


@rule(Category.VERSION_MISMATCH, Severity.INFO, of=("benchmark",), role=Role.CONTEXT)
def bench_other_library(
    benchmark: pl.DataFrame, test_setting: pl.DataFrame, benchmark_line: pl.DataFrame
) -> Iterator[Finding]:
    """A test loaded another NCCL version than it was built with.

    Means: the loader found another library: in the system, in a container, in LD_LIBRARY_PATH. The test measured the
    loaded library, not the one it was built with.
    Not when: the two numbers are the same, or the version of nccl-tests prints none (before 2.17.4).
    Do: run ldd on the test's binary in the launcher's environment; build it with the library that you want to measure.
    Sources: nccl-tests, src/common.cu (nccl-headers, nccl-library).
    """
    for row in benchmark.filter(pl.col("headers") != pl.col("library")).to_dicts():
        settings = benchmark_line.filter(
            (pl.col("benchmark") == row["benchmark"]) & (pl.col("frame") == "test_setting")
        )
        headers = test_setting.filter(pl.col("headers").is_not_null()).join(settings, on=["source", "line"], how="semi")
        built, loaded = (version_text(row[name]) for name in ("headers", "library"))
        title = f"{called(row)} was built with NCCL {built} and ran with {loaded}"
        detail = f"the test printed nccl-headers={row['headers']} nccl-library={row['library']}"
        yield Finding(title, detail, "certain", hosts=row["hosts"] or [], evidence=evidence_lines(headers))


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("test_refusal",))
def bench_refused(test_refusal: pl.DataFrame) -> Iterator[Finding]:
    """A test refused to run.

    Means: its command line requests more GPUs than a host has or an unknown option, or the test loaded an NCCL that it
    was not built for.
    Not when: only a data type was not known, for which the test uses float.
    Do: correct the command line: processes per host times -g (and -t) must not exceed the GPUs of a host.
    Sources: nccl-tests, src/common.cu; rccl-tests, src/common.cu.
    """
    form = pl.col("form")
    rows = test_refusal.filter(form.is_in(["gpus", "rccl_gpus", "versions", "implementation", "option"]))
    if rows.is_empty():
        return
    first = rows.sort("source", "line").row(0, named=True)
    reasons = {
        "gpus": f"{first['wanted']} GPUs were requested, {first['found']} are available",
        "rccl_gpus": f"{first['wanted']} GPUs were requested, {first['found']} are available",
        "versions": f"it was built with NCCL {first['compiled']} and loads {first['library']}",
        "implementation": "the requested implementation is unknown",
        "option": "unknown option",
    }
    title = f"a test refused to run: {reasons[str(first['form'])]}"
    detail = "the test measured nothing"
    yield Finding(title, detail, "certain", evidence=evidence_lines(rows.sort("source", "line")))
