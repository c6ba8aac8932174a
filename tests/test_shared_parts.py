"""Pairs of hosts that fail or are slow: the part that they share is named, and never one that they meet by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate

Nic = tuple[int, int, int]  # unit, host, rail
HEAD = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
FAILED = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n scnt=128, ccnt=0"


def named(folder: Path, seed: int, tests: int, rate_of: Callable[[random.Random, Nic, Nic], float | None]) -> list[str]:
    """What is named after tests of random pairs of a sound fabric, of which `rate_of` gives Gb/s, or None: failed."""
    fabric, draw = simulated_fabric(24, 2, FabricFault.NONE, seed), random.Random(seed)
    write_fabric(fabric, FabricFault.NONE, folder)
    nics = sorted(fabric.nics)
    lines: list[str] = []
    while len(lines) < tests:
        near, far = draw.sample(nics, 2)
        if near[2] != far[2] or near[:2] == far[:2]:
            continue
        lids = [f"LID {fabric.nodes[fabric.nics[nic]].lid:#04x} QPN 0x0047 PSN 0x5e30c8" for nic in (near, far)]
        rate = rate_of(draw, near, far)
        result = (
            FAILED if rate is None else f" 65536      5000             0.00               {rate:.2f}       0.746155"
        )
        ends = f" local address: {lids[0]}\n remote address: {lids[1]}"
        lines.append(f"                    RDMA_Write BW Test\n{ends}\n{HEAD}\n{result}\n")
    (folder / "ib_write_bw.txt").write_text("".join(lines), encoding="utf-8")
    findings: Iterable[Finding] = analyze(
        folder, full=True, everything=True, select=["fabric-pairs-share-part"]
    ).findings
    return [finding.title for finding in findings]


def good(draw: random.Random) -> float:
    return draw.uniform(385, 394)


@pytest.mark.parametrize("rate", [None, 120.0])
def test_the_adapter_of_all_bad_pairs_is_named(rate: float | None, tmp_path: Path) -> None:
    bad = (1, 4, 0)
    titles = named(tmp_path, 5, 150, lambda draw, near, far: rate if bad in (near, far) else good(draw))

    assert len(titles) == 1
    assert "through gpu-02-05 mlx5_0 (leaf-u2-r1 port 5) " in titles[0]
    assert ("failed" if rate is None else "are slow") in titles[0]


def test_the_host_is_named_where_all_its_adapters_are_bad(tmp_path: Path) -> None:
    titles = named(
        tmp_path, 5, 150, lambda draw, near, far: None if (1, 4) in (near[:2], far[:2]) else good(draw)
    )  # fmt: skip

    assert [title.split(" through ")[1].split(" failed")[0] for title in titles] == ["gpu-02-05"]


def test_the_leaf_is_named_where_all_its_adapters_are_bad(tmp_path: Path) -> None:
    def rate_of(draw: random.Random, near: Nic, far: Nic) -> float | None:
        return None if (2, 1) in ((near[0], near[2]), (far[0], far[2])) else good(draw)

    titles = named(tmp_path, 5, 150, rate_of)

    assert [title.split(" through ")[1].split(" failed")[0] for title in titles] == ["leaf-u3-r2"]


def test_failures_between_two_units_alone_accuse_no_leaf(tmp_path: Path) -> None:
    def rate_of(draw: random.Random, near: Nic, far: Nic) -> float | None:
        return None if {near[0], far[0]} == {0, 1} else good(draw)

    titles = named(tmp_path, 5, 150, rate_of)

    assert sorted(title.split(" through ")[1].split(" failed")[0] for title in titles) == [
        "what lies between leaf-u1-r1 and leaf-u2-r1",
        "what lies between leaf-u1-r2 and leaf-u2-r2",
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_failures_anywhere_name_nothing(seed: int, share: float, tmp_path: Path) -> None:
    titles = named(tmp_path, seed, 60, lambda draw, near, far: None if draw.random() < share else good(draw))

    assert titles == []


def test_pairs_across_a_level_are_not_slow_beside_pairs_of_one_leaf(tmp_path: Path) -> None:
    def rate_of(draw: random.Random, near: Nic, far: Nic) -> float | None:
        return good(draw) if near[0] == far[0] else good(draw) / 2

    assert named(tmp_path, 5, 150, rate_of) == []


def failed_job(folder: Path, hosts: tuple[str, ...], *, is_tested: bool = True) -> Report:
    """Analyse a job whose transfers over one rail failed, beside tests of pairs that fail through leaf-u2-r2."""
    write_fabric(simulated_fabric(24, 2, FabricFault.BAD_LEAF, 0), FabricFault.BAD_LEAF, folder)
    assert (folder / "ib_write_bw.txt").exists()
    if not is_tested:
        (folder / "ib_write_bw.txt").unlink()
    generate(
        Plan(nodes=4, gpus_per_node=2, tp=2, version="2.27.7", fault=Fault(FaultKind.NETWORK_LOST, (1,))),
        folder / "job",
    )
    for log in (folder / "job").iterdir():
        text = log.read_text(encoding="utf-8")
        for number, host in enumerate(hosts):
            text = text.replace(f"gpu-d00{number}", host)
        log.write_text(text, encoding="utf-8")
    return analyze(folder)


def causes(report: Report) -> list[tuple[str, str]]:
    return [(cause.finding.rule, cause.certainty) for cause in report.causes_of(report.verdicts[0])]


def test_the_part_that_a_job_failed_through_is_its_likely_cause(tmp_path: Path) -> None:
    report = failed_job(tmp_path, ("gpu-01-01", "gpu-02-02", "gpu-03-01", "gpu-03-02"))

    assert causes(report)[0] == ("fabric-pairs-share-part", "likely")
    assert "through leaf-u2-r2 failed" in report.causes_of(report.verdicts[0])[0].title


def test_a_bad_part_that_no_transfer_of_the_job_went_through_is_elsewhere(tmp_path: Path) -> None:
    report = failed_job(tmp_path, ("gpu-01-01", "gpu-01-02", "gpu-03-01", "gpu-03-02"))

    (found,) = [finding for finding in report.findings if finding.rule == "fabric-pairs-share-part"]
    assert found.is_elsewhere
    assert "fabric-pairs-share-part" not in [rule for rule, _ in causes(report)]


def test_transfers_of_a_job_alone_are_no_proof_against_a_part(tmp_path: Path) -> None:
    report = failed_job(tmp_path, ("gpu-01-01", "gpu-02-02", "gpu-03-01", "gpu-03-02"), is_tested=False)

    assert "fabric-pairs-share-part" not in [rule for rule, _ in causes(report)]
