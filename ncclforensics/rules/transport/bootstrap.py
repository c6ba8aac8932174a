"""Bootstrap: the network interface of the first connections between ranks, and failures to connect."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import HARD, LOST, NETWORK, OF_ENDED_PEERS, REFUSED
from ncclforensics.analyses.transport.local_interfaces import is_local_interface
from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import OWNER, PLACE, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.survival import last_of_process

SAME_HOST = ("127.", "::1<")  # how an address begins that only the same host reaches
LOOPBACK_REMEDY = (
    "If the ranks run on several hosts, set NCCL_SOCKET_IFNAME to the interface that connects them: a rank announced "
    "the interface lo. On one host, look for the process that ended."
)
LINK_LOCAL = ("fe80:", "169.254.")
LINK_LOCAL_REMEDY = (
    "Set NCCL_SOCKET_IFNAME, on the host of that address too, to an interface that all hosts reach; where the address "
    "is of IPv6, NCCL_SOCKET_FAMILY=AF_INET leaves these out."
)
SHOWN_PEERS = 3
LOOK_AT_PEER = (
    "on the machine of that address (getent hosts ADDRESS) look how the process that listened there ended; if it is no "
    "host of the job, set NCCL_SOCKET_IFNAME to the interface that connects the hosts"
)
LOOK_AT_ROUTE = (
    "on this host run ip route get ADDRESS; on both look for a firewall that rejects (iptables -S, nft list ruleset); "
    "set NCCL_SOCKET_IFNAME to the interface that connects the hosts"
)
WITHOUT_ADDRESS = (
    "the line does not name the address: look for a rank that ended or failed before, and set NCCL_SOCKET_IFNAME to "
    "the interface that connects the hosts"
)
# How errors of connect() begin -> what they mean, and what to do, if that is not what the rule says.
MEANINGS = {
    "No route to host": ("a firewall, or an address of a network that this host does not reach", LOOK_AT_ROUTE),
    "Network is unreachable": ("the address is of a network to which this host has no route", LOOK_AT_ROUTE),
    "Connection refused": (
        "the process at this address has ended, or the address is that of another machine",
        LOOK_AT_PEER,
    ),
    "Connection timed out": ("a firewall drops the packets, or the address is that of another machine", ""),
    "Software caused connection abort": (
        "an earlier attempt on the same socket failed; its reason is not printed",
        LOOK_AT_PEER,
    ),
}
UNANSWERED = ("Connection timed out", "No route to host")  # of a peer that has not started, a connection is refused
REFUSALS = ["connect_failed", "connect_returned", "connect_given_up", "connect_exceeded", "poll_failed"]
SYSTEM_ERROR = 2  # ncclSystemError
EXCLUDING = "^"  # begins a list of interfaces that are not used
FAMILIES = (2, 10)  # AF_INET, AF_INET6
OPEN_FILES = "Too many open files"


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure",), hang=True)
def boot_no_interface(failure: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """No network interface of the host matches the setting.

    Means: NCCL_SOCKET_IFNAME (or NCCL_OOB_NET_IFNAME) names an interface that this host, or this container, does not
    have, or excludes all of them. A name is a prefix, or an exact name after `=`; `^` excludes. Or none has an address
    in the subnet of NCCL_COMM_ID, where it is set.
    Not when: NCCL prints that it ignores the variable and continues.
    Do: run ip addr on the host, inside the container; list several names (eno1,eth0) or exclude some (^lo,docker).
    Sources: pytorch#29482, nccl#286; NCCL user guide, NCCL_SOCKET_IFNAME; NCCL, bootstrap.cc (bootstrapNetInit).
    """
    in_other_subnets = failure.filter(text_of("form") == "no_matching_subnet")
    if in_other_subnets.height:
        title = "no network interface of {processes} is in the subnet of the address in NCCL_COMM_ID"
        detail = "NCCL listens only there where this variable is set"
        finding = group_finding(in_other_subnets, rank, title, detail, "certain")
        finding.remedy = (
            "compare NCCL_COMM_ID with ip addr on the host, inside the container: it is an address of rank 0's host, "
            "in a network that all ranks share; without need for it, unset it"
        )
        yield finding
    rows = failure.filter(pl.col("form").is_in(["no_interface", "no_such_interface"]))
    if rows.is_empty():
        return
    settings = setting.filter(pl.col("variable").is_in(["NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"]))
    related = settings.join(rows.select(OWNER).unique(), on=OWNER, how="semi")
    values = sorted({f"{name}={value}" for name, value in related.select("variable", "value").iter_rows()})
    which = f": {', '.join(values)} leaves none" if values else ""
    finding = group_finding(
        rows, rank, f"no network interface for NCCL on {{processes}}{which}",
        "" if values else "no interface matches the setting, or there is none",
        "certain",
    )  # fmt: skip
    if any(value.startswith(EXCLUDING) for value in related["value"]):
        finding.remedy = (
            "the setting excludes every interface that has an address there: run ip addr on the host, inside the "
            "container, and name the one to use"
        )
    finding.evidence += evidence_lines(related, "set here")[:1]
    yield finding


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("milestone",), hang=True)
def boot_wrong_interface(
    milestone: pl.DataFrame, failure_event: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks use a bootstrap address that other hosts cannot reach.

    Means: NCCL selected a container bridge, the loopback interface or a link-local address. Ranks on other hosts cannot
    connect to it, and init does not complete.
    Not when: all ranks run on one host; init completed. Interface names may differ between hosts.
    Do: set NCCL_SOCKET_IFNAME=^lo,docker, or the exact name of the network between the hosts.
    Sources: nccl#286, horovod#310, nccl#1291, pytorch#68893.
    """
    stuck = verdict.filter(pl.col("verdict").is_in(["init-incomplete", "init-failed", "rank-missing"]))["job"]
    refused = failure_event.filter(pl.col("form").is_in(REFUSALS))["job"]
    jobs = rank.filter(pl.col("job").is_in({*stuck, *refused}))
    processes = jobs.select("job", *OWNER).unique(OWNER)
    if jobs["host"].n_unique() < 2:
        return
    offered = milestone.filter((pl.col("form") == "bootstrap") & is_local_interface())
    local = offered.join(processes, on=OWNER, how="semi")
    for (name,), rows in local.group_by(text_of("interface"), maintain_order=True):
        detail = "other hosts cannot reach this address, and init did not complete"
        verb = "use" if rows.height > 1 else "uses"
        yield group_finding(
            rows, rank, f"{{processes}} {verb} a bootstrap address of interface {name}", detail, "likely"
        )


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure",), hang=True)
def boot_connect_failed(
    failure: pl.DataFrame, failure_event: pl.DataFrame, communicator_progress: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A rank could not connect to another rank.

    Means: `No route to host`: a firewall, or an interface of another network. `Connection refused`: the peer process
    has ended, or the address is that of another machine. `Connection timed out`: a firewall drops the packets.
    Not when: the process was shutting down; a peer ended or refused init first: then these are consequences.
    Do: test high ports in both directions (nc -l), not only ssh; open net.ipv4.ip_local_port_range between the hosts.
    Sources: nccl#1105, nccl-tests#15, awsome-distributed-ai#192, horovod#789, espnet#1940; NCCL user
    guide, IP ports.
    """
    leaving = failure_event.filter("at_exit").select("source", "line")
    yield from _last_retries(failure, communicator_progress, rank)
    rows = failure.filter(pl.col("form").is_in(REFUSALS)).join(leaving, on=["source", "line"], how="anti")
    is_cut = pl.col("form") == "connect_failed"  # a ticket may leave out the reason
    unknown = pl.when(is_cut).then(pl.lit("no reason was read")).otherwise(pl.lit("no answer"))
    error = pl.coalesce("error", text_of("reason"), unknown)
    has_other_end = not failure_event.filter(pl.col("kind").is_in([LOST, REFUSED]) & ~pl.col("at_exit")).is_empty()
    for (reason,), failed in rows.with_columns(why=error).group_by("why", maintain_order=True):
        peers = sorted(failed["peer"].cast(pl.String).drop_nulls().unique().to_list())
        known = (meant for words, meant in MEANINGS.items() if str(reason).startswith(words))
        meaning, remedy = next(known, ("", ""))
        finding = group_finding(
            failed, rank, f"{{processes}} could not connect to {_peers_text(peers)}: {reason}", meaning, "likely"
        )
        if remedy:
            finding.remedy = remedy.replace("ADDRESS", _address(peers[0])) if peers else WITHOUT_ADDRESS
        if peers and all(peer.startswith(SAME_HOST) for peer in peers):
            finding.detail = "the loopback address, which only the same host reaches"
            finding.remedy = LOOPBACK_REMEDY
        elif peers and all(peer.startswith(LINK_LOCAL) for peer in peers):
            finding.detail = "a link-local address: only hosts on the same link reach it"
            finding.remedy = LINK_LOCAL_REMEDY
        if has_other_end and str(reason).startswith(OF_ENDED_PEERS):
            finding.role = Role.CONSEQUENCE
        yield finding
    failing = failure_event.filter(pl.col("kind").is_in([HARD, NETWORK])).select(OWNER).unique()
    proxies = failure.filter(
        (pl.col("form") == "proxy_failed") & (pl.col("operation") == "Connect") & (pl.col("result") == SYSTEM_ERROR)
    ).join(failing, on=OWNER, how="anti")
    if not proxies.is_empty():
        detail = (
            "NCCL's proxy thread failed to connect to a peer with a system error; no line that was read shows which"
        )
        # The line names the rank that requested the connection from its proxy.
        yield group_finding(proxies, rank, "{processes} could not connect over the network", detail, "likely")


def _last_retries(failure: pl.DataFrame, communicator_progress: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Report connections that NCCL tried again, of which the log shows neither success nor failure.

    Of numbered attempts the later half counts. Releases before 2.13 do not number them: there a retry counts behind
    which the process shows no progress.
    """
    failed = failure.filter(pl.col("form").is_in(REFUSALS)).select(OWNER)
    # A peer that starts later is refused at first; NCCL sleeps longer after each attempt.
    is_last = (pl.col("form") == "connecting_again") & (2 * pl.col("attempt") > pl.col("attempts"))
    is_unanswered = (pl.col("form") == "connecting") & pl.col("reason").cast(pl.String).is_in(UNANSWERED)
    retries = failure.filter(is_last | is_unanswered).join(failed, on=OWNER, how="anti", nulls_equal=True)
    last = last_of_process(retries, communicator_progress)
    for (form, reason), rows in last.group_by(text_of("form"), text_of("reason"), maintain_order=True):
        if form == "connecting":
            title = f"{{processes}} tried again to connect to a peer: {reason}"
            yield group_finding(rows, rank, title, "these logs end there", "possible", severity=Severity.WARNING)
            continue
        peers = sorted(rows["peer"].cast(pl.String).drop_nulls().unique().to_list())
        attempt, attempts = rows.select(pl.col("attempt").max(), pl.col("attempts").first()).row(0)
        if attempt == attempts:
            title = f"{{processes}} could not connect to {_peers_text(peers)}: {reason}"
            yield group_finding(rows, rank, title, f"in the last of {attempts} attempts", "likely")
            continue
        title = f"{{processes}} tried again to connect to {_peers_text(peers)}: {reason}"
        detail = f"attempt {attempt} of {attempts}; these logs end there"
        yield group_finding(rows, rank, title, detail, "possible", severity=Severity.WARNING)


def _address(peer: str) -> str:
    """Return the address of a peer without its port."""
    return peer.partition("<")[0]


def _peers_text(peers: list[str]) -> str:
    return some_of(peers, SHOWN_PEERS) or "a peer"


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure", "socket_error"), hang=True)
def boot_message_truncated(
    failure: pl.DataFrame,
    socket_error: pl.DataFrame,
    milestone: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    version: pl.DataFrame,
) -> Iterator[Finding]:
    """Ranks received init messages of an unexpected length or form.

    Means: the ranks run different versions or builds of NCCL, or call the init functions in different orders: a message
    has an unexpected length, or an address of an unknown family.
    Not when: the lengths differ in a collective over sockets, which is a mismatch of calls; NCCL 2.20.5 mixes up
    messages of sub-groups itself (fixed in 2.21.5).
    Do: compare `NCCL version` of all ranks, and the library that each process loaded (/proc/PID/maps).
    Sources: nccl#1176, nccl#1273, nccl#1328, nccl#1837, nccl-tests#188, nccl-tests#294, pytorch#122571.
    """
    cut = failure.filter(form="message_truncated")
    family = socket_error.filter(form="family").filter(
        (pl.col("family") > 0) & ~pl.col("family").is_in(FAMILIES).fill_null(True)
    )
    initialised = member.group_by(OWNER).agg(pl.col("is_complete").all()).filter("is_complete")
    family = family.join(initialised, on=OWNER, how="anti")  # after init it is another error
    rows = pl.concat([cut.select(PLACE), family.select(PLACE)])
    if rows.is_empty():
        return
    if cut.is_empty():
        numbers = ", ".join(map(str, family["family"].unique().sort()))
        seen = f"a message had an address of the unknown family {numbers}"
        title = f"{{processes}} received an address of another rank of no known family ({numbers})"
        own = milestone.filter(form="bootstrap").join(family, on=OWNER, how="semi")["address"].drop_nulls()
        detail = "another version or build of NCCL wrote it, or it was never set"
        if own.is_empty():
            detail += ", as where the interface of NCCL_SOCKET_IFNAME has no address there"
        finding = group_finding(rows, rank, title, detail, "likely")
        compare = (
            "compare `NCCL version` of all ranks, and the library that each process loaded (/proc/PID/maps)",
            "on every host, compare NCCL_SOCKET_IFNAME with `ip addr`: the interface must exist and have an address",
        )
        finding.remedy = "; then ".join(compare if own.len() else compare[::-1])
        yield finding
    else:
        seen = "a message had an unexpected length"
        yield group_finding(rows, rank, "{processes} cannot read an init message of another rank", seen, "likely")
    known = rank.join(version.select(OWNER).drop_nulls(), on=OWNER, how="semi")
    if known.height == rank.height == (member["nranks"].max() or 0) and version["version"].n_unique() == 1:
        return  # all ranks print the same version
    yield group_finding(
        rows, rank, "ranks may run different versions of NCCL", f"{seen}, as with different builds", "possible",
        category=Category.VERSION_MISMATCH, severity=Severity.INFO, role=Role.CONTEXT,
    )  # fmt: skip


@rule(Category.BOOTSTRAP, Severity.INFO, of=("unexpected_peer",))
def boot_foreign_connection(
    unexpected_peer: pl.DataFrame, nccl_warning: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A process that is not a rank of this job connected to a port of NCCL.

    Means: a port scanner, another job, or a process of an earlier run. NCCL drops the connection and continues.
    Not when: returned errors follow the line: then the connection was one that NCCL needed; init fails and all ranks
    print it: then the ranks may run different versions.
    Do: exclude the ports of the job from security scans; NCCL_RAS_ADDR=localhost:PORT keeps RAS on the host.
    Sources: nccl#1996; nccl: src/misc/socket.cc.
    """
    has_chain = pl.col("chain").list.len() > 0
    dropped = unexpected_peer.join(nccl_warning.filter(has_chain), on=["source", "line"], how="anti")
    if not dropped.is_empty():
        yield group_finding(
            dropped, rank, "an unexpected peer connected to a port of NCCL on {processes}",
            "NCCL dropped the connection", "possible",
            role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.BOOTSTRAP, Severity.ERROR, of=("failure", "socket_error", "unix_socket"), hang=True)
def limits_open_files(
    failure: pl.DataFrame, socket_error: pl.DataFrame, unix_socket: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A process reached its limit of open files and sockets.

    Means: each connection needs several file descriptors; a job of 144 ranks may need 32,000 per process, and the
    default limit is 1,024.
    Not when: the error is another one.
    Do: set ulimit -n 131072 in the launcher's context (print it under srun or mpirun); LimitNOFILE of slurmd.
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
        yield group_finding(
            rows,
            rank,
            "too many open files on {processes}",
            "the process reached its limit of file descriptors",
            "certain",
        )
