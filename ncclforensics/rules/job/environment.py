"""Variables of NCCL: unequal on ranks, left over from debugging, rejected, or without effect."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.data.tuning import OWN_PER_RANK, READ_BY_ALL, SLOWING
from ncclforensics.data.variable_catalogue import variable
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings, similar_variable
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

REJECTED = ["invalid", "too_low", "too_high", "no_power", "address", "merge", "policy"]
WITHOUT_EFFECT = ["unused", "unknown", "deprecated"]


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("setting",))
def env_differs_across_ranks(setting: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable of NCCL differs between the ranks of a job.

    Means: the ranks were not started alike: a different image, configuration file or shell, or a launcher that does not
    pass the variable on. Ranks that choose algorithm, protocol or channels differently may hang or fail to connect.
    Not when: the variable names an interface, a device, a file or what to print, which may differ between hosts; one
    process changes it between communicators; only some ranks read the variable.
    Do: export it on all ranks (mpirun -x NAME); check /etc/nccl.conf and ~/.nccl.conf on the named hosts.
    Sources: nccl#1328, nccl#286; NCCL 2.31 diagnostics.
    """
    processes = rank.select("job", *OWNER).unique()
    settings = environment_settings(setting).filter(~pl.col("variable").is_in(OWN_PER_RANK)).join(processes, on=OWNER)
    steady = settings.filter((pl.col("value").n_unique() == 1).over(*OWNER, "variable")).sort("source", "line")
    steady = steady.unique([*OWNER, "variable"], keep="first", maintain_order=True)
    unequal = steady.filter(pl.col("value").n_unique().over("job", "variable") > 1)
    for _, rows in unequal.group_by("job", "variable", maintain_order=True):
        counts = rows["value"].value_counts().sort("count", "value")
        minority, majority = counts["value"][0], counts["value"][-1]
        minority_rows = rows.filter(pl.col("value") == minority)
        name = rows["variable"][0]
        by_count = ", ".join(
            f"{value} on {count}" for value, count in counts.sort("count", descending=True).iter_rows()
        )
        finding = group_finding(
            minority_rows, rank,
            f"{name} is {minority or 'empty'} on {{processes}}, and {majority or 'empty'} elsewhere",
            f"values and numbers of processes: {by_count}", "certain",
        )  # fmt: skip
        finding.evidence = (
            finding.evidence[:3] + evidence_lines(rows.filter(pl.col("value") == majority), "another rank")[:1]
        )
        yield finding
    initialized = member.filter("is_complete").select("job", *OWNER).unique()
    printing = initialized.join(settings.select(OWNER).unique(), on=OWNER, how="semi")  # ENV lines are printed there
    for _, rows in steady.filter(pl.col("variable").is_in(READ_BY_ALL)).group_by(
        "job", "variable", maintain_order=True
    ):
        if rows["value"].n_unique() > 1:
            continue
        all_of_job = printing.filter(pl.col("job") == rows["job"][0])
        lacking = all_of_job.join(rows.select(OWNER), on=OWNER, how="anti")
        hosts = set(lacking["host"].cast(pl.String))
        if lacking.is_empty() or hosts & set(rows["host"].cast(pl.String)):
            continue  # other ranks of the host print it, so these may only read it later
        first_lines = setting.join(lacking, on=OWNER, how="semi").sort("source", "line").unique(OWNER, keep="first")
        finding = group_finding(
            first_lines, rank, f"{rows['variable'][0]}={rows['value'][0]} is set on others, and not on {{processes}}",
            "these ranks print other variables, and NCCL reads this one on every rank", "likely",
        )  # fmt: skip
        finding.evidence = evidence_lines(rows, "set here")[:2] + finding.evidence[:2]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def env_debug_left_on(
    setting: pl.DataFrame, transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A debugging variable is set that lowers performance.

    Means: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_P2P_LEVEL=LOC or NCCL_CHECK_POINTERS disable fast paths of NCCL.
    It is a warning if the log shows NVLink that is not used because of it.
    Not when: it is set to 0; it works around a known fault that is not fixed yet.
    Do: unset it, and fix the fault that it was set for (IOMMU and ACS, /dev/shm, containers that do not share IPC).
    Sources: nccl#631, nccl#2021; NCCL user guide, environment variables.
    """
    slow = environment_settings(setting).filter(
        (pl.col("variable").is_in(list(SLOWING)) & ~pl.col("value").is_in(["0", ""]))
        | ((pl.col("variable") == "NCCL_P2P_LEVEL") & pl.col("value").is_in(["LOC", "0"]))
    )
    without_p2p = transport.filter(pl.col("medium") != "P2P")["host"].unique()
    with_p2p = transport.filter(pl.col("medium") == "P2P")["host"].unique()
    idle = gpu_interconnect.filter(
        pl.col("host").is_in(without_p2p.implode()) & ~pl.col("host").is_in(with_p2p.implode())
    )
    for _, rows in slow.sort("source", "line").group_by("variable", "value", maintain_order=True):
        name, value = rows["variable"][0], rows["value"][0]
        meaning = SLOWING.get(name, SLOWING["NCCL_P2P_DISABLE"])
        finding = group_finding(rows, rank, f"{name}={value} on {{processes}}: {meaning}", "", "certain")
        finding.role = Role.CONTEXT
        idle_nvlink = idle.join(rows.select("host").unique(), on="host", how="semi")
        if name.startswith("NCCL_P2P") and not idle_nvlink.is_empty():
            finding.severity, finding.role = Severity.WARNING, Role.CAUSE
            finding.detail = "NVLink connects the GPUs"
            finding.evidence += evidence_lines(idle_nvlink, "NVLink")[:1]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting_status",))
def env_dead_variable(setting_status: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable is set that this version of NCCL does not read.

    Means: it is misspelt, was removed from NCCL, or never was a variable of NCCL; it has no effect.
    Not when: a framework, a plugin or an image reads it; NCCL knows it but this run did not need it.
    Do: remove it or set its successor.
    Sources: NCCL's tags; NCCL 2.30.3 and later report it (src/misc/param.cc).
    """
    idle = setting_status.filter(pl.col("form").is_in(WITHOUT_EFFECT)).with_columns(text_of("variable"))
    idle = idle.filter(pl.col("variable").str.starts_with("NCCL_"))
    for _, rows in idle.sort("source", "line").group_by("variable", maintain_order=True):
        name = rows["variable"][0]
        known = variable(name)
        if known is not None and not known.is_unread:
            continue
        similar = similar_variable(name)
        unknown = f"{similar} may be meant" if similar else "NCCL does not know it"
        detail = known.why_unread if known else unknown
        yield group_finding(rows, rank, f"{name} has no effect on {{processes}}", detail, "certain", role=Role.CONTEXT)


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting_refused",))
def env_value_refused(setting_refused: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable has a value that NCCL rejected.

    Means: NCCL uses its default or a bound instead; the requested value has no effect.
    Not when: the application requested the value in a communicator's config.
    Do: correct the value, or remove the variable.
    Sources: nccl: src/misc/param.cc, src/init.cc.
    """
    rejected = setting_refused.filter(pl.col("form").is_in(REJECTED) & pl.col("variable").is_not_null())
    for _, rows in rejected.sort("source", "line").group_by("variable", "given", maintain_order=True):
        row = rows.row(0, named=True)
        given = f"={row['given']}" if row["given"] else ""
        detail = f"NCCL uses {row['used']} instead" if row["used"] else "NCCL uses its default instead"
        yield group_finding(
            rows, rank, f"NCCL rejected {row['variable']}{given} on {{processes}}", detail, "certain", role=Role.CONTEXT
        )


TABLES = {
    "absent": "NCCL's tuner plugin did not find its table of choices, and changes nothing",
    "empty": "NCCL's tuner plugin found no row in its table of choices, and changes nothing",
    "name": "the table of a tuner plugin has rows with names that the plugin does not know",
    "short": "the table of a tuner plugin has rows with fewer than eight fields, which it leaves out",
}


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("tuner_table", "tuner_fault"))
def tuner_table_unused(tuner_table: pl.DataFrame, tuner_fault: pl.DataFrame) -> Iterator[Finding]:
    """NCCL's example of a tuner plugin does not use its table of choices, or reads a row of it otherwise than meant.

    Means: NCCL chooses algorithm and protocol as without the table. A name that the plugin does not know it takes for
    ring, simple or all-reduce, without a word in the log.
    Not when: every row was read, and the log says that the plugin loaded as many.
    Do: set NCCL_TUNER_CONFIG_FILE to the path of the table on every host; write a row as collective, bytes from and to,
    algorithm, protocol, channels, nodes, ranks, names in lower case as the plugin's README.md lists them.
    Sources: NCCL, plugins/tuner/example/plugin.c and README.md.
    """
    lines = pl.concat([tuner_table, tuner_fault], how="diagonal_relaxed").sort("source", "line")
    for form, title in TABLES.items():
        rows = lines.filter(text_of("form") == form)
        if rows.height:
            detail = f"{count_of(rows.height, 'line')}; NCCL's own choice holds"
            yield Finding(title, detail, "certain", evidence=evidence_lines(rows.select("source", "line")))
