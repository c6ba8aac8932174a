"""The jobs with a known truth: incidents that ship, simulated jobs, and the logs beside the repository."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmark.judge import Truth
from benchmark.make_cases import drawn_plan, truth_of_plan
from ncclforensics.rules.finding import Category
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import RELEASES, FaultKind, Plan
from tests import real_logs
from tests.handlings import CALL, Logs, read_logs
from tests.incidents import ALL, Incident

SIMULATED = "simulated"
EMULATED = "NCCL on emulated GPUs"
GLOO = "PyTorch over gloo"
BY_HAND = "written by hand after the sources"
CAPTURED = "other jobs of ours"
PUBLIC = "public logs of others"


@dataclass(frozen=True, slots=True)
class Case:
    """One job: where its logs are, and what is true of it."""

    name: str
    source: str
    kind: str  # the fault of a simulated job, the verdict of others
    version: str  # of NCCL, two numbers; empty where it is not known
    truth: Truth | None  # None: only its findings are judged
    place: Path | Plan  # a folder, or what to simulate
    files: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()  # categories to be found
    forbidden: frozenset[str] = frozenset()  # categories not to be reported
    asks_check: bool = False  # nobody asks who is stuck
    named: frozenset[str] = frozenset()  # categories that may be named, beside those to be found

    @property
    def causes(self) -> frozenset[str]:
        """Categories of which the line of the cause may name one."""
        return self.expected | self.named

    @property
    def is_simulated(self) -> bool:
        """Whether the logs are written when they are needed."""
        return isinstance(self.place, Plan)


@lru_cache(maxsize=8)
def logs_of(case: Case) -> Logs:
    """The lines of all logs of a job."""
    if isinstance(case.place, Path):
        return read_logs(case.place, case.files)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(case.place, folder)
        return read_logs(folder, sorted(path.name for path in folder.iterdir()))


def simulated(versions: Iterable[str] = RELEASES, jobs: int = 2) -> list[Case]:
    """So many jobs of every fault and version of the simulator, and as many without a fault, drawn by their names."""
    cases = []
    for version in versions:
        for kind in (None, *FaultKind):
            for number in range(jobs):
                cases.append(_simulated(version, kind, number))
    return cases


def _simulated(version: str, kind: FaultKind | None, number: int) -> Case:
    fault_name = kind.value if kind else "none"
    name = f"{fault_name} {version} {number}"
    plan = drawn_plan(version, kind, random.Random(name))
    truth = truth_of_plan(plan)
    return Case(name, SIMULATED, fault_name, _two_numbers(version), truth, plan, asks_check=kind is None)


def shipped() -> list[Case]:
    """The incidents that ship with the program."""
    return [_shipped(incident) for incident in ALL]


def _shipped(incident: Incident) -> Case:
    case = incident.case
    verdict, culprits = case["truth"].get("verdict"), case["truth"].get("culprits")
    if culprits is None and verdict in ("no-hang", "undecidable"):
        culprits = []
    truth = None
    if verdict and culprits is not None and len(incident.truths) == 1:
        truth = Truth(frozenset({verdict}), (frozenset(culprits),))
    expected = frozenset({*case["expected_findings"], *case["expected_notes"]})
    return Case(
        incident.name, _origin(incident), verdict or "not judged", _two_numbers(case["nccl"]), truth, incident.folder,
        tuple(incident.logs), expected, frozenset(case["must_not_report"]), not incident.is_hang,
    )  # fmt: skip


def _origin(incident: Incident) -> str:
    origin = incident.case["origin"]
    if incident.case["synthetic"]:
        return BY_HAND
    if "emulated GPUs" in origin:
        return EMULATED
    return GLOO if "gloo" in origin else CAPTURED


def can_be_handled(case: Case) -> bool:
    """Whether the truth stays true whatever is done to the logs: several logs of NCCL, each of a rank of one job."""
    if case.truth is None or case.truth.verdicts & {"undecidable", "stuck-together"}:
        return False
    if case.is_simulated:
        return case.truth.is_visible
    return len(case.files) > 1 and all(_is_log_of_a_rank(name, lines) for name, lines in logs_of(case).items())


def _is_log_of_a_rank(name: str, lines: list[bytes]) -> bool:
    return re.fullmatch(r"nccl_rank\d+\.log", name) is not None and any(CALL.search(line) for line in lines)


def beside() -> list[Case]:
    """The logs beside the repository: none where they are absent."""
    cases = [_emulated(folder) for folder in real_logs.emulated()]
    cases += [_gloo(path.parent) for path in sorted(real_logs.CORPUS.glob("torch-gloo/*/case.json"))]
    cases += [_public(path.parent) for path in sorted(real_logs.CORPUS.glob("incidents/*/case.json"))]
    return cases + [_healthy(path) for path in real_logs.quiet() if path.is_file()]


def _files(folder: Path) -> tuple[str, ...]:
    return tuple(path.relative_to(folder).as_posix() for path in real_logs.logs(folder))


def _emulated(folder: Path) -> Case:
    facts, scenario = real_logs.case(folder)["truth"], real_logs.scenario(folder)
    truth: Truth | None = None
    verdicts: set[str] = set()
    if not scenario.startswith(real_logs.NOT_JUDGED):
        verdicts = real_logs.verdicts(scenario, facts)
        is_fault = verdicts.isdisjoint({"no-hang", "undecidable"})
        accepted = facts.get("culprits_accepted") or [facts.get("culprit_ranks") or []] if is_fault else [[]]
        truth = Truth(frozenset(verdicts), tuple(map(frozenset, accepted)))
    version = _two_numbers(folder.name.split("-")[0].removeprefix("v"))
    kind = min(verdicts, default="not judged")
    return Case(folder.name, EMULATED, kind, version, truth, folder, _files(folder), asks_check=verdicts == {"no-hang"})


def _gloo(folder: Path) -> Case:
    facts = real_logs.case(folder)["truth"]
    verdict = facts["verdict"]
    verdicts = {verdict, "undecidable"} if verdict == "no-hang" else {verdict}
    truth = Truth(frozenset(verdicts), (frozenset(facts["culprits"]),), facts["decidable"])
    return Case(
        folder.name, GLOO, verdict, "", truth, folder, _files(folder), forbidden=_categories(facts["never"]),
        named=_categories(facts["names"]),
    )  # fmt: skip


def _public(folder: Path) -> Case:
    """Only the labels that are categories of the program are judged; other labels are words of their own."""
    facts = real_logs.case(folder)
    expected = _categories(facts.get("expected_findings", []))
    forbidden = _categories(facts.get("must_not_report", []))
    version = _two_numbers(facts.get("nccl_version"))
    return Case(
        folder.name, PUBLIC, "not judged", version, None, folder, _files(folder), expected, forbidden, asks_check=True
    )


def _healthy(path: Path) -> Case:
    truth = Truth(frozenset({"no-hang", "undecidable"}))
    return Case(path.name, PUBLIC, "no-hang", "", truth, path.parent, (path.name,), asks_check=True)


def _categories(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(labels) & set(Category)


def _two_numbers(version: str | None) -> str:
    found = re.match(r"v?(\d+\.\d+)", version or "")
    return found[1] if found else ""
