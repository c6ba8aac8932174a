"""True evidence of another kind takes no right answer away, and accuses no innocent rank."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from tests.budget import examples
from tests.other_sources import SOURCES, see
from tests.test_conflicting_evidence import hang
from tests.test_generated_runs import sizes

# Faults after which the ranks stand in a known place: the stacks tell the truth.
KINDS = (
    FaultKind.LAGGING,
    FaultKind.KILLED,
    FaultKind.RECV_NEVER_POSTED,
    FaultKind.SKIPPED_CALL,
    FaultKind.OTHER_COUNT,
)
OPEN = ("undecidable", "no-hang")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kind = draw(st.sampled_from(KINDS))
    several = 2 if kind in (FaultKind.LAGGING, FaultKind.KILLED) else 1
    ranks = draw(st.sets(st.integers(0, 7), min_size=1, max_size=several))
    communicators = {FaultKind.RECV_NEVER_POSTED: ["pp"], FaultKind.SKIPPED_CALL: ["tp"]}
    return Plan(
        gpus_per_node=4,
        tp=2,
        pp=2,
        **sizes(draw, layers=2, steps=4),
        finish=draw(st.sampled_from([Finish.KILLED, Finish.ABORTED])),
        fault=Fault(kind, tuple(sorted(ranks)), draw(st.sampled_from(communicators.get(kind, ["world", "tp", "pp"])))),
    )


@given(plans(), st.sets(st.sampled_from(SOURCES), min_size=1), st.booleans())
@examples(4)
def test_true_evidence_of_another_kind_leaves_a_right_answer(plan: Plan, sources: set[Any], shows_calls: bool) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            truth = generate(plan, folder)
        except ValueError:  # the rank makes no such call
            assume(False)
        seen = see(truth, folder)
        for log in folder.glob("nccl_rank*.log") if not shows_calls else ():
            log.write_text(
                "".join(line for line in log.read_text().splitlines(keepends=True) if " opCount " not in line)
            )
        alone = hang(folder)
        for source in sources:
            for file, text in source(seen).items():
                (folder / file).write_text(text)

        found = hang(folder)

    guilty = {*truth.at_fault, *truth.culprits}
    # Of two ranks that wait for each other in messages, calls alone may not tell which is at fault.
    possible = {*alone["culprits"]} if alone["certainty"] == "possible" else set()
    assert {*found["culprits"]} <= guilty | possible
    assert found["verdict"] == truth.verdict or found["verdict"] in OPEN or found["certainty"] != "certain"
    if {*alone["culprits"]} == guilty:
        assert {*found["culprits"]} == guilty
