"""GIDs of RoCE: configured and default indexes, tables that change or cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.networks import GID_FOUND
from ncclforensics.data.verbs import EARLY_CALLS, GID_CHANGED, GIDS_CHANGED, MODIFY_QP, RETRY_EXCEEDED
from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import OWNER, begins_with, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.completions import NAMED, devices_text, failed_with
from ncclforensics.rules.shared.grouping import group_finding


def _roce_processes(net_devices: pl.DataFrame) -> pl.DataFrame:
    """The processes that use RoCE."""
    return net_devices.filter(text_of("devices").str.contains("/RoCE", literal=True)).select(OWNER).unique()


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def roce_gid_forced_on_new_nccl(
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    version: pl.DataFrame,
    failure: pl.DataFrame,
    completion_error: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A GID index is configured for RoCE, although NCCL would select it itself.

    Means: from 2.21 on NCCL selects the index per device; a configured one is wrong as soon as a table changes.
    Not when: the devices are InfiniBand; NCCL is older than 2.21.
    Do: unset NCCL_IB_GID_INDEX.
    Sources: NCCL documentation, networking; nccl#1131.
    """
    versions = releases(version["version"])
    is_forced = (pl.col("variable") == "NCCL_IB_GID_INDEX") & text_of("value").str.starts_with("-").not_()
    forced = setting.filter(is_forced).join(_roce_processes(net_devices), on=OWNER, how="semi")
    if forced.is_empty() or not versions or min(versions) < GID_FOUND:
        return
    failed = pl.concat(
        [
            failure.filter(pl.col("operation") == MODIFY_QP).select(OWNER),
            failed_with(completion_error, RETRY_EXCEEDED).select(OWNER),
        ]
    ).join(forced.select(OWNER), on=OWNER, how="semi")
    detail = "NCCL would select the index itself, for each device"
    finding = group_finding(
        forced, rank, f"{{processes}}: NCCL_IB_GID_INDEX={forced['value'][0]} is set", detail, "possible"
    )
    finding.role = Role.CONTEXT
    if failed.height:
        finding.severity, finding.certainty = Severity.WARNING, "likely"
        finding.detail += "; connections failed, which a wrong index would explain"
    yield finding


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def roce_gid_default_zero_old_nccl(
    completion_error: pl.DataFrame,
    queue_pair: pl.DataFrame,
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    version: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL before 2.21 used GID index 0 on RoCE, which is RoCE v1 and link-local, and the peer did not answer.

    Means: without NCCL_IB_GID_INDEX these versions use index 0, which a routed fabric does not forward.
    Not when: NCCL is 2.21 or later; the devices are InfiniBand; the job had made progress; an index is set, or the log
    would not show the setting.
    Do: set NCCL_IB_GID_INDEX to the index of RoCE v2 that show_gids prints, usually 3.
    Sources: nccl#426, pytorch#81628.
    """
    versions = releases(version["version"])
    if not versions or max(versions) >= GID_FOUND:
        return
    failed = failed_with(completion_error, RETRY_EXCEEDED).filter(
        (pl.col("calls") <= EARLY_CALLS).fill_null(value=True)
    )
    failed = failed.join(_roce_processes(net_devices), on=OWNER, how="semi")
    zero = queue_pair.filter(pl.col("gid_index") == 0).select(OWNER).unique()
    with_settings = setting.filter(pl.col("form") == "environment").select(OWNER).unique()
    configured = setting.filter(pl.col("variable") == "NCCL_IB_GID_INDEX").select(OWNER).unique()
    unset = with_settings.join(configured, on=OWNER, how="anti")
    link_local = failed.filter(pl.col("gid").str.starts_with("fe80")).select(OWNER).unique()
    wrong = failed.join(pl.concat([zero, unset, link_local]).unique(), on=OWNER, how="semi")
    if wrong.height:
        detail = f"this version of NCCL uses GID index 0 if none is set{devices_text(wrong)}"
        yield group_finding(wrong, rank, "{processes}: no answer over RoCE with GID index 0", detail, "likely")


@rule(Category.IB_ERROR, Severity.INFO, of=("port_change", "failure"), hang=True)
def roce_gid_changed(
    port_change: pl.DataFrame, failure: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The GID table of a RoCE port changed while the job ran.

    Means: an address was reassigned, or the link flapped; the GID that NCCL uses may be stale, and later connections
    fail.
    Not when: NCCL prints that it refreshed the GID. If no transfer fails, it is reported as info.
    Do: look for network managers, bond failovers and link flaps on that host.
    Sources: nccl#1819, nccl#2183, nccl#2400.
    """
    form = pl.col("form")
    fatal = port_change.filter(form == "gid_fatal")
    changed = port_change.filter((form == "gid_table") | ((form == "unknown_event") & (pl.col("event") == GID_CHANGED)))
    events = failure.filter((form == "ib_event") & begins_with("error", *GIDS_CHANGED))
    changed = pl.concat([changed, events.select(set(changed.columns) & set(events.columns))], how="diagonal_relaxed")
    refreshed = port_change.filter(form == "gid_refreshed").select(OWNER).unique()
    if fatal.height:
        detail = "NCCL could not refresh the changed GID, and disabled the device"
        finding = group_finding(fatal, rank, "{processes} lost a RoCE device when its GID changed", detail, "certain")
        finding.severity = Severity.ERROR
        yield finding
    changed = changed.join(refreshed, on=OWNER, how="anti").join(fatal.select(OWNER), on=OWNER, how="anti")
    if changed.height:
        names = ", ".join(changed["device"].cast(pl.String).drop_nulls().unique().sort().to_list()[:NAMED])
        failed = completion_error.filter(pl.col("at_exit").not_()).height
        where = f"on {names}" if names else "the lines name no port"
        finding = group_finding(changed, rank, "{processes}: the GID table of a RoCE port changed", where, "certain")
        finding.role = Role.CAUSE if failed else Role.CONTEXT
        if failed:
            finding.severity, finding.certainty = Severity.WARNING, "likely"
            finding.detail += "; transfers fail, which stale addresses would explain"
        yield finding


@rule(Category.IB_ERROR, Severity.WARNING, of=("ib_unusable",))
def roce_gid_read_fails_in_container(ib_unusable: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL could not read the types of a RoCE port's GIDs.

    Means: the entries under /sys/class/infiniband/…/gid_attrs/types are not readable in the pod's network namespace, so
    NCCL cannot select the index.
    Not when: the devices are InfiniBand.
    Do: use NCCL 2.26 or later, or set NCCL_IB_GID_INDEX to the index of RoCE v2.
    Sources: nccl#1573, nccl#1538.
    """
    rows = ib_unusable.filter(pl.col("form") == "gid_type")
    if rows.height:
        error: Any = rows["error"][0]
        yield group_finding(
            rows, rank, "{processes} cannot read the types of RoCE GIDs", f"system error: {error}", "certain"
        )
