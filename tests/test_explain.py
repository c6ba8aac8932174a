"""`explain`: the page of a rule, lists of rules, and what is said of a name that does not exist."""

from __future__ import annotations

import pytest

from ncclforensics.cli import main
from ncclforensics.data.names import VERDICTS
from ncclforensics.rules.finding import Category
from ncclforensics.rules.registry import all_rules
from ncclforensics.views.explain_text import of_name


def test_a_rule_is_explained_by_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "net-socket-fallback"]) == 0

    printed = capsys.readouterr().out
    assert "Not when:" in printed
    assert "Sources:" in printed


def test_without_a_name_every_rule_stands_under_its_category(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0

    printed = capsys.readouterr().out.splitlines()
    category, listed = "", {}
    for line in printed:
        if line and not line.startswith(" "):
            category = line
        elif line.startswith("  ") and not line.startswith("   "):
            listed[line.strip().partition(":")[0]] = category
    assert listed == {rule.name: str(rule.category) for rule in all_rules()}


def test_a_category_lists_its_rules_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "shm"]) == 0

    printed = capsys.readouterr().out
    of_category = {rule.name: rule.category == Category.SHM for rule in all_rules()}
    assert {name: f"  {name}:" in printed for name in of_category} == of_category


def test_a_verdict_is_explained_as_the_report_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "LAGGING-RANKS"]) == 0
    assert capsys.readouterr().out.startswith("coll-lagging-ranks  (lagging-rank, error)")


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_explained(verdict: str) -> None:
    page = of_name(verdict, all_rules())
    (own,) = [rule.name for rule in all_rules() if rule.verdict == verdict] or [verdict]
    assert page.startswith(f"{own}  (")
    assert all(f"\n{heading}: " in page for heading in ("Means", "Not when", "Do"))


@pytest.mark.parametrize(
    ("wanted", "suggested"),
    [
        ("socket-falback", "net-socket-fallback"),
        ("lagging_ranks", "coll-lagging-ranks"),
        ("ib timeout", "ib-timeout-mid-run"),
        ("GDR", "gdr-missing-suffix"),
    ],
)
def test_similar_names_are_suggested(wanted: str, suggested: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", wanted]) == 2

    said = capsys.readouterr().err
    assert f"{wanted}: unknown rule; similar names: " in said
    assert suggested in said


def test_a_name_like_no_other_leads_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "xyzzy"]) == 2
    assert "`ncclforensics explain` lists all rules" in capsys.readouterr().err
