"""Variables that the job's script exports: unknown to NCCL, never read, or with a value that NCCL does not support."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import polars as pl

from ncclforensics.data.tuning import READ_BY_ALL
from ncclforensics.data.variable_catalogue import variable
from ncclforensics.data.versions import release, releases
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings, similar_variable
from ncclforensics.rules.shared.grouping import group_finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("exported_variable",))
def env_not_echoed(
    exported_variable: pl.DataFrame,
    setting: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    version: pl.DataFrame,
) -> Iterator[Finding]:
    """A variable is exported, and NCCL does not know it or never read it.

    Means: a name that differs from one of NCCL's in a letter or two is misspelt; others were removed from NCCL, or it
    never read them. A known variable that every rank reads, and that no rank prints although it prints others, did not
    reach the ranks: the launcher does not pass it on.
    Not when: the version of the run still read it; the name resembles none of NCCL's, because plugins, frameworks and
    scripts have variables of their own that begin with NCCL_; the value is empty; NCCL reads the variable only if it
    needs it; no rank prints any variable (subsystem ENV is off).
    Do: correct the name; pass the variable on (mpirun -x NAME, srun --export=ALL,NAME), and check that the log shows
    `NAME set by environment to`.
    Sources: nccl: src/misc/param.cc, tags; NCCL user guide, troubleshooting (MPI); llm-d-benchmark#1862 (a typo).
    """
    yield from _never_read(exported_variable, rank, version)
    printed = set(environment_settings(setting)["variable"])
    if not printed or member.filter("is_complete").is_empty():
        return
    unread = exported_variable.filter(pl.col("variable").is_in(READ_BY_ALL - printed) & (pl.col("value") != ""))
    for _, rows in unread.group_by("variable", maintain_order=True):
        name = rows["variable"][0]
        finding = group_finding(
            rows, rank, f"{name}={rows['value'][-1]} is exported but did not reach the ranks",
            f"they print {', '.join(sorted(printed)[:3])} but not this variable, which every rank reads", "likely",
        )  # fmt: skip
        finding.severity = Severity.WARNING
        first = setting.sort("source", "line").row(0, named=True)
        finding.evidence = [*finding.evidence[:2], Line(first["source"], first["line"], "printed")]
        yield finding


def _never_read(exported_variable: pl.DataFrame, rank: pl.DataFrame, version: pl.DataFrame) -> Iterator[Finding]:
    """Yield exported variables that NCCL does not read: removed ones, and misspelt ones."""
    of_run = releases(version["version"].cast(pl.String))
    for _, rows in exported_variable.sort("source", "line").group_by("variable", maintain_order=True):
        name = rows["variable"][0]
        known = variable(name)
        if known is not None and known.is_unread:
            if known.last and of_run and of_run[0] <= release(known.last):
                continue
            detail = known.why_unread
            certainty = "likely" if known.last and not of_run else "certain"
            remedy = "Remove it, or set what takes its place."
        elif known is None and (similar := similar_variable(name)):
            detail, certainty, remedy = f"{similar} may be meant", "likely", "Correct the name."
        else:
            continue
        title = f"{name} is exported and has no effect on NCCL"
        yield group_finding(rows, rank, title, detail, certainty, role=Role.CONTEXT, remedy=remedy)


def _unknown_token(name: str) -> str:
    """Return a token that is neither %h nor %p, or an empty string. `%%` is a percent sign."""
    for part in name.replace("%%", "").split("%")[1:]:
        if part[:1].isalpha() and part[0] not in "hp":
            return f"%{part[0]}"
    return ""


@rule(Category.ENVIRONMENT, Severity.INFO, role=Role.CONTEXT)
def env_debug_file_pattern(
    setting: pl.DataFrame, exported_variable: pl.DataFrame, source: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The name of NCCL's log file contains a token that NCCL does not replace.

    Means: only %h (host) and %p (process) are replaced. `%d`, `%r` and all others remain: all ranks of a host write the
    same file, and each truncates it on opening.
    Not when: the name also contains %p: then each process has its own file.
    Do: set NCCL_DEBUG_FILE=/path/%h.%p.log.
    Sources: nccl: src/debug.cc of all tags; NCCL user guide, NCCL_DEBUG_FILE.
    """
    settings = [
        (row["source"], row["line"], row["value"])
        for rows in (
            environment_settings(setting).filter(pl.col("variable") == "NCCL_DEBUG_FILE"),
            setting.filter(pl.col("form") == "debug_file").with_columns(value=pl.col("path")),
            exported_variable.filter(pl.col("variable") == "NCCL_DEBUG_FILE"),
        )
        for row in rows.select("source", "line", text_of("value")).to_dicts()
        if row["value"]
    ]
    file_names = [(row["source"], 1, PurePath(row["path"]).name) for row in source.to_dicts() if row["lines"]]
    affected = sorted(place for place in [*settings, *file_names] if _unknown_token(place[2]) and "%p" not in place[2])
    if not affected:
        return
    name = affected[0][2]
    yield Finding(
        f"NCCL does not replace {_unknown_token(name)} in NCCL_DEBUG_FILE",
        f"all ranks of a host write {PurePath(name).name} and truncate it on opening: lines are lost",
        "certain",
        evidence=[Line(source, line) for source, line, _ in affected[:3]],
    )
