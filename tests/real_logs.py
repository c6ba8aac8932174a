"""The logs beside the repository, where they are there, and what is true of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Json = dict[str, Any]
CORPUS = Path(__file__).parents[2] / "shared" / "corpus"

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
    "s4g": {"init-incomplete"},  # each rank prints the first init alone, as where one has a stale unique id
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
    "s10": {"no-hang"},  # two runs in the same files: the later one came to its end
    "s11_": {"no-hang"},
    "s11b": {"lagging-ranks"},
}
# Faults of networks that lie outside of what a verdict decides, and a clean run one process of which was killed while
# it was leaving: only that there is an answer.
NOT_JUDGED = ("s1c", "s6e", "s6f", "s7h")
# Runs called clean, of which the text tells otherwise: the file, and what stands in it.
NOT_QUIET = {
    "polaris-resnet50-with-aws.log": "eight watchdogs gave up on work 1 after two minutes",
    "polaris-vae-2024-with-aws.log": "twenty watchdogs gave up on work 5 after ten minutes",
}


def emulated() -> list[Path]:
    """The folders of runs of the real library on emulated GPUs."""
    return sorted(path.parent for path in CORPUS.glob("emulated/*/case.json"))


def scenario(folder: Path) -> str:
    """What an emulated run is about: its folder's name without the version."""
    return folder.name.split("-", 2)[2]


def verdicts(scenario: str, truth: Json) -> set[str]:
    """The verdicts that are true of an emulated run."""
    if scenario.startswith("s12"):  # drawn at random: the truth says what was done
        return {"collective-mismatch"} if "culprit_call" in truth else {"no-hang"}
    return VERDICTS[max((name for name in VERDICTS if scenario.startswith(name)), key=len)]


def case(folder: Path) -> Json:
    found: Json = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    return found


def logs(folder: Path) -> list[Path]:
    """All inputs of a folder."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "case.json"]


def quiet() -> list[Path]:
    """Incidents in which nothing hangs, and logs of runs that came through without a warning."""
    found = []
    for path in sorted(CORPUS.glob("incidents/*/case.json")):
        facts = case(path.parent)
        if not facts.get("expected_findings") and "hang" in facts.get("must_not_report", []):
            found.append(path.parent)
    for path in sorted(CORPUS.glob("nccl-logs/*.json")):
        facts = json.loads(path.read_text(encoding="utf-8")).get("facts") or {}
        if facts.get("init_complete") and not facts.get("warn") and not re.search("fault|hang|error|torn", path.name):
            found += [log for log in path.parent.glob(f"{path.stem}*") if log != path]
    return [place for place in found if place.name not in NOT_QUIET]
