"""A fabric as text: what kind it is in a sentence, and a drawing of its levels with the parts that deviate."""

from __future__ import annotations

from collections import Counter
from statistics import multimode

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import count_of, printable, some_of
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.views.text_layout import STYLE, heading, indented

WIDEST, PACKED = 48, 20  # signs in a row; and in one of a larger level, of which each stands for several switches
SWITCH, MARK = "■", "▲"
MOST_NAMED = 4
LEVELS = ("hosts", "leaf", "spine", "core")
OF_ALL = ("single-links", "oversubscribed")  # kinds of deviations that concern a level as a whole


def fabrics(report: Report) -> list[RenderableType]:
    """Draw each fabric of which there is a map: its levels from top to bottom, deviating switches marked."""
    parts: list[RenderableType] = []
    for shape in report.run["fabric_shape"].to_dicts():
        parts += [heading("FABRIC"), indented(Text(fabric_text(shape)))]
        if (shape["levels"] or 0) > 1:
            parts.append(indented(_drawing(report, shape)))
    return parts


def fabric_text(shape: Row) -> str:
    """Say what kind of fabric a map shows: `666 switches, 3 levels, 458 hosts with 8 NICs on 8 rails, 1:1.05`.

    Its links are those between switches, and of hosts.
    """
    switches, systems = shape["switches"], shape["systems"]
    chips = f" with {switches:,} chips" if systems < switches else ""
    parts = [f"{systems:,} switch{'es' * (systems != 1)}{chips}"]
    if lone := shape["unlinked"]:
        parts.append(f"{len(lone):,} more without a link ({printable(some_of(lone, MOST_NAMED))})")
    if shape["levels"]:
        parts.append(f"{shape['levels']} level{'s' * (shape['levels'] != 1)}")
    if nics := shape["nics"]:
        leaves = shape["leaves_of_host"]
        rails = f" on {leaves} rails" if leaves == nics and nics > 1 else " on one leaf" * (nics > 1 and leaves == 1)
        text = f"{shape['usual_hosts']:,} hosts with {nics} NIC{'s' * (nics != 1)}{rails}"
        others = shape["hosts"] - shape["usual_hosts"]
        parts.append(text + (f" and {count_of(others, 'other')}" if others else ""))
    if shape["unnamed"]:
        parts.append(f"{shape['unnamed']:,} ports of hosts without a name")
    parts.append(_links(shape["links"]))
    if ratio := shape["ratio"]:
        more = f"more uplinks than downlinks (1:{1 / ratio:.3g})"
        parts.append(more if ratio < 1 else f"{ratio:.3g}:1")
    return ", ".join(parts)


def _drawing(report: Report, shape: Row) -> Text:
    """One row per level with a sign for each switch, and between levels the number of links.

    A director is one switch, at the level of its lowest chip; the links between its chips are not drawn.
    """
    of_map = pl.col("source") == shape["source"]
    chips = report.run["fabric_switch"].filter(of_map)
    links = report.run["fabric_link"].filter(of_map)
    deviations = report.run["fabric_deviation"].filter(of_map & ~pl.col("kind").is_in(OF_ALL))
    marked = set(deviations["guid"].drop_nulls())
    hosts = set(deviations["hosts"].explode().drop_nulls())
    switches = (
        chips.filter(pl.col("level").is_not_null())
        .sort("siblings", "name", maintain_order=True)
        .group_by("logical", maintain_order=True)
        .agg(
            name=pl.col("logical_name").first(),
            level=pl.col("level").min(),
            is_marked=pl.col("guid").is_in(marked).any() | pl.col("logical").is_in(marked).any(),
        )
    )
    owner = dict(chips.select("guid", "logical").iter_rows())
    below, above = Counter[str](), Counter[str]()  # links of each switch, downwards and upwards
    to_hosts = Counter(owner[guid] for guid in links.filter(pl.col("kind") == "host")["peer_guid"])
    levels = dict(switches.select("logical", "level").iter_rows())
    between = Counter[int]()  # level -> links from there to the next one
    for guid, peer in links.filter(pl.col("kind") == "uplink").select("guid", "peer_guid").iter_rows():
        lower, upper = sorted((owner[guid], owner[peer]), key=levels.__getitem__)
        if levels[lower] < levels[upper]:
            above[lower] += 1
            below[upper] += 1
            between[levels[lower]] += 1
    text = Text()
    for level in range(shape["levels"], 0, -1):
        rows = switches.filter(pl.col("level") == level)
        counts = {"uplinks": above} if level < shape["levels"] else {}
        counts |= {"downlinks": below} if level > 1 else {"hosts": to_hosts}
        usual = ", ".join(_ports([counted[key] for key in rows["logical"]], word) for word, counted in counts.items())
        _row(text, LEVELS[min(level, 3)], [*rows.select("name", "is_marked").iter_rows()], usual)
        text.append(f"{'│':>16} {_links(between[level - 1] if level > 1 else to_hosts.total())}\n", "dim")
    text.append(f"{'hosts':<6}{shape['hosts']:>7,}  ")
    _names(text, sorted(hosts))
    text.rstrip()
    return text


def _ports(counts: list[int], word: str) -> str:
    """Count the links of the switches of a level: the usual number, and the range where they differ.

    >>> _ports([32, 32, 32, 16], "uplinks"), _ports([1], "downlinks")
    ('32 uplinks (16-32)', '1 downlink')
    """
    usual = max(multimode(counts))
    words = f"{usual} {word.removesuffix('s') if usual == 1 else word}"
    return words if min(counts) == max(counts) else f"{words} ({min(counts)}-{max(counts)})"


def _links(count: int) -> str:
    return f"{count:,} link{'s' * (count != 1)}"


def _row(text: Text, label: str, names: list[tuple[str, bool]], usual: str) -> None:
    """Add a row: label, number of switches, a sign for each or for several, and the names of those that deviate."""
    size = 1 if len(names) <= WIDEST else -(-len(names) // PACKED)
    text.append(f"{label:<6}{len(names):>7,}  ")
    for start in range(0, len(names), size):
        is_marked = any(marked for _, marked in names[start : start + size])
        text.append(MARK if is_marked else SWITCH, STYLE["warning"] if is_marked else "")
    text.append(f"  {'each ' * (len(names) > 1)}{usual}" + f" ({SWITCH}: {size})" * (size > 1), "dim")
    _names(text, [name for name, marked in names if marked])
    text.append("\n")


def _names(text: Text, names: list[str]) -> None:
    if names:
        text.append(f"  {MARK} {printable(some_of(names, MOST_NAMED))}", STYLE["warning"])
