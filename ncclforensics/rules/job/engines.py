"""What engines and frameworks above PyTorch and NCCL report of ranks that did not come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import polars as pl

from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.frames.columns import count_behind, text_of
from ncclforensics.grammar.meanings import Kind as Meaning
from ncclforensics.grammar.values import numbers_of_ranges, parse_value
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.survival import last_ready, of_open_inputs

SHOWN = 8  # workers
LAST_LINES = 4  # of a log: several workers print the same there
LEAST_RATES = 2  # reports of a server in a row that show no token


@rule(Category.TIMEOUT, Severity.WARNING, of=("engine_load",), hang=True)
def engine_load_outlasts_timeout(engine_load: pl.DataFrame, work_timeout: pl.DataFrame) -> Iterator[Finding]:
    """An engine loaded its weights for longer than the time-out of the collectives that other ranks wait in.

    Means: ranks that have their weights wait in the next collective for those that still load. Where one node loads for
    longer than the time-out, the watchdogs of the others end their processes: nothing is broken but the time.
    Not when: no watchdog timed out, or all loaded in less than its limit.
    Do: compare how fast each node reads the model (a local copy, the page cache, a shared file system under load);
    raise the time-out of the engine's process groups (SGLang: --dist-timeout).
    Sources: vLLM, default_loader.py and weight_utils.py; SGLang, loader.py; sglang#3254.
    """
    limit = min(work_timeout["timeout"].drop_nulls(), default=None)
    loads = (
        engine_load.with_columns(
            took=pl.coalesce(
                pl.col("load_seconds"), text_of("load_time").map_elements(_seconds_of_clock, return_dtype=pl.Float64)
            )
        )
        .drop_nulls("took")
        .sort("took", descending=True)
    )
    if limit is None or loads.is_empty() or loads["took"][0] * 1000 < limit:
        return
    longest = loads.head(1)
    took = longest["load_time"].cast(pl.String)[0] or f"{longest['took'][0]:,.0f} s"
    title = f"loading the weights took {took}, longer than the time-out of collectives ({limit / 1000:,.0f} s)"
    detail = "ranks that had loaded before waited for the others, until their watchdog ended them"
    yield Finding(title, detail, "likely", evidence=evidence_lines(longest))


def _seconds_of_clock(text: str) -> float:
    """Return the seconds that a bar's clock shows.

    >>> _seconds_of_clock("1:09:28"), _seconds_of_clock("00:12")
    (4168.0, 12.0)
    """
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds


@rule(Category.INIT_FAILURE, Severity.WARNING, of=("engine_nccl",), hang=True, of_failures=True)
def engine_stops_at_nccl(
    engine_nccl: pl.DataFrame,
    source: pl.DataFrame,
    process: pl.DataFrame,
    process_exit: pl.DataFrame,
    stated_line: pl.DataFrame,
    engine_ready: pl.DataFrame,
) -> Iterator[Finding]:
    """The last thing that processes of an engine print is that they load NCCL.

    Means: the init of a communicator, or the first call on it, has not returned where the log ends: a peer did not
    come, an address or port is not reached, or the GPUs cannot talk to each other. An engine loads NCCL once for each
    of its groups: after the first, the group is another one, such as that of the pipeline stages between hosts.
    Not when: the log was copied while the engine was starting; the processes ended with an error of their own; NCCL's
    own lines stand behind it: these tell how far it came; the engine is ready behind it.
    Do: set NCCL_DEBUG=INFO on all processes and start again; take their stacks while they stand there (py-spy dump
    --native); between hosts check that all ports are open, and NCCL_SOCKET_IFNAME.
    Sources: vLLM, vllm/distributed/device_communicators/pynccl.py; SGLang, the same; vllm#11139, vllm#20862.
    """
    printer = ["source", "launcher_rank", "launcher_pid", "worker"]
    counted = engine_nccl.with_columns(nth=pl.int_range(1, pl.len() + 1).over(printer, order_by="pos"))
    placed = counted.join(source.select("source", "lines"), on="source")
    last = placed.filter(count_behind() <= LAST_LINES).sort("source", "line")
    ends = process.group_by(source="last_source").agg(pl.col("last_pos").max())
    failed = stated_line.filter(pl.col("kind") != Meaning.CONDITION).group_by("source").agg(failed=pl.col("line").max())
    ready = last_ready(engine_ready)
    is_passed = pl.any_horizontal(
        pl.col("pos") < pl.col("last_pos"), pl.col("line") < pl.col("failed"), pl.col("pos") < pl.col("ready_pos")
    )
    for later in (ends, failed, ready):
        last = last.join(later, on="source", how="left", maintain_order="left")
    last = last.filter(is_passed.not_().fill_null(value=True))
    if last.is_empty() or process_exit.height:
        return
    ranks = sorted(last["launcher_rank"].drop_nulls().unique().to_list())
    workers = sorted(last["worker"].cast(pl.String).drop_nulls().unique().to_list())
    workers_text = ranks_text(ranks) or ", ".join(workers[:SHOWN]) or "a process of the engine"
    release = last["nccl_release"].cast(pl.String)[0]
    detail = "what it does next, the init of a communicator and its first call, has not returned where the log ends"
    if last["nth"].max() != 1:
        detail += "; it is the init of a second communicator, or of a later one"
    title = f"{workers_text} did not get beyond loading NCCL {release}, by the last line"
    yield Finding(title, detail, "possible", ranks=ranks, evidence=evidence_lines(last))


@rule(Category.LAGGING_RANK, Severity.WARNING, of=("horovod_stall",), hang=True, of_failures=True)
def horovod_waits_for_ranks(horovod_stall: pl.DataFrame, program_end: pl.DataFrame) -> Iterator[Finding]:
    """Horovod warns that some ranks did not submit tensors which the others submitted.

    Means: the named ranks are in other work, skipped an operation, gave a tensor another name, or have ended. The ranks
    that submitted it wait, and make no call of NCCL before all have come.
    Not when: the job came to its end, or went on afterwards: Horovod prints the warning again every 60 seconds, and
    nothing once the ranks have come; a first step, a checkpoint or an evaluation on one rank may take longer than that.
    Do: take the stack of the named ranks (py-spy dump); compare what they do before this tensor; broadcast the state
    from rank 0 on every rank, and build the same model with the same names on all.
    Sources: horovod/common/stall_inspector.cc of 0.19 to 0.28, operations.cc before; horovod#100, horovod#534.
    """
    rows = of_open_inputs(horovod_stall, program_end).sort("source", "line")
    if rows.is_empty():
        return
    lacking = rows.filter(pl.col("form").is_in(["lacking", "missing"]))
    submitted = rows.filter(form="ready")
    listed = [*lacking["missing_rank"].cast(pl.String), *lacking["missing_ranks"].cast(pl.String)]
    ranks = sorted({number for text in listed for number in numbers_of_ranges(text)})
    lines = lacking if ranks else submitted
    if lines.is_empty():
        return
    if not ranks and (finding := _different_tensors(submitted)):
        yield finding
        return
    name = lines.select(pl.coalesce(text_of("tensor"), text_of("named_tensor"))).item(0, 0)
    times = rows["seconds"].drop_nulls().len()
    title = f"{ranks_text(ranks)} did not submit tensors that Horovod waits for"
    if not ranks:
        ready = list(numbers_of_ranges(submitted["ready_ranks"].cast(pl.String)[0]))
        title = f"only {ranks_text(ready)} submitted a tensor that Horovod waits for"
        ranks = sorted(set(range(max(ready, default=0))) - set(ready))  # those of higher numbers may lack it, too
        if ranks:
            title = f"{ranks_text(ranks)} did not submit a tensor that Horovod waits for, and {ranks_text(ready)} did"
    yield Finding(
        title=title,
        detail=f"the first named tensor is {name}; Horovod warned {count_of(max(times, 1), 'time')}",
        certainty="likely" if times > 1 else "possible",
        ranks=ranks,
        evidence=evidence_lines(lines.select("source", "line")),
    )


def _different_tensors(submitted: pl.DataFrame) -> Finding | None:
    """Return the finding that ranks submitted different tensors, where a warning lists such; otherwise none."""
    first = submitted.sort("source", "line").row(0, named=True)
    more = [
        parse_value(f"{item.rstrip(']')}]", "stalled_tensor") for item in str(first["more_stalled"] or "").split("], ")
    ]
    stalled = [
        (first["tensor"], first["ready_ranks"]),
        *((item["tensor"], item["submitters"]) for item in more if item),
    ]
    tensor_of: dict[tuple[int, ...], str] = {}
    for tensor, ready in stalled:
        if ready:
            tensor_of.setdefault(tuple(sorted(numbers_of_ranges(str(ready)))), str(tensor))
    groups = list(tensor_of)
    if len(groups) < 2 or any(set(ranks) & set(others) for ranks, others in combinations(groups, 2)):
        return None
    parts = "; ".join(f"{ranks_text(ranks)} {tensor}" for ranks, tensor in sorted(tensor_of.items())[:SHOWN])
    title = f"ranks submitted different tensors to Horovod: {parts}"
    detail = "each waits for the others to submit the same: no collective begins"
    return Finding(title, detail, "likely", evidence=evidence_lines(submitted.select("source", "line")))


@rule(Category.HANG, Severity.WARNING, of=("engine_rate",), hang=True)
def engine_generates_nothing(engine_rate: pl.DataFrame) -> Iterator[Finding]:
    """A server of vLLM reports requests that run, and not one token, until its log ends.

    Means: the engine's core waits for its workers: one is in a call that does not end, or compiles; or the front end
    still counts requests that the core has lost.
    Not when: later reports show tokens again; a single report may fall into a long prompt or a compilation.
    Do: take the stacks of the workers while it lasts (py-spy dump --native); nvidia-smi shows which GPUs are busy; read
    what each worker printed before the first such report.
    Sources: vLLM, v1/metrics/loggers.py, engine/metrics.py; vllm#6614, vllm#17965.
    """
    rows = engine_rate.sort("source", "line").with_columns(
        stands=(pl.col("prompt_rate") == 0) & (pl.col("generation_rate") == 0) & (pl.col("running") > 0)
    )
    for _, reports in rows.group_by("source", maintain_order=True):
        moved = reports.filter(~pl.col("stands"))
        last = moved["line"].max() if moved.height else None
        tail = reports.filter(pl.col("line") > last) if isinstance(last, int) else reports
        if tail.height < LEAST_RATES:
            continue
        running = count_of(tail["running"][-1], "request")
        title = f"the engine generates no token, and {running} run{'s' * (tail['running'][-1] == 1)}"
        detail = f"the last {tail.height} reports show it, to the end of the log"
        yield Finding(title, detail, "likely", evidence=evidence_lines(tail))


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("engine_start",), hang=True)
def engine_start_incomplete(
    engine_start: pl.DataFrame, engine_load: pl.DataFrame, engine_nccl: pl.DataFrame, engine_ready: pl.DataFrame
) -> Iterator[Finding]:
    """Some workers of an engine ended the start of torch.distributed, and others did not.

    Means: the start is a collective call, so workers that do not end it soon after the others are stuck in it or
    crashed; where no worker ended it, one of them, or a node, did not come.
    Not when: the log was copied while the engine was starting; lines of workers are missing; vLLM loads NCCL behind it.
    Do: take the stacks of the named workers (py-spy dump --pid PID); compare --dist-init-addr, --nnodes and --node-rank
    of all nodes.
    Sources: sglang: python/sglang/srt/model_executor/model_runner.py; vllm: vllm/distributed/parallel_state.py;
    fairseq: fairseq/distributed/utils.py.
    """
    by_rank = pl.format("rank {}", "started_rank")
    workers = engine_start.with_columns(worker=pl.coalesce(text_of("worker"), by_rank, pl.lit("")))
    loading = engine_load.filter(form="sglang_begun").select("source", "pos", worker=text_of("worker").fill_null(""))
    begun = workers.filter(text_of("form").str.starts_with("begun")).unique(["source", "worker"], maintain_order=True)
    ended = workers.filter(text_of("form").str.starts_with("ended")).select("source", "pos", "worker")
    ended = pl.concat([ended, loading]).unique(["source", "worker"], keep="first", maintain_order=True)
    later = [
        frame.select("source", "pos") for frame in (engine_nccl, engine_ready, workers.filter(form="ended_by_rank"))
    ]
    passed = pl.concat(later).group_by("source").agg(passed_pos=pl.col("pos").max())
    ready = last_ready(engine_ready)
    is_open = (pl.col("form") == "begun") | (pl.col("pos") > pl.col("passed_pos").fill_null(-1))
    is_open &= pl.col("pos") > pl.col("ready_pos").fill_null(-1)  # all workers end their start before
    begun = begun.join(passed, on="source", how="left").join(ready, on="source", how="left").filter(is_open)
    pending = begun.join(ended, on=["source", "worker"], how="anti").sort("source", "line")
    if pending.is_empty():
        return
    is_overtaken = not ended.filter(pl.col("pos") > pending["pos"].max()).is_empty()  # else they may follow
    named = some_of([name for name in pending["worker"] if name], SHOWN)
    yield Finding(
        title=f"{named or count_of(pending.height, 'worker')} began the start of torch.distributed, and no end of it "
        "was read",
        detail=f"{count_of(ended.height, 'worker')} ended it"
        if ended.height
        else "no line that was read shows the end of any worker's start",
        certainty="likely" if is_overtaken else "possible",
        evidence=evidence_lines(pending),
    )


@rule(Category.INIT_FAILURE, Severity.WARNING, of=("engine_shard",), hang=True)
def engine_shards_not_ready(engine_shard: pl.DataFrame) -> Iterator[Finding]:
    """The launcher of text-generation-inference still waits for shards where the log ends.

    Means: each shard is a process with a GPU. Those that are not ready load weights, wait for the others in a
    collective, or ended without a word.
    Not when: the log was copied while the server started; a shard failed, which the launcher says itself.
    Do: take the stacks of the shards while they stand there (py-spy dump --pid PID); look at dmesg -T of the host and
    at the size of /dev/shm; NCCL_DEBUG=INFO in the environment of the launcher shows how far their communicator came.
    Sources: huggingface/text-generation-inference: launcher/src/main.rs (shard_manager).
    """
    last = engine_shard.sort("source", "pos").group_by("source", "shard", maintain_order=True).last()
    pending, ready = last.filter(form="waiting"), last.filter(form="ready")
    if pending.is_empty() or not last.filter(text_of("form").is_in(["failed", "signalled"])).is_empty():
        return
    shards = sorted(pending["shard"].unique().to_list())
    took = max(ready["shard_seconds"].to_list(), default=None)
    yield Finding(
        title=f"{ranks_text(shards, 'shard')} of text-generation-inference not ready where the log ends",
        detail=f"{ranks_text(sorted(ready['shard'].to_list()), 'shard')} was ready after {took:,.0f} s"
        if took is not None
        else "no shard in these lines is ready",
        certainty="likely" if took is not None else "possible",
        evidence=evidence_lines(pending),
    )
