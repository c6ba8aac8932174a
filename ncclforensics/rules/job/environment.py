"""Variables: unequal over ranks, left over from a search for a fault, refused, or without any effect."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.tuning import DEAD, FOREIGN, KNOWN, OWN_PER_RANK, READ_BY_ALL, SLOWING
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings, similar_variable
from ncclforensics.rules.shared.grouping import shown, together

NOT_TAKEN = ["invalid", "too_low", "too_high", "no_power", "address", "merge", "policy"]
WITHOUT_EFFECT = ["unused", "unknown", "deprecated"]


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("setting",))
def env_differs_across_ranks(setting: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable of NCCL differs between the ranks of a job.

    Means: not all ranks were started alike: another image, configuration file or shell; or the launcher does not pass
    the variable on. Ranks that choose algorithm, protocol or channels differently may hang or fail to connect.
    Not when: the variable names an interface, a device, a file or what to print, which may differ over hosts; one
    process changes it between communicators; it is of a kind that only some ranks ever read.
    Do: export it alike on all ranks (mpirun -x NAME); look into /etc/nccl.conf and ~/.nccl.conf of the hosts named.
    Sources: nccl#1328, nccl#286; NCCL 2.31 diagnostics.
    """
    ours = rank.select("job", *OWNER).unique()
    said = environment_settings(setting).filter(~pl.col("variable").is_in(OWN_PER_RANK)).join(ours, on=OWNER)
    steady = said.filter((pl.col("value").n_unique() == 1).over(*OWNER, "variable")).sort("source", "line")
    steady = steady.unique([*OWNER, "variable"], keep="first", maintain_order=True)
    unequal = steady.filter(pl.col("value").n_unique().over("job", "variable") > 1)
    for _, rows in unequal.group_by("job", "variable", maintain_order=True):
        counts = rows["value"].value_counts().sort("count", "value")
        odd, usual = counts["value"][0], counts["value"][-1]
        few = rows.filter(pl.col("value") == odd)
        name = rows["variable"][0]
        more = ", ".join(f"{value} on {count}" for value, count in counts.sort("count", descending=True).iter_rows())
        finding = together(
            few, rank, f"{name} is {odd or 'empty'} on {{who}}, and {usual or 'empty'} elsewhere",
            f"values and processes: {more}", "certain",
        )  # fmt: skip
        finding.evidence = finding.evidence[:3] + shown(rows.filter(pl.col("value") == usual), "another rank")[:1]
        yield finding
    done = member.filter("is_complete").select("job", *OWNER).unique()
    talks = done.join(said.select(OWNER).unique(), on=OWNER, how="semi")  # echoes are switched on there
    for _, rows in steady.filter(pl.col("variable").is_in(READ_BY_ALL)).group_by("job", "variable"):
        if rows["value"].n_unique() > 1:
            continue
        all_of_job = talks.filter(pl.col("job") == rows["job"][0])
        lacking = all_of_job.join(rows.select(OWNER), on=OWNER, how="anti")
        hosts = set(lacking["host"].cast(pl.String))
        if lacking.is_empty() or hosts & set(rows["host"].cast(pl.String)):
            continue  # some ranks of a host have it: more likely that it is read late than that it is not set
        first = setting.join(lacking, on=OWNER, how="semi").sort("source", "line").unique(OWNER, keep="first")
        finding = together(
            first, rank, f"{rows['variable'][0]}={rows['value'][0]} is set everywhere but on {{who}}",
            "these ranks echo other variables, and every rank reads this one", "likely",
        )  # fmt: skip
        finding.evidence = shown(rows, "set here")[:2] + finding.evidence[:2]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def env_debug_left_on(
    setting: pl.DataFrame, transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A variable is set that helps to find a fault and costs speed.

    Means: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_P2P_LEVEL=LOC or NCCL_CHECK_POINTERS turn off what makes NCCL fast.
    It is a warning where the log shows NVLink that lies idle for it.
    Not when: it is set to 0; a fault that it works around is known and not mended yet.
    Do: unset it, and mend what it was set for (IOMMU and ACS, /dev/shm, containers that do not share IPC).
    Sources: nccl#631, nccl#2021; NCCL user guide, environment variables.
    """
    slow = environment_settings(setting).filter(
        (pl.col("variable").is_in(list(SLOWING)) & ~pl.col("value").is_in(["0", ""]))
        | ((pl.col("variable") == "NCCL_P2P_LEVEL") & pl.col("value").is_in(["LOC", "0"]))
    )
    by_other_means = transport.filter(pl.col("medium") != "P2P")["host"].unique()
    direct = transport.filter(pl.col("medium") == "P2P")["host"].unique()
    idle = gpu_interconnect.filter(
        pl.col("host").is_in(by_other_means.implode()) & ~pl.col("host").is_in(direct.implode())
    )
    for _, rows in slow.sort("source", "line").group_by("variable", "value", maintain_order=True):
        name, value = rows["variable"][0], rows["value"][0]
        finding = together(
            rows, rank, f"{name}={value} on {{who}}", SLOWING.get(name, SLOWING["NCCL_P2P_DISABLE"]), "certain"
        )
        finding.role = Role.CONTEXT
        proof = idle.join(rows.select("host").unique(), on="host", how="semi")
        if name.startswith("NCCL_P2P") and not proof.is_empty():
            finding.severity, finding.role = Severity.WARNING, Role.CAUSE
            finding.detail += ", although NVLink links them"
            finding.evidence += shown(proof, "NVLink")[:1]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting_status",))
def env_dead_variable(setting_status: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable is set that this NCCL does not read.

    Means: it is misspelt, was removed from NCCL, or never was NCCL's; what it was set for does not happen.
    Not when: it is read by a framework, a plugin or an image; NCCL knows it and this run never came to need it.
    Do: remove it or set its successor.
    Sources: NCCL's tags; NCCL 2.30.3 and later say so themselves (src/misc/param.cc).
    """
    idle = setting_status.filter(pl.col("form").is_in(WITHOUT_EFFECT))
    idle = idle.with_columns(text_of("variable")).filter(
        pl.col("variable").str.starts_with("NCCL_")
        & ~pl.col("variable").is_in(FOREIGN)
        & (~pl.col("variable").is_in(KNOWN) | pl.col("variable").is_in(list(DEAD)))
    )
    for _, rows in idle.sort("source", "line").group_by("variable", maintain_order=True):
        name = rows["variable"][0]
        last, successor = DEAD.get(name, ("", ""))
        similar = similar_variable(name)
        if successor:
            detail = f"{'NCCL never read it' if last == 'never read' else 'NCCL no longer reads it'}: set {successor}"
        elif name not in DEAD and similar:
            detail = f"{similar} may be meant"
        else:
            detail = f"NCCL read it up to {last}" if last[:1].isdigit() else "NCCL does not know it"
        yield together(rows, rank, f"{name} has no effect on {{who}}", detail, "certain", role=Role.CONTEXT)


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting_refused",))
def env_value_refused(setting_refused: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable has a value that NCCL did not take.

    Means: NCCL goes on with its default or with a bound; what was asked for does not happen.
    Not when: the application asked for it (a communicator's config); that is the program's matter.
    Do: correct the value, or remove the variable.
    Sources: nccl: src/misc/param.cc, src/init.cc.
    """
    bad = setting_refused.filter(pl.col("form").is_in(NOT_TAKEN) & pl.col("variable").is_not_null())
    for _, rows in bad.sort("source", "line").group_by("variable", "given", maintain_order=True):
        row = rows.row(0, named=True)
        given = f"={row['given']}" if row["given"] else ""
        detail = f"{row['used']} is used in its place" if row["used"] else "its default is used in its place"
        yield together(
            rows, rank, f"NCCL did not take {row['variable']}{given} on {{who}}", detail, "certain", role=Role.CONTEXT
        )
