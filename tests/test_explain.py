"""`explain`: the page of a rule, lists of rules, and what is said of a name that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli import main
from ncclforensics.data import cuda, verbs
from ncclforensics.data.kernel_faults import XIDS
from ncclforensics.data.names import VERDICTS
from ncclforensics.rules.finding import Category
from ncclforensics.rules.registry import all_rules
from ncclforensics.views.explain_code import codes_in
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


@pytest.mark.parametrize(
    ("wanted", "titles"),
    [
        ("xid 79", ["Xid 79: it fell off the bus"]),
        (
            "status=12 vendor err 0x81",
            [
                "status 12 (IBV_WC_RETRY_EXC_ERR): transport retry counter exceeded",
                "vendor error 129 (0x81) of an mlx5 device: the request was sent, and no answer came",
            ],
        ),
        ("IBV_WC_WR_FLUSH_ERR", ["status 5 (IBV_WC_WR_FLUSH_ERR): work request flushed"]),
        (
            "ncclRemoteError",
            ["NCCL's result 6 (ncclRemoteError): remote error: another process ended, or the network failed"],
        ),
        ("CUDA error 700", ["CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered"]),
        (
            "110",
            ["Xid 110: security fault", "errno 110 (ETIMEDOUT) of the operating system: connection timed out"],
        ),
        ("Xid 9999", []),
        ("Xid 7²", []),
        ("Xid " + "9" * 5000, []),
        ("rank 12 of 16", []),
    ],
)
def test_an_error_is_explained_by_its_number_or_name(wanted: str, titles: list[str]) -> None:
    assert [code.title for code in codes_in(wanted)] == titles


LINE_OF = {
    "Xid": "NVRM: Xid (PCI:0000:3b:00): {number}, pid=1234, name=python, an error of the GPU",
    "status": (
        "h:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status={number} "
        "opcode=0 len=0 vendor err 0 (Send)"
    ),
    "CUDA error": "h:1:2 [0] enqueue.cc:1 NCCL WARN Cuda failure {number} '{text}'",
}


@pytest.mark.one_in(16)
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *(("Xid", number) for number in XIDS),
        *(("status", number) for number in verbs.STATUS),
        *(("CUDA error", number) for number in cuda.ERROR_NUMBERS),
    ],
)
def test_the_rules_of_an_error_judge_lines_with_it(kind: str, number: int, tmp_path: Path) -> None:
    log = tmp_path / "line.log"
    log.write_text(LINE_OF[kind].format(number=number, text=cuda.ERROR_NUMBERS.get(number, "")) + "\n")
    (code,) = codes_in(f"{kind} {number}")

    found = {finding.rule for finding in analyze(log, everything=True).findings}

    assert found & set(code.rules)


def test_an_error_ends_with_the_page_of_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "12/129"]) == 0

    printed = capsys.readouterr().out
    assert "Lines with it are judged by ib-timeout-at-start or ib-timeout-mid-run:" in printed
    assert "\nMeans: the two NICs have never reached each other" in printed
