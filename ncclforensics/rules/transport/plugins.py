"""Network plugins: not available, not loaded, ignored settings, failures."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import shown, some_of, with_open_end
from ncclforensics.data.networks import EFA_ERRORS, SET_UP, SOCKET, TCP_PROVIDERS
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, error_finding, first_value, group_finding

MOST_PEERS = 3  # in a text
OF_ADDRESS = " My EFA addr"  # stands behind an error of EFA's provider


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("libfabric_error",), hang=True)
def net_plugin_failed_then_fell_through(
    libfabric_error: pl.DataFrame,
    libfabric_setting: pl.DataFrame,
    libfabric: pl.DataFrame,
    chosen_network: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """The network plugin was loaded and found no usable device, or could not start.

    Means: the line of the plugin shows the cause; that NCCL then finds no InfiniBand is only the next failed attempt.
    Unless NCCL_NET names the plugin, NCCL goes on with its own transports.
    Not when: the plugin finally carries the data (it may try several providers); the job runs on one host.
    Do: check that the container has the EFA or CXI device (fi_info -p efa), which libfabric is loaded, and the security
    group.
    Sources: nccl#229, aws-ofi-nccl#67, aws-ofi-nccl#889.
    """
    form = pl.col("form")
    failed = libfabric_error.filter(form.is_in(["no_provider", "getinfo", "too_old"]))
    selected = libfabric.drop_nulls("provider")  # of its protocols it tries several
    works = pl.concat([chosen_network.filter(pl.col("network") != SOCKET).select(OWNER), selected.select(OWNER)])
    needless = chosen_network.filter((pl.col("network") == SOCKET) & pl.col("is_on_one_node")).select(OWNER).unique()
    failed = failed.join(works, on=OWNER, how="anti").join(needless, on=OWNER, how="anti")
    if failed.height:
        error = first_value(failed["error"])
        reason = f"libfabric reports: {error}" if error else "no provider of libfabric has a device that it can use"
        yield group_finding(
            failed,
            rank,
            "{processes}: the Libfabric plugin found no network device",
            f"{reason}; {_fallback_text(failed, chosen_network)}",
            "certain",
        )
    stopped = libfabric_error.filter(form == "not_started").join(failed, on=OWNER, how="anti")
    stopped = stopped.join(works, on=OWNER, how="anti").join(needless, on=OWNER, how="anti")
    if stopped.height:
        detail = f"no reason was read; {_fallback_text(stopped, chosen_network)}"
        detail += _apart_text(libfabric_setting.join(stopped, on=OWNER, how="anti"), chosen_network)
        title = "{processes}: the Libfabric plugin failed to start"
        remedy = "set FI_LOG_LEVEL=warn and run again: libfabric prints the reason"
        yield group_finding(stopped, rank, title, detail, "certain", remedy=remedy)


def _fallback_text(failed: pl.DataFrame, chosen_network: pl.DataFrame) -> str:
    """Say how NCCL goes on without the plugin: by the network that these processes chose then, if that is shown."""
    sockets = chosen_network.filter(pl.col("network") == SOCKET).join(failed, on=OWNER, how="semi")
    if sockets.height:
        return "NCCL fell back to TCP sockets there"
    return "NCCL falls back to its own transports, so that this alone stops no job"


def _apart_text(set_up: pl.DataFrame, chosen_network: pl.DataFrame) -> str:
    """Say which processes the plugin set itself up in, where others chose sockets: such ranks do not connect."""
    sockets = chosen_network.filter(pl.col("network") == SOCKET)
    carried = set_up.join(sockets, on=OWNER, how="anti")["pid"].drop_nulls().unique().sort().to_list()
    pids = sockets["pid"].drop_nulls().unique().sort().to_list()
    if not (carried and pids):
        return ""
    with_plugin, on_sockets = (some_of(list(map(str, numbers)), SHOWN) for numbers in (carried, pids))
    return f"; ranks differ in their network: pid {with_plugin} set up the plugin, pid {on_sockets} chose TCP sockets"


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("plugin",), hang=True)
def net_requested_not_available(plugin: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A network was requested by name, and NCCL does not have it.

    Means: NCCL_NET (or the communicator's netName) names a network that neither NCCL nor a plugin provides, or whose
    device is missing; NCCL does not fall back, and init fails.
    Not when: the setting lists several plugins, and another one of them was assigned.
    Do: make the plugin's library visible (LD_LIBRARY_PATH, NCCL_NET_PLUGIN) on that host, or unset NCCL_NET.
    Sources: nccl: src/plugin/net.cc; aws-ofi-nccl#67.
    """
    form = pl.col("form")
    works = plugin.filter(form == "assigned").select(OWNER).unique()
    kind = pl.col("kind").fill_null("NET")
    absent = plugin.filter((form == "not_available") | ((form == "none") & (kind == "NET")))
    absent = absent.join(works, on=OWNER, how="anti")
    names = absent["plugin"].cast(pl.String).drop_nulls().unique().sort().to_list()
    if absent.height:
        name = " or ".join(names)
        title = (
            f"{{processes}}: the network {name} is not available"
            if name
            else "{processes}: no network could be initialised"
        )
        yield group_finding(absent, rank, title, _request_text(setting, absent, name), "certain")


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("remote_rails",), hang=True)
def net_plugin_rails_differ(remote_rails: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The Libfabric plugin groups the NICs of two hosts into different numbers of rails.

    Means: the plugin makes one network device of the NICs near a GPU; a connection needs the same number on both ends.
    A host lost a NIC, or its PCI topology is presented differently.
    Not when: the lines are of another job.
    Do: compare lspci -tv and the number of NICs (fi_info -p efa) on both hosts; OFI_NCCL_FORCE_NUM_RAILS makes
    the numbers equal.
    Sources: aws-ofi-nccl: src/nccl_ofi_rdma.cpp; nccl#1913.
    """
    if remote_rails.is_empty():
        return
    both = (pl.min_horizontal("rails", "found_rails"), pl.max_horizontal("rails", "found_rails").alias("more"))
    pairs = remote_rails.select(*both).unique().sort("rails", "more").iter_rows()
    counts = ", ".join(f"{shown(fewer)} and {shown(more)}" for fewer, more in pairs)
    yield group_finding(
        remote_rails,
        rank,
        f"{{processes}}: the hosts of a connection group their NICs into different numbers of rails ({counts})",
        "the Libfabric plugin refuses such a connection; one host lacks a NIC, or presents its PCI topology otherwise",
        "certain",
    )


def _request_text(setting: pl.DataFrame, rows: pl.DataFrame, name: str) -> str:
    variables = setting.filter(pl.col("variable").is_in(["NCCL_NET", "NCCL_NET_PLUGIN"]))
    requests = variables.join(rows.select(OWNER).unique(), on=OWNER, how="semi").select("variable", "value").unique()
    settings = ", ".join(f"{variable}={value}" for variable, value in requests.sort("variable").iter_rows())
    if settings:
        return f"{settings} requests it, and no library provides it"
    return f"NCCL_NET or the configuration of the communicator requests {name or 'a network'}"


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("plugin",))
def net_plugin_not_loaded(
    plugin: pl.DataFrame, setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A network plugin was requested by name, and NCCL could not load its library.

    Means: NCCL_NET_PLUGIN names a library that is not found, or that lacks another library; NCCL continues without it.
    Not when: no plugin was requested: `Could not find: libnccl-net.so` is normal on InfiniBand and RoCE;
    NCCL_NET_PLUGIN=none; a plugin was loaded later; the job runs on one host.
    Do: add the folder of the library to LD_LIBRARY_PATH, or set NCCL_NET_PLUGIN to its full path; check it with ldd.
    Sources: nccl#766, aws-ofi-nccl#67.
    """
    form, kind = pl.col("form"), pl.col("kind").fill_null("NET")
    missing = plugin.filter(form.is_in(["not_found", "not_opened"]) & (kind == "NET"))
    if missing.is_empty():
        return
    value = text_of("value").str.to_lowercase()
    requests = setting.filter((pl.col("variable") == "NCCL_NET_PLUGIN") & (value != "none"))
    requests = pl.concat([requests.select(OWNER), plugin.filter((form == "requested") & (kind == "NET")).select(OWNER)])
    loaded = plugin.filter(form.is_in(["loaded", "opened", "p2p"]) & (kind == "NET")).select(OWNER).unique()
    unaffected = chosen_network.filter((pl.col("network") != SOCKET) | pl.col("is_on_one_node")).select(OWNER).unique()
    missing = missing.join(requests.unique(), on=OWNER, how="semi")
    missing = missing.join(loaded, on=OWNER, how="anti").join(unaffected, on=OWNER, how="anti")
    if missing.height:
        library = first_value(missing["library"])
        yield group_finding(
            missing.unique(OWNER, keep="first", maintain_order=True),
            rank,
            "{processes}: the requested network plugin is not loaded",
            f"NCCL continues without {library or 'the library'}",
            "certain",
        )


@rule(Category.NET_PLUGIN, Severity.INFO, of=("setting",))
def net_disable_ignored_by_plugin(
    setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A variable switches InfiniBand off, but a plugin still uses it.

    Means: NCCL_IB_DISABLE affects the built-in transport only; HPC-X has its own.
    Not when: the data goes over another plugin, or over sockets.
    Do: to force sockets set NCCL_NET=Socket or NCCL_NET_PLUGIN=none; the plugin's own switch is NCCL_IBEXT_DISABLE.
    Sources: nccl#676, nccl-tests#373.
    """
    is_off = (pl.col("variable") == "NCCL_IB_DISABLE") & (pl.col("value") == "1")
    external = chosen_network.filter(pl.col("network").str.starts_with("IBext")).select(OWNER).unique()
    ignored = setting.filter(is_off).join(external, on=OWNER, how="semi")
    if ignored.height:
        detail = "NCCL_IB_DISABLE affects NCCL's own InfiniBand transport, not that of the plugin"
        title = "{processes}: NCCL_IB_DISABLE=1 has no effect on the plugin in use"
        yield group_finding(ignored, rank, title, detail, "certain", role=Role.CONTEXT)


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("libfabric",))
def net_plugin_over_tcp(
    libfabric: pl.DataFrame, libfabric_error: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The Libfabric plugin carries the data, but over TCP.

    Means: it found neither EFA nor CXI and uses libfabric's provider for sockets: as slow as NET/Socket.
    Not when: the machines have Ethernet only, or the job runs on one host.
    Do: run fi_info -p efa (or cxi) in the container; FI_PROVIDER=efa makes the next start fail instead of being slow.
    Sources: formats: plugins, section 1 (provider tcp, sockets, tcp;ofi_rxm).
    """
    elsewhere = chosen_network.filter((pl.col("network") == SOCKET) | pl.col("is_on_one_node"))
    slow = libfabric.filter(pl.col("provider").is_in(TCP_PROVIDERS)).join(elsewhere, on=OWNER, how="anti")
    for (provider,), rows in slow.sort("source", "line").group_by("provider", maintain_order=True):
        absent = libfabric_error.filter(form="no_provider").join(rows, on=OWNER, how="semi").height > 0
        title = f"{{processes}}: the Libfabric plugin {'found no EFA or CXI device, and ' * absent}runs over TCP"
        detail = f"the provider of the plugin is {provider}, which uses TCP"
        is_sure = not chosen_network.filter("spans_nodes").join(rows, on=OWNER, how="semi").is_empty()
        yield group_finding(rows, rank, title, detail, "certain" if is_sure else "likely")


REGISTRATION_REMEDY = (
    "Print ulimit -l in the context of the job; check that the releases of plugin, libfabric and GPU driver fit "
    "together; to narrow it down, run once with NCCL_NET_GDR_LEVEL=LOC."
)
DEVICE_REMEDY = "Print fi_info -v and dmesg -T | grep -iE 'efa|cxi' on this host, and ulimit -l in the job."


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("libfabric_error",), hang=True)
def net_plugin_request_failed(
    libfabric_error: pl.DataFrame, kernel_report: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A transfer or another operation of the Libfabric plugin failed.

    Means: libfabric completed a request with an error: the peer is gone or unreachable (on EFA: the security group);
    memory could not be registered; or the device could not be opened (`Couldn't open AV`, `CQ`, `a fabric access
    domain`), which concerns this host alone.
    Not when: it is printed while the job shuts down; the message is about an optional feature.
    Do: check the peer first; on EFA the security group must allow all traffic from itself, in and out.
    Sources: aws-ofi-nccl#22, aws-ofi-nccl#24, aws-ofi-nccl#889; formats: plugins, section 2.
    """
    form = pl.col("form")
    shutdowns = member.group_by(OWNER).agg(shutdown_pos=pl.col("end_pos").min())
    errors = libfabric_error.filter(form.is_in(["request", "remote_write", "call", "registration", "no_endpoint"]))
    errors = errors.join(shutdowns, on=OWNER, how="left").filter(
        (pl.col("pos") < pl.col("shutdown_pos")).fill_null(value=True)
    )
    is_set_up = pl.any_horizontal(text_of("operation").str.starts_with(text) for text in SET_UP)
    of_device = form.eq("no_endpoint") | (form.eq("call") & is_set_up.fill_null(value=False))
    errors = errors.with_columns(is_memory=form == "registration", is_device=of_device)
    kinds = ["is_memory", "is_device"]
    refused = kernel_report.filter(text_of("form") == "refused").drop_nulls("device_name")
    for (is_memory, is_device), rows in errors.sort(kinds).group_by(kinds, maintain_order=True):
        code, error = first_value(rows["rc"]), first_value(rows["error"])
        error = (
            error
            or first_value(rows["error_text"])
            or str(first_value(rows["named_error"]) or "").removesuffix(OF_ADDRESS)
            or str(first_value(rows["peer_error"]) or "").removesuffix(")")
            or EFA_ERRORS.get(first_value(rows["provider_error"]) or 0)
        )
        report = ", ".join(part for part in (f"RC {code}" if code is not None else "", str(error or "")) if part)
        if is_device:
            failure, remedy = "could not open its device", DEVICE_REMEDY
            report = ": ".join(filter(None, (first_value(rows["operation"]), report)))
        elif is_memory:
            failure, remedy = "could not register memory", REGISTRATION_REMEDY
        else:
            failure, remedy = "failed in a transfer", ""
        detail = f"it reports {report}" if report else ""
        if is_device and (devices := sorted(refused["device_name"].cast(pl.String).unique())):
            detail += f"; the kernel's log tells that {', '.join(devices)} refused a command of its driver"
        if peers := sorted(rows["peer_host"].cast(pl.String).drop_nulls().unique()):
            detail += f"; the other end of the transfer is on {', '.join(peers[:MOST_PEERS])}"
        yield group_finding(
            rows, rank, f"{{processes}}: the Libfabric plugin {failure}", detail, "certain", remedy=remedy
        )
        if is_memory:
            detail = "libfabric can send only from registered memory"
            more = {"category": Category.MEMORY_REGISTRATION, "role": Role.CONSEQUENCE, "remedy": remedy}
            yield group_finding(
                rows, rank, "{processes}: memory could not be registered with the NIC", detail, "certain", **more
            )


PROXY_FAILURES = ["service_failed", "proxy_failed", "proxy_call_failed"]
MEMORY_WARNINGS = ("reg_mr", "RegMr", "reg mr")


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("plugin_warning",), hang=True)
def net_plugin_warned(plugin_warning: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A plugin printed a warning, and NCCL's proxy failed in the same process.

    Means: the warning of the plugin shows the cause; the failure of the proxy (operation=Connect) follows from it.
    Not when: nothing failed after the warning: plugins also warn of missing optional features.
    Do: search for the text in the documentation of the plugin; check that plugin, driver and NCCL fit together.
    Sources: nccl: src/proxy.cc; formats: plugins; GoogleCloudPlatform's GPUDirect-TCPX guide.
    """
    failed = failure.filter(pl.col("form").is_in(PROXY_FAILURES)).select(OWNER).unique()
    rows = plugin_warning.join(failed, on=OWNER, how="semi", nulls_equal=True).sort("source", "line")
    if rows.is_empty():
        return
    message = text_of("message")
    # By the first warning of each process: processes, or runs in one folder, may fail in different ways.
    first = rows.with_columns(first=message.first().over(OWNER))
    for (warning,), alike in first.group_by("first", maintain_order=True):
        title = f"{{processes}}: the network plugin failed: {with_open_end(str(warning))}"
        yield group_finding(alike, rank, title, "its first warning; then NCCL's proxy failed", "likely")
    memory = rows.filter(
        pl.any_horizontal(
            column.str.contains(text, literal=True)
            for text in MEMORY_WARNINGS
            for column in (message, text_of("signature"))
        )
    )
    if not memory.is_empty():
        yield group_finding(
            memory, rank, "{processes}: the plugin could not register memory with the NIC",
            f"its warning: {with_open_end(str(first_value(memory['message'])))}", "likely",
            category=Category.MEMORY_REGISTRATION, role=Role.CONSEQUENCE,
        )  # fmt: skip


OPEN_REQUESTS = (
    "If a program calls the plugin itself, see that it tests each transfer to its end before it posts more. Under "
    "NCCL, look at the rank at the other end, which may stand still, and that plugin and NCCL are of one release."
)


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("google_net_note",), hang=True)
def net_plugin_tcpx_error(google_net_note: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Google's TCPX plugin reports an error.

    Means: the plugin lacks memory, or lost its daemon; later errors of NCCL are a consequence. `unable to allocate
    requests` is no fault of the plugin: its caller, NCCL or a program that calls it directly, has all requests of a
    connection open, because it does not test them to their end or because the other end stands still.
    Not when: it only rejects an option (`… invalid, restore to default`), or prints its settings.
    Do: check the rxdm daemon and its log on that host, and that plugin, daemon and NCCL are of one release. Where
    requests ran out, look at the caller first, and at the rank at the other end.
    Sources: formats: plugins, section 4; GoogleCloudPlatform's GPUDirect-TCPX guide.
    """
    errors = google_net_note.filter(pl.col("form") == "tcpx_error")
    for (message,), rows in errors.sort("message").group_by("message", maintain_order=True):
        yield group_finding(
            rows, rank, "{processes}: the TCPX plugin failed", f"the plugin reports: {message}", "certain"
        )
    exhausted = google_net_note.filter(pl.col("form") == "tcpx_requests")
    if not exhausted.is_empty():
        title = "{processes}: the caller of the TCPX plugin had all requests of a connection open at once"
        detail = "none was left for another transfer; the line shows no fault of the plugin or of its daemon"
        yield group_finding(exhausted, rank, title, detail, "certain", remedy=OPEN_REQUESTS)


@rule(Category.NET_PLUGIN, Severity.INFO, of=("google_net",))
def net_plugin_tcpx_waits(google_net: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Google's TCPX plugin has waited for the other end of a connection for seconds.

    Means: the other rank has posted no transfer, or its host is slow: the rank that prints this is a victim. At the
    first collective it may take minutes until all connections are made.
    Not when: the other rank computes, loads data or writes a checkpoint meanwhile; then the wait ends by itself.
    Do: look at the rank at the other end; if all wait at the first collective, check the rxdm daemon on each host.
    Sources: nccl-plugin-gpudirecttcpx#1; net_tcpx.cc (tcpxCommProgress).
    """
    waiting = google_net.filter(form="tcpx_waiting")
    if not waiting.is_empty():
        seconds = max(waiting["nanoseconds"].to_list()) / 1e9
        detail = f"up to {seconds:.0f} seconds without a message from the other end, as at {waiting['ends'][0]}"
        title = "{processes}: the TCPX plugin waits for the other end of a connection"
        yield group_finding(waiting, rank, title, detail, "certain", role=Role.CONTEXT)


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("libfabric_log",), hang=True)
def net_plugin_libfabric_reports(libfabric_log: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Libfabric itself logs that a transfer failed.

    Means: its completion queue returned an error for a transfer to or from a peer. `Invalid address`, `Unreachable
    remote` and `Not a directory` (error 20) mean that the peer is gone or not reachable; on EFA the security group.
    Not when: the line is about a capability or an option that is not available.
    Do: check the host of the peer first; on EFA the security group must allow all traffic from itself, in and out.
    Sources: aws-ofi-nccl#156, aws-ofi-nccl#346; libfabric: prov/efa/src/rdm.
    """
    is_error = text_of("message").str.contains_any(["err: ", "prov_err: "])
    failed = libfabric_log.filter(is_error & (text_of("subsystem") == "cq")).with_columns(host=pl.lit(None, pl.String))
    for (provider,), rows in failed.sort("source", "line").group_by("provider_name", maintain_order=True):
        lines = rows.select("source", "line", "host", rank=pl.lit(None, pl.Int32))
        title = f"libfabric's provider {provider} reports a failed transfer"
        yield error_finding(lines, rank, title, f"it reports: {rows['message'][0]}", "likely")


@rule(Category.MEMORY_REGISTRATION, Severity.ERROR, of=("ucx",), hang=True)
def ucx_memory_limited(ucx: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """UCX could not get locked memory for InfiniBand.

    Means: the limit of locked memory (ulimit -l) is too low in the context of the job; NCCL's own transport fails with
    `Cannot allocate memory` for the same reason.
    Not when: the program then runs over another transport of UCX on purpose, as on one host.
    Do: set the limit to unlimited where the job is started: limits.conf, the unit of slurmd or containerd, --ulimit
    memlock=-1 of docker; print ulimit -l inside the job.
    Sources: ucx#8746, ucx#8229; NCCL user guide, troubleshooting (networking).
    """
    limited = ucx.filter(text_of("message").str.contains("max locked memory", literal=True)).sort("source", "line")
    if not limited.is_empty():
        lines = limited.select("source", "line", host="ucx_host", rank=pl.lit(None, pl.Int32))
        title = "{processes}: the limit of locked memory is too low for InfiniBand"
        yield error_finding(lines, rank, title, f"UCX reports: {limited['message'][0]}", "certain")
