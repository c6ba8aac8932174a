"""Failures that programs state which no grammar knows, where nothing else in the report explains them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.crashes import calls_of_crash
from ncclforensics.analyses.job.ends.exit_reports import signal_of_code
from ncclforensics.analyses.job.text.program_failures import is_strong, topic_of
from ncclforensics.data.cuda import advice_within
from ncclforensics.data.failure_topics import OTHER_TOPIC, TOPICS
from ncclforensics.data.names import count_of
from ncclforensics.data.processes import signal_name
from ncclforensics.data.torch_failures import OF_EXCEPTIONS, OF_STACK
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, UNNAMED, error_finding
from ncclforensics.rules.shared.survival import last_ready, not_survived

STATED = "a program states"  # by words alone, which are about nothing that is known
UNSIGNED = "the text says"  # where nothing shows that a program printed it
MAX_STATEMENT = 240  # characters of a statement in a title
MAX_OTHER = 100  # of another one in a detail
MOST_FUNCTIONS = 2  # of a stack
NEAR_END = 100  # lines of a file behind a statement; behind more, the program seems to have gone on
BEFORE_STACK = (
    "read the lines above the stack, which name the signal or the error, and those of the other processes of the job"
)
DAMAGE = "damage"  # topic of hardware that failed
FOLLOWING = ("closing", "exit", "call")  # topics of failures that follow from another one, which stands elsewhere


@rule(
    Category.APPLICATION_ERROR, Severity.WARNING, of=("unread_error", "native_frame"),
    hang=True, last=True, of_failures=True,
)  # fmt: skip
def stated_by_program(
    program_failure: pl.DataFrame,
    unread_error: pl.DataFrame,
    native_frame: pl.DataFrame,
    process_exit: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    milestone: pl.DataFrame,
    training_step: pl.DataFrame,
    program_end: pl.DataFrame,
    stated_end: pl.DataFrame,
    engine_ready: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A program that this tool does not know states a failure, and nothing that was found explains it.

    Means: the title quotes the first such statement, without its time and level, behind what its words are about;
    the others of the file may follow from it. With the level of an error, it is certain that it was printed, and no
    more; by words alone it is likely, where a launcher's tag, a name in front or a value shows that a program
    printed them, and else the text only says so (info). Of the stack of a C++ exception or of a crash, the
    functions alone are known; of the kernel's log, whose drivers print such words on every boot, the last statement
    is a note.
    Not when: the words stand in a sentence about something else; the program went on or tried again, or an engine
    reported behind it that it is ready (info, or nothing where the words are about nothing that is known); a server
    refused a request; the job ended well; another finding explains the failure, which leaves this out.
    Do: read the cited lines and those around them as they stand, the first in time before all others.
    Sources: the levels of Python's logging, of glog, logfmt and syslog; errno(3); c10/util/Backtrace.cpp.
    """
    lasting = not_survived(program_failure, communicator_progress, milestone, training_step, program_end)
    of_program = lasting.filter(~pl.col("is_of_kernel"))
    if not of_program.is_empty():
        ready = last_ready(engine_ready)
        of_program = of_program.join(ready, on="source", how="left", maintain_order="left")
        finding = _statement(
            of_program.with_columns(is_passed=(pl.col("pos") < pl.col("ready_pos")).fill_null(False)), rank
        )
        if finding is not None:
            yield finding
        return
    if not lasting.is_empty():
        yield _of_kernel(lasting)
        return
    # Of ranks that end one after the other, the last ones lose the store.
    stack = unread_error.filter(text_of("form") == "stack").join(stated_end, on="source", how="anti").sort("pos")
    if program_failure.is_empty() and not stack.is_empty():
        yield _stack(stack, rank)
    elif program_failure.is_empty() and process_exit.is_empty() and (calls := calls_of_crash(native_frame)):
        rows = (
            native_frame.sort("pos").head(1).select("source", "line", "pid", host="node", rank=pl.lit(None, pl.Int32))
        )
        title = f"{{processes}}: the stack of a crash stands here without the line that tells why: it was in {calls[0]}"
        finding = error_finding(rows, rank, title, f"called from {', '.join(calls[1:])}" * (len(calls) > 1), "certain")
        finding.title = finding.title.removeprefix(f"{UNNAMED}: ")
        finding.remedy, finding.role = BEFORE_STACK, Role.CONTEXT
        yield finding


def _statement(rows: pl.DataFrame, rank: pl.DataFrame) -> Finding | None:
    """Return the finding on the first statement that names a failure by itself, and what stands beside it.

    None where only words tell of a failure, about nothing that is known, and the program went on.
    """
    is_heading = pl.col("statement").str.ends_with(":")
    is_other = pl.col("topic").eq_missing(DAMAGE).not_()  # damaged hardware is the reason of what stands around it
    ordered = rows.with_columns(is_strong=is_strong()).sort(
        "is_passed", "is_of_end", "is_repeated_attempt", is_heading, ~pl.col("is_strong"), is_other, "is_warning", "pos"
    )
    first = ordered.row(0, named=True)
    alike = rows.filter(alike=first["alike"])
    others = rows.filter(pl.col("alike") != first["alike"]).sort("is_of_end", "pos")
    topic = TOPICS.get(first["topic"] or "", OTHER_TOPIC)
    statement = _cut(_sentence(first["statement"], first["topic"]), MAX_STATEMENT)
    went_on = first["lines_behind"] > NEAR_END or first["is_repeated_attempt"] or first["is_passed"]
    if went_on and not first["is_strong"]:
        return None
    is_failure = first["is_strong"] and not first["is_warning"] and not went_on and not first["is_of_end"]
    certainty = "certain" if first["has_level"] else "likely" if first["is_signed"] else "possible"
    meaning = topic.text if first["is_strong"] else STATED if first["is_signed"] else UNSIGNED
    title = f"{{processes}}: {meaning}: {statement}"
    finding = error_finding(alike, rank, title, "", certainty)
    finding.title = finding.title.removeprefix(f"{UNNAMED}: ")
    finding.detail = "; ".join(_details(alike, others, went_on=went_on))
    finding.category, finding.remedy = Category(topic.category), advice_within(first["statement"]) or topic.remedy
    finding.severity = Severity.WARNING if is_failure else Severity.INFO
    finding.role = Role.CONTEXT if not is_failure else Role.CONSEQUENCE if first["topic"] in FOLLOWING else Role.CAUSE
    own = Line(first["source"], first["line"])
    beside = pl.concat([alike.head(2), others]).select("source", "line").rows()
    finding.evidence = list(dict.fromkeys([own, *(Line(*place) for place in beside)]))[:SHOWN]
    finding.about = [Line(*place) for place in alike.sort("pos").tail(1).select("source", "line").iter_rows()]
    return finding


def _of_kernel(rows: pl.DataFrame) -> Finding:
    """Return the note on the last statement of the kernel's log, of which nothing is known but its words."""
    last = rows.row(-1, named=True)
    return Finding(
        f"the kernel's log holds words of a failure that no rule knows: {_cut(last['statement'], MAX_STATEMENT)}",
        f"{count_of(rows.height, 'such line')}; drivers of sound hosts print such words, too",
        "certain",
        severity=Severity.INFO,
        role=Role.CONTEXT,
        evidence=[Line(last["source"], last["line"])],
    )


def _details(alike: pl.DataFrame, others: pl.DataFrame, *, went_on: bool) -> Iterator[str]:
    """Yield when and how often it was printed, and which other statement comes next."""
    moments = alike["moment"].drop_nulls()
    times = f"printed {count_of(alike.height, 'time')}" if alike.height > 1 else ""
    if len(moments) and times and moments[0] != moments[-1]:
        times = f"{times} from {moments[0]} to {moments[-1]}"
    elif len(moments):
        times = f"{times or 'printed'} at {moments[0]}"
    yield from filter(None, [times])
    if went_on:
        yield "the program went on or tried again after it: whether it mattered is not known"
    others = others.filter(~pl.col("is_of_end"))
    before = others.filter(pl.col("is_warning") & (pl.col("pos") < alike["pos"][0]))
    after = others.filter(pl.col("pos") > alike["pos"][0])
    for rows, which in ((before, "a warning before it"), (after, "after it stands")):
        if not rows.is_empty():
            yield f"{which}: {_cut(rows['statement'][0], MAX_OTHER)}"
    for code in find_values(alike["statement"].head(1), "stated_code")["stated_code"].head(1):
        if signal := signal_of_code(code):
            yield f"code {code} stands for {signal_name(signal)}"
    yield "no grammar knows the program: this rests on its words"


def _sentence(text: str, topic: str | None) -> str:
    """The sentence of a long text that tells what it is about."""
    if topic is None or len(text) <= MAX_STATEMENT:
        return text
    sentences = pl.DataFrame({"sentence": text.split(". ")})
    found = sentences.filter(topic_of(pl.col("sentence"), [topic]).is_not_null())
    return str(found["sentence"][0]) if found.height else text


def _cut(text: str, most: int) -> str:
    """Leave out the middle of a long text: errors that are passed on name their cause at the end."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def _stack(stack: pl.DataFrame, rank: pl.DataFrame) -> Finding:
    """Return the finding on the stack of an exception whose text is not shown."""
    printed = stack["stack_function"].cast(pl.String).unique(maintain_order=True).to_list()
    functions = [function for function in printed if function not in OF_EXCEPTIONS] or printed
    ranks = pl.coalesce("rank_of_stack", "launcher_rank").cast(pl.Int32)
    rows = stack.with_columns(host="launcher_node", pid="launcher_pid", rank=ranks)
    known = next((OF_STACK[part] for function in functions for part in OF_STACK if part in function), "")
    title = "{processes}: the stack of a C++ exception stands here, and not what it says" + (
        f": by its functions, {known}" if known else f": it came through {functions[0]}"
    )
    detail = f"called from {', '.join(functions[1:MOST_FUNCTIONS])}" if len(functions) > 1 else ""
    finding = error_finding(rows, rank, title, detail, "certain")
    finding.title = finding.title.removeprefix(f"{UNNAMED}: ")
    finding.severity, finding.role = Severity.WARNING if known else Severity.INFO, Role.CONTEXT
    return finding
