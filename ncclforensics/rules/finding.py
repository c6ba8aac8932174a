"""Findings: what a rule reports, with category, severity, certainty, role, and the lines that prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from operator import index

from ncclforensics.data.names import CERTAINTIES, printable


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


@dataclass(slots=True)
class Finding:
    """What a rule reports. The registry fills in `rule`, and `category`, `severity` and `remedy` if they are empty."""

    title: str
    detail: str
    certainty: str
    ranks: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
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


def checked(finding: object) -> Finding:
    """Return a finding that a report can hold. Raises TypeError or ValueError, so that a wrong one costs its rule."""
    if not isinstance(finding, Finding):
        raise TypeError(f"a rule yields findings, not {type(finding).__name__}")
    texts = (finding.title, finding.detail, finding.remedy, *finding.hosts, finding.communicator or "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("title, detail, remedy, hosts and communicator of a finding are texts")
    if not all(isinstance(line, Line) for line in (*finding.evidence, *finding.about)):
        raise TypeError("evidence of a finding consists of lines")
    if finding.certainty not in CERTAINTIES:
        raise ValueError(f"{finding.certainty} is no certainty; there are {', '.join(CERTAINTIES)}")
    finding.title, finding.detail, finding.remedy = map(_readable, (finding.title, finding.detail, finding.remedy))
    finding.ranks = [index(rank) for rank in finding.ranks]
    finding.role = Role(finding.role)
    finding.severity = None if finding.severity is None else Severity(finding.severity)
    finding.category = None if finding.category is None else Category(finding.category)
    return finding


def _readable(text: str) -> str:
    """Replace what a terminal would interpret, but ends of lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
