"""Programs that never begin, because of how they were started."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.frames.columns import count_behind, text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.survival import not_survived

TITLES = {
    "arguments": "a program refused its arguments",
    "file": "Python did not find the program that it was to run",
    "module": "Python did not find the module that it was to run",
    "configuration": "Hydra did not find the configuration that a program was to run with",
}
FAR_BEHIND = 1000  # lines of a file behind it; launchers print fewer as they end
REMEDIES = {
    "arguments": "compare the command line with the usage that the program prints above",
    "file": "look for this path on the host, and in the container, that printed it",
    "module": "look for the module in the environment and the working directory of this host and container: "
    "`python -m pip list`, PYTHONPATH",
    "configuration": "compare the name with the files in the search path that the program prints below",
}


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("unstarted_program",), hang=True)
def app_not_started(
    unstarted_program: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    milestone: pl.DataFrame,
    training_step: pl.DataFrame,
    program_end: pl.DataFrame,
    source: pl.DataFrame,
) -> Iterator[Finding]:
    """A program ended before it began: its arguments, its file, its module or its configuration were wrong.

    Means: all ranks of a job are started by the same command, so each of them prints this, and the launcher ends; no
    rank waits for another.
    Not when: the job runs behind it in the same log: then the line is of another program, such as one that prepares
    the data; a program ended so for another reason behind it: then the line is of an earlier launch. Where the text
    goes on for long, of which nothing is known, this is a warning.
    Do: compare the command with the usage that the program prints, and look for the file or module on the host and in
    the container that printed it.
    Sources: Python: argparse.ArgumentParser.error, Modules/main.c, runpy; hydra/_internal/config_loader_impl.py.
    """
    named = unstarted_program.with_columns(
        reason=pl.coalesce(text_of("error_text"), text_of("wanted_program")),
        host=pl.col("launcher_node").cast(pl.Categorical()),
        pid=pl.col("launcher_pid").cast(pl.Int32()),
    )
    named = not_survived(named, communicator_progress, milestone, training_step, program_end)
    named = named.filter(pl.col("reason") == pl.col("reason").last().over("source"))
    named = named.join(source.select("source", "lines"), on="source", how="left").with_columns(further=count_behind())
    for (form, reason), rows in named.sort("source", "line").group_by("form", "reason", maintain_order=True):
        title = f"{TITLES[str(form)]}: {reason}"
        detail = f"printed {count_of(rows.height, 'time')}"
        finding = Finding(title, detail, "certain", evidence=evidence_lines(rows), remedy=REMEDIES[str(form)])
        if (further := int(rows.select(pl.min("further")).item())) > FAR_BEHIND:
            finding.detail += f"; {count_of(further, 'line')} stand behind it, of another program or a later launch"
            finding.severity = Severity.WARNING
        yield finding
