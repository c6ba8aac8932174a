"""What it is worth that nothing was found: whether rules judge such lines, and what none of them can judge."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.job.text.program_failures import STATED, stated_mildly
from ncclforensics.data.busbw import LARGE_MESSAGE
from ncclforensics.data.names import bytes_text, count_of, pci_address, printable, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.grammar_file import load
from ncclforensics.grammar.meanings import ANSWERED
from ncclforensics.report.build import Report
from ncclforensics.report.without_job import health
from ncclforensics.rules.finding import Category
from ncclforensics.rules.registry import all_rules
from ncclforensics.rules.shared.port_text import ports_by_node
from ncclforensics.views.text_benchmarks import decisive_runs, expected
from ncclforensics.views.text_counters import congestion_and_errors
from ncclforensics.views.text_layout import STYLE, UNSEEN, indented
from ncclforensics.views.text_unread import STATED_BY_PROGRAM

SPEED = (
    "Not judged: how fast {tests} should be there. Compare with other hosts of this kind (ncclforensics diff), or set "
    "what they should reach (busbw in the configuration)."
)
SMALL = "Not judged: the bandwidth of the link, which messages as small as those of {tests} do not show."
PAIRS = "Not judged: whether such links should be faster; equal ones are only compared with each other."
NEEDS_OTHERS = (
    "No rule judges such lines by themselves. Give them together with logs, counters or dumps of the same hosts."
)
NO_FAILURE = " No word of a failure was read in them, nor in a line around them."
NO_FIGURES = (
    "Not judged: {rows} of nccl-tests with no figure of a bandwidth, such as a template with XXX in its columns."
)
NO_PEER_ACCESS = {  # of nvidia-smi topo -p2p
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a registry key of the driver",
}
UP, DOWN = ("up", "active"), ("down",)  # states of links in the kernel's log
MOST_TESTS = 3  # named
OF_JOBS = {"nccl-log", "pytorch-log", "nccl-tests"}  # kinds of input
MOST_SUBJECTS = 3
ENDED_BY_REQUEST = ("torchrun-told-to-end", "app-told-to-end")
MOST_RULES = 3  # named; of more, the number says that much was looked at
SURROUNDING = ("collected",)  # grammars of what stands around the output of any tool
OF_KERNEL = ("kernel_line", "driver_statement", "kernel_report", "hardware_event", "nic_driver")
KERNEL = "The kernel's log: none of its lines reports a fault that a rule knows."
STATES_NONE = "Such lines state faults by themselves; none was read in these."
STEPS = "Not judged: whether the steps are slow (ncclforensics slow)."
UNKNOWN = "No line is of a known format: nothing is known of what these files show."
QUOTED = "No line is of a known format: of what these files show, only what the notes below quote is known."
MILDLY_STATED = (
    "No line is of a known format, and none has the level of an error; words of a failure stand in {lines}, at the "
    "level of a warning or below."
)
NOTHING_STATED = "No line is of a known format, and in none a word of a failure or the level of an error was read."
NOT_ALONE = "No rule judges the lines that are known by themselves, and no other line was read as that of a failure."


def without_findings(report: Report) -> list[RenderableType]:
    """Say that there is no finding, how many rules looked for one, and what they cannot judge."""
    noting = {note.rule for note in report.findings}
    of_faults = (
        rule
        for rule in all_rules()  # others answer what none of these does, or say what is missing
        if not (rule.last or (rule.fallback and rule.name not in noting))
        and rule.category is not Category.INCOMPLETE_EVIDENCE
    )
    looking = [rule.name for rule in of_faults if _looks(report, *rule.of)]
    well = "" if report.verdicts else health(report.run, report.findings)
    if not (looking or well):
        reason = _why_not(report)
        is_judged = reason in (KERNEL, STATES_NONE)
        head = Text("\nno findings", STYLE["no-hang"]) if is_judged else Text("\nnot judged", STYLE["warning"])
        return [head, *(indented(Text(sentence)) for sentence in [*_subjects(report), *_shown(report), reason])]
    noted = " but what the notes below say" * any(note.rule not in UNSEEN for note in report.findings)
    named = f" ({', '.join(looking)})" * (len(looking) <= MOST_RULES)
    looked = f"{count_of(len(looking), 'rule')} looked at these lines and found no fault{noted}{named}."
    found = [f"{well[0].upper()}{well[1:]}."] if well else [*_told_to_end(report), *_subjects(report), looked]
    sentences = [*found, *_shown(report), *_open(report), *_next(report)]
    return [Text("\nno findings", style=STYLE["no-hang"]), *(indented(Text(sentence)) for sentence in sentences)]


def _told_to_end(report: Report) -> list[str]:
    """Say that the job did not end by itself, where that is all that is known of its end."""
    notes = (note for note in report.findings if note.rule in ENDED_BY_REQUEST)
    return [f"The job was ended: {note.title}." for note in notes][:1]


def _shown(report: Report) -> list[str]:
    """Say what lines show that have no table of their own."""
    return [*_zero(report), *_memory(report), *_links(report), *_peer_access(report)]


def _memory(report: Report) -> list[str]:
    """Say that the kernel counts no error of memory, where all its counts are zero."""
    counts = report.run["edac_count"]
    listed = report.run["ras_count"]
    zeros = [frame.filter(text_of("form") == "zero") for frame in (counts, listed)]
    if not (zeros[0].height or zeros[1].height) or counts["edac_errors"].count() or listed["ras_corrected"].count():
        return []
    owners = zeros[0].select(text_of("controller")).to_series().unique().sort().to_list()
    modules = zeros[1].select(text_of("ras_module")).to_series().to_list()
    number = count_of(zeros[0].height + 2 * zeros[1].height, "counter")
    return [f"Errors of memory that EDAC counts: {number} of {some_of([*owners, *modules], MOST_SUBJECTS)}, all zero."]


def _links(report: Report) -> list[str]:
    """Name the links that the kernel's log last shows up, how often they went down before, and NICs that started."""
    state = pl.col("state").cast(pl.String).str.to_lowercase()
    changes = report.run["kernel_event"].filter(pl.col("form").cast(pl.String).is_in(["link", "port"]))
    links = changes.group_by("source", "node", "netdev", maintain_order=True).agg(
        is_up=state.last().is_in(UP), downs=state.is_in(DOWN).sum()
    )
    names = [
        f"{netdev}{f' (went down {downs}x before)' * bool(downs)}"
        for netdev, downs in links.filter("is_up").select("netdev", "downs").iter_rows()
    ]
    up = [f"Last read as up: {printable(some_of(names, MOST_SUBJECTS))}."] if names else []
    starts = report.run["kernel_report"].filter(text_of("form") == "pci_link").unique("busid", maintain_order=True)
    nics = [f"{pci_address(row['busid'])} ({row['pci_gbps']} Gb/s: {row['pci_link']})" for row in starts.to_dicts()]
    return [*up, *([f"PCIe of devices that started: {printable(some_of(nics, MOST_SUBJECTS))}."] if nics else [])]


def _peer_access(report: Report) -> list[str]:
    """Say that GPUs have no peer access, and why, where nvidia-smi shows it."""
    cells = report.run["device_pair"].filter(pl.col("table").str.starts_with("p2p"))
    refused = cells.filter(pl.col("path").is_in(list(NO_PEER_ACCESS)))
    reasons = refused["path"].unique(maintain_order=True).to_list()
    why = "; ".join(f"{reason}: {NO_PEER_ACCESS[reason]}" for reason in reasons)
    return [f"No peer access in {refused.height} of {cells.height} directions between GPUs ({why})."] if reasons else []


def _zero(report: Report) -> list[str]:
    """Say that all counters of errors and congestion are zero, where they are."""
    counters = congestion_and_errors(report)
    if counters.is_empty() or counters.filter((pl.col("value") != 0).fill_null(value=True)).height:
        return []
    ports = count_of(counters["key"].n_unique(), "port")
    return [f"{count_of(counters.height, 'counter')} of errors and congestion of {ports}, all zero."]


def _next(report: Report) -> list[str]:
    """Return what the first note on incomplete evidence advises."""
    notes = (note for note in report.findings if note.category is Category.INCOMPLETE_EVIDENCE)
    remedies = (note.remedy for note in notes if note.rule not in UNSEEN and note.remedy)
    return [f"For what the notes leave open: {remedy.removesuffix('.')}." for remedy in remedies][:1]


def _why_not(report: Report) -> str:
    if report.run.has("timed_step"):
        return STEPS
    unread = report.run["unread_error"]
    stated = unread.filter(text_of("form").is_in(STATED))
    if stated.is_empty() and not OF_JOBS & set(report.run.kinds.values()) and _can_state(report):
        return STATES_NONE
    mild = stated_mildly(unread)
    if report.run.kinds or _subjects(report):
        is_silent = stated.is_empty() and mild.is_empty() and "pytorch-log" in report.run.kinds.values()
        return NEEDS_OTHERS + NO_FAILURE * is_silent
    is_quoted = any(note.rule == STATED_BY_PROGRAM for note in report.findings)
    if _looks(report, *OF_KERNEL) and (not is_quoted or report.run["program_failure"]["is_of_kernel"].all()):
        return KERNEL
    if is_quoted:
        return QUOTED
    if stated.is_empty() and not mild.is_empty():
        return MILDLY_STATED.format(lines=count_of(mild.height, "line"))
    if _knows_lines(report):
        return NOT_ALONE
    return NOTHING_STATED if stated.is_empty() else UNKNOWN


def _knows_lines(report: Report) -> bool:
    return bool(report.run.inputs) and report.run.tally["recognised"].sum() > 0


def _can_state(report: Report) -> bool:
    """Whether lines were read of a shape of a tool that states failures or conditions in other forms than theirs."""
    dialect = report.run.dialect
    of_jobs = {shape.grammar for shape in dialect.shapes}
    of_tools = (shape for shape in dialect.with_all_formats.shapes if shape.grammar not in of_jobs)
    shapes = (shape for shape in of_tools if report.run.has(shape.frame))
    meanings = (load(shape.grammar).meanings.get(shape.frame, {}) for shape in shapes)
    return any(meaning.kind in ANSWERED for of_forms in meanings for meaning in of_forms.values())


def _subjects(report: Report) -> list[str]:
    """Say what lines these are, where none is of a job: its lines need no introduction."""
    if report.verdicts or OF_JOBS & set(report.run.kinds.values()):
        return []
    dialect = report.run.dialect
    of_jobs = {shape.grammar for shape in dialect.shapes}
    shapes = [shape for shape in dialect.with_all_formats.shapes if shape.grammar not in of_jobs]
    grammars = dict.fromkeys(shape.grammar for shape in shapes if report.run.has(shape.frame))
    subjects = [load(name).subject for name in grammars if name not in SURROUNDING]
    return [f"Read: {subject}." for subject in subjects[:MOST_SUBJECTS]]


def _looks(report: Report, *frames: str) -> bool:
    return any(report.run.has(frame) for frame in frames)


def _open(report: Report) -> list[str]:
    """Return a sentence for each question that no rule can decide, and what would decide it."""
    run = report.run
    runs = decisive_runs(run["benchmark_sweep"])
    down = (
        run["port_state"]
        .filter(pl.col("state") == "down", pl.col("device").is_null())  # of hosts there is a note
        .unique(["guid", "port", "node", "lid"], maintain_order=True)
    )
    which = f"{ports_by_node(down, MOST_SUBJECTS)}, which {'is' if down.height == 1 else 'are'} down,"
    ports = f"Not judged: whether {which} should be up. Give the log of a job there, or an earlier dump, too."
    tests = list(dict.fromkeys(row["collective"] or "a test" for row in runs if not expected(row)))
    links = run["link_measurement"].drop_nulls(["bandwidth_GBps", "size"])
    largest = links.group_by("test", maintain_order=True).agg(pl.col("size").max())
    small = [
        f"{test or 'a test'} (up to {bytes_text(size)})"
        for test, size in largest.filter(pl.col("size") < LARGE_MESSAGE).iter_rows()
    ]
    empty = int(run["benchmark_sweep"].filter((pl.col("rows") > 0) & pl.col("max_busbw").is_null())["rows"].sum())
    return [
        *([NO_FIGURES.format(rows=count_of(empty, "row"))] if empty else []),
        *([STEPS] if run.has("timed_step") else []),
        *([SPEED.format(tests=some_of(tests, MOST_TESTS))] if tests else []),
        *([SMALL.format(tests=some_of(small, MOST_TESTS))] if small else []),
        *([PAIRS] if not runs and _looks(report, "gpu_pair", "link_measurement") else []),
        *([ports] if down.height else []),
    ]
