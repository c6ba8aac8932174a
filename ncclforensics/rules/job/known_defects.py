"""Known defects of NCCL releases whose symptoms are in the log."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import CONNECTION_FORMS
from ncclforensics.data.advisories import ADVISORIES, LARGE_SCALE
from ncclforensics.data.versions import release
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

STUCK_VERDICTS = ["stuck-together"]
LINE_COLUMNS = {"source": pl.Int32(), "line": pl.Int32()}


@rule(Category.ENVIRONMENT, Severity.INFO, of=("verdict_evidence", "failure", "work_timeout", "ib_unusable"))
def ver_known_defect(
    version: pl.DataFrame,
    verdict: pl.DataFrame,
    verdict_evidence: pl.DataFrame,
    failure: pl.DataFrame,
    call_template: pl.DataFrame,
    work_timeout: pl.DataFrame,
    topology_detection: pl.DataFrame,
    ib_unusable: pl.DataFrame,
    member: pl.DataFrame,
) -> Iterator[Finding]:
    """This release of NCCL has a known defect whose symptom is in the log.

    Means: the defect is one possible explanation beside others; only a run with another release can confirm it.
    Not when: the release contains the fix, or the log lacks the symptom: the version alone is no finding.
    Do: run again with the named release or a later one, everything else unchanged; state n of m runs.
    Sources: NCCL release notes; nccl#1273, nccl#1573, facebookresearch/nccl#53.
    """
    releases = version.filter(~text_of("form").fill_null("").str.starts_with("rccl")).sort("source", "line")
    releases = releases.with_columns(text_of("version")).unique("version", keep="first").sort("version")
    affected = [
        (row, advisory)
        for row in releases.to_dicts()
        for advisory in ADVISORIES
        if advisory.affects(release(row["version"]))
    ]
    if not affected:
        return
    stuck = verdict.filter(pl.col("verdict").is_in(STUCK_VERDICTS))
    hang_lines = verdict_evidence.join(stuck.select("job"), on="job", how="semi").select(*LINE_COLUMNS)
    incomplete = verdict.filter(pl.col("verdict") == "init-incomplete")
    with_several = member.group_by("job", "rank_id").agg(pl.col("key").n_unique()).filter(pl.col("key") > 1)
    connecting = verdict_evidence.join(incomplete.select("job"), on="job", how="semi")
    connecting = connecting.join(with_several.select("job"), on="job", how="semi").select(*LINE_COLUMNS)
    form, site = text_of("form"), text_of("site")
    mixed = topology_detection.filter(form.is_in(["mixed_architecture", "mixed_vendors"])).select(*LINE_COLUMNS)
    is_pairwise = pl.col("called").is_in(["Send", "Recv"])
    network = failure.filter(form.str.starts_with("ib_") | form.is_in(CONNECTION_FORMS))
    large = member.filter(pl.col("nranks") >= LARGE_SCALE)
    no_lines = pl.DataFrame(schema=LINE_COLUMNS)
    symptoms = {
        "pairwise": hang_lines if not call_template.filter(is_pairwise).is_empty() else no_lines,
        "silent time-out": work_timeout.select(*LINE_COLUMNS) if network.is_empty() else no_lines,
        "truncated": failure.filter(form == "message_truncated").select(*LINE_COLUMNS),
        "shm over CUDA": failure.filter((form == "cuda") & site.str.contains("transport/shm.cc", literal=True)).select(
            *LINE_COLUMNS
        ),
        "mixed CPUs": mixed if not hang_lines.is_empty() else no_lines,
        "RoCE version": ib_unusable.filter(form == "gid_type").select(*LINE_COLUMNS),
        "several communicators": connecting,
        "large scale": hang_lines if not large.is_empty() else no_lines,
    }
    for row, advisory in affected:
        symptom_lines = symptoms[advisory.symptom]
        if not symptom_lines.is_empty():
            fixed = ".".join(map(str, advisory.fixed))
            yield Finding(
                title=f"NCCL {row['version'].partition('+')[0]} has a known defect with this symptom",
                detail=f"{advisory.what}; fixed in {fixed} ({advisory.slug}, {advisory.source})",
                certainty="possible",
                role=Role.CONTEXT,
                evidence=[Line(row["source"], row["line"], "version"), *evidence_lines(symptom_lines, "symptom")[:2]],
            )
