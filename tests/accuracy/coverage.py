"""Which of our cases stand for what public studies of failures count: the page docs/coverage.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.incidents import ALL, Incident

TAXONOMIES = Path(__file__).parent / "taxonomies.toml"
HEAD = """\
# Which failures there are cases of

The kinds of failure that public studies of large training jobs count, and what we have of each: incidents that ship
with the program, written by hand after the sources or recorded of jobs that were broken on purpose, and kinds that the
benchmark (`benchmark/README.md`) simulates, ten cases each. An incident counts where one of the rules of that row has a
finding in it.

A case shows that the program reads what such a failure leaves behind, once; how often it is right is in
[accuracy](accuracy.md). What there is no case of is in bold. The shares are the studies' own; those without are not
published, or not by these kinds. The rows are written by hand in `tests/accuracy/taxonomies.toml`, the counts by
`pytest tests/accuracy/test_coverage.py --update`.
"""
MANY = 5  # incidents: whether there are more says nothing of what is covered
Json = dict[str, Any]


@cache
def studies() -> list[Json]:
    """The studies with their kinds of failure."""
    found: list[Json] = tomllib.loads(TAXONOMIES.read_text(encoding="utf-8"))["study"]
    return found


def page() -> str:
    """The page: a table for each study."""
    return "\n\n".join([HEAD.strip(), *map(_section, studies())]) + "\n"


def incidents_of(kind: Mapping[str, Any]) -> list[Incident]:
    """The incidents of a kind of failure: those that it names, and those in which one of its rules has a finding."""
    rules, names = set(kind.get("rules", ())), kind.get("incidents", ())
    return [incident for incident in ALL if rules & incident.rules or incident.name in names]


def _section(study: Mapping[str, Any]) -> str:
    has_shares = any("share" in kind for kind in study["kinds"])
    columns = ["kind", *(["share"] if has_shares else []), "by hand", "recorded", "simulated", "by"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(_cells(kind, has_shares=has_shares))} |" for kind in study["kinds"]]
    return "\n\n".join([f"## {study['name']}", f"[{study['source']}]({study['address']})", "\n".join(lines)])


def _cells(kind: Mapping[str, Any], *, has_shares: bool) -> list[str]:
    found = incidents_of(kind)
    by_hand = sum(incident.case["synthetic"] for incident in found)
    simulated = ", ".join(name.replace("/", ": ") for name in kind.get("simulated", ())) or "-"
    rules = ", ".join(f"[{rule}](rules/{rule}.md)" for rule in kind.get("rules", ()))
    names = ", ".join(f"`{name}`" for name in kind.get("incidents", ()))
    missing = f"**{kind['missing']}**" if "missing" in kind else ""
    about = "; ".join(part for part in (rules, names, missing) if part)
    share = [kind.get("share", "")] if has_shares else []
    return [kind["name"], *share, _count(by_hand), _count(len(found) - by_hand), simulated, about]


def _count(incidents: int) -> str:
    """A number that is not another one with every new incident."""
    return str(incidents) if incidents < MANY else f"{MANY} or more"
