"""Which network the data goes over, and why not the fast one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.networks import CHOSEN, LIBRARY, NO_DEVICE, PLUGIN, PRESENT, UNOPENED, UNTRIED
from ncclforensics.data.networks import SLINGSHOT, SOCKET, TCP_PROVIDERS
from ncclforensics.rules import Category, Finding, Line, Role, Severity, rule
from ncclforensics.rules.grouped import shown, together

OWNER = ["host", "pid"]
WHY = {
    CHOSEN: "{variable} asks for it",
    PRESENT: "InfiniBand devices were found there, and are not used",
    UNOPENED: "InfiniBand devices are there and could not be opened: the container has no rights to /dev/infiniband",
    PLUGIN: "the network plugin failed first; what NCCL tried after it does not matter",
    LIBRARY: "libibverbs could not be opened: the image lacks rdma-core's libraries, or the machine has no RDMA",
    NO_DEVICE: "NCCL found no RDMA device that is active",
    UNTRIED: "NCCL did not look for InfiniBand, as with NCCL_IB_DISABLE=1 or NCCL_NET=Socket (ENV would show it)",
    "": "the log does not show why: the lines of NCCL's init are not in it",
}
SEVERITY = {CHOSEN: Severity.INFO, UNTRIED: Severity.INFO, PRESENT: Severity.ERROR, UNOPENED: Severity.ERROR}


def _value(column: pl.Series) -> Any:
    """The first that is there."""
    return next(iter(column.drop_nulls().to_list()), None)


@rule(Category.SOCKET_FALLBACK, Severity.WARNING)
def net_socket_fallback(
    chosen_network: pl.DataFrame, net_devices: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Data between nodes goes over TCP sockets.

    Means: no RDMA device was usable, no plugin took over, and NCCL fell back to its last choice, often ten times
    slower. Error: devices are there and were not used; info: a variable chose sockets.
    Not when: all ranks are on one host or in one NVLink domain, which needs no network; a plugin carries the data
    (Libfabric on EFA or Slingshot, gIB, FasTrak, TCPX, FastSocket); the machines have no RDMA NIC: then this is as fast
    as it gets.
    Do: in the container see /dev/infiniband, ibv_devinfo (PORT_ACTIVE) and ldconfig -p | grep ibverbs; print
    NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET; on EFA, Slingshot or Google's A3 install and load the plugin.
    Sources: nccl#952, nccl#766, oneflow#9115; formats: plugins, section 1.
    """
    slow = chosen_network.filter((pl.col("network") == SOCKET) & pl.col("spans") & pl.col("is_needless").not_())
    slow = slow.join(_mixed(chosen_network).select("job").unique(), on="job", how="anti", nulls_equal=True)
    slow = slow.join(_carried_otherwise(chosen_network), on="job", how="anti", nulls_equal=True)
    slingshot = net_devices.filter(pl.col("devices").cast(pl.String).str.contains(f"]{SLINGSHOT}", literal=True))
    for (_, reason, variable), rows in slow.sort("source", "line").group_by(
        "job", pl.col("reason").fill_null(""), "variable", maintain_order=True
    ):
        why = WHY[str(reason)].format(variable=variable)
        if reason == NO_DEVICE and variable:
            why += f", and {variable} may exclude it"
        if reason in (NO_DEVICE, LIBRARY) and rows.join(slingshot, on=OWNER, how="semi").height:
            why += "; the interfaces are Slingshot's, which needs the Libfabric plugin (aws-ofi-nccl)"
        finding = together(
            rows,
            rank,
            "{who}: data between nodes goes over TCP sockets",
            why,
            "certain" if rows["carries"][0] else "likely",
        )
        finding.severity = SEVERITY.get(str(reason), Severity.WARNING)
        if reason in (CHOSEN, UNTRIED):
            finding.role = Role.CONTEXT
        elif reason == PLUGIN:
            finding.role = Role.CONSEQUENCE
        finding.evidence = [*_whys(rows), *finding.evidence][:4]
        yield finding


def _whys(rows: pl.DataFrame) -> list[Line]:
    given = rows.filter(pl.col("why_line").is_not_null() & (pl.col("reason") != UNTRIED))
    return shown(given.select(*OWNER, source="why_source", line="why_line"), "why")[:2]


def _carried_otherwise(chosen_network: pl.DataFrame) -> pl.DataFrame:
    """Jobs whose processes have a faster network besides (one per communicator)."""
    return chosen_network.filter((pl.col("network") != SOCKET) & pl.col("carries")).select("job").unique()


def _mixed(chosen_network: pl.DataFrame) -> pl.DataFrame:
    """The processes of jobs in which some have one network only and others have another one only."""
    one = chosen_network.filter(pl.len().over(OWNER) == 1).filter("spans")
    base = pl.col("network").str.split("_v").list.first()  # IBext on one line, IBext_v8 on another
    return one.with_columns(base=base).filter(pl.col("base").n_unique().over("job") > 1)


@rule(Category.SOCKET_FALLBACK, Severity.ERROR, hang=True)
def net_mixed_across_ranks(chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The ranks of one job chose different networks.

    Means: each process chooses alone. The ends of a connection then speak different languages: set-up waits for ever
    or fails. Look at the smaller group: it lacks a device, a library or the plugin that the others have.
    Not when: a process has several communicators with a network each by its own configuration (netName).
    Do: find why that group lacks the network of the others; set NCCL_NET=IB, or the plugin's name, on all ranks so that
    the next such start fails at once.
    Sources: nccl#234; formats: plugins, section 1.
    """
    for _, rows in (
        _mixed(chosen_network).sort(pl.col("host").cast(pl.String), "pid").group_by("job", maintain_order=True)
    ):
        sizes = rows.group_by("base").agg(pl.len()).sort("base")
        least = sizes.filter(pl.col("len") == sizes["len"].min())["base"].to_list()
        odd = SOCKET if SOCKET in least else least[0]
        minority, others = rows.filter(pl.col("base") == odd), rows.filter(pl.col("base") != odd)
        names = " or ".join(others["network"].unique().sort().to_list())
        reason = _value(minority["reason"])
        why = WHY.get(str(reason), "").format(variable=_value(minority["variable"]))
        finding = together(
            minority,
            rank,
            f"{{who}} chose the network {minority['network'][0]}, the other ranks {names}",
            f"{why or 'each process chooses for itself'}; connections between the two groups cannot be made",
            "certain",
        )
        finding.evidence = [*_whys(minority), *finding.evidence[:2], *shown(others)[:2]]
        if SOCKET not in rows["base"].to_list():
            finding.category = Category.NET_PLUGIN
        yield finding


@rule(Category.NET_PLUGIN, Severity.WARNING)
def net_plugin_failed_then_fell_through(
    libfabric_error: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The network plugin was loaded and found no device to work with.

    Means: the plugin's own line is the cause; that NCCL then finds no InfiniBand is the next candidate's failure only.
    Not when: the plugin carries the data after all (it may try several providers); the job runs on one host.
    Do: see whether the container has the EFA or CXI device (fi_info -p efa), which libfabric is loaded, and the
    security group.
    Sources: nccl#229, aws-ofi-nccl#67, aws-ofi-nccl#889.
    """
    form = pl.col("form").cast(pl.String)
    lost = libfabric_error.filter(form.is_in(["no_provider", "getinfo", "too_old"]))
    works = chosen_network.filter(pl.col("network") != SOCKET).select(OWNER).unique()
    needless = chosen_network.filter((pl.col("network") == SOCKET) & pl.col("spans").not_()).select(OWNER).unique()
    lost = lost.join(works, on=OWNER, how="anti").join(needless, on=OWNER, how="anti")
    if lost.height:
        error = _value(lost["error"])
        yield together(
            lost,
            rank,
            "{who}: the Libfabric plugin found no network device",
            f"libfabric says: {error}" if error else "no provider of libfabric offers a device that the plugin can use",
            "certain",
        )


@rule(Category.NET_PLUGIN, Severity.ERROR, hang=True)
def net_requested_not_available(plugin: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A network was asked for by name, and NCCL does not have it.

    Means: NCCL_NET (or the communicator's netName) names a network that no plugin and nothing built in provides, or
    whose device is absent; init fails rather than fall back.
    Not when: it is a list of plugins of which another one was assigned.
    Do: make the plugin's library visible (LD_LIBRARY_PATH, NCCL_NET_PLUGIN) on that host, or unset NCCL_NET.
    Sources: nccl: src/plugin/net.cc; aws-ofi-nccl#67.
    """
    form = pl.col("form").cast(pl.String)
    works = plugin.filter(form == "assigned").select(OWNER).unique()
    kind = pl.col("kind").cast(pl.String).fill_null("NET")
    absent = plugin.filter((form == "not_available") | ((form == "none") & (kind == "NET")))
    absent = absent.join(works, on=OWNER, how="anti")
    names = absent["plugin"].cast(pl.String).drop_nulls().unique().sort().to_list()
    if absent.height:
        name = " or ".join(names)
        title = f"{{who}}: the network {name} is not there" if name else "{who}: no network could be initialised"
        yield together(absent, rank, title, _asked(setting, absent, name), "certain")


def _asked(setting: pl.DataFrame, rows: pl.DataFrame, name: str) -> str:
    variables = setting.filter(pl.col("variable").cast(pl.String).is_in(["NCCL_NET", "NCCL_NET_PLUGIN"]))
    asked = variables.join(rows.select(OWNER).unique(), on=OWNER, how="semi").select("variable", "value").unique()
    said = ", ".join(f"{variable}={value}" for variable, value in asked.sort("variable").iter_rows())
    if said:
        return f"{said} asks for it, and no library provides it"
    return f"{name or 'a network'} was asked for, by NCCL_NET or by the communicator's configuration"


@rule(Category.NET_PLUGIN, Severity.WARNING)
def net_plugin_not_loaded(
    plugin: pl.DataFrame, setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A network plugin was asked for by name, and NCCL could not load its library.

    Means: NCCL_NET_PLUGIN names a library that is not found, or that lacks another library; NCCL goes on without it.
    Not when: no plugin was asked for: `Could not find: libnccl-net.so` is normal on InfiniBand and RoCE;
    NCCL_NET_PLUGIN=none; a plugin was loaded after all; the job runs on one host.
    Do: put the library's folder into LD_LIBRARY_PATH, or its full path into NCCL_NET_PLUGIN; ldd it.
    Sources: nccl#766, aws-ofi-nccl#67.
    """
    form, kind = pl.col("form").cast(pl.String), pl.col("kind").cast(pl.String).fill_null("NET")
    value = pl.col("value").cast(pl.String).str.to_lowercase()
    asked = setting.filter((pl.col("variable").cast(pl.String) == "NCCL_NET_PLUGIN") & (value != "none"))
    asked = pl.concat([asked.select(OWNER), plugin.filter((form == "requested") & (kind == "NET")).select(OWNER)])
    loaded = plugin.filter(form.is_in(["loaded", "opened", "p2p"]) & (kind == "NET")).select(OWNER).unique()
    fast = chosen_network.filter((pl.col("network") != SOCKET) | pl.col("spans").not_()).select(OWNER).unique()
    missing = plugin.filter(form.is_in(["not_found", "not_opened"]) & (kind == "NET"))
    missing = missing.join(asked.unique(), on=OWNER, how="semi")
    missing = missing.join(loaded, on=OWNER, how="anti").join(fast, on=OWNER, how="anti")
    if missing.height:
        named = _value(missing["library"])
        yield together(
            missing.unique(OWNER, keep="first", maintain_order=True),
            rank,
            "{who}: the network plugin that was asked for is not loaded",
            f"NCCL goes on without {named or 'it'}",
            "certain",
        )


@rule(Category.NET_PLUGIN, Severity.INFO)
def net_disable_ignored_by_plugin(
    setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """InfiniBand is switched off by a variable, and a plugin uses it all the same.

    Means: NCCL_IB_DISABLE acts on the built-in transport only; HPC-X brings its own.
    Not when: the data goes over another plugin, or over sockets.
    Do: to force sockets set NCCL_NET=Socket or NCCL_NET_PLUGIN=none; the plugin's own switch is NCCL_IBEXT_DISABLE.
    Sources: nccl#676, nccl-tests#373.
    """
    is_off = (pl.col("variable").cast(pl.String) == "NCCL_IB_DISABLE") & (pl.col("value").cast(pl.String) == "1")
    external = chosen_network.filter(pl.col("network").str.starts_with("IBext")).select(OWNER).unique()
    ignored = setting.filter(is_off).join(external, on=OWNER, how="semi")
    if ignored.height:
        detail = "NCCL_IB_DISABLE acts on NCCL's own InfiniBand transport, not on the plugin's"
        title = "{who}: NCCL_IB_DISABLE=1 has no effect on the plugin in use"
        yield together(ignored, rank, title, detail, "certain", role=Role.CONTEXT)


@rule(Category.NET_PLUGIN, Severity.WARNING)
def net_plugin_over_tcp(libfabric: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The Libfabric plugin carries the data, but over TCP.

    Means: the plugin found neither EFA nor CXI and took libfabric's provider for sockets: as slow as NET/Socket.
    Not when: the machines have Ethernet only, or the job runs on one host.
    Do: run fi_info -p efa (or cxi) in the container; FI_PROVIDER=efa makes the next start fail rather than be slow.
    Sources: formats: plugins, section 1 (provider tcp, sockets, tcp;ofi_rxm).
    """
    slow = libfabric.filter(pl.col("provider").cast(pl.String).is_in(TCP_PROVIDERS))
    apart = chosen_network.filter(pl.col("spans") & (pl.col("network") != SOCKET)).select(OWNER).unique()
    for (provider,), rows in (
        slow.join(apart, on=OWNER, how="semi").sort("source", "line").group_by("provider", maintain_order=True)
    ):
        detail = f"the plugin's provider is {provider}, which is TCP"
        yield together(rows, rank, "{who}: the Libfabric plugin runs over TCP", detail, "certain")


OF_REGISTRATION = (
    "Print ulimit -l in the job's own context; see that plugin, libfabric and GPU driver are releases that go "
    "together; to narrow it down, run once with NCCL_NET_GDR_LEVEL=LOC."
)


@rule(Category.NET_PLUGIN, Severity.ERROR, hang=True)
def net_plugin_request_failed(
    libfabric_error: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A transfer of the Libfabric plugin failed.

    Means: libfabric completed a request with an error: the peer is gone or unreachable (on EFA: the security group), or
    memory could not be registered.
    Not when: it is printed while the job shuts down; it is a message about a feature that is not there.
    Do: look at the peer first; on EFA the security group must allow all traffic from itself, in and out.
    Sources: aws-ofi-nccl#889; formats: plugins, section 2.
    """
    form = pl.col("form").cast(pl.String)
    ends = member.group_by(OWNER).agg(leaves=pl.col("end_pos").min())
    errors = libfabric_error.filter(form.is_in(["request", "remote_write", "call", "registration"]))
    errors = errors.join(ends, on=OWNER, how="left").filter((pl.col("pos") < pl.col("leaves")).fill_null(value=True))
    for (is_memory,), rows in errors.sort(form == "registration").group_by(form == "registration", maintain_order=True):
        code, error = _value(rows["rc"]), _value(rows["error"])
        said = ", ".join(part for part in (f"RC {code}" if code is not None else "", str(error or "")) if part)
        what = "could not register memory" if is_memory else "failed in a transfer"
        remedy = OF_REGISTRATION if is_memory else ""
        detail = f"it says {said or 'no more'}"
        yield together(rows, rank, f"{{who}}: the Libfabric plugin {what}", detail, "certain", remedy=remedy)
        if is_memory:
            detail = "what libfabric cannot register, it cannot send from"
            more = {"category": Category.MEMORY_REGISTRATION, "role": Role.CONSEQUENCE, "remedy": remedy}
            yield together(rows, rank, "{who}: memory could not be registered with the NIC", detail, "certain", **more)


@rule(Category.NET_PLUGIN, Severity.ERROR, hang=True)
def net_plugin_tcpx_error(google_net_note: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Google's TCPX plugin reports an error.

    Means: the plugin ran out of requests or memory, or lost its daemon; what NCCL says after it is a consequence.
    Not when: it only reads an option that it does not take (`… invalid, restore to default`), or tells its settings.
    Do: check the rxdm daemon and its log on that host, and that plugin, daemon and NCCL are of one release.
    Sources: formats: plugins, section 4; GoogleCloudPlatform's GPUDirect-TCPX guide.
    """
    errors = google_net_note.filter(pl.col("form").cast(pl.String) == "tcpx_error")
    for (says,), rows in errors.sort("says").group_by("says", maintain_order=True):
        yield together(rows, rank, "{who}: the TCPX plugin failed", f"the plugin says: {says}", "certain")


@rule(Category.TOPOLOGY, Severity.ERROR, hang=True)
def net_device_count_differs(
    failure: pl.DataFrame, net_device_count: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and NCCL refuses to go on.

    Means: a NIC is missing on some hosts: dead, not given to the container, or named otherwise than NCCL_IB_HCA says.
    Not when: only CollNet devices differ, which NCCL ignores.
    Do: give all hosts the same HCAs, or restrict all of them with NCCL_IB_HCA. Do not set NCCL_IGNORE_NET_MISMATCH:
    ranks then wait for ever on the NIC that their peer lacks.
    Sources: nccl: src/init.cc (2.30 and later); nccl#2428.
    """
    refused = failure.filter(pl.col("form").cast(pl.String) == "device_counts")
    if refused.is_empty():
        return
    least, most = _value(refused["least"].sort()), _value(refused["most"].sort(descending=True))
    counts = net_device_count.filter(
        (pl.col("form").cast(pl.String) == "rank") & (pl.col("net_kind").cast(pl.String) == "Net")
    )
    fewer = counts.filter(pl.col("count") == least).unique(OWNER, keep="first", maintain_order=True)
    detail = f"the ranks see between {least} and {most} network devices"
    if fewer.is_empty() or fewer.height == counts.select(OWNER).n_unique():
        yield together(refused, rank, "the hosts do not have the same number of network devices", detail, "certain")
        return
    finding = together(fewer, rank, f"{{who}} see {least} network devices, other ranks {most}", detail, "certain")
    finding.evidence = [*shown(refused, "refused")[:1], *finding.evidence[:3]]
    yield finding


@rule(Category.TOPOLOGY, Severity.WARNING, hang=True)
def net_ignore_mismatch_silent_hang(
    setting: pl.DataFrame, failure: pl.DataFrame, ib_unusable: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and a variable makes NCCL go on all the same.

    Means: channels on the extra NIC have no peer: init ends well, and the first transfer over them spins for ever
    without an error.
    Not when: the counts agree.
    Do: unset NCCL_IGNORE_NET_MISMATCH and mend the missing device (device plugin, cgroup, port state).
    Sources: nccl#2428 (2.30 and later).
    """
    form, variable = pl.col("form").cast(pl.String), pl.col("variable").cast(pl.String)
    is_net = pl.col("network").cast(pl.String) == "Net"
    counts = failure.filter((form == "device_counts_ignored") & is_net)
    told = setting.filter((variable == "NCCL_IGNORE_NET_MISMATCH") & (pl.col("value").cast(pl.String) == "1"))
    shut = ib_unusable.filter(form == "open") if told.height else ib_unusable.clear()
    if counts.height:
        least, most = _value(counts["least"].sort()), _value(counts["most"].sort(descending=True))
        detail = f"NCCL_IGNORE_NET_MISMATCH is set, and the ranks see between {least} and {most} network devices"
        rows = counts
    elif shut.height and shut["host"].n_unique() < rank["host"].n_unique():
        detail = "NCCL_IGNORE_NET_MISMATCH is set, and these could not open a device that others have"
        rows = shut
    else:
        return
    finding = together(rows, rank, "{who}: a difference in network devices is ignored", detail, "likely")
    finding.evidence = [*shown(told, "set")[:1], *finding.evidence]
    yield finding


@rule(Category.IB_ERROR, Severity.ERROR, hang=True)
def net_link_type_mix(ib_incompatible: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NICs that do not go together were to be connected: InfiniBand with RoCE.

    Means: the lists of NICs hold both link types, and the two ends of a connection took different ones; or a merged
    device has another number of ports on the other side.
    Not when: two local NICs merely could not be merged into one, which costs bandwidth but nothing else.
    Do: restrict NCCL_IB_HCA to the NICs of one link type, on every host.
    Sources: nccl: src/transport/net_ib; nccl#1412.
    """
    form = pl.col("form").cast(pl.String)
    apart = ib_incompatible.filter(form.is_in(["connect", "remote", "layers"]))
    if apart.height:
        first = apart.select(
            pl.col("device", "link", "other_device", "other_link").drop_nulls().first().cast(pl.String)
        )
        device, link, other, other_link = first.row(0)
        pair = f"{device} ({link}) and {other or 'the remote one'} ({other_link})" if device and link else "the NICs"
        detail = f"{pair} have different link types; one list holds both InfiniBand and RoCE"
        yield together(apart, rank, "{who} cannot connect NICs of different link types", detail, "certain")


@rule(Category.TOPOLOGY, Severity.WARNING)
def net_fewer_nics_than_node_has(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """One host uses fewer NICs than all the others of its job.

    Means: a port is down, NCCL_IB_HCA misses a name there, or the container got fewer devices; the whole job runs at
    the speed of that host.
    Not when: the hosts are of different kinds, so that no number of NICs is that of all others; a process was meant to
    see its own NIC only.
    Do: on that host compare ibdev2netdev or ibstat with a healthy one; a name mistyped in NCCL_IB_HCA is not reported.
    Sources: llm-d-benchmark#1862, nccl#652, nccl#977.
    """
    ours = chosen_network.filter("is_rdma", "spans").select(*OWNER, "job").unique()
    listed = net_devices.filter(pl.col("form").cast(pl.String) == "ib").join(ours, on=OWNER)
    ports = pl.col("devices").cast(pl.String).str.count_matches(r"/(IB|RoCE)")
    hosts = (
        listed.with_columns(ports=ports).group_by("job", "host").agg(pl.col("ports").max(), least=pl.col("ports").min())
    )
    for (job,), rows in hosts.filter(pl.col("ports") == pl.col("least")).group_by("job", maintain_order=True):
        usual = _value(rows["ports"].mode().sort(descending=True))
        poor = rows.filter(pl.col("ports") < usual)
        if not poor.height or rows.filter(pl.col("ports") == usual).height != rows.height - 1 or rows.height < 3:
            continue
        lines = listed.filter(pl.col("job") == job)
        found = lines.join(poor.select("host"), on="host", how="semi").unique(OWNER, keep="first", maintain_order=True)
        title = f"{{who}} use {poor['ports'][0]} NICs, the other {rows.height - 1} hosts {usual} each"
        finding = together(found, rank, title, "the host with fewer NICs binds the speed of all", "likely")
        others = lines.join(poor.select("host"), on="host", how="anti")
        finding.evidence = [*finding.evidence[:2], *shown(others, "another host")[:1]]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO)
def net_management_nic_included(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The list of NICs holds both InfiniBand and RoCE ports.

    Means: a storage or management port may have joined the data path, which makes it slow or lets it hang.
    Not when: NCCL_IB_HCA was meant to hold both; the job runs on one host.
    Do: name the NICs of the data path: NCCL_IB_HCA=^mlx5_bond_0, or an exact list with a leading =.
    Sources: nccl#1412, nccl#302, nccl#224.
    """
    apart = chosen_network.filter("is_rdma", "spans").select(OWNER).unique()
    names = pl.col("devices").cast(pl.String)
    both = names.str.contains("/IB", literal=True) & names.str.contains("/RoCE", literal=True)
    mixed = net_devices.filter((pl.col("form").cast(pl.String) == "ib") & both).join(apart, on=OWNER, how="semi")
    for (devices,), rows in mixed.sort("source", "line").group_by("devices", maintain_order=True):
        title = "{who} may send data over NICs of two link types"
        yield together(rows, rank, title, f"NCCL uses {devices}", "possible", role=Role.CONTEXT)
