"""A fabric as text: what kind it is in a sentence, and a drawing of its levels with the parts that deviate."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import printable, some_of
from ncclforensics.report.build import Report, Row
from ncclforensics.views.text_layout import STYLE, heading, indented

WIDEST = 48  # signs in a row of the drawing; of larger levels each sign stands for several switches
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
    """Say what kind of fabric a map shows: `666 switches, 3 levels, 458 hosts with 8 NICs on 8 rails, 1:1.05`."""
    switches, systems = shape["switches"], shape["systems"]
    chips = f" in {systems:,} chassis" if systems < switches else ""
    parts = [f"{switches:,} switch{'es' * (switches != 1)}{chips}"]
    if shape["levels"]:
        parts.append(f"{shape['levels']} level{'s' * (shape['levels'] != 1)}")
    if nics := shape["nics"]:
        leaves = shape["leaves_of_host"]
        rails = f" on {leaves} rails" if leaves == nics and nics > 1 else " on one leaf" * (nics > 1 and leaves == 1)
        text = f"{shape['usual_hosts']:,} hosts with {nics} NIC{'s' * (nics != 1)}{rails}"
        others = shape["hosts"] - shape["usual_hosts"]
        parts.append(text + (f" and {others:,} others" if others else ""))
    if shape["unnamed"]:
        parts.append(f"{shape['unnamed']:,} ports of hosts without a name")
    parts.append(_links(shape["links"]))
    if ratio := shape["ratio"]:
        parts.append(f"{ratio:.3g}:1" if ratio > 1 else f"1:{1 / ratio:.3g}")
    return ", ".join(parts)


def _drawing(report: Report, shape: Row) -> Text:
    """One row per level with a sign for each switch, and between levels the number of links."""
    of_map = pl.col("source") == shape["source"]
    switches = report.run["fabric_switch"].filter(of_map & pl.col("level").is_not_null())
    links = report.run["fabric_link"].filter(of_map)
    levels = dict(switches.select("guid", "level").iter_rows())
    deviations = report.run["fabric_deviation"].filter(of_map & ~pl.col("kind").is_in(OF_ALL))
    marked = set(deviations["guid"].drop_nulls())
    hosts = set(deviations["hosts"].explode().drop_nulls())
    between = links.filter(pl.col("kind") == "uplink").with_columns(
        below=pl.min_horizontal(
            *(pl.col(end).replace_strict(levels, default=None, return_dtype=pl.Int32) for end in ("guid", "peer_guid"))
        )
    )
    counted = dict(between.group_by("below").len().iter_rows())
    text = Text()
    for level in range(shape["levels"], 0, -1):
        rows = switches.filter(pl.col("level") == level).sort("siblings", "name")
        names = [(row["name"], row["guid"] in marked or row["logical"] in marked) for row in rows.to_dicts()]
        _row(text, LEVELS[min(level, 3)], names, _usual_links(rows, level, shape["levels"]))
        below = counted.get(level - 1) if level > 1 else links.filter(pl.col("kind") == "host").height
        text.append(f"{'│':>16} {_links(below or 0)}\n", "dim")
    text.append(f"{'hosts':<6}{shape['hosts']:>7,}  ")
    _names(text, sorted(hosts))
    text.rstrip()
    return text


def _links(count: int) -> str:
    return f"{count:,} link{'s' * (count != 1)}"


def _usual_links(rows: pl.DataFrame, level: int, top: int) -> str:
    """`each 32 uplinks, 31 hosts`: what most switches of a level have."""
    columns = (
        [("uplinks", "uplinks")] * (level < top)
        + [("downlinks", "downlinks")] * (level > 1)
        + [("hosts", "hosts")] * (level == 1)
    )
    return "each " * (rows.height > 1) + ", ".join(
        f"{int(str(rows[column].mode().max()))} {word}" for column, word in columns
    )


def _row(text: Text, label: str, names: list[tuple[str, bool]], usual: str) -> None:
    """Add a row: label, number of switches, a sign for each or for several, and the names of those that deviate."""
    size = -(-len(names) // WIDEST)
    text.append(f"{label:<6}{len(names):>7,}  ")
    for start in range(0, len(names), size):
        is_marked = any(marked for _, marked in names[start : start + size])
        text.append(MARK if is_marked else SWITCH, STYLE["warning"] if is_marked else "")
    text.append(f"  {usual}" + f" ({SWITCH} = {size} switches)" * (size > 1), "dim")
    _names(text, [name for name, marked in names if marked])
    text.append("\n")


def _names(text: Text, names: list[str]) -> None:
    if names:
        text.append(f"  {MARK} {printable(some_of(names, MOST_NAMED))}", STYLE["warning"])
