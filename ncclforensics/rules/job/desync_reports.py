"""PyTorch's desync reports, where no verdict rests on them: excerpts, or reports of which the first line is absent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import polars as pl

from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import parse_value, ranges_by_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

# What the lines of a form say of their ranks, the most telling first.
STATED = {
    "not_joined": "did not join collective {sequence}, and ended {completed}",
    "never_joined": "never joined the call, and caused the time-out",
    "unfinished": "joined collective {sequence} and did not end it",
    "timeout": "timed out at collective {sequence} ({operation})",
}
LAGGING = ("not_joined", "never_joined")


@rule(Category.TIMEOUT, Severity.WARNING, of=("desync",), hang=True, fallback=True)
def torch_desync_report(
    desync: pl.DataFrame, verdict: pl.DataFrame, verdict_evidence: pl.DataFrame
) -> Iterator[Finding]:
    """PyTorch's desync report names ranks that did not make or end a call.

    Means: ranks that did not join a collective are behind: they, or what they wait for, hold up the others.
    Not when: a verdict is decided, or rests on the report; several process groups are in use: the report numbers
    ranks and calls within one of them, does not say which, and may compare calls of different groups.
    Do: look at the ranks that did not join, at the time of the call: their stacks, and their last lines; set
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 for the next run.
    Sources: torch/csrc/distributed/c10d/TraceUtils.h of torch 1.13 to 2.10.
    """
    if not verdict.filter(pl.col("verdict") != Kind.UNDECIDABLE).is_empty():
        return
    places = ["source", "line"]
    rows = desync.filter(text_of("form").is_in(list(STATED))).join(verdict_evidence, on=places, how="anti")
    ranges = ranges_by_text(rows["ranks"])
    stated = []
    for form in STATED:
        for row in rows.filter(text_of("form") == form).sort(places).to_dicts():
            ranks = [*chain.from_iterable(ranges.get(row["ranks"], ()))]
            stated.append((row, f"{ranks_text(ranks)} of a process group {STATED[form].format(**row)}"))
    if not stated:
        return
    first, text = stated[0]
    is_lagging = first["form"] in LAGGING
    others = list(dict.fromkeys(other for _, other in stated[1:] if other != text))
    yield Finding(
        f"PyTorch's desync report: {text}",
        "; ".join([*others[:3], "ranks and calls are numbered within the group, which it does not name"]),
        "likely" if is_lagging else "possible",
        role=Role.CAUSE if is_lagging else Role.CONSEQUENCE,
        evidence=[Line(row["source"], row["line"], row["form"]) for row, _ in stated[:4]],
        about=[Line(row["source"], row["line"]) for row, _ in stated],
    )


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("analyzer_field",), hang=True)
def torch_analyzer_names_differences(
    analyzer_entry: pl.DataFrame, analyzer_field: pl.DataFrame, recorded_rank: pl.DataFrame
) -> Iterator[Finding]:
    """PyTorch's analyser of Flight Recorder dumps says that ranks gave a collective other arguments.

    Means: at this number of the process group the named ranks differ from the first rank, with which the analyser
    compares all others: in sizes, datatype, operation or state. Which side is wrong, it does not say.
    Not when: the dumps themselves are here, which show more; only the state differs, which an early dump also shows;
    dumps of several attempts were joined.
    Do: compare what each rank does before that call: a branch on data, on the rank, or on a caught error; give the
    dumps themselves to this program.
    Sources: torch/distributed/flight_recorder/components/utils.py (error_analysis) of torch 2.5 to 2.15;
    pytorch#140563.
    """
    if recorded_rank["is_used"].any():
        return
    entries = analyzer_entry.sort("pos").select("pos", "source", "sequence", entry="pos")
    fields = analyzer_field.sort("pos").join_asof(entries, on="pos", by="source", check_sortedness=False)
    for row in fields.filter(form="error").head(1).to_dicts():
        parts = str(row["error"]).split("Culprit rank ")
        differing = [found for part in parts if (found := parse_value(part.rstrip(", "), "culprit"))]
        same = fields.filter(pl.col("entry").eq_missing(row["entry"]))
        name, group = (
            next(iter(same[column].cast(pl.String).drop_nulls()), "") for column in ("profiling_name", "group_name")
        )
        ranks = sorted({int(found["differing_rank"]) for found in differing})
        if not ranks:
            continue
        number = f" {row['sequence']}" if row["sequence"] is not None else ""
        yield Finding(
            title=f"torchfrtrace shows that {ranks_text(ranks)} called {name or 'a collective'} with other arguments",
            detail=f"collective{number}{f' of process group {group}' * bool(group)}, compared with the first rank:"
            f" {differing[0]['difference'] or differing[0]['mismatch']}",
            certainty="likely",
            evidence=[Line(row["source"], row["line"], "differs")],
        )
