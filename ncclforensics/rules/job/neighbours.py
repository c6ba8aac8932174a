"""Time-outs and errors of libraries beside NCCL: DeepEP, NVSHMEM, UCX, Mooncake, NIXL, HCCL."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.networks import is_of_docker
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines
from ncclforensics.rules.shared.survival import of_open_inputs

SITE = "[FUNC:"  # how the place in the source begins that Ascend's software prints behind a message
OF_VERBS = "ibv_"  # whose status is an errno
SHOWN = 4  # places in a title
OF_A_PEER = ("rpc", "connect", "segment")
REACH_PEER = (
    "on this host test the address that the line names, or that of Mooncake's master, and its port (nc -vz HOST PORT); "
    "see that the process there runs, and read its last lines; MC_LOG_LEVEL tells more"
)
NOT_ON_NPUS = "NCCL is not used on these devices"
NOT_OF_NCCL = "NCCL has no part in these connections"
NVSHMEM_FAILURES = ["", "named", "nothing", "printed", "warned", "socket", "ended"]
LEFT_OUT = ["no_buffer", "not_usable", "skipped"]  # forms of lines on a device or transport that NVSHMEM does without
INIT_FAILED = "init failed for transport"
FIND_DEVICE = (
    "see why NVSHMEM left each device out: ibv_devinfo in the container (an active port; for IBGDA an mlx5 device with "
    "DevX, of the libraries of MLNX_OFED or DOCA), nvidia-peermem or DMA-BUF on the host, NVSHMEM_HCA_LIST and "
    "NVSHMEM_IBGDA_NIC_HANDLER; NVSHMEM_DEBUG=INFO shows the choice"
)
UCX_ERRORS = ["ERROR", "FATAL"]
OF_TRANSFERS = ("send", "completion")  # forms of lines on a transfer that a network device could not end
# What UCX says of a connection that the other end closed, or that an earlier error made it give up.
UCX_ECHOES = ["reset by remote peer", "Request canceled", "Unhandled error", "was not handled", "will not be handled"]
UNAVAILABLE = "not available"  # in a warning of UCX on a device or transport that its settings name
UNSUPPORTED = "not supported"  # in what UCC says of an algorithm that it passes over
OWN_BRIDGE = "that address is of Docker's own bridge, which other hosts do not reach"
WITHOUT_BRIDGE = (
    "name the interface that reaches the other hosts on all of them: UCX_NET_DEVICES for UCX; of Open MPI also "
    "btl_tcp_if_include and oob_tcp_if_include"
)
LIMITED = "max locked memory"  # which has a rule of its own


@rule(Category.TIMEOUT, Severity.ERROR, of=("deepep_timeout",), hang=True, role=Role.CONSEQUENCE)
def deepep_timed_out(deepep_timeout: pl.DataFrame) -> Iterator[Finding]:
    """Kernels of DeepEP waited in vain for other GPUs, and ended.

    Means: a GPU waited for tokens, for room in a buffer or in a barrier of DeepEP. The GPUs that print this are
    victims: another one did not make the call, ended, or is cut off. Numbers are those of DeepEP's group: `RDMA` counts
    its hosts, `nvl` the GPUs of a host. In a barrier of one host a value above 0 shows which GPU has not come.
    Not when: the program is in its first steps, which may take longer than the limit of the kernels (100 seconds); a
    low-latency kernel only warns, and leaves the silent rank out.
    Do: look at the GPUs that were waited for: an exception or Xid before the time-out, another number of calls, or of
    num_max_dispatch_tokens_per_rank; where hosts differ, at NVSHMEM's lines, NVSHMEM_HCA_LIST, NVSHMEM_IB_GID_INDEX and
    NVSHMEM_IB_TRAFFIC_CLASS; DeepEP needs the version of NVSHMEM that it names.
    Sources: deepseek-ai/DeepEP: csrc/kernels/legacy/internode.cu, intranode.cu, internode_ll.cu, utils.cuh
    (barrier_block), deep_ep/include/deep_ep of version 2; DeepEP#74, DeepEP#137, DeepEP#553, DeepEP#570.
    """
    rows = deepep_timeout.sort("source", "line").with_columns(
        call=pl.coalesce(text_of("phase"), text_of("wait").str.replace(" timeout", "", literal=True), pl.lit("barrier"))
        .str.split(" ")
        .list.first()
    )
    for (call,), alike in rows.group_by("call", maintain_order=True):
        waited_for = _waited_for(alike)
        title = f"DeepEP timed out ({call}): {_waiters(alike)}{f' waited for {waited_for}' * bool(waited_for)}"
        detail = f"{count_of(alike.height, 'line')}; numbers are those of DeepEP's group; {NOT_OF_NCCL}"
        yield Finding(
            title, detail, "certain", evidence=evidence_lines(_missing(alike) if _missing(alike).height else alike)
        )


def _missing(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of barriers whose value shows that a GPU has not come."""
    return rows.filter(pl.col("signal").fill_null(0) > 0)


def _waiters(rows: pl.DataFrame) -> str:
    """Name the GPUs that waited, as DeepEP counts them."""
    ranks = sorted(rows["group_rank"].drop_nulls().unique().to_list())
    if ranks:
        return ranks_text(ranks)
    places = rows.select("host_of_group", "gpu_of_host").unique().sort("host_of_group", "gpu_of_host").rows()
    return some_of([_place(host, gpu) for host, gpu in places if gpu is not None], SHOWN) or "a GPU"


def _waited_for(rows: pl.DataFrame) -> str:
    """Name what was waited for, in a barrier the ranks whose values show that they are missing; empty if unknown."""
    missing = _missing(rows)
    ranks = sorted((missing if missing.height else rows.filter(form="pair"))["peer_rank"].drop_nulls().unique())
    if ranks:
        return ranks_text(ranks) + ", which did not come" * (missing.height > 0)
    peers = rows.select("peer_host", "peer_gpu").unique().sort("peer_host", "peer_gpu")
    hosts = sorted(peers["peer_host"].drop_nulls().unique().to_list())
    gpus = peers.filter(pl.col("peer_host").is_not_null() & pl.col("peer_gpu").is_not_null())
    if gpus.is_empty() or gpus.height > SHOWN:
        if hosts:
            return f"host{'s' * (len(hosts) > 1)} {', '.join(map(str, hosts))} of the group"
        of_host = [_place(None, gpu) for gpu in sorted(peers["peer_gpu"].drop_nulls().unique())]
        return f"{some_of(of_host, SHOWN)} of the same host" if of_host else ""
    return some_of([_place(host, gpu) for host, gpu in gpus.rows()], SHOWN)


def _place(host: int | None, gpu: int) -> str:
    """Format a GPU of DeepEP's group.

    >>> _place(1, 6), _place(None, 2)
    ('GPU 6 of host 1', 'GPU 2')
    """
    return f"GPU {gpu}" if host is None else f"GPU {gpu} of host {host}"


@rule(Category.IB_ERROR, Severity.ERROR, of=("nvshmem_error",), hang=True)
def nvshmem_failed(nvshmem_error: pl.DataFrame) -> Iterator[Finding]:
    """NVSHMEM could not connect the GPUs.

    Means: kernels that exchange data themselves (DeepEP) use NVSHMEM, which has connections, and settings, of its own.
    The first line of an error says what failed, the lines behind it who called that. A process that lost its connection
    to another one follows from what ended that.
    Not when: the program goes on without NVSHMEM.
    Do: for ibv_modify_qp set NVSHMEM_HCA_LIST to the ports that NCCL uses, and NVSHMEM_IB_GID_INDEX to a GID that all
    hosts reach (show_gids); for sockets set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME; NVSHMEM_DEBUG=INFO shows the choice.
    Sources: NVSHMEM: src/include/non_abi/nvshmemx_error.h, src/modules/transport/ibrc/ibrc.cpp and ibgda.cpp,
    environment variables; sglang#7450.
    """
    rows = nvshmem_error.filter(text_of("form").fill_null("").is_in(NVSHMEM_FAILURES)).sort("source", "line")
    if rows.is_empty():
        return
    reasons = rows.with_columns(
        reason=pl.coalesce(*map(text_of, ("nvshmem_reason", "nvshmem_text", "nvshmem_ending"))).str.strip_chars(" .")
    )
    first = reasons.filter(pl.col("reason").is_not_null()).head(1)
    first = first if first.height else reasons.head(1)
    reason, status = str(first["reason"][0] or "a call returned an error"), first["status"][0]
    function = f"{first['nvshmem_function'][0]}: " if first["nvshmem_function"][0] else ""
    meaning = errno.errorcode.get(status, "") if status is not None and reason.startswith(OF_VERBS) else ""
    number = "" if status is None else f" (status {status}{', ' * bool(meaning)}{meaning})"
    lost = rows.filter(form="socket").select("nvshmem_peer", "nvshmem_reason").unique(maintain_order=True).rows()
    peers = "".join(f"; the connection to {peer} failed: {error}" for peer, error in lost[:SHOWN])
    left_out = nvshmem_error.filter(text_of("form").is_in(LEFT_OUT)).sort("source", "line")
    nics = left_out["nvshmem_nic"].drop_nulls().unique(maintain_order=True).to_list()
    without = f"; it left out {some_of(nics, SHOWN)}" if nics else ""
    yield Finding(
        title=f"NVSHMEM failed: {function}{reason}{number}{peers}",
        detail=f"{count_of(rows.height, 'line')} of errors{without}; {NOT_OF_NCCL}",
        certainty="certain",
        evidence=evidence_lines(pl.concat([rows.head(2), left_out.head(1), rows.slice(2)])),
        remedy=FIND_DEVICE if "ended" in rows["form"] or (left_out.height and INIT_FAILED in reason) else "",
    )


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("ucx",), hang=True, of_failures=True)
def ucx_failed(ucx: pl.DataFrame, rank: pl.DataFrame, program_end: pl.DataFrame) -> Iterator[Finding]:
    """UCX, or UCC above it, reports an error of a network device, of a connection or of memory.

    Means: UCX carries MPI, NIXL, HPC-X's plugin of NCCL and others, UCC the collectives of MPI and of a back end of
    PyTorch; the process that prints this lost a transfer or
    could not make a connection. `Endpoint timeout` and `Connection timed out` name an end that did not answer; `Remote
    access` and `Local protection` an address that one end does not know (any more); `Connection reset by remote peer`
    and `Request canceled` follow from an error of the other end.
    Not when: the job ended well, or the program then runs over another transport of UCX. What UCC does not support is
    a note: it then takes another algorithm, or MPI its own.
    Do: where the line names a device, a port or a peer, look at these (ibstat, dmesg -T); where it names a memory
    region, run once without GPUDirect RDMA (NCCL: NCCL_NET_GDR_LEVEL=LOC); `Cannot allocate memory` is mostly the limit
    of locked memory (ulimit -l). UCX_NET_DEVICES and UCX_TLS choose devices and transports, UCX_IB_GID_INDEX the GID;
    UCX_LOG_LEVEL=info, UCC_LOG_LEVEL=info tell more.
    Sources: openucx/ucc: src/components/tl/ucp, src/core/ucc_context.c; openucx/ucx: src/uct/ib/mlx5/ib_mlx5_log.c,
    src/uct/ib/ud/base/ud_iface.c, src/ucp/core/ucp_ep.c; ucx#6253, ucx#9306, ucx#9970.
    """
    place = pl.format(" on {}:{}", text_of("device"), pl.col("port"))
    rows = of_open_inputs(_ucx_errors(ucx), program_end).with_columns(
        text=pl.coalesce(text_of("message").str.strip_chars(), text_of("failed_send"), text_of("completion") + place),
        host=pl.col("ucx_host"),
        pid=pl.col("process"),
    )
    rows = rows.join(rank.select("host", "pid", "rank"), on=["host", "pid"], how="left", maintain_order="left")
    rows = rows.filter(~text_of("text").str.contains(LIMITED, literal=True))
    if rows.is_empty():
        return
    text = text_of("text")
    order = (text.str.contains(UNSUPPORTED, literal=True), text.str.contains_any(UCX_ECHOES), "pos")
    first = rows.sort(*order).row(0, named=True)
    is_same_place = (pl.col("form") == "log") & (text_of("code_place") == first["code_place"])  # with other addresses
    same = rows.filter((text_of("text") == str(first["text"])) | is_same_place.fill_null(False))
    more = rows.height - same.height
    detail = f"{count_of(same.height, 'line')}" + f"; {count_of(more, 'other line')} of errors" * bool(more)
    dialled = find_values(same["text"], "dialled_address")["dialled"].cast(pl.String)
    is_of_bridge = any(is_of_docker(address) for address in dialled.drop_nulls())
    detail += f"; {OWN_BRIDGE}" * is_of_bridge
    of_process = pl.col("process").eq_missing(first["pid"]) & text_of("ucx_host").eq_missing(first["host"])
    warnings = ucx.filter(of_process, text_of("ucx_warning").str.contains(UNAVAILABLE, literal=True))
    detail += "".join(f"; it warned: {text}" for text in warnings["ucx_warning"].head(1))
    library = "UCC" if first["form"] == "ucc" else "UCX"
    certainty = "certain" if first["form"] in OF_TRANSFERS else "likely"  # it may take another device or transport
    finding = error_finding(same, rank, f"{{processes}}: {library} failed: {first['text']}", detail, certainty)
    finding.evidence += evidence_lines(warnings.head(1))
    if first["form"] in OF_TRANSFERS:
        finding.category = Category.IB_ERROR
    if is_of_bridge:
        finding.remedy = WITHOUT_BRIDGE
    if UNSUPPORTED in first["text"]:
        finding.severity, finding.role = Severity.INFO, Role.CONTEXT
    yield finding


def _ucx_errors(ucx: pl.DataFrame) -> pl.DataFrame:
    return ucx.filter(text_of("form").is_in(["fatal", "send", "completion"]) | text_of("level").is_in(UCX_ERRORS))


@rule(Category.NET_PLUGIN, Severity.ERROR, of=("transfer_error",), hang=True, of_failures=True)
def transfer_engine_failed(
    transfer_error: pl.DataFrame, ucx: pl.DataFrame, program_end: pl.DataFrame
) -> Iterator[Finding]:
    """A transfer engine that moves the cache of a server between hosts reports an error: Mooncake or NIXL.

    Means: it has connections and registers memory of its own. A failed slice names the two NICs; `Failed to register
    memory` is mostly GPU memory without nvidia-peermem or DMA-BUF, or a NIC that cannot reach this GPU.
    Not when: the engine tries again over another NIC, and requests go on; the program came to its end.
    Do: look at the named NIC and its peer (ibstat, show_gids, dmesg -T); give each GPU the NICs below its own PCIe
    switch (nvidia-smi topo -m); test with ib_write_bw between the two; MC_LOG_LEVEL or NIXL_LOG_LEVEL tells more.
    Sources: kvcache-ai/Mooncake: mooncake-transfer-engine/src; ai-dynamo/nixl: src/core, src/plugins; sglang#21395.
    """
    rows = (
        of_open_inputs(transfer_error, program_end)
        .with_columns(is_nixl=text_of("form") == "nixl")
        .sort("source", "line")
    )
    for (is_nixl,), alike in rows.group_by("is_nixl", maintain_order=True):
        slices = alike.filter(form="slice")
        first = (slices if slices.height else alike).row(0, named=True)
        text = str(first["message"]).strip()
        if slices.height:
            text = f"a transfer from {first['local_nic']} to {first['peer_nic']} failed: {first['reason']}"
        others = f"; {count_of(alike.height - 1, 'other line')} of errors" * (alike.height > 1)
        is_of_peer = not (slices.height or is_nixl) and any(word in text for word in OF_A_PEER)
        yield Finding(
            title=f"{'NIXL' if is_nixl else 'Mooncake'} reports an error: {text}",
            detail=f"{NOT_OF_NCCL}{others}",
            certainty="certain",
            role=Role.CONSEQUENCE if is_nixl and _ucx_errors(ucx).height else Role.CAUSE,
            evidence=evidence_lines(slices if slices.height else alike),
            remedy=REACH_PEER if is_of_peer else "",
        )


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("ascend_error",), hang=True)
def ascend_failed(ascend_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The software of Ascend NPUs reports an error, such as HCCL, which takes the place of NCCL there.

    Means: the number tells the component: EI is HCCL, EE the runtime, EL the driver, EZ and others the operators.
    EI0002 (notify wait) and EI0006 (socket) are waits for another rank that did not come or did not answer: the rank
    that prints them is a victim.
    Not when: the program caught the error and went on.
    Do: look at the ranks that print no such error, or the earliest one: their exception, their plog (~/ascend/log);
    raise HCCL_CONNECT_TIMEOUT or HCCL_EXEC_TIMEOUT only where ranks are known to be late.
    Sources: Ascend/pytorch: torch_npu/csrc/core/npu/NPUException.h; CANN: error codes; vllm-ascend#486.
    """
    rows = ascend_error.with_columns(
        code=pl.coalesce(text_of("ascend_wait"), text_of("ascend_code")),
        text=text_of("message").str.split(SITE).list.first().str.strip_chars(" ."),
        number=pl.format("{} returned error {}", text_of("npu_call"), pl.col("npu_error")),
    ).sort("pos")
    stated = rows.filter(pl.col("code").is_not_null())
    raised = rows.filter(form="raised")
    where = rows.filter(form="where").select(
        "source", "pos", own_pid="pid", own_rank=pl.when(pl.col("world_rank") >= 0).then("world_rank").cast(pl.Int32)
    )
    for row in rows.filter(form="unconnected").unique(["linked_rank", "remote_rank"], maintain_order=True).to_dicts():
        ends = [f"rank {row[f'{end}_rank']} ({row[f'{end}_address']})" for end in ("linked", "remote")]
        yield Finding(
            title=f"HCCL could not connect {ends[0]} to {ends[1]}",
            detail=f"{NOT_ON_NPUS}; rank numbers are those of the group",
            certainty="certain",
            role=Role.CONSEQUENCE,
            category=Category.BOOTSTRAP,
            evidence=[Line(row["source"], row["line"])],
        )
    for row in (
        (stated if stated.height else raised).unique(["code", "number"], keep="first", maintain_order=True).to_dicts()
    ):
        alike = stated.filter(code=row["code"]) if row["code"] else raised.filter(number=row["number"])
        placed = alike.join_asof(where, on="pos", by="source", check_sortedness=False).select(
            "source", "line", host=pl.lit(None, pl.String),
            rank=pl.coalesce("global_rank", "own_rank"), pid=pl.coalesce("pid", "own_pid"),
        )  # fmt: skip
        code = str(row["code"] or "")
        report = f"HCCL reports {code}: {row['text']}" if code.startswith("EI") else row["number"]
        report = report or f"the software of the NPU reports {code}: {row['text']}"
        is_wait = row["form"] == "waited"
        reason = _first_behind(ascend_error, row, "npu_reason")
        detail = f"{'it waited for another rank; ' * is_wait}{f'reason: {reason}; ' * bool(reason)}{NOT_ON_NPUS}"
        finding = error_finding(placed, rank, f"{{processes}}: {report}", detail, "certain")
        finding.remedy = _first_behind(ascend_error, row, "npu_solution")
        finding.role = Role.CONSEQUENCE if is_wait else Role.CAUSE
        yield finding


def _first_behind(ascend_error: pl.DataFrame, row: dict[str, Any], column: str) -> str:
    """Return what the lines behind an error of an NPU say first of its reason, or of what to do; empty without one."""
    later = ascend_error.filter((pl.col("source") == row["source"]) & (pl.col("pos") > row["pos"])).sort("pos")
    return next(iter(later.select(text_of(column)).to_series().drop_nulls()), "")
