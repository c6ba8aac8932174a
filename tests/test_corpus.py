"""Logs of the real world and of the real library on emulated GPUs, where they lie beside the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ncclforensics.cli import main
from tests import real_logs
from tests.budget import sample
from tests.real_logs import CORPUS

Json = dict[str, Any]

QUIET = {"no-hang", "undecidable"}
ALARMS = {"hang", "lagging-rank", "collective-mismatch", "missing-rank"}
NOT_A_FAULT = re.compile(r"none(:| |$)|configuration:")
# Known misses: the case, and why.
MISSED = {
    "v2.21.5-1-s4e_rank_twice_8r1n": "names rank 6 only; that nobody is rank 7 follows from `rank 6 of 8 ranks`",
    "v2.21.5-1-s4g_init_order_swapped_8r1n": "2.21 prints no START before the bootstrap: who waits where is not seen",
}


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


@pytest.mark.parametrize("folder", sample(real_logs.emulated(), 12), ids=lambda folder: folder.name)
def test_the_verdict_on_an_emulated_run(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], request: pytest.FixtureRequest
) -> None:
    if folder.name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[folder.name]))
    truth, scenario = real_logs.case(folder)["truth"], real_logs.scenario(folder)

    answer = _answer([str(path) for path in real_logs.logs(folder)], capfdbinary)

    if scenario.startswith(real_logs.NOT_JUDGED):
        return
    verdict, wanted = answer["hang"]["verdict"], real_logs.verdicts(scenario, truth)
    assert verdict in wanted
    if verdict not in QUIET:
        assert answer["hang"]["culprits"] == sorted(truth["culprit_ranks"])
    elif NOT_A_FAULT.match(truth["incident"]):
        assert _alarms(answer) == set()


def _alarms(answer: Json) -> set[str]:
    return {f["category"] for f in answer["findings"] if f["severity"] in ("error", "warning")} & ALARMS


@pytest.mark.parametrize("place", sample(real_logs.quiet(), 5), ids=lambda place: place.name)
def test_no_alarm_where_nothing_hangs(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    answer = _answer([str(path) for path in real_logs.logs(place)] if place.is_dir() else [str(place)], capfdbinary)

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


@pytest.mark.parametrize("folder", sample(_groups(), 18), ids=lambda folder: folder.name)
def test_every_real_file_is_analysed_without_an_error(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _answer([str(path) for path in _everything() if path.parent == folder], capfdbinary)


def test_the_corpus_is_here(corpus: Path) -> None:
    assert real_logs.emulated()
    assert len(_everything()) > 100
