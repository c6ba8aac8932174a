"""Texts of PyTorch that were cut name no innocent rank, and do not believe that all ranks are in one call."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.incidents import ALL, Incident, each_in_turn

RANK = re.compile(r"^\[rank(\d+)\]")
Lines = list[str]


def some_ranks(lines: Lines, rng: random.Random) -> Lines:
    """Keep the lines of half of the ranks, and those of no rank."""
    ranks = sorted({match[1] for line in lines if (match := RANK.match(line))})
    kept = rng.sample(ranks, -(-len(ranks) // 2))
    return [line for line in lines if not (match := RANK.match(line)) or match[1] in kept]


def ranks_alone(lines: Lines, _: random.Random) -> Lines:
    """Keep the lines that name a rank."""
    return [line for line in lines if RANK.match(line)]


def errors_alone(lines: Lines, _: random.Random) -> Lines:
    """Keep what a search for errors finds."""
    return [line for line in lines if re.search("error|exit|signal|rank", line, re.IGNORECASE)]


def beginning(lines: Lines, rng: random.Random) -> Lines:
    """Keep the first lines."""
    return lines[: int(len(lines) * rng.uniform(0.2, 0.9))]


def end(lines: Lines, rng: random.Random) -> Lines:
    """Keep the last lines."""
    return lines[int(len(lines) * rng.uniform(0.1, 0.8)) :]


CUTS: Mapping[str, Callable[[Lines, random.Random], Lines]] = {
    cut.__name__: cut for cut in (some_ranks, ranks_alone, errors_alone, beginning, end)
}


def texts(incident: Incident) -> dict[str, Lines]:
    """The files of an incident by their names; none if they are not all texts."""
    try:
        return {
            log: (incident.folder / log).read_text(encoding="utf-8").splitlines(keepends=True) for log in incident.logs
        }
    except UnicodeDecodeError:
        return {}


def has_failed_rank(incident: Incident) -> bool:
    """Whether its text names ranks as PyTorch does, and one of them is known to be at fault."""
    lines = [line for lines in texts(incident).values() for line in lines]
    return (
        bool(incident.case["truth"].get("culprits"))
        and any(map(RANK.match, lines))
        and "other_jobs" not in incident.case
    )


INCIDENTS = [incident for incident in ALL if has_failed_rank(incident)]


@pytest.mark.parametrize(("incident", "cut"), each_in_turn(INCIDENTS, CUTS))
def test_a_cut_text_names_no_innocent_rank(incident: Incident, cut: str, tmp_path: Path) -> None:
    truth = incident.case["truth"]
    rng = random.Random(f"{incident.name} {cut}")
    for name, lines in texts(incident).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("".join(CUTS[cut](lines, rng)), encoding="utf-8")

    found = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    if found["certainty"] != "possible":
        assert {*found["culprits"]} <= {*truth["culprits"], *truth.get("missing", [])}
        assert found["verdict"] not in ("no-hang", "stuck-together") or found["verdict"] == truth["verdict"]
