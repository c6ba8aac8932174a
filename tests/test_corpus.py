"""Logs of the real world and of the real library on emulated GPUs, where they lie beside the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ncclforensics.cli import main
from tests.budget import sample
from tests.conftest import CORPUS

Json = dict[str, Any]

# What the verdict may be, by the scenario that the folder's name gives; the longest beginning counts.
VERDICTS = {
    "s1": {"no-hang"},
    "s1b": {"undecidable"},  # the default subsystems show no calls
    "s2": {"lagging-ranks"},
    "s2e": {"p2p-unmatched"},
    "s2f": {"no-hang"},
    "s2g": {"undecidable"},  # the ends of the files were lost in a buffer
    "s3": {"collective-mismatch"},
    "s3e": {"cross-communicator-deadlock"},
    "s4a": {"rank-missing"},
    "s4b": {"rank-missing"},
    "s4c": {"no-hang"},
    "s4d": {"init-failed"},
    "s4e": {"init-failed"},
    "s4f": {"init-failed"},
    "s4g": {"cross-communicator-deadlock"},
    "s4h": {"init-incomplete"},
    "s5": {"rank-died"},
    "s5c": {"rank-died", "lagging-ranks"},  # one node: nobody has a connection that could tell of the death
    "s6a": {"no-hang"},
    "s6b": {"lagging-ranks"},
    "s6d": {"rank-died"},
    "s7": {"no-hang"},
    "s7e": {"lagging-ranks"},
    "s8_": {"lagging-ranks"},
    "s8b": {"no-hang"},
    "s10": {"rank-died", "lagging-ranks"},
    "s11_": {"no-hang"},
    "s11b": {"lagging-ranks"},
}
# Faults of networks that lie outside of what a verdict decides, and a clean run one process of which was killed while
# it was leaving: only that there is an answer.
NOT_JUDGED = ("s1c", "s6e", "s6f", "s7h")
QUIET = {"no-hang", "undecidable"}
ALARMS = {"hang", "lagging-rank", "collective-mismatch", "missing-rank"}
NOT_A_FAULT = re.compile(r"none(:| |$)|configuration:")
# Known misses: the case, and why.
MISSED = {
    "v2.21.5-1-s4e_rank_twice_8r1n": "names rank 6 only; that nobody is rank 7 follows from `rank 6 of 8 ranks`",
    "v2.21.5-1-s4g_init_order_swapped_8r1n": "2.21 prints no START before the bootstrap: who waits where is not seen",
}
# Runs called clean, of which the text tells otherwise: the file, and what stands in it.
NOT_QUIET = {"polaris-vae-2024-with-aws.log": "twenty watchdogs gave up on work 5 after ten minutes"}


def _emulated() -> list[Path]:
    return sorted(path.parent for path in CORPUS.glob("emulated/*/case.json"))


def _scenario(folder: Path) -> str:
    return folder.name.split("-", 2)[2]


def _wanted(scenario: str, truth: Json) -> set[str]:
    if scenario.startswith("s12"):  # drawn at random: the truth says what was done
        return {"collective-mismatch"} if "culprit_call" in truth else {"no-hang"}
    return VERDICTS[max((name for name in VERDICTS if scenario.startswith(name)), key=len)]


def _case(folder: Path) -> Json:
    case: Json = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    return case


def _logs(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != "case.json"]


def _answer(paths: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> Json:
    """What the command says: always an exit code of its own, and counts that add up."""
    code = main(["hang", "--quiet", "--format", "json", *paths])
    out, err = capfdbinary.readouterr()
    assert code in range(4)
    assert (err == b"") == (code != 2)
    if code == 2:
        return {"hang": {"verdict": "undecidable"}, "findings": []}
    answer: Json = json.loads(out)
    for given in answer["inputs"]:
        counted = sum(given[kind] for kind in ("recognised", "application", "unrecognised", "damaged"))
        assert given["lines"] == counted, given["path"]
    return answer


@pytest.mark.parametrize("folder", sample(_emulated(), 9), ids=lambda folder: folder.name)
def test_the_verdict_on_an_emulated_run(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest
) -> None:
    if folder.name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[folder.name]))
    truth, scenario = _case(folder)["truth"], _scenario(folder)

    answer = _answer(_logs(folder), capfdbinary)

    if scenario.startswith(NOT_JUDGED):
        return
    verdict, wanted = answer["hang"]["verdict"], _wanted(scenario, truth)
    assert verdict in wanted
    if verdict not in QUIET:
        assert answer["hang"]["culprits"] == sorted(truth["culprit_ranks"])
    elif NOT_A_FAULT.match(truth["incident"]):
        assert _alarms(answer) == set()


def _alarms(answer: Json) -> set[str]:
    return {f["category"] for f in answer["findings"] if f["severity"] in ("error", "warning")} & ALARMS


def _quiet() -> list[Path]:
    """Incidents in which nothing hangs, and logs of runs that came through without a warning."""
    found = []
    for path in sorted(CORPUS.glob("incidents/*/case.json")):
        case = _case(path.parent)
        if not case.get("expected_findings") and "hang" in case.get("must_not_report", []):
            found.append(path.parent)
    for path in sorted(CORPUS.glob("nccl-logs/*.json")):
        facts = json.loads(path.read_text(encoding="utf-8")).get("facts") or {}
        if facts.get("init_complete") and not facts.get("warn") and not re.search("fault|hang|error|torn", path.name):
            found += [log for log in path.parent.glob(f"{path.stem}*") if log != path]
    return [place for place in found if place.name not in NOT_QUIET]


@pytest.mark.parametrize("place", sample(_quiet(), 5), ids=lambda place: place.name)
def test_no_alarm_where_nothing_hangs(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    answer = _answer(_logs(place) if place.is_dir() else [str(place)], capfdbinary)

    assert answer["hang"]["verdict"] in QUIET
    assert _alarms(answer) == set()


def _everything() -> list[Path]:
    """Every file once, but for the emulated runs, which are read above."""
    return sorted(
        path
        for path in CORPUS.rglob("*")
        if path.is_file() and "emulated" not in path.parts and path.name != "case.json" and path.suffix != ".json"
    )


def _groups() -> list[Path]:
    return sorted({path.parent for path in _everything()})


@pytest.mark.parametrize("folder", sample(_groups(), 9), ids=lambda folder: folder.name)
def test_every_real_file_is_analysed_without_an_error(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _answer([str(path) for path in _everything() if path.parent == folder], capfdbinary)


def test_the_corpus_is_here(corpus: Path) -> None:
    assert _emulated()
    assert len(_everything()) > 100
