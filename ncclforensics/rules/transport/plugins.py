"""Network plugins: asked for and not there, there and not used, or failing."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.networks import SOCKET, TCP_PROVIDERS
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import first, together


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("libfabric_error",))
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
    form = pl.col("form")
    lost = libfabric_error.filter(form.is_in(["no_provider", "getinfo", "too_old"]))
    works = chosen_network.filter(pl.col("network") != SOCKET).select(OWNER).unique()
    needless = (
        chosen_network.filter((pl.col("network") == SOCKET) & pl.col("spans_nodes").not_()).select(OWNER).unique()
    )
    lost = lost.join(works, on=OWNER, how="anti").join(needless, on=OWNER, how="anti")
    if lost.height:
        error = first(lost["error"])
        yield together(
            lost,
            rank,
            "{who}: the Libfabric plugin found no network device",
            f"libfabric says: {error}" if error else "no provider of libfabric offers a device that the plugin can use",
            "certain",
        )


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("plugin",), hang=True)
def net_requested_not_available(plugin: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A network was asked for by name, and NCCL does not have it.

    Means: NCCL_NET (or the communicator's netName) names a network that no plugin and nothing built in provides, or
    whose device is absent; init fails rather than fall back.
    Not when: it is a list of plugins of which another one was assigned.
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
        title = f"{{who}}: the network {name} is not there" if name else "{who}: no network could be initialised"
        yield together(absent, rank, title, _asked(setting, absent, name), "certain")


def _asked(setting: pl.DataFrame, rows: pl.DataFrame, name: str) -> str:
    variables = setting.filter(pl.col("variable").is_in(["NCCL_NET", "NCCL_NET_PLUGIN"]))
    asked = variables.join(rows.select(OWNER).unique(), on=OWNER, how="semi").select("variable", "value").unique()
    said = ", ".join(f"{variable}={value}" for variable, value in asked.sort("variable").iter_rows())
    if said:
        return f"{said} asks for it, and no library provides it"
    return f"{name or 'a network'} was asked for, by NCCL_NET or by the communicator's configuration"


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("plugin",))
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
    form, kind = pl.col("form"), pl.col("kind").fill_null("NET")
    missing = plugin.filter(form.is_in(["not_found", "not_opened"]) & (kind == "NET"))
    if missing.is_empty():
        return
    value = text_of("value").str.to_lowercase()
    asked = setting.filter((pl.col("variable") == "NCCL_NET_PLUGIN") & (value != "none"))
    asked = pl.concat([asked.select(OWNER), plugin.filter((form == "requested") & (kind == "NET")).select(OWNER)])
    loaded = plugin.filter(form.is_in(["loaded", "opened", "p2p"]) & (kind == "NET")).select(OWNER).unique()
    fast = chosen_network.filter((pl.col("network") != SOCKET) | pl.col("spans_nodes").not_()).select(OWNER).unique()
    missing = missing.join(asked.unique(), on=OWNER, how="semi")
    missing = missing.join(loaded, on=OWNER, how="anti").join(fast, on=OWNER, how="anti")
    if missing.height:
        named = first(missing["library"])
        yield together(
            missing.unique(OWNER, keep="first", maintain_order=True),
            rank,
            "{who}: the network plugin that was asked for is not loaded",
            f"NCCL goes on without {named or 'it'}",
            "certain",
        )


@rule(Category.NET_PLUGIN, Severity.INFO, of=("setting",))
def net_disable_ignored_by_plugin(
    setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """InfiniBand is switched off by a variable, and a plugin uses it all the same.

    Means: NCCL_IB_DISABLE acts on the built-in transport only; HPC-X brings its own.
    Not when: the data goes over another plugin, or over sockets.
    Do: to force sockets set NCCL_NET=Socket or NCCL_NET_PLUGIN=none; the plugin's own switch is NCCL_IBEXT_DISABLE.
    Sources: nccl#676, nccl-tests#373.
    """
    is_off = (pl.col("variable") == "NCCL_IB_DISABLE") & (pl.col("value") == "1")
    external = chosen_network.filter(pl.col("network").str.starts_with("IBext")).select(OWNER).unique()
    ignored = setting.filter(is_off).join(external, on=OWNER, how="semi")
    if ignored.height:
        detail = "NCCL_IB_DISABLE acts on NCCL's own InfiniBand transport, not on the plugin's"
        title = "{who}: NCCL_IB_DISABLE=1 has no effect on the plugin in use"
        yield together(ignored, rank, title, detail, "certain", role=Role.CONTEXT)


@rule(Category.NET_PLUGIN, Severity.WARNING, of=("libfabric",))
def net_plugin_over_tcp(libfabric: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The Libfabric plugin carries the data, but over TCP.

    Means: the plugin found neither EFA nor CXI and took libfabric's provider for sockets: as slow as NET/Socket.
    Not when: the machines have Ethernet only, or the job runs on one host.
    Do: run fi_info -p efa (or cxi) in the container; FI_PROVIDER=efa makes the next start fail rather than be slow.
    Sources: formats: plugins, section 1 (provider tcp, sockets, tcp;ofi_rxm).
    """
    slow = libfabric.filter(pl.col("provider").is_in(TCP_PROVIDERS))
    apart = chosen_network.filter(pl.col("spans_nodes") & (pl.col("network") != SOCKET)).select(OWNER).unique()
    for (provider,), rows in (
        slow.join(apart, on=OWNER, how="semi").sort("source", "line").group_by("provider", maintain_order=True)
    ):
        detail = f"the plugin's provider is {provider}, which is TCP"
        yield together(rows, rank, "{who}: the Libfabric plugin runs over TCP", detail, "certain")


OF_REGISTRATION = (
    "Print ulimit -l in the job's own context; see that plugin, libfabric and GPU driver are releases that go "
    "together; to narrow it down, run once with NCCL_NET_GDR_LEVEL=LOC."
)


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("libfabric_error",), hang=True)
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
    form = pl.col("form")
    ends = member.group_by(OWNER).agg(leaves=pl.col("end_pos").min())
    errors = libfabric_error.filter(form.is_in(["request", "remote_write", "call", "registration"]))
    errors = errors.join(ends, on=OWNER, how="left").filter((pl.col("pos") < pl.col("leaves")).fill_null(value=True))
    for (is_memory,), rows in errors.sort(form == "registration").group_by(form == "registration", maintain_order=True):
        code, error = first(rows["rc"]), first(rows["error"])
        said = ", ".join(part for part in (f"RC {code}" if code is not None else "", str(error or "")) if part)
        what = "could not register memory" if is_memory else "failed in a transfer"
        remedy = OF_REGISTRATION if is_memory else ""
        detail = f"it says {said or 'no more'}"
        yield together(rows, rank, f"{{who}}: the Libfabric plugin {what}", detail, "certain", remedy=remedy)
        if is_memory:
            detail = "what libfabric cannot register, it cannot send from"
            more = {"category": Category.MEMORY_REGISTRATION, "role": Role.CONSEQUENCE, "remedy": remedy}
            yield together(rows, rank, "{who}: memory could not be registered with the NIC", detail, "certain", **more)


UNWINDING = ["service_failed", "proxy_failed", "proxy_call_failed"]
OF_MEMORY = ("reg_mr", "RegMr", "reg mr")


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("plugin_warning",), hang=True)
def net_plugin_warned(plugin_warning: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A plugin warned of something, and NCCL's proxy failed in the same process.

    Means: the plugin's warning is the cause; that the proxy failed (operation=Connect) only follows from it.
    Not when: nothing failed after the warning: plugins also warn of what they can do without.
    Do: look the text up in the plugin's own notes; see that plugin, driver and NCCL are releases that go together.
    Sources: nccl: src/proxy.cc; formats: plugins; GoogleCloudPlatform's GPUDirect-TCPX guide.
    """
    failed = failure.filter(pl.col("form").is_in(UNWINDING)).select(OWNER).unique()
    rows = plugin_warning.join(failed, on=OWNER, how="semi", nulls_equal=True).sort("source", "line")
    if rows.is_empty():
        return
    said = text_of("message")
    title, detail = "{who}: the network plugin failed", f"it warns: {first(rows['message'])}"
    yield together(rows, rank, title, detail, "likely")
    memory = rows.filter(
        pl.any_horizontal(
            column.str.contains(text, literal=True) for text in OF_MEMORY for column in (said, text_of("signature"))
        )
    )
    if not memory.is_empty():
        yield together(
            memory, rank, "{who}: the plugin could not register memory with the NIC",
            f"it warns: {first(memory['message'])}", "likely", category=Category.MEMORY_REGISTRATION,
            role=Role.CONSEQUENCE,
        )  # fmt: skip


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("google_net_note",), hang=True)
def net_plugin_tcpx_error(google_net_note: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Google's TCPX plugin reports an error.

    Means: the plugin ran out of requests or memory, or lost its daemon; what NCCL says after it is a consequence.
    Not when: it only reads an option that it does not take (`… invalid, restore to default`), or tells its settings.
    Do: check the rxdm daemon and its log on that host, and that plugin, daemon and NCCL are of one release.
    Sources: formats: plugins, section 4; GoogleCloudPlatform's GPUDirect-TCPX guide.
    """
    errors = google_net_note.filter(pl.col("form") == "tcpx_error")
    for (says,), rows in errors.sort("says").group_by("says", maintain_order=True):
        yield together(rows, rank, "{who}: the TCPX plugin failed", f"the plugin says: {says}", "certain")
