"""Assemble the stacks that py-spy, faulthandler and debuggers print: dumps of processes, their threads, and frames.

Where a program was interrupted from the keyboard, Python's traceback is the stack of its main thread at that moment.

A dump is one process at one moment. What stands above it may name its rank and host: the heading of a script or of the
debug server, a launcher's tag, the title of a process of SGLang or vLLM.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.ends.tracebacks import printed_by, traced_frames
from ncclforensics.data.stack_classes import THREAD_STARTS, TRACEBACK, system_call
from ncclforensics.frames.columns import LINE, ORIGIN, Row, no_rows, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import of_last_run

STACK_THREAD = {
    "stack": pl.Int32(),  # number of the thread's stack in this run
    "dump": pl.Int32(),  # number of the dump: one process at one moment
    "tool": pl.String(),
    "thread": pl.String(),  # number or handle
    "name": pl.String(),
    "state": pl.String(),  # idle, active, active+gil; only py-spy knows
    "title": pl.String(),  # the name that the thread gave itself; only debuggers know
    "is_main": pl.Boolean(),  # or the one to describe where the main thread is not shown
    "is_beside": pl.Boolean(),  # it is certainly not the main thread
    **LINE,
}

STACK_FRAME = {
    "stack": pl.Int32(),
    "depth": pl.Int32(),  # 0 is the deepest, which runs
    "function": pl.String(),
    "file": pl.String(),  # null for a function of C
    "number": pl.Int32(),  # line in that file
    "library": pl.String(),  # of a function of C
    **LINE,
}

STACK_DUMP = {
    "dump": pl.Int32(),
    "tool": pl.String(),
    "printed_rank": pl.Int32(),  # by a heading, or in the title of the process
    "launcher_rank": pl.Int32(),  # a launcher's tag, which may number nodes
    "printed_host": pl.String(),
    "pid": pl.Int32(),
    "parent": pl.Int32(),
    "by_watchdog": pl.Boolean(),  # a watchdog took it because nothing moved
    "of_crash": pl.Boolean(),  # it was printed because the process crashed, or is of a core: it does not stand there
    **LINE,
}

PRINTED_BY = ["source", "launcher_rank", "launcher_node"]  # lines with equal values come from one program
_HEAD, _BEGIN, _PROCESS, _PARENT, _LATE_PROCESS, _HEADING, _WATCHDOG, _CRASH, _END, _FRAME = (
    "head", "begin", "process", "parent", "late process", "heading", "watchdog", "crash", "end", "frame",
)  # fmt: skip
STACK_EVENT = {
    "kind": pl.String(),
    "stack": pl.Int32(),  # the thread that a head begins, or that a frame belongs to
    "tool": pl.String(),
    "thread": pl.String(),
    "name": pl.String(),
    "state": pl.String(),
    "title": pl.String(),
    "function": pl.String(),
    "file": pl.String(),
    "number": pl.Int32(),
    "library": pl.String(),
    "pid": pl.Int32(),
    "rank": pl.Int32(),
    "host": pl.String(),
    "launcher_rank": pl.Int32(),
    "launcher_node": pl.String(),
    **ORIGIN,
}
LARGEST_PID = 1 << 22  # of Linux
ABORTED = "Aborted"  # how Python calls SIGABRT, by which others end a process wherever it stands
FARTHEST = 400  # lines from one frame of a stack to the next; with --locals variables stand between them
ABORTING = ("abort", "__GI_abort", "ggml_abort")  # in the stack of a process that aborts: of ggml, which calls gdb
# The outermost function of a main thread. Debuggers and faulthandler print that thread last.
MAIN_THREAD = "MainThread"  # as Python names it; a process has one
_MAIN_FUNCTIONS = ("<module>", "_start", "__libc_start_main", "__libc_start_call_main")


@analysis(
    STACK_EVENT,
    of=("pyspy_thread", "faulthandler_thread", "debugger_thread", "debugger_first", "debugger_listed", "exception"),
)
def stack_event(
    pyspy_process: pl.DataFrame,
    pyspy_thread: pl.DataFrame,
    pyspy_frame: pl.DataFrame,
    faulthandler_thread: pl.DataFrame,
    faulthandler_frame: pl.DataFrame,
    faulthandler_timeout: pl.DataFrame,
    debugger_process: pl.DataFrame,
    debugger_thread: pl.DataFrame,
    debugger_listed: pl.DataFrame,
    debugger_first: pl.DataFrame,
    debugger_frame: pl.DataFrame,
    debugger_python: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    exception: pl.DataFrame,
    exception_chain: pl.DataFrame,
    traced_call: pl.DataFrame,
    training_step: pl.DataFrame,
    source: pl.DataFrame,
    stack_heading: pl.DataFrame,
    stack_watchdog: pl.DataFrame,
    crash: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line of a dump of stacks, in the order of lines: heads of processes and threads, frames, headings."""
    form = text_of("form")
    is_native = form == "native"
    code = {"function": text_of("function").fill_null("?"), "file": text_of("file"), "number": pl.col("numbered")}
    of_c = code | {"library": text_of("library")}
    named = {"thread": text_of("thread"), "name": text_of("thread_name")}
    # Above backtraces the list says nothing that these do not say better.
    listed = debugger_listed.join(debugger_first, on="source", how="anti")
    is_other = form.is_in(["other", "other_wrapped"])
    listed_name = pl.when(is_other).then(named["name"]).otherwise(pl.lit(MAIN_THREAD))
    counted = pl.concat_str(pl.lit("thread "), "thread_count")
    printed_name = pl.coalesce(named["name"], text_of("thread_title"))
    title = pl.coalesce(printed_name, counted)
    debugger_name = pl.when(pl.col("thread_count") == 1).then(pl.lit(MAIN_THREAD)).otherwise(title)
    py_spy, handler = pl.lit("py-spy"), pl.lit("faulthandler")
    tagged = pl.coalesce("launcher_rank", pl.col("rank").cast(pl.Int32))
    faulthandler_thread = faulthandler_thread.with_columns(launcher_rank=tagged)
    faulthandler_frame = faulthandler_frame.with_columns(launcher_rank=tagged)
    debugger = (
        pl.when(form.is_in(["elfutils", "lldb"])).then(form.replace("elfutils", "eu-stack")).otherwise(pl.lit("gdb"))
    )
    # A thread without a number is no other than itself.
    by_line = pl.concat_str(pl.lit("line "), "line")
    number = pl.coalesce(pl.col("tid").cast(pl.String), by_line)
    of_c_or_module = of_c | {"library": pl.coalesce(text_of("library"), text_of("module"))}
    kind_of_pid = pl.when(form == "detached").then(pl.lit(_LATE_PROCESS)).otherwise(pl.lit(_PROCESS))
    of_debugger = debugger_python.filter(form == "begin").select("source").unique()
    python_function = {"function": text_of("frame_function").fill_null("?")}  # a cell of a notebook has none
    heading_host = pl.coalesce(text_of("rank_host"), text_of("server"))
    parts = [
        _rows(pyspy_process.filter(pl.col("pid").is_not_null()), _PROCESS, tool=py_spy, pid="pid", rank="engine_rank"),
        _rows(pyspy_process.filter(pl.col("parent").is_not_null()), _PARENT, pid="parent"),
        _rows(
            pyspy_thread,
            _HEAD,
            tool=py_spy,
            thread=pl.coalesce(named["thread"], by_line),
            name=named["name"],
            state=text_of("state"),
        ),
        _rows(_of_cut_head(pyspy_thread, pyspy_frame), _HEAD, tool=py_spy, thread=by_line, name=pl.lit(MAIN_THREAD)),
        _rows(pyspy_frame, _FRAME, **of_c),
        _rows(faulthandler_thread.filter(~is_native), _HEAD, tool=handler, **named),
        _rows(faulthandler_thread.filter(is_native), _END),
        _rows(faulthandler_frame.filter(~is_native & (form != "none")), _FRAME, **code),
        _rows(faulthandler_timeout, _PROCESS),  # a timer: it goes off in running jobs, too
        _rows(debugger_process, kind_of_pid, tool=debugger, pid="pid"),
        _rows(debugger_thread, _HEAD, tool=debugger, thread=number, name=debugger_name, title=printed_name),
        _rows(listed, _HEAD, tool=pl.lit("gdb"), thread=number, name=listed_name),
        _rows(listed, _FRAME, function=text_of("running")),
        # Without a line of a thread above it, a first frame begins one.
        _rows(debugger_first, _BEGIN, tool=debugger, thread=by_line),
        _rows(pl.concat([debugger_first, debugger_frame.select(debugger_first.columns)]), _FRAME, **of_c_or_module),
        _rows(traceback_frame.join(of_debugger, on="source", how="semi"), _FRAME, **(code | python_function)),
        *_interrupted(
            pl.concat([exception.filter(form != "interrupt"), of_last_run(exception, training_step, source)]),
            exception_chain,
            traceback_frame,
            traced_call,
        ),
        _rows(stack_heading, _HEADING, rank="rank", pid="pid", host=heading_host),
        _rows(stack_watchdog, _WATCHDOG, pid="pid"),
        _rows(crash.filter((form == "python") & ~text_of("message").str.starts_with(ABORTED)), _CRASH),
    ]
    at_start = pl.concat(parts).select("source", start=pl.col("pos") - pl.col("line")).unique("source")
    hosts = output_heading.drop_nulls("heading_host").join(at_start, on="source")
    hosts = hosts.with_columns(pos=pl.col("start") + pl.col("line"), launcher_rank=None, launcher_node=None)
    events = pl.concat([*parts, _rows(hosts, _HEADING, host="heading_host")])
    events = events.sort(*PRINTED_BY, "pos", maintain_order=True)
    is_below_head = (pl.col("kind").shift() == _HEAD).fill_null(False).over(PRINTED_BY)
    events = events.filter((pl.col("kind") != _BEGIN) | ~is_below_head).with_columns(
        pl.col("kind").replace(_BEGIN, _HEAD)
    )
    # A frame belongs to the head above it, if no other line of a dump and not too many lines stand between.
    is_frame = pl.col("kind") == _FRAME
    is_far = ~is_frame | ((pl.col("pos").diff().fill_null(0) > FARTHEST) & pl.col("launcher_rank").is_null())
    head = pl.when(pl.col("kind") == _HEAD).then("event").when(is_far).then(-1)
    events = events.drop("stack").with_row_index("event").with_columns(pl.col("event").cast(pl.Int32))
    events = events.with_columns(stack=head.forward_fill().over(PRINTED_BY))
    return events.filter(~is_frame | (pl.col("stack") >= 0))


def _of_cut_head(pyspy_thread: pl.DataFrame, pyspy_frame: pl.DataFrame) -> pl.DataFrame:
    """Return the first frame of a main thread of which an excerpt begins below its head, up to that of the next thread.

    The frame of a module tells the main thread from all others, and from lines of a program that look like frames.
    """
    heads = pyspy_thread.group_by(PRINTED_BY).agg(head=pl.col("pos").min())
    above = pyspy_frame.join(heads, on=PRINTED_BY, nulls_equal=True).filter(pl.col("pos") < pl.col("head")).sort("pos")
    lines_left = pl.int_range(pl.len(), 0, -1).over(PRINTED_BY)
    above = above.filter(pl.col("head") - pl.col("pos") == lines_left)
    modules = above.filter(text_of("function") == "<module>")
    first = above.unique(PRINTED_BY, keep="first", maintain_order=True)
    return first.join(modules, on=PRINTED_BY, how="semi", nulls_equal=True)


def _interrupted(
    exception: pl.DataFrame, exception_chain: pl.DataFrame, traceback_frame: pl.DataFrame, traced_call: pl.DataFrame
) -> list[pl.DataFrame]:
    """Return heads and frames of the stacks that an interruption from the keyboard shows, in the order of stacks.

    Where it came while another exception was handled, as of a connection to a rank that was interrupted before, the
    traceback of that one goes on where the last one leads.
    """
    if exception.filter(form="interrupt").is_empty():
        return []
    printer = printed_by((*PRINTED_BY, "rank"))
    tag = pl.coalesce("launcher_rank", pl.col("rank").cast(pl.Int32))
    lines = exception.with_columns(printer=printer)
    chains = exception_chain.select("pos", chain="pos", printer=printer).sort("pos")
    lines = lines.sort("pos").join_asof(chains, on="pos", by="printer", strategy="forward", check_sortedness=False)
    is_end, is_heading = text_of("form") == "interrupt", text_of("form") == "traceback"
    # A heading leads to the error below it, and an error to the next traceback if a line says so between them.
    is_chained = pl.col("chain") < pl.col("pos").shift(-1).over("printer")
    leads_on = (is_heading & ~is_heading.shift(-1).over("printer")) | is_chained
    end = pl.when(is_end).then("pos").when(~leads_on.fill_null(False)).then(-1)
    lines = lines.with_columns(end=end.backward_fill().over("printer"))
    headings = lines.filter(is_heading, pl.col("end") > 0).with_columns(launcher_rank=tag)
    heads = headings.unique(["printer", "end"], keep="first", maintain_order=True)
    above = headings.select("pos", "end", "printer", heading="pos").sort("pos")
    frames = traced_frames(traceback_frame, traced_call)
    frames = frames.with_columns(printer=printer, launcher_rank=tag).sort("pos")
    frames = frames.join_asof(above, on="pos", by="printer", check_sortedness=False).filter(
        pl.col("pos") < pl.col("end")
    )
    frames = frames.sort("end", "heading", -pl.col("pos"))
    deepest_first = pl.col("heading").min() + 1 + pl.int_range(pl.len())
    frames = frames.with_columns(pos=deepest_first.over("printer", "end"))
    tool, thread = pl.lit(TRACEBACK), pl.concat_str(pl.lit("line "), "line")
    return [
        _rows(heads, _HEAD, tool=tool, thread=thread, name=pl.lit(MAIN_THREAD)),
        _rows(frames, _FRAME, function="function", file="file", number="number"),
    ]


@analysis(STACK_FRAME, of=("stack_event",))
def stack_frame(stack_event: pl.DataFrame) -> pl.DataFrame:
    """One row per frame of a stack, the deepest first.

    Main threads whose heads stand one right below the other share the frames below: equal stacks were joined.
    """
    frames = stack_event.filter(pl.col("kind") == _FRAME)
    heads = stack_event.filter(pl.col("kind") == _HEAD).select(*PRINTED_BY, "pos", "name", "stack")
    following = heads.select(pl.col("pos", "name").shift(-1).over(PRINTED_BY))
    is_shared = (
        (heads["name"] == MAIN_THREAD) & (following["name"] == MAIN_THREAD) & (following["pos"] - heads["pos"] == 1)
    )
    heads = heads.with_columns(is_shared=is_shared.fill_null(False))
    shown_below = pl.when(~pl.col("is_shared")).then("stack").backward_fill().over(PRINTED_BY)
    sharing = heads.select(shared="stack", stack=shown_below).filter(pl.col("shared") != pl.col("stack"))
    copies = frames.join(sharing, on="stack").with_columns(stack="shared").select(frames.columns)
    return pl.concat([frames, copies]).with_columns(depth=pl.int_range(pl.len()).over("stack")).select(*STACK_FRAME)


@analysis(STACK_THREAD, of=("stack_event",))
def stack_thread(stack_event: pl.DataFrame, stack_frame: pl.DataFrame) -> pl.DataFrame:
    """One row per thread in a dump."""
    threads, _ = _group_heads(stack_event, stack_frame)
    return pl.DataFrame(threads, schema=STACK_THREAD)


@analysis(STACK_DUMP, of=("stack_event",))
def stack_dump(stack_event: pl.DataFrame, stack_frame: pl.DataFrame) -> pl.DataFrame:
    """One row per dump: one process at one moment."""
    _, dumps = _group_heads(stack_event, stack_frame)
    return pl.DataFrame(dumps, schema=STACK_DUMP)


def _group_heads(stack_event: pl.DataFrame, stack_frame: pl.DataFrame) -> tuple[list[Row], list[Row]]:
    """Return the threads and the dumps that the lines of heads and headings form."""
    outermost = dict(stack_frame.group_by("stack").agg(pl.col("function").last()).iter_rows())
    heads = stack_event.filter(pl.col("kind") != _FRAME)
    threads: list[Row] = []
    dumps: list[Row] = []
    for _, events in heads.group_by(PRINTED_BY, maintain_order=True):
        _group_events(events.to_dicts(), outermost, threads, dumps)
    aborting = set(stack_frame.filter(pl.col("function").is_in(ABORTING))["stack"])
    threads_of: dict[int, list[Row]] = defaultdict(list)
    for thread in threads:
        threads_of[thread["dump"]].append(thread)
    for dump in dumps:
        _mark_main_thread(dump, threads_of[dump["dump"]], outermost)
        dump["of_crash"] |= any(thread["stack"] in aborting for thread in threads_of[dump["dump"]])
    return threads, dumps


def _group_events(events: list[Row], outermost: dict[int, str], threads: list[Row], dumps: list[Row]) -> None:
    """Append the threads and dumps of one program's lines."""
    rank, host, is_watched = None, None, False
    pending: Row | None = {}  # what is known of the dump that the next head begins
    dump: Row = {}
    seen: set[str] = set()  # threads of the current dump
    is_over = False  # the last thread was the main one, which is printed last
    has_main = False  # the current dump has its main thread
    for event in events:
        kind = event["kind"]
        if kind == _HEADING:
            rank, host = event["rank"], event["host"] or (host if event["rank"] is not None else None)
            pending = {"pid": event["pid"]}
        elif kind == _WATCHDOG:
            is_watched, pending = True, {"pid": event["pid"]}
        elif kind == _CRASH:
            pending = {"of_crash": True}
        elif kind == _PROCESS:
            pending = {"pid": event["pid"], "rank": event["rank"]}
        elif kind == _PARENT:
            pending = {**(pending or {}), "parent": event["pid"]}
        elif kind == _LATE_PROCESS and dump:
            dump["pid"], pending = event["pid"], {}
        elif kind == _HEAD:
            is_main = event["name"] == MAIN_THREAD
            is_other_tool = pending is None and event["tool"] != dump["tool"]
            # lldb shows the thread that it stopped for again where it is asked for all.
            is_again = is_main and has_main and event["tool"] != "lldb"
            if is_other_tool or event["thread"] in seen or is_over or is_again:
                pending = pending or {}
            if pending is not None:
                dump = {
                    "dump": len(dumps),
                    "tool": event["tool"],
                    "printed_rank": rank if pending.get("rank") is None else pending["rank"],
                    "launcher_rank": event["launcher_rank"],
                    "printed_host": event["launcher_node"] or host,
                    "pid": pending.get("pid"),
                    "parent": pending.get("parent"),
                    "by_watchdog": is_watched,
                    "of_crash": pending.get("of_crash", False),
                    "source": event["source"],
                    "line": event["line"],
                }
                dumps.append(dump)
                pending, seen, has_main = None, set(), False
            seen.add(event["thread"])
            has_main |= is_main
            is_over = event["tool"] in ("faulthandler", "gdb") and outermost.get(event["stack"]) in _MAIN_FUNCTIONS
            threads.append({**{name: event.get(name) for name in STACK_THREAD}, "dump": dump["dump"], "is_main": False})


def _mark_main_thread(dump: Row, threads: list[Row], outermost: dict[int, str]) -> None:
    """Mark the thread that runs the program, and take its number for the process where none is printed."""
    beside = {row["stack"] for row in threads if system_call(outermost.get(row["stack"]) or "") in THREAD_STARTS}
    by_number = [row for row in threads if row["thread"] == str(dump["pid"])]
    by_name = [row for row in threads if row["name"] == MAIN_THREAD and row["stack"] not in beside]
    by_end = [row for row in threads if outermost.get(row["stack"]) in _MAIN_FUNCTIONS]
    with_frames = [row for row in threads if row["stack"] in outermost] or threads
    last = with_frames[:1] if dump["tool"] == "eu-stack" else with_frames[-1:]
    main = (by_number or by_name or by_end or last)[-1]
    main["is_main"] = True
    is_known = bool(by_number or by_name or by_end)
    is_named = dump["tool"] in ("py-spy", "gdb") and main["name"] is not None
    main["is_beside"] = not is_known and (is_named or main["stack"] in beside)
    number = main["thread"] or ""
    if (
        dump["pid"] is None
        and not main["is_beside"]
        and dump["tool"] in ("gdb", "eu-stack", "py-spy")
        and number.isdecimal()
    ):
        dump["pid"] = int(number) if int(number) < LARGEST_PID else None


def _rows(frame: pl.DataFrame, kind: str | pl.Expr, **columns: pl.Expr | str) -> pl.DataFrame:
    """Return the lines of one frame as rows of `stack_event`."""
    if frame.is_empty():
        return no_rows(STACK_EVENT)
    place = {name: pl.col(name) for name in (*ORIGIN, "launcher_rank", "launcher_node")}
    known = {"kind": pl.lit(kind) if isinstance(kind, str) else kind, **place} | {
        column: pl.col(value) if isinstance(value, str) else value for column, value in columns.items()
    }
    empty = pl.lit(None)
    return frame.select(known.get(name, empty).cast(dtype).alias(name) for name, dtype in STACK_EVENT.items())
