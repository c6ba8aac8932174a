"""The model of judgement: certainty, rivals, failures that an answer leaves open, and what comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.verdict.doubts import Cost, Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, certainty_of
from ncclforensics.analyses.verdict.vocabulary import Certainty, Kind
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views import json_report, text_report
from tests.incidents import HANGS, Incident, Json, answer, checked
from tests.source import MODULES

LAGGING = "one-rank-stops-before-an-allreduce"
OTHER_HOST = "storage-07"
KERNEL_OF_ANOTHER_HOST = (
    f"Nov 21 03:14:15 {OTHER_HOST} kernel: mlx5_core 0000:0c:00.0 ens3f0np0: Link down\n"
    f"Nov 21 03:14:16 {OTHER_HOST} kernel: Out of memory: Killed process 23904 (python) total-vm:123456kB, "
    "anon-rss:100000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:300kB oom_score_adj:0\n"
)
every_hang = pytest.mark.parametrize("incident", HANGS, ids=lambda incident: incident.name)
SAME = ("verdict", "certainty", "culprits", "operation", "explanations", "unexplained")


def incident(name: str) -> Incident:
    return next(one for one in HANGS if one.name == name)


def hang(paths: Iterable[Path]) -> Json:
    found: Json = json_report.as_object(analyze([str(path) for path in paths]))
    return found


# Certainty.


def test_certainty_is_that_of_the_most_frequent_doubt() -> None:
    assert certainty_of([]) is Certainty.CERTAIN
    assert certainty_of([Doubt.RUNS_ON]) is Certainty.LIKELY
    assert certainty_of([Doubt.RUNS_ON, Doubt.LINE_LOST]) is Certainty.POSSIBLE


def test_the_order_of_doubts_changes_nothing() -> None:
    doubts = [Doubt.LINE_LOST, Doubt.RUNS_ON, Doubt.NO_MAJORITY]

    assert certainty_of(doubts) == certainty_of(reversed(doubts)) is Certainty.POSSIBLE


def test_a_source_of_another_kind_makes_every_doubt_rarer() -> None:
    assert certainty_of([Doubt.LINE_LOST], confirmations=1) is Certainty.LIKELY
    assert certainty_of([Doubt.RUNS_ON], confirmations=1) is Certainty.CERTAIN


def test_a_doubt_counts_once_and_is_told_with_its_clause() -> None:
    explanation = Explanation(Kind.LAGGING, "did not make the call")

    explanation.doubt(Doubt.LINE_LOST, "its line may be lost")
    explanation.doubt(Doubt.LINE_LOST)

    assert explanation.doubts == [Doubt.LINE_LOST]
    assert explanation.reason == "did not make the call; its line may be lost"


def test_every_doubt_is_raised_somewhere_and_says_what_it_assumes() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in MODULES if path.name != "doubts.py")
    raised = set(re.findall(r"Doubt\.([A-Z_]+)", code))

    assert {doubt.name for doubt in Doubt} == raised
    assert len({doubt.assumes for doubt in Doubt}) == len(list(Doubt))
    assert {doubt.cost for doubt in Doubt} == set(Cost)


def test_no_code_lowers_a_certainty_or_reads_a_reason_back() -> None:
    for path in MODULES:
        code = path.read_text(encoding="utf-8")
        assert "lower_certainty" not in code, path
        if {"verdict", "report", "views"}.isdisjoint(path.parts):
            continue
        assert not re.search(r"reason\"?\]?\.(startswith|endswith|partition|removeprefix|removesuffix)", code), path


# Rivals.


def test_the_rivals_of_a_verdict_are_told_with_what_contradicts_them() -> None:
    own, *rivals = answer(incident(LAGGING)).json["hang"]["explanations"]

    assert (own["fault"], own["ranks"], own["is_answer"]) == ("lagging-ranks", [11], True)
    assert [rival["fault"] for rival in rivals] == ["no-hang", "stuck-together"]
    running, network = rivals
    assert (running["assumes"], running["cost"]) == (["the job was running where the logs end"], "unusual")
    assert network["cost"] == "impossible"
    assert network["contradicted_by"][0]["path"] == "nccl_rank8.log"


@every_hang
def test_text_and_json_tell_the_same_rivals(incident: Incident) -> None:
    said = answer(incident)
    text = " ".join(text_report.text(said.report, width=2000, verbose=True).split())

    for job in said.jobs:
        assert job["verdict"].upper() in text
        for rival in job["explanations"][1:]:
            assert " ".join(rival["assumes"] or [rival["against"]]) in text


# What an answer does not explain.


@pytest.fixture
def job_with_two_faults(tmp_path: Path) -> Path:
    """Rank 3 skips a call; the kernel of the other host kills rank 9 for memory."""
    fault = Fault(FaultKind.SKIPPED_CALL, (3,), "dp")
    generate(
        Plan(nodes=2, gpus_per_node=8, tp=4, steps=4, version="2.27.7", fault=fault, finish=Finish.KILLED), tmp_path
    )
    first = (tmp_path / "nccl_rank9.log").read_text(encoding="utf-8").split(" ", 1)[0]
    host, pid, _ = first.split(":")
    killed = KERNEL_OF_ANOTHER_HOST.splitlines()[1].replace(OTHER_HOST, host).replace("23904", pid)
    (tmp_path / "dmesg.log").write_text(f"{killed}\n", encoding="utf-8")
    return tmp_path


def test_a_gpu_that_failed_beside_the_answer_is_told(job_with_two_faults: Path) -> None:
    (job_with_two_faults / "dmesg.log").unlink()
    log = job_with_two_faults / "nccl_rank9.log"
    lines = log.read_text(encoding="utf-8")
    place = lines.split(" NCCL ", 1)[0]
    failed = f"{place} enqueue.cc:1310 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"
    log.write_text(f"{lines}{failed}\n", encoding="utf-8")

    found = json_report.as_object(analyze(str(job_with_two_faults)))["hang"]

    assert (found["verdict"], found["culprits"]) == ("collective-mismatch", [3])
    assert [failure["rank"] for failure in found["unexplained"]] == [9]


def test_a_failure_that_the_answer_does_not_bring_about_is_told_and_is_no_cause(job_with_two_faults: Path) -> None:
    report = analyze(str(job_with_two_faults))
    found = json_report.as_object(report)["hang"]

    assert (found["verdict"], found["culprits"]) == ("collective-mismatch", [3])
    assert [(failure["rank"], failure["line"]) for failure in found["unexplained"]] == [(9, 1)]
    text = text_report.text(report)
    assert "ALSO FAILED, NOT EXPLAINED BY THIS" in text
    assert "Cause (" not in text


@every_hang
def test_what_follows_from_the_answer_is_not_called_unexplained(incident: Incident) -> None:
    assert [job["unexplained"] for job in answer(incident).jobs if job["unexplained"]] == []


# Evidence of others.


def test_evidence_of_another_host_changes_nothing(tmp_path: Path) -> None:
    logs = [incident(LAGGING).folder / name for name in incident(LAGGING).logs]
    kernel = tmp_path / "dmesg.log"
    kernel.write_text(KERNEL_OF_ANOTHER_HOST, encoding="utf-8")

    alone, with_others = hang(logs), hang([*logs, kernel])

    assert {name: with_others["hang"][name] for name in SAME} == {name: alone["hang"][name] for name in SAME}
    assert all(
        finding["role"] == "context" for finding in with_others["findings"] if OTHER_HOST in str(finding["evidence"])
    )


def test_the_logs_of_another_job_change_nothing(tmp_path: Path) -> None:
    logs = [incident(LAGGING).folder / name for name in incident(LAGGING).logs]
    generate(Plan(nodes=1, gpus_per_node=2, tp=2, steps=2, version="2.27.7", finish=Finish.CLEAN), tmp_path)

    alone, with_others = hang(logs), hang([*logs, tmp_path])

    assert {name: with_others["hang"][name] for name in SAME} == {name: alone["hang"][name] for name in SAME}


def test_other_names_of_hosts_processes_and_pointers_change_only_these(tmp_path: Path) -> None:
    one = incident(LAGGING)
    for name in one.logs:
        text = (one.folder / name).read_text(encoding="utf-8")
        text = re.sub(r"gpu-node-0(\d)", r"zebra\1", text)
        text = re.sub(r"(zebra\d:)(\d+):(\d+)", lambda match: f"{match[1]}4{match[2]}:4{match[3]}", text)
        (tmp_path / name).write_text(text.replace("0x55", "0x66"), encoding="utf-8")

    before, after = answer(one).json["hang"], hang([tmp_path])["hang"]

    for name in ("verdict", "certainty", "culprits", "operation"):
        assert after[name] == before[name]


@pytest.mark.one_in(30)
@every_hang
def test_hang_and_check_are_equally_sure(incident: Incident) -> None:
    assert checked(incident).json["hang"]["certainty"] == incident.answer().json["hang"]["certainty"]
