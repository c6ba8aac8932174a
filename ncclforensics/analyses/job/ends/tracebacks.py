"""Where an exception was raised: the calls of its traceback, the worker or task, and what it came from."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.data.stack_classes import OF_BLOCKS, is_library, is_of_tracker
from ncclforensics.data.torch_failures import GRADIENTS, WITHOUT_GPU
from ncclforensics.frames.columns import text_of

PRINTER = ["source", "launcher_rank", "launcher_pid"]  # lines with equal values come from one program
FILES = ("file", "boxed_file", "notebook_file", "notebook_script", "cell")
MODULE, CELL = "<module>", "a cell"  # what a notebook does not name
FAR = 40  # lines from the last call of a traceback to its error: the code, and what others print meanwhile
SYNTAX_ERRORS = ("Syntax", "Indentation", "Tab")  # classes, without -Error
LONGEST = 400  # lines of a traceback, from its heading to its error
OF_GROUP = "rank {} of its process group"
CHAINED = 2  # lines from the line of a chain of exceptions to the heading of the next one
NEAR = 2  # lines from the name of a thread to the traceback of its error, at most
FATAL = "hit an exception"  # end of SGLang's headings (run_scheduler_process): the process then ends


def with_places(
    errors: Iterable[pl.DataFrame],
    exception: pl.DataFrame,
    exception_chain: pl.DataFrame,
    calls: pl.DataFrame,
    ray_heading: pl.DataFrame,
) -> list[pl.DataFrame]:
    """Add to frames of errors what their tracebacks show, each null where they do not; `calls`: of `traced_frames`.

    `place`: the innermost call, and that of the user's own code: `_share_cuda_ (storage.py:1445), called from
    send (actor.py:573), in DataLoader worker process 0`. `own_place`: the user's own call alone. `worker`: of SGLang's
    heading. `task`, `task_pid`, `task_host`, `is_retried`: of Ray's heading. `is_of_thread`: it ended a thread, not its
    process; `is_of_tracker`: one of a tracker of experiments, without which the program goes on.
    `is_caused`: the exception was raised from the one above it; `is_handling`: while that one was handled.
    `is_passed_on`: it passes on the one below it, of a worker or thread of PyTorch, or of ranks that could not write or
    read their part of a checkpoint. These are numbered in their process group, which `worker` says unless it is shown
    to be the job.
    `is_ignored`: Python printed it instead of raising it. `is_fatal`: its heading says that it ended its process.
    `is_of_cell`: it ended a cell of a notebook. `is_of_request`: a server answers the request, and goes on.
    `is_unhandled`: Ray was not asked for it. `rank`: that raised it.
    """
    trackers = [file for file in calls["file"].unique().drop_nulls() if is_of_tracker(file)]
    own_files = [file for file in calls["file"].unique().drop_nulls() if not is_library(file)]
    name = pl.col("file").str.split("/").list.last()
    site = pl.concat_str(name, pl.lit(":"), pl.col("number").cast(pl.String), ignore_nulls=True)
    called = calls.with_columns(call=pl.format("{} ({})", "function", site.str.strip_chars_end(":")))
    own = called.filter(pl.col("file").is_in(own_files))
    called = called.filter(name.is_in(OF_BLOCKS).fill_null(value=False).not_())
    headings = _with_requests(exception, exception_chain)
    fatal = headings.filter(text_of("headed_by").str.ends_with(FATAL))
    is_of_thread = pl.col("form") == "thread"
    kinds = [
        (called.select(*PRINTER, "pos", "call"), FAR),
        (own.select(*PRINTER, "pos", own_call="call", own_pos="pos"), LONGEST),
        (calls.filter(pl.col("file").is_in(trackers)).select(*PRINTER, "pos", tracker_pos="pos"), LONGEST),
        (calls.filter(~pl.col("file").is_in(trackers)).select(*PRINTER, "pos", other_pos="pos"), LONGEST),
        (
            headings.select(
                *(*PRINTER, "pos"),
                worker=text_of("raising_worker"),
                heading_rank="raising_rank",
                heading_pos="pos",
                is_of_cell=pl.col("cell_error").is_not_null(),
                is_of_request="is_of_request",
            ),
            LONGEST,
        ),
        (fatal.select(*PRINTER, "pos", fatal_worker=text_of("raising_worker"), fatal_pos="pos"), LONGEST),
        (
            ray_heading.select(
                *(*PRINTER, "pos", "task", "is_retried"),
                task_pid="pid",
                task_host="address",
                unhandled_pos=pl.when(pl.col("not_asked_for").is_not_null()).then("pos"),
            ),
            LONGEST,
        ),
        (
            exception.filter(pl.any_horizontal(pl.col("raised_in", "raised_by").is_not_null()) | is_of_thread).select(
                *(*PRINTER, "pos"),
                raised_in_above=pl.coalesce(
                    text_of("raised_in"),
                    pl.format("thread {}", "failed_thread"),
                    pl.when(is_of_thread).then(pl.lit("a thread")),
                ),
                has_thread=is_of_thread,
                passed_pos="pos",
            ),
            LONGEST,
        ),
        (exception_chain.select(*PRINTER, "pos", chain_pos="pos", is_cause=text_of("form") == "cause"), LONGEST),
        (exception.filter(form="ignored").select(*PRINTER, "pos", ignored_pos="pos"), LONGEST),
    ]
    is_of_traceback = (pl.col("own_pos") > pl.col("heading_pos").fill_null(-1)).fill_null(False)
    own_place = pl.when(is_of_traceback).then("own_call")
    own_call = pl.when(is_of_traceback & (pl.col("own_call") != pl.col("call"))).then("own_call")
    is_above_heading = (pl.col("chain_pos") < pl.col("heading_pos")).fill_null(False)
    is_below_chain = pl.col("chain_pos").is_between("passed_pos", "heading_pos").fill_null(value=False)
    is_next = (pl.col("heading_pos") - pl.col("passed_pos") <= NEAR) | is_below_chain
    is_of_worker = (pl.col("passed_pos") < pl.col("heading_pos")) & (is_next | ~pl.col("has_thread"))
    is_chained = (pl.col("chain_pos") > pl.col("fatal_pos")) & (pl.col("chain_pos") < pl.col("heading_pos"))
    is_fatal = ((pl.col("fatal_pos") == pl.col("heading_pos")) | is_chained).fill_null(False)
    checkpoint_ranks = sorted(exception.drop_nulls("raised_by")["rank"].drop_nulls().unique())
    are_of_job = bool(checkpoint_ranks) and checkpoint_ranks == [*range(len(checkpoint_ranks))]
    is_of_main = pl.col("own_pos") > pl.col("heading_pos")
    is_by_tracker = (pl.col("other_pos") > pl.col("heading_pos")).fill_null(False).not_()  # it caught and logged it
    is_tracking = (is_by_tracker | (is_of_worker & pl.col("has_thread"))) & (
        pl.col("tracker_pos") > pl.col("heading_pos")
    )
    below_ignored = pl.col("ignored_pos") + 1
    is_of_other = pl.col("heading_rank").is_not_null()
    raiser = pl.when(is_of_other & (not are_of_job)).then(pl.format(OF_GROUP, "heading_rank"))
    own_worker = pl.when(is_fatal).then("fatal_worker").otherwise("worker")
    placed = []
    for frame in with_last_above(errors, kinds):
        worker = pl.when(is_of_worker).then(pl.format(", in {}", "raised_in_above"))
        place = pl.concat_str("call", pl.format(", called from {}", own_call), worker, ignore_nulls=True)
        placed.append(
            frame.with_columns(
                place=pl.when(pl.col("call").is_not_null()).then(place),
                own_place=own_place,
                is_fatal=is_fatal,
                worker=pl.coalesce(raiser, own_worker),
                is_caused=(pl.col("is_cause") & is_above_heading).fill_null(False),
                is_handling=(~pl.col("is_cause") & is_above_heading).fill_null(False),
                is_ignored=((below_ignored == pl.col("heading_pos")) | (below_ignored == pl.col("pos"))).fill_null(
                    False
                ),
                is_of_thread=(is_of_worker & pl.col("has_thread")).fill_null(False),
                is_of_tracker=(is_tracking & ~is_of_main.fill_null(False)).fill_null(False),
                is_unhandled=(pl.col("unhandled_pos") > pl.col("heading_pos").fill_null(-1)).fill_null(False),
                passed_pos=pl.when(is_of_worker).then("passed_pos"),
                rank=pl.when(~is_of_other).then("rank").when(are_of_job).then("heading_rank"),
            ).drop(
                *("call", "own_call", "own_pos", "heading_pos", "chain_pos", "is_cause", "raised_in_above"),
                *(
                    "has_thread",
                    "tracker_pos",
                    "other_pos",
                    "heading_rank",
                    "ignored_pos",
                    "fatal_worker",
                    "fatal_pos",
                    "unhandled_pos",
                ),
            )
        )
    passed_on = pl.concat([frame["passed_pos"] for frame in placed]).drop_nulls().implode()
    return [frame.with_columns(is_passed_on=pl.col("pos").is_in(passed_on)).drop("passed_pos") for frame in placed]


def _with_requests(exception: pl.DataFrame, exception_chain: pl.DataFrame) -> pl.DataFrame:
    """The headings of tracebacks, with `is_of_request`: uvicorn names a request above it, or above its chain."""
    printer, request = printed_by(PRINTER), pl.col("form") == "request"
    chained = exception_chain.select("source", pl.col("pos") + CHAINED, is_chained=True)
    rows = exception.filter(text_of("form").is_in(["traceback", "request"])).sort("pos")
    rows = rows.join(chained, on=["source", "pos"], how="left", maintain_order="left")
    is_below = request.shift().over(printer) & (pl.col("pos").diff().over(printer) == 1)
    rows = rows.with_columns(is_below=is_below, chain=pl.col("is_chained").is_null().cum_sum().over(printer))
    is_of_request = pl.col("is_below").fill_null(value=False).first().over(printer, "chain")
    return rows.with_columns(is_of_request=is_of_request).filter(~request)


def with_places_in_code(exception: pl.DataFrame, unread_code: pl.DataFrame) -> pl.DataFrame:
    """Put in the `place` of errors of syntax where in a file they are: the innermost call only imports that file."""
    name = text_of("file").str.split("/").list.last()
    code = unread_code.select(*PRINTER, "pos", code=pl.format("{}:{}", name, "numbered"))
    is_of_syntax = text_of("exception").is_in(SYNTAX_ERRORS) & pl.col("code").is_not_null()
    place = pl.when(is_of_syntax).then("code").otherwise("place").alias("place")
    own_place = pl.when(is_of_syntax).then(pl.lit(None, pl.String)).otherwise("own_place").alias("own_place")
    (coded,) = with_last_above([exception], [(code, FAR)])
    return coded.with_columns(place, own_place).drop("code")


def traced_frames(traceback_frame: pl.DataFrame, traced_call: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of all tracebacks, those of torch.distributed among them: `function`, `file`, `number`."""
    printed = ("source", "line", "pos", "launcher_rank", "launcher_node", "launcher_pid")
    frames = traceback_frame.select(
        *(*printed, pl.col("rank").cast(pl.Int32)),
        function=pl.coalesce(text_of("frame_function"), text_of("cell_function"), pl.lit(MODULE)),
        file=pl.coalesce(*map(text_of, FILES), pl.lit(CELL)).str.replace_all("\\", "/", literal=True),
        number="numbered",
    )
    of_torch = traced_call.filter(form="").select(
        *(*printed, pl.col("global_rank").cast(pl.Int32).alias("rank")),
        function=text_of("function"),
        file=pl.lit("torch/distributed/distributed_c10d.py"),
        number=None,
    )
    return pl.concat([frames, of_torch.cast(frames.schema)])


def printed_by(columns: Iterable[str]) -> pl.Expr:
    """Return as one text what lines of one program have in common."""
    return pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in columns], separator=" ")


def place_of_calls(calls: Iterable[tuple[str, str, int | None]]) -> str:
    """Return the innermost of calls, innermost first, and that of the user's own code, in the form of `place`.

    Of a call without a name, such as `<lambda>`, also the innermost one with a name.

    >>> place_of_calls([("all_reduce", "torch/distributed/distributed_c10d.py", 2806), ("step", "/mnt/a.py", 7)])
    'all_reduce (distributed_c10d.py:2806), called from step (a.py:7)'
    >>> place_of_calls([("<lambda>", "triton/runtime/jit.py", 345), ("prefill", "vllm/worker.py", 7)])
    '<lambda> (jit.py:345), called from prefill (worker.py:7)'
    """
    given = list(calls)
    known = [call for call in given if call[1].rpartition("/")[2] not in OF_BLOCKS] or given
    named = next((call for call in known if not call[0].startswith("<")), None)
    own = next((call for call in known if not is_library(call[1])), None)
    shown = dict.fromkeys([*known[:1], *(call for call in (named, own) if call)])
    sites = (
        (function, file.rpartition("/")[2], "" if number is None else f":{number}") for function, file, number in shown
    )
    return ", called from ".join(f"{function} ({file}{number})" for function, file, number in sites)


def with_last_above(errors: Iterable[pl.DataFrame], kinds: Iterable[tuple[pl.DataFrame, int]]) -> list[pl.DataFrame]:
    """Join to errors, in their order, the last line of each kind of the same program above them.

    `kinds`: lines by `PRINTER` and `pos`, each with columns of its own, and how many lines above an error they may
    stand. These columns are null where none stands there.
    """
    printer, marks, near, farther = printed_by(PRINTER), [], [], []
    absent: list[pl.Expr] = []
    for number, (lines, farthest) in enumerate(kinds):
        own = [name for name in lines.columns if name not in (*PRINTER, "pos")]
        if lines.is_empty():
            absent += (pl.lit(None, lines.schema[name]).alias(name) for name in own)
            continue
        kind, above = f"kind {number}", f"above {number}"
        marks.append(
            lines.select("pos", printer.alias("printer"), pl.struct(pl.col("pos").alias(above), *own).alias(kind))
        )
        near.append(pl.when(pl.col("pos") - pl.col(kind).struct.field(above) <= farthest).then(kind).alias(kind))
        farther.append(above)
    ordered = [frame.sort("pos").with_columns(absent) for frame in errors]
    if not marks:
        return ordered
    names = [mark.columns[-1] for mark in marks]
    last = pl.concat(marks, how="diagonal").sort("pos", maintain_order=True)
    last = last.with_columns(pl.col(names).forward_fill().over("printer"))
    return [
        frame.with_columns(printer=printer)
        .join_asof(last, on="pos", by="printer", strategy="backward", check_sortedness=False)
        .with_columns(near)
        .unnest(names)
        .drop(*farther, "printer")
        for frame in ordered
    ]


def torch_exceptions(torch_without_gpu: pl.DataFrame, gradient_error: pl.DataFrame) -> pl.DataFrame:
    """Exceptions of PyTorch that have shapes of their own, as rows of `exception` with what they mean as `message`."""
    stated = pl.concat([torch_without_gpu, gradient_error], how="diagonal_relaxed")
    raised = stated.filter(pl.col("raised_class").is_not_null())
    meaning = text_of("form").replace_strict(WITHOUT_GPU | GRADIENTS, return_dtype=pl.String)
    return raised.with_columns(message=meaning, form=pl.lit("error").cast(pl.Categorical()), rank="global_rank")
