"""What holds for every rule: it is documented, shown by an incident, and kept silent by another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.data.names import sentence
from ncclforensics.frames.protocol import call, call_with
from ncclforensics.rules import registry, running
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import HEADINGS, Rule, rule
from tests.budget import IS_FULL
from tests.incidents import ALL, INCIDENTS, ROOT, Incident, checked

every_rule = pytest.mark.parametrize("one", registry.all_rules(), ids=lambda one: one.name)


def test_every_rule_documents_meaning_exceptions_remedy_and_sources() -> None:
    for one in registry.all_rules():
        assert [heading for heading in HEADINGS if one.section(heading)] == list(HEADINGS), one.name
        assert one.page.splitlines()[0].endswith("."), one.name


def test_every_rule_is_shown_by_an_incident() -> None:
    shown = {
        (name, category)
        for incident in ALL
        for name in incident.rules
        for category in (*incident.case["expected_findings"], *incident.case["expected_notes"])
    }

    assert [one.name for one in registry.all_rules() if (one.name, one.category) not in shown] == []


def test_every_rule_is_forbidden_by_an_incident() -> None:
    for one in registry.all_rules():
        forbidding = [incident for incident in ALL if one.category in incident.case["must_not_report"]]

        assert forbidding, one.name
        assert [incident.name for incident in forbidding if one.name in incident.rules] == [], one.name


@pytest.mark.slow
@pytest.mark.parametrize("incident", ALL if IS_FULL else ALL[::12], ids=lambda incident: incident.name)
def test_a_skipped_rule_would_have_no_finding(incident: Incident) -> None:
    run = checked(incident).report.run

    for one in registry.all_rules():
        if call(run, one) is None:
            assert list(call_with(run, one.function)) == [], one.name


def test_every_category_is_expected_by_one_incident_and_forbidden_by_another() -> None:
    expected = {c for i in ALL for c in (*i.case["expected_findings"], *i.case["expected_notes"])}
    forbidden = {c for i in ALL for c in i.case["must_not_report"]}

    assert expected == forbidden == set(Category)


def test_names_are_slugs_and_unique() -> None:
    names = [one.name for one in registry.all_rules()]

    assert len(names) == len(set(names))
    assert all(name == name.lower() and "_" not in name for name in names)


def test_a_second_rule_of_one_name_is_refused() -> None:
    taken = registry.all_rules()[0].function

    with pytest.raises(ValueError, match=r"two rules are named .*: ncclforensics\.rules"):
        rule(Category.HANG, Severity.ERROR)(taken)


def test_a_finding_gets_what_the_rule_left_out() -> None:
    first = registry.all_rules()[0]

    @wraps(first.function)
    def findings() -> Iterator[Finding]:
        yield Finding("title", "detail", "certain")

    (finding,) = running.run_rules(checked(ALL[0]).report.run, [first._replace(imported=findings, of=())])

    assert (finding.rule, finding.category, finding.severity) == (first.name, first.category, first.severity)
    assert finding.remedy == first.section("Do")


@pytest.mark.parametrize(("many", "left"), [(running.MOST_FINDINGS, []), (100_000, ["more than 256 findings"])])
def test_a_rule_with_too_many_findings_is_stopped_and_named(many: int, left: list[str]) -> None:
    asked = []

    def findings() -> Iterator[Finding]:
        for number in range(many):
            asked.append(number)
            yield Finding(f"condition {number}", "detail", "certain")

    first = registry.all_rules()[0]
    found = running.run_rules(checked(ALL[0]).report.run, [first._replace(imported=findings, of=())])

    others = [finding.title for finding in found if not finding.title.startswith("condition")]
    assert others == [f"{text} of the rule {first.name}" for text in left]
    assert len(found) - len(others) == running.MOST_FINDINGS
    assert len(asked) <= running.MOST_FINDINGS + 1  # the others are not even computed


@pytest.mark.parametrize("of_failures", [True, False])
def test_a_rule_of_failures_is_not_asked_of_a_job_that_ended_well(*, of_failures: bool) -> None:
    def findings() -> Iterator[Finding]:
        yield Finding("a failure", "in detail", "certain", category=Category.INCOMPLETE_EVIDENCE)

    one = registry.all_rules()[0]._replace(imported=findings, of=(), of_failures=of_failures)
    ended_well, hung = (
        running.run_rules(analyze([str(INCIDENTS / name)]).run, [one])
        for name in ("a-healthy-run", "one-rank-stops-before-an-allreduce")
    )

    assert (len(ended_well), len(hung)) == (int(not of_failures), 1)


@every_rule
def test_the_page_of_a_rule_is_its_docstring(one: Rule, golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "rules" / f"{one.name}.md", _page(one))


def test_there_is_no_page_without_a_rule() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")}

    assert pages == {one.name for one in registry.all_rules()}


def _page(one: Rule) -> str:
    texts = {heading: one.section(heading) for heading in HEADINGS}
    texts |= {heading: sentence(text) for heading, text in texts.items() if heading != "Sources"}
    sections = [f"## {heading}\n\n{text}\n" for heading, text in texts.items()]
    facts = f"Category `{one.category}`, severity `{one.severity}`.\n"
    return "\n".join([f"# {one.name}\n", one.page.splitlines()[0] + "\n", facts, *sections])


def test_a_warning_is_shown_though_a_rule_cites_it_as_the_place_where_a_rank_stands(tmp_path: Path) -> None:
    begin = "n1:{pid}:{pid} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    warning = "n1:12:12 [0] a.cc:1 NCCL WARN Something terrible happened\n"
    (tmp_path / "rank0.log").write_text(begin.format(pid=12) + warning)
    (tmp_path / "rank2.log").write_text(begin.format(pid=14))
    report = analyze([str(tmp_path)], everything=True)

    assert {finding.rule for finding in report.findings} >= {"boot-rank-missing", "warn-unexplained"}


def test_the_warning_whose_error_init_returned_is_a_finding_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "n1:12:12 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
        "n1:12:40 [0] a.cc:1 NCCL WARN Something terrible happened\n"
        "n1:12:40 [0] NCCL INFO a.cc:9 -> 3\nn1:12:40 [0] NCCL INFO init.cc:1012 -> 3\n"
        "n1:12:12 [0] NCCL INFO group.cc:95 -> 3\n"
    )
    report = analyze([str(tmp_path)], everything=True)

    found = {finding.rule: finding for finding in report.findings}
    assert "a.cc:1 " in report.evidence(found["boot-init-refused"])[0]["text"]
    assert found["warn-unexplained"].role is Role.CAUSE
