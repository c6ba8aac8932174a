"""The first connections between ranks: the interface they go over, and what answers at the other end."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.failure_events import HARD, LOST, NETWORK
from ncclforensics.frames.columns import OWNER, PLACE, begins_with, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import shown, together

REFUSALS = ["connect_failed", "connect_returned", "connect_given_up", "connect_exceeded", "poll_failed"]
LOOPBACK = "lo"
BRIDGES = ["docker", "veth", "cni", "virbr", "br-", "tunl", "flannel", "cali"]  # that end at their own host
LOCAL_ADDRESSES = ["fe80:", "::1"]
SYSTEM_ERROR = 2  # ncclSystemError
FAMILIES = (2, 10)  # AF_INET, AF_INET6
OPEN_FILES = "Too many open files"


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure",), hang=True)
def boot_no_interface(failure: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """No network interface of the host fits what NCCL was told to use.

    Means: NCCL_SOCKET_IFNAME (or NCCL_OOB_NET_IFNAME) names an interface that this host, or this container, does not
    have, or excludes all that it has. A name is a prefix unless it begins with `=`, and an exclusion if with `^`.
    Not when: NCCL says that it ignores the variable and goes on.
    Do: ip addr on the host named, inside the container; name several (eno1,eth0) or exclude (^lo,docker).
    Sources: pytorch#29482, nccl#286; NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    rows = failure.filter(pl.col("form").is_in(["no_interface", "no_such_interface"]))
    if rows.is_empty():
        return
    asked = setting.filter(pl.col("variable").is_in(["NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"]))
    told = asked.join(rows.select(OWNER).unique(), on=OWNER, how="semi")
    values = sorted({f"{name}={value}" for name, value in told.select("variable", "value").iter_rows()})
    finding = together(
        rows, rank, "no network interface for NCCL on {who}",
        f"{', '.join(values)} fits none" if values else "none fits what NCCL was told to use, or there is none",
        "certain",
    )  # fmt: skip
    finding.evidence += shown(told, "set here")[:1]
    yield finding


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("milestone",), hang=True)
def boot_wrong_interface(
    milestone: pl.DataFrame, failure_event: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks offer the others an address that ends at their own host.

    Means: the interface that NCCL took is a bridge of containers, the loopback or a link-local address. Ranks of other
    hosts cannot reach it, and init does not come to its end.
    Not when: all ranks run on one host; init came to its end. Names need not be equal on all hosts.
    Do: NCCL_SOCKET_IFNAME=^lo,docker, or the exact name of the network between the hosts.
    Sources: nccl#286, horovod#310, nccl#1291, pytorch#68893.
    """
    stuck = verdict.filter(pl.col("verdict").is_in(["init-incomplete", "init-failed", "rank-missing"]))["job"]
    refused = failure_event.filter(pl.col("form").is_in(REFUSALS))["job"]
    jobs = rank.filter(pl.col("job").is_in({*stuck, *refused}))
    ours = jobs.select("job", *OWNER).unique(OWNER)
    if jobs["host"].n_unique() < 2:
        return
    is_bridge = (pl.col("interface") == LOOPBACK) | begins_with("interface", BRIDGES)
    is_local = is_bridge | begins_with("address", LOCAL_ADDRESSES)
    offered = milestone.filter((pl.col("form") == "bootstrap") & is_local)
    local = offered.join(ours, on=OWNER, how="semi")
    for (name,), rows in local.group_by(text_of("interface"), maintain_order=True):
        detail = "no other host can reach that, and init did not come to its end"
        yield together(
            rows, rank, f"{{who}} offer{'' if rows.height > 1 else 's'} an address of {name}", detail, "likely"
        )


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure",), hang=True)
def boot_connect_failed(failure: pl.DataFrame, failure_event: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A connection between ranks could not be made.

    Means: `No route to host`: a firewall, or an interface of another network. `Connection refused`: the peer is gone,
    or the address belongs to somebody else. `Connection timed out`: a packet filter drops it.
    Not when: the process was leaving; a peer went away first, which makes refused connections a consequence.
    Do: test random high ports both ways (nc -l), not only ssh; open net.ipv4.ip_local_port_range between the hosts.
    Sources: nccl#1105, nccl-tests#15, horovod#789, espnet#1940; NCCL user guide, IP ports.
    """
    leaving = failure_event.filter("at_exit").select("source", "line")
    rows = failure.filter(pl.col("form").is_in(REFUSALS)).join(leaving, on=["source", "line"], how="anti")
    why = pl.coalesce("error", text_of("reason"), pl.lit("no answer"))
    lost = not failure_event.filter(kind=LOST, at_exit=False).is_empty()
    for (reason,), some in rows.with_columns(why=why).group_by("why", maintain_order=True):
        peers = sorted(some["peer"].cast(pl.String).drop_nulls().unique().to_list())
        finding = together(
            some, rank, f"{{who}} could not connect: {reason}", f"to {', '.join(peers[:4]) or 'a peer'}", "likely"
        )
        if lost and str(reason).startswith("Connection refused"):
            finding.role = Role.CONSEQUENCE
        yield finding
    known = failure_event.filter(pl.col("kind").is_in([HARD, NETWORK])).select(OWNER).unique()
    proxies = failure.filter(
        (pl.col("form") == "proxy_failed") & (pl.col("operation") == "Connect") & (pl.col("result") == SYSTEM_ERROR)
    ).join(known, on=OWNER, how="anti")
    if not proxies.is_empty():
        detail = "NCCL's proxy thread failed to connect to a peer: a system error, which no line here names"
        # The rank in the line is the one that asked its proxy.
        yield together(proxies, rank, "{who} could not connect over the network", detail, "likely")


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure", "socket_error"), hang=True)
def boot_message_truncated(
    failure: pl.DataFrame,
    socket_error: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    version: pl.DataFrame,
) -> Iterator[Finding]:
    """Ranks do not understand what others send during init.

    Means: they run different versions or builds of NCCL, or call the functions of init in another order: a message has
    another length, or an address of no known family, than the reader expects.
    Not when: the lengths differ in a collective over sockets, which is a mismatch of calls; NCCL 2.20.5 mixes up
    messages of sub-groups by itself (mended in 2.21.5).
    Do: compare `NCCL version` of all ranks, and the library that each loaded (/proc/PID/maps).
    Sources: nccl#1176, nccl#1273, nccl#1328, nccl-tests#188, nccl-tests#294, pytorch#122571.
    """
    cut = failure.filter(form="message_truncated")
    family = socket_error.filter(form="family").filter(
        (pl.col("family") > 0) & ~pl.col("family").is_in(FAMILIES).fill_null(True)
    )
    through = member.group_by(OWNER).agg(pl.col("is_complete").all()).filter("is_complete")
    family = family.join(through, on=OWNER, how="anti")  # no longer in init: an error of its own
    rows = pl.concat([cut.select(PLACE), family.select(PLACE)])
    if rows.is_empty():
        return
    what = "of another length than expected" if not cut.is_empty() else "with an address of no known kind"
    detail = f"a message came {what}"
    yield together(rows, rank, "{who} cannot read what another rank sent during init", detail, "likely")
    known = rank.join(version.select(OWNER).drop_nulls(), on=OWNER, how="semi")
    if known.height == rank.height == (member["nranks"].max() or 0) and version["version"].n_unique() == 1:
        return  # every rank says that it runs the same
    yield together(
        rows, rank, "ranks may run different versions of NCCL", f"{detail}: different builds do that", "possible",
        category=Category.VERSION_MISMATCH, severity=Severity.INFO, role=Role.CONTEXT,
    )  # fmt: skip


@rule(Category.BOOTSTRAP, Severity.INFO, of=("unexpected_peer",))
def boot_foreign_connection(unexpected_peer: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Somebody who is no rank of this job connected to one of NCCL's ports.

    Means: a port scanner, another job, or a process of an earlier run. NCCL drops the connection and goes on.
    Not when: init fails and all ranks say it: then the ranks may differ in their version.
    Do: leave the ports of the job out of security scans; NCCL_RAS_ADDR=localhost:PORT keeps RAS on the host.
    Sources: nccl#1996; nccl: src/misc/socket.cc.
    """
    if not unexpected_peer.is_empty():
        yield together(
            unexpected_peer, rank, "an unexpected peer connected to a port of NCCL on {who}",
            "NCCL dropped the connection", "possible",
            role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure", "socket_error", "unix_socket"), hang=True)
def limits_open_files(
    failure: pl.DataFrame, socket_error: pl.DataFrame, unix_socket: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A process may not open more files or sockets.

    Means: each connection takes several descriptors; a job of 144 ranks may need 32,000 in each process, and the usual
    limit is 1,024.
    Not when: the number is that of another error.
    Do: ulimit -n 131072 in the launcher's context (print it under srun or mpirun); LimitNOFILE of slurmd.
    Sources: NCCL user guide, troubleshooting/runtime (file descriptors).
    """
    reason = text_of("reason")
    rows = pl.concat(
        [
            failure.filter(pl.col("error").str.contains(OPEN_FILES, literal=True)).select(PLACE),
            socket_error.filter(pl.col("error").str.contains(OPEN_FILES, literal=True)).select(PLACE),
            unix_socket.filter(reason.str.contains(OPEN_FILES, literal=True)).select(PLACE),
        ]
    )
    if not rows.is_empty():
        yield together(rows, rank, "too many open files on {who}", "the limit of file descriptors was met", "certain")
