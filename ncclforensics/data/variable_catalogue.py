"""The catalogue of variables: which releases read one, its default, what it is for, and what goes wrong with it.

`catalogue/read.json` is generated from the sources of all releases (`make variables`); the other files are written by
hand. They are read when somebody asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

CATALOGUE = Path(__file__).with_name("catalogue")
READ = CATALOGUE / "read.json"
JUDGES = CATALOGUE / "judges.json"  # rules whose pages name a variable; generated, for importing all rules takes long
NCCL = "NCCL"
OF_UNREAD = ["env-not-echoed", "env-dead-variable"]  # rules that judge every variable that NCCL does not read
NOTHING = ""  # the component that reads what no release with public sources reads


class _Reading(TypedDict):
    """What the generated file holds of one variable."""

    component: str
    first: str
    last: str
    defaults: list[list[str]]
    source: str


class _Generated(TypedDict):
    releases: dict[str, list[str]]
    variables: dict[str, _Reading]


class Variable(NamedTuple):
    """A variable of the environment."""

    name: str
    component: str  # who reads it; NOTHING: no release of NCCL whose sources are public
    what: str  # what it is for, or what it is meant to do
    values: str = ""
    pitfall: str = ""  # what goes wrong with it
    instead: str = ""  # what to set in its place, or to do
    first: str = ""  # the first release that reads it, among those examined; empty: the releases are not known
    last: str = ""  # the last release that read it; empty: the newest does
    defaults: tuple[tuple[str, str], ...] = ()  # each with the release from which it holds
    source: str = ""  # file, line and release

    @property
    def is_unread(self) -> bool:
        """Whether the newest release of NCCL does not read it, and no plugin, framework or tool does."""
        return self.component == NOTHING or (self.component == NCCL and bool(self.last))

    @property
    def why_unread(self) -> str:
        """Why it has no effect, and what takes its place: of variables that are not read."""
        ended = f"NCCL read it up to {self.last}" if self.last else "NCCL never read it"
        return f"{ended}: set {self.instead}" if self.instead else ended


@cache
def _generated() -> _Generated:
    return cast(_Generated, json.loads(READ.read_bytes()))


@cache
def _written(file: str) -> Mapping[str, Mapping[str, str]]:
    import tomllib  # of most commands, nothing asks for a variable

    return tomllib.loads((CATALOGUE / file).read_text(encoding="utf-8"))


def releases_examined(component: str) -> tuple[str, str]:
    """Return the oldest and the newest release of a component whose sources the catalogue is from."""
    oldest, newest = _generated()["releases"][component]
    return oldest, newest


def variable(name: str) -> Variable | None:
    """Return a variable of the catalogue, or None."""
    reading = _generated()["variables"].get(name)
    of_nccl = reading is not None and reading["component"] == NCCL
    text = _written("nccl.toml" if of_nccl else "others.toml").get(name) or _written("never.toml").get(name)
    if text is None:
        return None
    found = Variable(
        name, text.get("component", NOTHING), text["what"], text.get("values", ""), text.get("pitfall", ""),
        text.get("instead", ""), last=text.get("last", ""),
    )  # fmt: skip
    if reading is None:
        return found
    return found._replace(
        component=reading["component"], first=reading["first"], last=reading["last"], source=reading["source"],
        defaults=tuple((since, value) for since, value in reading["defaults"]),
    )  # fmt: skip


def judges(found: Variable) -> list[str]:
    """Return the names of the rules that judge a variable."""
    named: dict[str, list[str]] = json.loads(JUDGES.read_bytes())
    return named.get(found.name, []) + OF_UNREAD * found.is_unread


@cache
def names() -> frozenset[str]:
    """Return the names of all variables of the catalogue."""
    return frozenset(_generated()["variables"]).union(_written("never.toml"), _written("others.toml"))


@cache
def names_in_use() -> frozenset[str]:
    """Return the names of the variables that the newest release of NCCL reads."""
    variables = _generated()["variables"]
    return frozenset(name for name, row in variables.items() if row["component"] == NCCL and not row["last"])


def variables() -> Iterator[Variable]:
    """Yield all variables, by name."""
    return filter(None, map(variable, sorted(names())))


def line_to_look_for(text: str) -> str | None:
    """Return what to look for in place of a line that guides quote and that no release of NCCL prints, or None.

    `text`: a line, or a part of one, as somebody gives it to `explain`.

    >>> line_to_look_for("gpu-a012:41887:42107 [3] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC")
    >>> print(line_to_look_for("NCCL INFO NET/IB : No GPUDirect RDMA support"))
    `GPU Direct RDMA Disabled for GPU … / HCA …` (NCCL_DEBUG_SUBSYS=GRAPH), and channels `via NET/IB/0` without GDRDMA
    """
    lines = cast(Mapping[str, str], _written("quoted_lines.toml"))
    return next((advice for quoted, advice in lines.items() if quoted.lower() in f"{text} ".lower()), None)
