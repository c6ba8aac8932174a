"""InfiniBand completions with an error: process, NIC, peer host, and the number of calls made before."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.networks import IB_TIMEOUTS, INFINIBAND, ROCE
from ncclforensics.data.verbs import DOWN, EARLY_CALLS, RETRY_EXCEEDED, STATUS_NAMES
from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import LINE, ORIGIN, OWNER, PROCESS, begins_with, no_rows, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import as_time

COMPLETION_ERROR = {
    "job": pl.Int32(),  # null where no communicator of the process is seen
    **PROCESS,
    "status": pl.Int64(),  # of the completion (enum ibv_wc_status)
    "vendor_error": pl.Int64(),
    "hca": pl.String(),
    "peer": pl.String(),  # address of the peer process
    "peer_host": pl.String(),  # where another log names the host of that address
    "gid": pl.String(),  # local GID, which NCCL prints for RoCE
    "link": pl.String(),  # InfiniBand or RoCE; null where no line shows it
    "calls": pl.Int64(),  # made by this process before; null where its log shows none
    "is_survived": pl.Boolean(),  # NCCL continued over other ports
    "at_exit": pl.Boolean(),  # the process had begun to destroy or abort its communicators
    "moment": pl.Datetime("us"),  # null where the line has no full date
    **ORIGIN,
}
# From 2.18 on, the line has the GIDs on RoCE, and the kind of request, which some forms of 2.20 and later leave out.
WITH_GIDS = ["ib_completion", "ib_completion_gin"]
COMPLETIONS = ["ib_completion", "ib_completion_error", "ib_completion_nameless", "ib_completion_gin"]

NO_YEAR = 1970  # the year of times that are printed without one
# Forms of `failover` that end a process, and forms that it survives.
FATAL_FORMS = ["fatal", "too_many", "no_replacement", "failed_for_good", "given_up", "device_lost"]
SURVIVED_FORMS = ["failed", "not_fatal", "replaced"]
UNANSWERED_TRANSFER = {
    "job": pl.Int32(),
    **PROCESS,
    "hca": pl.String(),
    "peer": pl.String(),
    "peer_host": pl.String(),
    "gid": pl.String(),  # local GID, which NCCL prints for RoCE
    "link": pl.String(),  # InfiniBand or RoCE; null where no line shows it
    "calls": pl.Int64(),
    "is_early": pl.Boolean(),  # within the first calls
    "is_survived": pl.Boolean(),
    "is_consequence": pl.Boolean(),  # its job lost a process, or a port or device at either end failed
    "timeout": pl.Int64(),  # NCCL_IB_TIMEOUT of this process, if below NCCL's default
    "default": pl.Int64(),
    "set_source": pl.Int32(),
    "set_line": pl.Int32(),  # of the setting
    **LINE,
}


@analysis(COMPLETION_ERROR, of=("failure", "ucx_error"))
def completion_error(
    failure: pl.DataFrame,
    ucx_error: pl.DataFrame,
    ucx_transfer: pl.DataFrame,
    failover: pl.DataFrame,
    milestone: pl.DataFrame,
    net_devices: pl.DataFrame,
    operation: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per completion with an error, in the order of lines.

    `calls` is null where a part of the log was not read: how many calls came before is then unknown.
    """
    printed_time = as_time(pl.coalesce(text_of("stamp"), text_of("launcher_time")), NO_YEAR)
    of_nccl = failure.filter(pl.col("form").is_in(COMPLETIONS)).select(
        *OWNER,
        pl.coalesce("status", text_of("statusname").replace_strict(STATUS_NAMES, default=None, return_dtype=pl.Int64)),
        "vendor_error",
        hca=text_of("hca"),
        peer=text_of("peer").str.split("<").list.first().replace("", None),
        gid=text_of("local_gid"),
        link=pl.when(text_of("local_gid").is_not_null())
        .then(pl.lit(ROCE))
        # The name of the device ends the line: without it the GIDs before it may be cut off, too.
        .when((text_of("request").is_not_null() | text_of("form").is_in(WITH_GIDS)) & text_of("hca").is_not_null())
        .then(pl.lit(INFINIBAND)),
        moment=pl.when(printed_time.dt.year() > NO_YEAR).then(printed_time),
        source="source",
        line="line",
        pos="pos",
    )
    # UCX prints the transfer below the error of the same process.
    of_process = ["source", "ucx_host", "process"]
    address = pl.coalesce(text_of("remote_gid").str.strip_prefix("::ffff:"), pl.format("LID {}", "remote_lid"))
    ends = ucx_transfer.select(*of_process, "pos", peer=address).sort("pos")
    ucx_error = ucx_error.sort("pos").join_asof(
        ends, on="pos", by=of_process, strategy="forward", check_sortedness=False
    )
    of_ucx = ucx_error.select(  # UCX reports only "Transport retry count exceeded"
        host=text_of("ucx_host").cast(pl.Categorical()),
        pid=pl.col("process").cast(pl.Int32),
        status=pl.lit(RETRY_EXCEEDED, pl.Int64),
        vendor_error=pl.lit(None, pl.Int64),
        hca=text_of("device"),
        peer="peer",
        gid=pl.lit(None, pl.String),
        link=text_of("link").replace({"IB": INFINIBAND}),
        moment=pl.lit(None, pl.Datetime("us")),
        source="source",
        line="line",
        pos="pos",
    )
    errors = pl.concat([of_nccl, of_ucx], how="vertical_relaxed").sort("pos")
    if errors.is_empty():
        return no_rows(COMPLETION_ERROR)
    calls = operation.select(*OWNER, "pos", "source").join(errors.select(OWNER).unique(), on=OWNER, how="semi")
    is_counted = pl.col("source").is_in(source.filter("is_whole")["source"].implode()).all().over(OWNER)
    numbered = calls.sort("pos").with_columns(calls=pl.int_range(1, pl.len() + 1).over(OWNER))
    counted = numbered.select(*OWNER, "pos", calls=pl.when(is_counted).then("calls"))
    failed_over = failover.filter(pl.col("form").is_in(SURVIVED_FORMS)).select(OWNER).unique()
    ended = failover.filter(pl.col("form").is_in(FATAL_FORMS)).select(OWNER).unique()
    survived = failed_over.join(ended, on=OWNER, how="anti").with_columns(is_survived=pl.lit(value=True))
    shutdowns = member.group_by(OWNER).agg(shutdown_pos=pl.col("end_pos").min())
    return (
        errors.join(rank.select(*OWNER, "job").unique(OWNER), on=OWNER, how="left")
        .join_asof(counted, on="pos", by=OWNER, strategy="backward", check_sortedness=False)
        .join(survived, on=OWNER, how="left")
        .join(shutdowns, on=OWNER, how="left")
        .join(hosts_of_addresses(milestone, net_devices), left_on="peer", right_on="address", how="left")
        .join(_links_of_hosts(net_devices), on="host", how="left")
        .with_columns(
            pl.col("is_survived").fill_null(value=False),
            link=pl.coalesce("link", "link_of_host"),
            at_exit=(pl.col("pos") > pl.col("shutdown_pos")).fill_null(value=False),
        )
        .sort("pos")
        .select(pl.col(name).cast(dtype) for name, dtype in COMPLETION_ERROR.items())
    )


@analysis(UNANSWERED_TRANSFER, of=("completion_error",))
def unanswered_transfer(
    completion_error: pl.DataFrame,
    failure: pl.DataFrame,
    verdict: pl.DataFrame,
    setting: pl.DataFrame,
    version: pl.DataFrame,
    counter_increase: pl.DataFrame,
) -> pl.DataFrame:
    """One row per transfer without an answer; of a job with such transfers in its first calls, only these."""
    is_event = (pl.col("form") == "ib_event") & begins_with("error", *DOWN)
    down = failure.filter(is_event | (pl.col("form") == "ib_fatal"))["host"].cast(pl.String).drop_nulls().to_list()
    link_losses = counter_increase.filter((pl.col("name") == "link_downed") & (pl.col("increase") > 0))
    down += link_losses["host"].drop_nulls().to_list()
    died = verdict.filter(pl.col("verdict") == "rank-died")["job"].to_list()
    timeouts = setting.filter(pl.col("variable") == "NCCL_IB_TIMEOUT").select(
        *OWNER, timeout=text_of("value").cast(pl.Int64, strict=False), set_source="source", set_line="line"
    )
    oldest = releases(version["version"])[:1]
    defaults = [default for since, default in IB_TIMEOUTS.items() for release in oldest if since <= release]
    low = timeouts.with_columns(default=pl.lit(defaults[-1] if defaults else None, pl.Int64))
    low = low.filter(pl.col("timeout") < pl.col("default")).unique(OWNER, keep="first", maintain_order=True)
    is_consequence = pl.any_horizontal(
        pl.col("job").is_in(died), pl.col("host").is_in(down), pl.col("peer_host").is_in(down)
    )
    return (
        completion_error.filter((pl.col("status") == RETRY_EXCEEDED) & pl.col("at_exit").not_())
        .with_columns(is_early=(pl.col("calls") <= EARLY_CALLS).fill_null(value=False))
        .filter(pl.col("is_early") | pl.col("is_early").any().over("job").not_())
        .with_columns(is_consequence=is_consequence.fill_null(value=False))
        .join(low, on=OWNER, how="left", maintain_order="left")
    )


def _links_of_hosts(net_devices: pl.DataFrame) -> pl.DataFrame:
    """Return the kind of link of the hosts whose NICs all have one."""
    devices = net_devices.filter(form="ib").select("host", text_of("devices"))
    is_roce = pl.col("devices").str.contains("/RoCE", literal=True)
    is_infiniband = pl.col("devices").str.contains("/IB", literal=True)
    return devices.group_by("host").agg(
        link_of_host=pl.when((is_roce & ~is_infiniband).all())
        .then(pl.lit(ROCE))
        .when((is_infiniband & ~is_roce).all())
        .then(pl.lit(INFINIBAND))
    )


def hosts_of_addresses(milestone: pl.DataFrame, net_devices: pl.DataFrame) -> pl.DataFrame:
    """Map addresses (`address`) to hosts (`peer_host`), by the interface that each process prints."""
    of_bootstrap = milestone.filter(pl.col("address").is_not_null()).select(
        address=text_of("address"),
        peer_host=text_of("host"),
    )
    of_devices = net_devices.filter(pl.col("oob_address").is_not_null()).select(
        address=text_of("oob_address"), peer_host=text_of("host")
    )
    addresses = pl.concat([of_bootstrap, of_devices]).drop_nulls().unique()
    return addresses.filter(pl.len().over("address") == 1)  # containers may share an address
