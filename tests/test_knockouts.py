"""An incident fails without any rule, and where it always speaks; how many of them the labels of incidents notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclforensics.rules import registry, running
from ncclforensics.rules.finding import Finding
from ncclforensics.rules.registry import Rule
from tests.budget import IS_FULL
from tests.incidents import ALL, ROOT, Incident, checked

BESIDE_ANOTHER = 74  # rules that no incident shows without another one of their category; may only fall
RULES = registry.all_rules()
every_rule = pytest.mark.parametrize("one", RULES if IS_FULL else RULES[::48], ids=lambda one: one.name)


def _size(incident: Incident) -> int:
    return sum((incident.folder / log).stat().st_size for log in incident.logs)


def _smallest(incidents: Iterator[Incident]) -> Incident:
    return min(incidents, key=lambda incident: (_size(incident), incident.name))


def _speaking(incident: Incident, rules: list[Rule]) -> set[str]:
    return {finding.rule for finding in running.run_rules(checked(incident).report.run, rules)}


def _noticed_by_labels() -> set[str]:
    """The rules without which an incident lacks a category that it is labelled with."""
    found = set()
    for incident in ALL:
        for label in (*incident.case["expected_findings"], *incident.case["expected_notes"]):
            speaking = [one.name for one in RULES if one.category == label and one.name in incident.rules]
            if len(speaking) == 1:
                found.add(speaking[0])
    return found


def _that_finds(one: Rule, *found: Finding) -> Rule:
    """The rule, which finds this instead, whatever the frames hold."""

    def instead() -> Iterator[Finding]:
        yield from found

    instead.__module__ = one.function.__module__  # imported, so that it does not register its rules a second time
    return one._replace(imported=instead, of=())


@pytest.mark.slow
@every_rule
def test_an_incident_fails_without_the_rule(one: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = _smallest(incident for incident in ALL if one.name in incident.rules)

    # Not left out: a line that no rule asked for answers is looked at by those that were not.
    monkeypatch.setitem(registry._RULES, one.name, _that_finds(one))

    assert _speaking(incident, list(registry.all_rules())) != incident.rules


@pytest.mark.slow
@every_rule
def test_an_incident_fails_where_the_rule_always_speaks(one: Rule) -> None:
    incident = _smallest(incident for incident in ALL if one.category in incident.case["must_not_report"])

    loud = _that_finds(one, Finding("title", "detail", "certain"))._replace(fallback=False, last=False)
    rules = [loud if one is other else other for other in RULES]

    assert one.name in _speaking(incident, rules) - incident.rules


def test_labels_notice_the_absence_of_all_rules_but_those_that_stand_beside_another() -> None:
    unnoticed = sorted({one.name for one in RULES} - _noticed_by_labels())

    assert len(unnoticed) <= BESIDE_ANOTHER, f"an incident of its own for one of {unnoticed}"
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert f"of all rules but {BESIDE_ANOTHER}" in text
