"""Lines that state a failure or a condition by themselves, where no other rule and no verdict answers them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.text.described_objects import with_described
from ncclforensics.analyses.verdict import vocabulary
from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import OWNER
from ncclforensics.grammar.grammar_file import grammar_of
from ncclforensics.grammar.meanings import Kind
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import UNNAMED, error_finding
from ncclforensics.rules.shared.survival import last_ready, not_survived

ROLE_OF_KIND = {Kind.FAILURE: Role.CAUSE, Kind.CONDITION: Role.CONTEXT, Kind.CONSEQUENCE: Role.CONSEQUENCE}
PLACE = ["source", "line"]
OF_OBJECTS = ("pod_event", "pod_status", "host_service", "node_offers_none")  # frames of lines of Kubernetes
SUBJECTS = 3  # that a title names
OF_MACHINES = (
    "drivers",
    "health",
    "rdmadevices",
)  # grammars whose conditions are notes beside a job: no line ties them to it
OF_TOOLS = ("no_adapter",)  # conditions that a tool prints which a user called


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("stated_line",), hang=True, fallback=True)
def stated_failure(
    stated_line: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    failure_event: pl.DataFrame,
    verdict: pl.DataFrame,
    verdict_evidence: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    milestone: pl.DataFrame,
    training_step: pl.DataFrame,
    program_end: pl.DataFrame,
    engine_ready: pl.DataFrame,
    link_test: pl.DataFrame,
    speaker: pl.DataFrame,
    process_exit: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    described_title: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A line states a failure or a condition, and nothing else in the report answers it.

    Means: what the title says is the meaning that the grammar of such lines gives them; that the line was printed is
    certain, and no more. A condition is a state in which failures are more likely; a consequence follows from
    something that these files do not show.
    Not when: a verdict is decided, or another finding answers the line or its topic; calls were made behind it, or the
    process was ending: the job survived it; the line reports the end of a process that follows from another end, or
    from an interruption, or states what follows behind such an end.
    Do: look at the lines before it, and at the same time on the other ranks and hosts.
    Sources: the marks in grammars/, which name the sources of the lines.
    """
    if not verdict.filter(pl.col("verdict") != vocabulary.Kind.UNDECIDABLE).is_empty():
        return
    rows = _unanswered(stated_line, nccl_warning, verdict_evidence).filter(pl.col("remedy") != "")
    if rows.is_empty():
        return
    is_of_exception = (pl.col("kind") == Kind.CONSEQUENCE) & (pl.col("category") == Category.APPLICATION_ERROR)
    rows = rows.filter(~is_of_exception) if traceback_frame.height else rows  # a traceback says more
    rows = rows.filter(~is_of_exception | is_of_exception.all().over("source"))  # so does what else is stated
    following = process_exit.filter(~pl.col("is_first"))
    rows = rows.join(following, on=PLACE, how="anti", maintain_order="left")
    ended = following.group_by("source").agg(ended=pl.col("line").min())
    rows = rows.join(ended, on="source", how="left", maintain_order="left")
    rows = rows.filter(~(is_of_exception & (pl.col("line") > pl.col("ended"))).fill_null(value=False))
    rows = _fatal(rows, failure_event, rank)
    is_of_tool = pl.col("frame").is_in(OF_TOOLS)  # an init may begin without what a tool of the host did not find
    of_tools, rows = rows.filter(is_of_tool), rows.filter(~is_of_tool)
    rows = not_survived(rows, communicator_progress, milestone, training_step, program_end)
    if of_tools.height:
        later = not_survived(of_tools, communicator_progress, milestone.clear(), training_step, program_end)
        rows = pl.concat([rows, later]).sort("pos")
    rows = _lasting(rows, speaker, engine_ready, link_test)
    numbers = rank.group_by(OWNER).agg(number=pl.when(pl.len() == 1).then(pl.col("rank").first()))
    rows = rows.join(numbers, on=OWNER, how="left", maintain_order="left").with_columns(
        rank=pl.coalesce("number", "rank")
    )
    rows = with_described(rows, described_title)
    for _, alike in rows.group_by("frame", "meaning", maintain_order=True):
        yield _stated(alike, rank)


def _unanswered(stated_line: pl.DataFrame, nccl_warning: pl.DataFrame, verdict_evidence: pl.DataFrame) -> pl.DataFrame:
    """Return the lines on whose topic no verdict rests; consequences only where nothing else is stated."""
    cited = stated_line.join(verdict_evidence, on=PLACE, how="semi")
    rows = (
        stated_line.join(nccl_warning, on=PLACE, how="anti", maintain_order="left")
        .join(cited, on="frame", how="anti", maintain_order="left")
        .join(cited, on="category", how="anti", maintain_order="left")
    )
    is_consequence = pl.col("kind") == Kind.CONSEQUENCE
    has_others = not stated_line.filter(~is_consequence).is_empty() or not cited.is_empty()
    return rows.filter(~is_consequence) if has_others else rows


def _fatal(rows: pl.DataFrame, failure_event: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Leave out errors of NCCL that are harmless, were survived or came with the end of their process."""
    is_weighed = (pl.col("frame") == "failure") & (pl.col("kind") != Kind.CONDITION)
    harmless = (
        rows.filter(is_weighed)
        .join(rank, on=OWNER, how="semi")
        .join(failure_event.filter(~pl.col("at_exit")), on=PLACE, how="anti")
    )
    return rows.join(harmless, on=PLACE, how="anti", maintain_order="left")


def _lasting(
    rows: pl.DataFrame, speaker: pl.DataFrame, engine_ready: pl.DataFrame, link_test: pl.DataFrame
) -> pl.DataFrame:
    """Leave out conditions of processes that printed other lines afterwards: a connection was made in the end.

    So was it where an engine then reports that it is ready, for which it waits for all its workers; and what libibverbs
    missed was not needed where a test of a link then opened its device.
    """
    spoke = speaker.group_by(OWNER).agg(spoke_pos=pl.col("last_pos").max())
    ready = last_ready(engine_ready)
    rows = rows.join(spoke, on=OWNER, how="left", maintain_order="left")
    rows = rows.join(ready, on="source", how="left", maintain_order="left")
    opened = link_test.group_by("source").agg(opened_pos=pl.col("pos").max())
    rows = rows.join(opened, on="source", how="left", maintain_order="left")
    last = pl.col("pos").max().over(*OWNER, "frame", "meaning")
    opened_pos = pl.when(pl.col("category") == Category.IB_ERROR).then("opened_pos")
    is_past = (pl.col("kind") == Kind.CONDITION) & (last < pl.max_horizontal("spoke_pos", "ready_pos", opened_pos))
    return rows.filter(is_past.fill_null(value=False).not_())


def _stated(rows: pl.DataFrame, rank: pl.DataFrame) -> Finding:
    """Return the finding on lines of one meaning."""
    row = rows.row(0, named=True)
    kind = Kind(row["kind"])
    owner = [*OWNER, "worker"]
    named = rows.filter(pl.any_horizontal(pl.col(owner).is_not_null())).select("source", *owner)
    processes = f" of {count_of(named.n_unique(), 'process')}" if named.height == rows.height else ""
    detail = f"{count_of(rows.height, 'line')}{processes}"
    is_named = pl.any_horizontal(pl.col(*owner, "rank", "subject", "described").is_not_null())
    cited = rows.filter(is_named | pl.col("source").is_first_distinct())  # such lines only repeat one another
    finding = error_finding(cited, rank, f"{{processes}}: {row['meaning']}", detail, "certain")
    subjects = rows["subject"].drop_nulls().unique(maintain_order=True).to_list()
    finding.title = finding.title.removeprefix(f"{UNNAMED}: ") + f": {some_of(subjects, SUBJECTS)}" * bool(subjects)
    objects = rows.filter(pl.col("frame").is_in(OF_OBJECTS))["described"].drop_nulls().unique(maintain_order=True)
    unnamed = [name for name in objects if name.rpartition(" ")[2] not in finding.title]
    finding.title = f"{some_of(unnamed, SUBJECTS)}: " * bool(unnamed) + finding.title
    finding.category, finding.remedy, finding.role = Category(row["category"]), row["remedy"], ROLE_OF_KIND[kind]
    is_of_machine = kind is Kind.CONDITION and not rank.is_empty() and grammar_of(str(row["frame"])) in OF_MACHINES
    finding.severity = Severity.INFO if is_of_machine else Severity.WARNING
    finding.about = [Line(source, line) for source, line in rows.select(PLACE).iter_rows()]
    return finding
