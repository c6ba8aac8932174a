"""Every kind of failure that public studies count has a case, or a reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark import ras_reports, recorder_dumps
from ncclforensics.rules.registry import all_rules
from ncclforensics.simulate.fabric import FabricFault
from ncclforensics.simulate.plan import FaultKind
from ncclforensics.simulate.slow import SlowFault
from tests.accuracy.coverage import incidents_of, page, studies
from tests.incidents import ALL, ROOT

KINDS = [(study["name"], kind) for study in studies() for kind in study["kinds"]]
SIMULATED = {
    *(f"hang/{kind}" for kind in FaultKind),
    *(f"dumps/{kind}" for kind in recorder_dumps.SHOWN),
    *(f"ras/{kind}" for kind in ras_reports.SHOWN),
    *(f"slow/{kind}" for kind in SlowFault),
    *(f"fabric/{kind}" for kind in FabricFault),
}


@pytest.mark.parametrize(("study", "kind"), KINDS, ids=[f"{study}: {kind['name']}" for study, kind in KINDS])
def test_each_kind_of_failure_has_a_case_or_a_reason(study: str, kind: dict[str, Any]) -> None:
    assert set(kind.get("rules", ())) <= {rule.name for rule in all_rules()}
    assert set(kind.get("simulated", ())) <= SIMULATED
    assert set(kind.get("incidents", ())) <= {incident.name for incident in ALL}
    assert kind.get("missing") or incidents_of(kind), f"{study}: no incident shows it"


def test_the_page_counts_the_cases(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "coverage.md"
    if request.config.getoption("--update"):
        path.write_text(page(), encoding="utf-8")

    assert path.read_text(encoding="utf-8") == page()
