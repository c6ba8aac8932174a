"""What Open MPI, its launcher and PMIx report in boxes: a sentence, and below it the hosts and devices."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from operator import itemgetter
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.verdict import vocabulary
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.step_order import without_steps_behind
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import statements_before
from ncclforensics.rules.shared.grouping import evidence_lines, first_value

SHOWN = 8  # hosts
NEAR_HOST = 3  # lines from the sentence about a lost daemon to the name of its host
NEAR_BOX = 4  # lines of known forms below the head of a box
BOX_LINES = 30  # from the sentence of a box to its last field
SHORTEST_BOX = 2  # lines from one edge to the next
FIELDS = (
    "local_host", "remote_host", "local_device", "memlock", "executable", "connected_address", "box_error"
)  # fmt: skip


class _Box(NamedTuple):
    """What a sentence of Open MPI means; `{slots}` and the fields below it stand in the texts."""

    title: str
    detail: str
    remedy: str
    severity: Severity = Severity.ERROR
    role: Role = Role.CAUSE


BOTH_WAYS = (
    "test the address from the other host (nc -vz ADDRESS PORT, ping); open all TCP ports between the hosts; name the "
    "interface that all of them share: --mca btl_tcp_if_include IF --mca oob_tcp_if_include IF"
)
HARMLESS = "harmless where the job then runs: MPI takes another way to the network"
_NO_OPENIB = "choose UCX (--mca pml ucx) or switch the old module off: --mca btl ^openib"
BOXES = {
    "slots": _Box(
        "mpirun has fewer slots than the {slots} processes that it is asked to start",
        "slots are counted by the hostfile, -H host:N, or the scheduler; without them by the cores of this host",
        "give slots=N in the hostfile or -H host:N on every host, ask for fewer processes (-np), or --oversubscribe",
    ),
    "hosts": _Box(
        "mpirun is asked for hosts that the scheduler did not give it",
        "names of hosts must be those of the allocation",
        "compare -H or the hostfile with the allocation (scontrol show hostnames); start inside the allocation",
    ),
    "program": _Box(
        "mpirun did not find the program{program}{of_local}, or may not execute it",
        "no rank was started",
        "the path must be the same on every host; check its permissions, and the order of options before it",
    ),
    "root": _Box("mpirun does not run as root", "no rank was started", "--allow-run-as-root, in a container"),
    "bind": _Box(
        "mpirun is asked to bind more processes than there are cores{of_local}", "no rank was started",
        "--bind-to none, or fewer processes on each host; in a container look at its cpuset",
    ),
    "versions": _Box(
        "the hosts have different versions of Open MPI", "only equal ones can run one job",
        "compare mpirun --version on all hosts; give the path with --prefix",
    ),
    "daemon_died": _Box(
        "the daemon of mpirun ended on a node{status}",
        "with status 127 its program or a library was not found there; lines of ssh before it may say more",
        "ssh to each host: which orted or prted; LD_LIBRARY_PATH there; --prefix PATH_OF_OPEN_MPI",
    ),
    "unrouted": _Box(
        "mpirun has no route{from_local} to its daemon{of_remote}",
        "mostly the daemon there, or one between, is lost: look at what is lost first",
        "look at the other boxes for the node that was lost first; --mca routed direct", Severity.WARNING,
        Role.CONSEQUENCE,
    ),
    "tcp": _Box("{tcp}", "mpirun and its daemons talk over TCP; without it no rank is started", BOTH_WAYS),
    "not_connected": _Box("{tcp}", "the processes of MPI then hang or fail", BOTH_WAYS, Severity.WARNING),
    "unknown_peer": _Box(
        "a process of MPI{of_local} got a connection over TCP from an address that is none of its peers'",
        "it ignores it, and who connected may wait for ever: an address translated on its way, several networks on "
        "one interface, or processes left by an earlier job", BOTH_WAYS, Severity.WARNING,
    ),
    "disconnected": _Box(
        "a process of MPI{of_remote} ended, or was cut off, while another one talked to it",
        "the process that reports it is not at fault",
        "look on that host: the last lines of its process, its exit, and dmesg -T", Severity.WARNING,
        Role.CONSEQUENCE,
    ),
    "unreachable": _Box(
        "processes of MPI{pair} have no network in common that Open MPI may use",
        "the job ends",
        "look at --mca btl, pml and *_if_include: they exclude what the hosts share; --mca btl_base_verbose 100",
    ),
    "queue": _Box(
        "Open MPI could not set up RDMA device {device}{of_local}{memlock_text}",
        "it needs locked memory and queues of the device",
        "ulimit -l unlimited for all users and for the scheduler's daemon; ibv_devinfo on that host",
    ),
    "retry": _Box(
        "an RDMA connection of MPI{pair} broke: retries of {device} were used up",
        "the other end did not answer: its process ended, or the fabric lost packets",
        "look whether the process of the other end ended first; ibstat, perfquery -x and dmesg -T on both hosts",
        Severity.WARNING,
    ),
    "space": _Box(
        "no space for shared memory of MPI: {backing_file}",
        "processes of one host share memory there",
        "df -h /dev/shm and /tmp; in a container --shm-size or --ipc=host; --mca btl_vader_backing_directory",
    ),
    "ipc": _Box(
        "MPI could not map the memory of another GPU of the host", "the program ends",
        "--mca btl_smcuda_use_cuda_ipc 0 tests it; CUDA_VISIBLE_DEVICES and containers must let GPUs see each other",
    ),
    **{
        form: _Box(f"Open MPI's old module for RDMA (openib) {what}", HARMLESS, _NO_OPENIB, Severity.INFO, Role.CONTEXT)
        for form, what in {
            "device": "could not use {device}{of_local}",
            "openib": "leaves {device}{of_local} to UCX",
            "parameters": "has no parameters for the device{of_local}",
            "schemes": "has no way to connect{of_local}",
            "ports": "found no active port{of_local}",
        }.items()
    },
    "module": _Box(
        "a module of Open MPI found no network of its kind{of_local}", HARMLESS,
        "--mca btl_base_warn_component_unused 0 silences it", Severity.INFO, Role.CONTEXT,
    ),
    "nics": _Box(
        "Open MPI chose among several NICs that are equally near, without knowing what others chose",
        "harmless, but ranks of one host may share a NIC",
        "use a newer PMIx, or name a NIC for each rank", Severity.INFO, Role.CONTEXT,
    ),
    "cma": _Box(
        "Open MPI may not copy between processes directly (CMA)", "harmless: copies between ranks of a host are slower",
        "in a container allow ptrace (--cap-add=SYS_PTRACE), or --mca btl_vader_single_copy_mechanism none",
        Severity.INFO, Role.CONTEXT,
    ),
    "cuda_library": _Box(
        "Open MPI runs without support of CUDA: libcuda is not there", "harmless where MPI only starts the processes",
        "--mca opal_warn_on_missing_libcuda 0 silences it; where GPUs are, see that LD_LIBRARY_PATH finds it",
        Severity.INFO, Role.CONTEXT,
    ),
}  # fmt: skip


@rule(Category.PEER_LOST, Severity.ERROR, of=("mpi_launch", "mpi_transport", "mpi_advice"), hang=True)
def open_mpi_reports(
    mpi_launch: pl.DataFrame,
    mpi_transport: pl.DataFrame,
    mpi_advice: pl.DataFrame,
    mpi_box_field: pl.DataFrame,
    mpi_daemon: pl.DataFrame,
) -> Iterator[Finding]:
    """Open MPI or its launcher says in a box what it could not do.

    Means: what the title says; the fields below name the hosts and the device. Some are advice, after which the job
    runs on another way. NCCL needs MPI only to start its processes: what MPI cannot use, NCCL may use.
    Not when: another finding names the daemon that did not start.
    Do: what the remedy says; --mca btl_base_verbose 100 shows what MPI tries.
    Sources: Open MPI 4.1 and 5: help-orterun.txt, help-orte-rmaps-base.txt, help-oob-tcp.txt, help-errmgr-base.txt,
    help-mpi-btl-tcp.txt, help-mpi-btl-openib.txt, help-mca-bml-r2.txt, help-common-ofi.txt.
    """
    if not mpi_daemon.filter(form="not_started").is_empty():
        mpi_launch = mpi_launch.filter(text_of("form") != "tcp")  # is the reason why the daemon did not start
    heads = pl.concat([mpi_launch, mpi_transport, mpi_advice], how="diagonal_relaxed")
    yield from _findings(heads, mpi_box_field, follow=False)


@rule(Category.PEER_LOST, Severity.WARNING, of=("mpi_launch", "mpi_transport"), hang=True, fallback=True)
def open_mpi_lost_a_peer(
    mpi_launch: pl.DataFrame, mpi_transport: pl.DataFrame, mpi_box_field: pl.DataFrame
) -> Iterator[Finding]:
    """Open MPI or its launcher lost a process or a daemon, and nothing else in these files says why.

    Means: the other end ended or was cut off; who reports it is not at fault.
    Not when: another finding states an error from which it follows; then this is left out.
    Do: look on the named host for what ended first.
    Sources: Open MPI 4.1 and 5: help-mpi-btl-tcp.txt, help-errmgr-base.txt.
    """
    heads = pl.concat([mpi_launch, mpi_transport], how="diagonal_relaxed")
    for finding in _findings(heads, mpi_box_field, follow=True):
        finding.about = [line for line in finding.evidence if not line.what]
        yield finding


def _findings(heads: pl.DataFrame, mpi_box_field: pl.DataFrame, *, follow: bool) -> Iterator[Finding]:
    """Yield a finding on each sentence at the beginning of boxes, with the fields below it.

    `follow`: only on those that follow from something else, or only on the others.
    """
    heads = heads.sort("source", "line")
    boxed = _boxed(mpi_box_field, heads)
    for (form,), alike in heads.group_by(text_of("form"), maintain_order=True):
        box, fields = BOXES[str(form)], _values(boxed.filter(sentence=form))
        if (box.role is Role.CONSEQUENCE) != follow:
            continue
        yield Finding(
            title=box.title.format_map(_texts(alike.row(0, named=True), fields)),
            detail=box.detail,
            certainty="certain",
            severity=box.severity,
            role=box.role,
            remedy=box.remedy,
            hosts=sorted({*fields["local_host"], *fields["remote_host"]}),
            evidence=[*evidence_lines(alike), *evidence_lines(boxed.filter(sentence=form))],
        )


def _boxed(mpi_box_field: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the fields with the form of the sentence above them in their box (column `sentence`)."""
    above = heads.sort("line").select("source", "line", sentence=text_of("form"), head="line")
    fields = mpi_box_field.sort("line").join_asof(above, on="line", by="source", check_sortedness=False)
    return fields.filter(pl.col("line") - pl.col("head") <= BOX_LINES)


def _within(fields: pl.DataFrame, source: int, first: int, last: int) -> pl.DataFrame:
    """Return the fields of one box."""
    return fields.filter((pl.col("source") == source) & pl.col("line").is_between(first, last))


def _values(fields: pl.DataFrame) -> dict[str, list[str]]:
    """Return the values of fields by their names, in the order of the lines."""
    return {name: fields[name].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list() for name in FIELDS}


def _tcp_text(fields: dict[str, list[str]]) -> str:
    """Return who could not connect to whom over TCP, and why."""
    local, peer = "".join(fields["local_host"][:1]), "".join((fields["connected_address"] or fields["remote_host"])[:1])
    reason = f": {fields['box_error'][0]}" if fields["box_error"] else ""
    text = f"{local or 'a process of MPI'} could not connect to {peer or 'another one'} over TCP{reason}"
    return text + "; that address is valid on one link only" * _is_link_local(peer)


def _is_link_local(address: str) -> bool:
    try:
        return ip_address(address.rpartition(":")[0]).is_link_local
    except ValueError:
        return False


def _texts(head: dict[str, object], fields: dict[str, list[str]]) -> dict[str, object]:
    """Return what stands for the names in the texts of a box."""
    first = {name: values[0] for name, values in fields.items() if values}
    local, remote, memlock = (first.get(name, "") for name in ("local_host", "remote_host", "memlock"))
    return {
        **head,
        "of_local": f" on {local}" if local else "",
        "from_local": f" from {local}" if local else "",
        "of_remote": f" on {remote}" if remote else "",
        "pair": f" on {local} and {remote}" if local and remote else "",
        "device": first.get("local_device", "a device"),
        "memlock_text": f" with a limit of locked memory of {memlock}" if memlock else "",
        "program": f" {first['executable']}" if "executable" in first else "",
        "status": f" with status {head['daemon_status']}" if head["daemon_status"] is not None else "",
        "tcp": _tcp_text(fields),
    }


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("mpi_box_edge",), hang=True, fallback=True, role=Role.CONTEXT)
def open_mpi_says_more(
    mpi_box_edge: pl.DataFrame,
    mpi_launch: pl.DataFrame,
    mpi_transport: pl.DataFrame,
    mpi_advice: pl.DataFrame,
    mpi_box_field: pl.DataFrame,
    process_end: pl.DataFrame,
    training_step: pl.DataFrame,
    stated_end: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """Open MPI, PRRTE or PMIx prints a message in a box, and no rule knows it.

    Means: what the cited lines say, whether it ends the job or is advice.
    Not when: a rule answers a line of the box; a verdict is decided; steps, or the end of the program, stand behind it.
    Do: read the whole box: its first sentence says what was tried, the fields below it name hosts, files and options.
    Sources: opal_show_help and pmix_show_help, which draw the edges; help-*.txt of Open MPI, PRRTE and OpenPMIx.
    """
    if (verdict["verdict"] != vocabulary.Kind.UNDECIDABLE).any() or stated_end.height:
        return
    edges = without_steps_behind(mpi_box_edge, training_step).select("source", "line").sort("source", "line")
    boxes = edges.with_columns(height=pl.col("line").shift(-1).over("source") - pl.col("line"))
    boxes = boxes.filter(pl.col("height").is_between(SHORTEST_BOX, BOX_LINES))
    heads = (mpi_launch, mpi_transport, mpi_advice, process_end)
    known = set(pl.concat([frame.select("source", "line") for frame in heads]).rows())
    last_edge = (None, 0)
    for source, line, height in boxes.rows():
        if (source, line) == last_edge:  # lies between two boxes
            continue
        last_edge = (source, line + height)
        lines = [Line(source, line + number) for number in range(1, height)]
        if known.intersection((inside.source, inside.line) for inside in lines):
            continue
        yield Finding(
            "Open MPI, PRRTE or PMIx prints a message that no rule knows",
            "it begins with the cited line",
            "certain",
            evidence=[*lines[:1], *evidence_lines(_within(mpi_box_field, source, line, line + height))],
            about=lines,
        )


@rule(Category.PEER_LOST, Severity.ERROR, of=("mpi_daemon", "job_end"), hang=True)
def mpirun_daemon_missing(
    mpi_daemon: pl.DataFrame,
    mpi_report: pl.DataFrame,
    job_end: pl.DataFrame,
    program_failure: pl.DataFrame,
    mpi_launch: pl.DataFrame,
    mpi_box_field: pl.DataFrame,
) -> Iterator[Finding]:
    """Mpirun could not start its daemon on a node, or lost it.

    Means: the daemon starts the ranks of its node and passes on what they print. Without it these ranks never start; if
    it is lost while the job runs, its node or the connection to it failed, and mpirun ends the job.
    Not when: the job went on.
    Do: ssh to that node from the one of mpirun; check its name (getent hosts NAME), the path of orted or prted there,
    and which interface both share (--mca oob_tcp_if_include, PRTE: --prtemca); if it was lost, read its kernel log.
    Sources: Open MPI, orte/mca/plm/base/help-plm-base.txt and prte's; ssh(1); mpi-operator#152.
    """
    named = mpi_daemon.filter(form="of_lost").sort("line")
    heads = job_end.filter(form="daemon_lost").select("source", head="line")
    named = named.join(heads, on="source").filter((pl.col("line") - pl.col("head")).is_between(1, NEAR_HOST))
    place = ("source", "line", "pos")
    named = pl.concat([mpi_daemon.filter(form="lost"), named], how="diagonal").select(*place, "daemon_host")
    lost = pl.concat([named, job_end.filter(form="daemon_lost").select(place)], how="diagonal").sort("pos")
    not_started = mpi_daemon.filter(form="not_started")
    failed = mpi_daemon.filter(text_of("form").is_in(["unresolved", "unreachable"])).sort("source", "line")
    hosts = sorted(failed["daemon_host"].cast(pl.String).unique().to_list())
    tcp = mpi_launch.filter(form="tcp")
    found = []
    if not lost.is_empty():
        nodes = sorted(lost["daemon_host"].cast(pl.String).drop_nulls().unique().to_list())
        title = f"mpirun lost its daemon on {', '.join(nodes[:SHOWN]) or 'a node'}"
        of_nodes = failed.filter(text_of("daemon_host").is_in(nodes))
        detail = (
            _ssh_report(of_nodes) or "the node, its daemon or the connection to it failed; mpirun then ends the job"
        )
        evidence = [*evidence_lines(of_nodes), *evidence_lines(lost)]
        found.append((lost["pos"][0], Finding(title, detail, "certain", hosts=nodes, evidence=evidence)))
    if not not_started.is_empty():
        where = f" on {', '.join(hosts[:SHOWN])}" if hosts else ""
        stated = statements_before(not_started, program_failure).tail(0 if hosts else 1)
        before = f"printed before it: {stated['statement'][0]}" if stated.height else ""
        starts = not_started.select("source", head="line")
        reported = (
            mpi_report.join(starts, on="source").filter(pl.col("line") < pl.col("head")).unique("pos").sort("pos")
        )
        if stated.is_empty() and not reported.is_empty():
            before = f"before it, Open MPI reports: {first_value(reported['mpi_reason'])}"
        if not tcp.is_empty():
            before = _tcp_text(_values(_boxed(mpi_box_field, tcp)))
        evidence = [
            *evidence_lines(failed),
            *evidence_lines(tcp),
            *evidence_lines(stated),
            *evidence_lines(not_started),
            *evidence_lines(reported),
        ]
        title = f"mpirun could not start its daemon{where}"
        finding = Finding(title, _ssh_report(failed) or before, "certain", hosts=hosts, evidence=evidence)
        found.append((not_started["pos"].min(), finding))
    yield from (finding for _, finding in sorted(found, key=itemgetter(0)))


def _ssh_report(failed: pl.DataFrame) -> str:
    return f"ssh reports: {failed['ssh_reason'].cast(pl.String)[0]}" if failed.height else ""


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("mpi_box",), hang=True)
def mpi_component_missing(mpi_box: pl.DataFrame) -> Iterator[Finding]:
    """MPI or PMIx could not open a component that it needs.

    Means: the library of the component is not installed on that host, or a library that it needs is not found there.
    Without it the process, or the connection to its launcher, mostly cannot start.
    Not when: the program then runs: another component took its place.
    Do: install the component on that host, or choose another one: for munge of psec, PMIX_MCA_psec=native; look with
    ldd at the library of the component, and compare with a host where it works.
    Sources: Open MPI and OpenPMIx, help-mca-base.txt; pyxis#88, pmix-standard#363.
    """
    rows = mpi_box.sort("source", "line")
    for head in rows.filter(form="component").unique("source", keep="first", maintain_order=True).to_dicts():
        below = rows.filter((pl.col("source") == head["source"]) & (pl.col("line") > head["line"])).head(NEAR_BOX)
        host, framework, name = (
            next(iter(below[column].cast(pl.String).drop_nulls()), "")
            for column in ("box_host", "framework", "component")
        )
        called = f"{name or 'one of its components'}{f' of the framework {framework}' * bool(framework)}"
        yield Finding(
            title=f"{f'{host}: ' * bool(host)}MPI or PMIx could not open {called}",
            detail="it is not installed there, or a library that it needs is not found",
            certainty="certain",
            hosts=[host] if host else [],
            evidence=evidence_lines(below.filter(form="name") if name else rows.filter(form="component")),
        )
