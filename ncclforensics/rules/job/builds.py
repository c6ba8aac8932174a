"""Builds of NCCL that differ between the ranks of a communicator."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.frames.columns import printed_hosts, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 4


@rule(Category.VERSION_MISMATCH, Severity.WARNING, of=("build_mismatch",), hang=True, role=Role.CONTEXT)
def nccl_builds_differ(build_mismatch: pl.DataFrame, build: pl.DataFrame) -> Iterator[Finding]:
    """Ranks of a communicator were built from different sources of NCCL, as NCCL found at init.

    Means: an image, a module or LD_LIBRARY_PATH differs between hosts. The version may be the same, and the init may
    succeed; ranks that choose algorithms, or pack messages, in different ways hang later or compute wrong results.
    Not when: the builds differ only in a patch that does not concern communication.
    Do: use the same build of NCCL on all hosts; compare `NCCL git version` in the logs, and which libnccl.so each
    process has open (/proc/PID/maps).
    Sources: nccl: src/init.cc.
    """
    if build_mismatch.is_empty():
        return
    marks = pl.concat(
        [
            build_mismatch.select("rank", mark=text_of("fingerprint")),
            build_mismatch.select(rank="other", mark=text_of("other_fingerprint")),
        ]
    )
    of_marks = marks.unique().sort("rank").group_by("mark", maintain_order=True).agg("rank").rows()
    details = [", ".join(f"{ranks_text(ranks)}: fingerprint {mark}" for mark, ranks in of_marks[:SHOWN])]
    of_builds = build.select(text_of("host"), "build").unique().sort("build", "host")
    for name, hosts in of_builds.group_by("build", maintain_order=True).agg("host").head(SHOWN).rows():
        details.append(f"{name} on {some_of(printed_hosts(hosts), SHOWN)}")
    yield Finding(
        f"{ranks_text(sorted(marks['rank'].unique()))} of a communicator run different builds of NCCL",
        "; ".join(details),
        "certain",
        hosts=printed_hosts(sorted(of_builds["host"].drop_nulls().unique())),
        evidence=evidence_lines(build_mismatch),
    )
