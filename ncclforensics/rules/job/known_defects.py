"""Defects of NCCL's own that look like what the log shows."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.advisories import ADVISORIES, LARGE_SCALE
from ncclforensics.data.versions import release
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import shown

STUCK = ["stuck-together"]
PLACE = {"source": pl.Int32(), "line": pl.Int32()}


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
    """This release of NCCL has a known defect that looks like what the log shows.

    Means: the defect is one possible explanation beside the others; nothing proves it but a run with another release.
    Not when: the release is mended, or the log does not show the symptom: the version alone is no reason for a finding.
    Do: run again with the release named or a later one, everything else unchanged; state n of m runs.
    Sources: NCCL release notes; nccl#1273, nccl#1573, facebookresearch/nccl#53.
    """
    releases = version.filter(~text_of("form").fill_null("").str.starts_with("rccl")).sort("source", "line")
    releases = releases.with_columns(text_of("version")).unique("version", keep="first").sort("version")
    concerned = [
        (row, advisory)
        for row in releases.to_dicts()
        for advisory in ADVISORIES
        if advisory.concerns(release(row["version"]))
    ]
    if not concerned:
        return
    stuck = verdict.filter(pl.col("verdict").is_in(STUCK))
    hung = verdict_evidence.join(stuck.select("job"), on="job", how="semi").select(*PLACE)
    incomplete = verdict.filter(pl.col("verdict") == "init-incomplete")
    several = member.group_by("job", "rank_id").agg(pl.col("key").n_unique()).filter(pl.col("key") > 1)
    connecting = verdict_evidence.join(incomplete.select("job"), on="job", how="semi")
    connecting = connecting.join(several.select("job"), on="job", how="semi").select(*PLACE)
    form, site = text_of("form"), text_of("site")
    mixed = topology_detection.filter(form.is_in(["mixed_architecture", "mixed_vendors"])).select(*PLACE)
    called = pl.col("called").is_in(["Send", "Recv"])
    network = failure.filter(form.str.starts_with("ib_") | form.is_in(["peer_closed", "transfer_failed"]))
    large = member.filter(pl.col("nranks") >= LARGE_SCALE)
    nothing = pl.DataFrame(schema=PLACE)
    symptoms = {
        "pairwise": hung if not call_template.filter(called).is_empty() else nothing,
        "silent time-out": work_timeout.select(*PLACE) if network.is_empty() else nothing,
        "truncated": failure.filter(form == "message_truncated").select(*PLACE),
        "shm over CUDA": failure.filter((form == "cuda") & site.str.contains("transport/shm.cc", literal=True)).select(
            *PLACE
        ),
        "mixed CPUs": mixed if not hung.is_empty() else nothing,
        "RoCE version": ib_unusable.filter(form == "gid_type").select(*PLACE),
        "several communicators": connecting,
        "large scale": hung if not large.is_empty() else nothing,
    }
    for row, advisory in concerned:
        shows = symptoms[advisory.symptom]
        if not shows.is_empty():
            fixed = ".".join(map(str, advisory.fixed))
            yield Finding(
                title=f"NCCL {row['version'].partition('+')[0]} has a known defect that looks like this",
                detail=f"{advisory.what}; mended in {fixed} ({advisory.slug}, {advisory.source})",
                certainty="possible",
                role=Role.CONTEXT,
                evidence=[Line(row["source"], row["line"], "version"), *shown(shows, "symptom")[:2]],
            )
