"""The catalogue of variables obeys its own laws, `explain` answers from it, and its page is generated from it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclforensics.cli import main
from ncclforensics.data.tuning import CHANNEL_CAPS, OWN_PER_RANK, READ_BY_ALL, SLOWING, TUNED
from ncclforensics.data.variable_catalogue import (
    CATALOGUE,
    JUDGES,
    NCCL,
    NOTHING,
    READ,
    Variable,
    names,
    names_in_use,
    releases_examined,
    variables,
)
from ncclforensics.data.versions import release
from ncclforensics.formats import dialect
from ncclforensics.rules.registry import all_rules
from ncclforensics.views.explain_variable import default
from tests.currency.variables import Reading, rows
from tests.incidents import ROOT

Golden = Callable[[Path, str], None]
NEVER = "Read by no release"
QUOTED = "Lines that no release prints"


def texts(file: str) -> dict[str, dict[str, str]]:
    return tomllib.loads((CATALOGUE / file).read_text(encoding="utf-8"))


def test_every_variable_has_a_sentence() -> None:
    assert len(names_in_use()) > 270
    assert [found.name for found in variables() if not re.fullmatch(r"[A-Z].+\.", found.what)] == []


def test_releases_and_defaults_are_in_order() -> None:
    for found in variables():
        order = [found.first, *(since for since, _ in found.defaults), found.last or "999"]
        assert not found.first or order == sorted(order, key=release), found.name


def test_each_variable_is_in_one_list() -> None:
    read = json.loads(READ.read_bytes())["variables"]
    of_nccl, of_others, never = texts("nccl.toml"), texts("others.toml"), texts("never.toml")

    assert {name for name, row in read.items() if row["component"] == NCCL} == set(of_nccl)
    assert {name for name, row in read.items() if row["component"] != NCCL} <= set(of_others)
    assert {name for name, text in of_others.items() if "component" in text} == of_others.keys() - read.keys()
    assert not never.keys() & (read.keys() | of_others.keys())


def test_lists_of_the_rules_hold_variables_that_nccl_reads() -> None:
    listed = {*CHANNEL_CAPS, *OWN_PER_RANK, *READ_BY_ALL, *SLOWING, *TUNED}
    assert listed <= names_in_use()


def test_what_to_set_in_place_of_a_variable_is_read() -> None:
    advised = {name for found in variables() for name in re.findall(r"\bNCCL_[A-Z0-9_]+", found.instead)}
    assert advised <= names_in_use()


def test_no_pattern_knows_a_line_that_no_release_prints() -> None:
    examples = "\n".join(example for shape in dialect().with_all_formats.shapes for example in shape.examples).lower()
    assert [line for line in texts("quoted_lines.toml") if line.lower() in examples] == []


def test_releases_of_a_variable_are_found_over_all_sources() -> None:
    of_sources = Reading("MAXCHANNELS", "src/a.cc:1"), Reading("MAXCHANNELS", "src/b.cc:2")
    by_release = {
        "2.4.2": {"NCCL_A": Reading("0", "src/a.cc:9"), "NCCL_B": of_sources[0]},
        "2.5.6": {"NCCL_A": Reading("1", "src/a.cc:8"), "NCCL_B": of_sources[1]},
        "2.6.4": {"NCCL_B": Reading("64", "libnccl.so.2")},
    }
    assert rows(by_release) == {
        "NCCL_A": {
            "first": "2.4.2", "last": "2.5.6", "defaults": [["2.4.2", "0"], ["2.5.6", "1"]],
            "source": "src/a.cc:8 (2.5.6)",
        },
        "NCCL_B": {
            "first": "2.4.2", "last": "", "defaults": [["2.4.2", "MAXCHANNELS = 64"]], "source": "src/b.cc:2 (2.5.6)",
        },
    }  # fmt: skip


ANSWERS = {
    "NCCL_SHARP_ENABLE": """\
NCCL_SHARP_ENABLE  (no variable of NCCL)

It is meant to turn SHARP on.

Releases: no release of NCCL from 2.3.5 to 2.32.3 reads it
Instead: NCCL_COLLNET_ENABLE
Judged by: env-not-echoed, env-dead-variable
""",
    "NCCL_IB_GID_INDEX=3": """\
NCCL_IB_GID_INDEX  (a variable of NCCL)

The GID that a RoCE device uses, and with it the IP address and RoCE version.

Values: an index as show_gids prints it; -1: NCCL chooses
Default: 0 from 2.3.5; -1 from 2.21.5
Releases: from 2.3.5 or before on; the newest examined is 2.32.3
Watch out: Indexes differ between hosts and change with addresses; a wrong one gives `status=12` or
  `ibv_modify_qp failed`. Up to 2.20 the default 0 is RoCE v1 with a link-local address, so 3 was
  the usual advice.
Instead: nothing from 2.21 on: NCCL chooses by NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_FAMILY and
  NCCL_IB_ADDR_RANGE
Judged by: JUDGES
Source: src/transport/net_ib/connect.cc:12 (2.30.7)
""",
    "nccl_debug": """\
NCCL_DEBUG  (a variable of NCCL)

How much NCCL prints.

Values: VERSION, WARN, INFO or TRACE; unset: nothing
Default: NCCL_LOG_NONE
Releases: from 2.3.5 or before on; the newest examined is 2.32.3
Watch out: Without INFO a hang leaves no line that shows which ranks made which calls. TRACE adds
  only the calls of the application in released libraries (with NCCL_DEBUG_SUBSYS=CALL).
Source: src/debug.cc:45 (2.30.7)
""",
}


@pytest.mark.parametrize("asked", ANSWERS)
def test_a_variable_is_explained(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", asked]) == 0

    printed = re.sub(r"Judged by: (?!env)(?:.+\n  )*.+", "Judged by: JUDGES", capsys.readouterr().out)
    assert printed == ANSWERS[asked]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [("NCCL_SOCKET_IFNAM", "similar names: NCCL_SOCKET_IFNAME"), ("NCCL_XYZZY", "no known name is similar")],
)
def test_an_unknown_variable_gets_the_nearest_names(
    asked: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", asked]) == 2
    assert answer in capsys.readouterr().err


def test_rules_whose_pages_name_a_variable_are_listed(golden: Golden) -> None:
    judges: dict[str, list[str]] = {}
    for rule in all_rules():
        page = " ".join(rule.section(heading) for heading in ("Means", "Not when", "Sources"))
        for name in names().intersection(re.findall(r"\b[A-Z][A-Z0-9_]+\b", page + rule.page.partition("\n")[0])):
            judges.setdefault(name, []).append(rule.name)
    lines = (f'"{name}": {json.dumps(sorted(judges[name]))}' for name in sorted(judges))
    golden(JUDGES, "{\n" + ",\n".join(lines) + "\n}\n")


def test_variables_md_agrees_with_the_catalogue(golden: Golden) -> None:
    golden(ROOT / "docs" / "variables.md", "\n".join(_page()) + "\n")


def _page() -> Iterator[str]:
    yield "# Variables\n"
    yield "What the variables of NCCL, its plugins, RCCL and PyTorch are for. `ncclforensics explain NAME` shows more:"
    yield "values, what goes wrong, and the rules that judge it. Generated from `ncclforensics/data/catalogue` by"
    yield "`pytest --update`; `make variables` reads the releases and defaults from the sources anew.\n"
    yield "A default of -2, and mostly -1, means that NCCL chooses.\n"
    by_component: dict[str, list[Variable]] = {}
    for found in variables():
        by_component.setdefault(found.component, []).append(found)
    read_never = by_component.pop(NOTHING)
    for component in sorted(by_component, key=lambda name: -len(by_component[name])):
        yield f"## {component}\n"
        if by_component[component][0].first:
            yield f"Releases examined: {' to '.join(releases_examined(component))}.\n"
        yield "| variable | releases | default | what it is for |\n|---|---|---|---|"
        yield from map(_row, by_component[component])
        yield ""
    yield f"## {NEVER}\n"
    yield "Guides and scripts set them, and NCCL does not read them.\n"
    yield "| variable | what it is meant for | instead |\n|---|---|---|"
    yield from (f"| `{found.name}` | {found.what} | {_cell(found.instead)} |" for found in read_never)
    yield f"\n## {QUOTED}\n"
    yield "Guides quote them, and no release of NCCL prints them.\n"
    yield "| quoted | what to look for |\n|---|---|"
    yield from (f"| `{line}` | {_cell(str(advice))} |" for line, advice in texts("quoted_lines.toml").items())


def _row(found: Variable) -> str:
    read_by = f"{found.first} to {found.last}" if found.last else found.first and f"{found.first} on"
    return f"| `{found.name}` | {read_by} | {_cell(default(found))} | {_cell(found.what)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
