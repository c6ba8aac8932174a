"""Findings: what a rule reports, with category, severity, certainty, role, and the lines that prove it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import index
from typing import NamedTuple, Protocol

from ncclforensics.data.names import CERTAINTIES, printable

MOST_NUMBER = (1 << 31) - 1  # of a line and of a rank


class Category(StrEnum):
    """What a finding is about: the categories of the contract that rules use."""

    COLLECTIVE_MISMATCH = "collective-mismatch"
    LAGGING_RANK = "lagging-rank"
    HANG = "hang"
    MISSING_RANK = "missing-rank"
    INIT_FAILURE = "init-failure"
    DUPLICATE_GPU = "duplicate-gpu"
    PEER_LOST = "peer-lost"
    TIMEOUT = "timeout"
    INCOMPLETE_EVIDENCE = "incomplete-evidence"
    SOCKET_FALLBACK = "socket-fallback"
    NET_PLUGIN = "net-plugin"
    GDR_MISSING = "gdr-missing"
    CHANNEL_UNDERCOUNT = "channel-undercount"
    BOOTSTRAP = "bootstrap"
    IB_ERROR = "ib-error"
    MEMORY_REGISTRATION = "memory-registration"
    CUDA_ERROR = "cuda-error"
    OOM = "oom"
    SHM = "shm"
    P2P = "p2p"
    NVLS = "nvls"
    VERSION_MISMATCH = "version-mismatch"
    TOPOLOGY = "topology"
    PLACEMENT = "placement"
    ENVIRONMENT = "environment"
    STRAGGLER = "straggler"
    LINK_ERROR = "link-error"
    LINK_DEGRADED = "link-degraded"
    CONGESTION = "congestion"
    BENCHMARK_SLOW = "benchmark-slow"
    BENCHMARK_WRONG = "benchmark-wrong"
    APPLICATION_ERROR = "application-error"


class Severity(StrEnum):
    """How severe a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Role(StrEnum):
    """Whether a finding is a cause, follows from one, or is context."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    CONTEXT = "context"


Nic = tuple[str, str, int | None]  # host as it is printed, device, and its port where that is known
# In a title: the sentence of the warning that is the first line of evidence. Text is read when a report is built.
QUOTED_WARNING = "{warning}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of evidence: the number of the source and of the line, and a label."""

    source: int
    line: int
    what: str = ""

    def __post_init__(self) -> None:
        """Raise TypeError for a number that is null, so that it costs the rule alone and not the report."""
        index(self.source), index(self.line)


class Placed(Protocol):
    """What has the place of a line: a line of evidence, of a finding or of an answer."""

    @property
    def source(self) -> int:
        """Number of the input."""

    @property
    def line(self) -> int:
        """Number of the line in it."""


def places_of(lines: Iterable[Placed]) -> set[tuple[int, int]]:
    """Return the lines as numbers of sources and of lines, whatever their labels: to ask which of them others share."""
    return {(line.source, line.line) for line in lines}


@dataclass(slots=True)
class Finding:
    """What a rule reports. The registry fills in `rule`, and category, severity, role and remedy if they are empty."""

    title: str
    detail: str
    certainty: str
    ranks: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    nics: set[Nic] = field(default_factory=set)  # all ports that it is about; empty where one of them is not known
    communicator: str | None = None
    job: int | None = None  # number of the job whose verdict the finding describes
    role: Role = Role.CAUSE
    evidence: list[Line] = field(default_factory=list)
    remedy: str = ""
    severity: Severity | None = None
    category: Category | None = None
    rule: str = ""
    explains: bool = True  # it says what the lines it cites mean, not only how many there are
    about: list[Line] = field(default_factory=list)  # all lines that a finding of a fallback rule is about
    place: str = ""  # in the program: the call that raised, with file and line
    is_elsewhere: bool = False  # it concerns no job: another host, or another time; the report fills it in


class Known(NamedTuple):
    """What the findings of a run may name."""

    sources: int  # so many inputs there are
    jobs: Container[int]  # with a verdict
    world_size: int | None = None  # None: any rank


def checked(finding: object, known: Known) -> Finding:
    """Return a finding that a report can hold. Raises TypeError or ValueError, so that a wrong one costs its rule."""
    if not isinstance(finding, Finding):
        raise TypeError(f"a rule yields findings, not {type(finding).__name__}")
    texts = (
        finding.title, finding.detail, finding.remedy, finding.place, *finding.hosts, finding.communicator or "",
    )  # fmt: skip
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("title, detail, remedy, place, hosts and communicator of a finding are texts")
    lines = (*finding.evidence, *finding.about)
    if not all(isinstance(line, Line) for line in lines):
        raise TypeError("evidence of a finding consists of lines")
    for line in lines:
        if not (0 <= line.source < known.sources and abs(line.line) <= MOST_NUMBER):
            raise ValueError(
                f"it cites line {line.line} of source {line.source}, and there are {known.sources} sources"
            )
    if finding.job is not None and finding.job not in known.jobs:
        raise ValueError(f"it describes the verdict of job {finding.job}, and there is none")
    if finding.certainty not in CERTAINTIES:
        raise ValueError(f"{finding.certainty} is no certainty; there are {', '.join(CERTAINTIES)}")
    finding.title, finding.detail, finding.remedy = map(_readable, (finding.title, finding.detail, finding.remedy))
    finding.evidence = [
        line if line.what.isprintable() else replace(line, what=printable(line.what)) for line in finding.evidence
    ]
    finding.hosts = [_readable(host) for host in finding.hosts]
    finding.communicator = None if finding.communicator is None else _readable(finding.communicator)
    finding.ranks = [index(rank) for rank in finding.ranks]
    finding.nics = {(str(host), str(nic), None if port is None else index(port)) for host, nic, port in finding.nics}
    if wrong_ranks := [rank for rank in finding.ranks if not 0 <= rank <= MOST_NUMBER]:
        raise ValueError(f"{wrong_ranks[0]} is no rank")
    if known.world_size is not None and max(finding.ranks, default=0) >= known.world_size:
        raise ValueError(f"it names rank {max(finding.ranks)} of {known.world_size}")
    finding.role = Role(finding.role)
    finding.severity = None if finding.severity is None else Severity(finding.severity)
    finding.category = None if finding.category is None else Category(finding.category)
    return finding


def _readable(text: str) -> str:
    """Replace what a terminal would interpret, but ends of lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
