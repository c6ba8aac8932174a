"""Counters and nodes in the output of fabric tools: perfquery, ibqueryerrors, iblinkinfo and others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.fabric.counters import COUNTER, concat_filled
from ncclforensics.analyses.fabric.fabric_tables import table_cells
from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above, add_origin
from ncclforensics.data.counters import ADAPTERS, CANONICAL, DETAILS, MOST, NO_COUNTERS, UNITS, WORD
from ncclforensics.frames.columns import names_with_values, text_of, with_all_columns
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import SLICE_ROWS
from ncclforensics.grammar.values import find_values
from ncclforensics.parsing.templates import distinct_rows

FABRIC_NODE = {
    "lid": pl.Int32(),
    "guid": pl.String(),
    "node": pl.String(),
    "kind": pl.String(),  # switch, host, router
}

ALL_PORTS = 255  # of a node together
WIDEST = (1 << 63) // WORD - 1  # words, in bytes, that a column holds
KINDS = {"Switch": "switch", "Ca": "host", "CA": "host", "Router": "router"}
DISCARDS, RECEIVE_ERRORS = "PortXmitDiscards", "PortRcvErrors"
_SLASHES = {f"/{device}": f" {device}" for device in ADAPTERS}  # ibdiagnet separates host and device by a slash
NAMES = ("NodeGUID", "PortGUID", "PortNumber")
# What ibqueryerrors looks for.
ERRORS = [name for name, unit in UNITS.items() if unit != "bytes" and not name.endswith("packets")]


def guid_of(column: str) -> pl.Expr:
    """Return a GUID as text: 0x and 16 digits."""
    digits = text_of(column).str.strip_prefix("0x").str.to_lowercase().str.zfill(16)
    return pl.when(text_of(column).is_not_null()).then(pl.lit("0x") + digits)


def node_of(column: str) -> pl.Expr:
    """Return the description of a node without the spaces and colons that iblinkinfo adds; null if it is empty."""
    return text_of(column).str.strip_chars(" :").replace("", None)


def host_and_device(column: str) -> tuple[pl.Expr, pl.Expr]:
    """Split the description of a host's node, `host device`; the device is null for `HCA-1`, which is no name."""
    words = pl.col(column).str.split(" ")
    is_host = (words.list.len() == 2) & pl.any_horizontal(
        words.list.last().str.starts_with(prefix) for prefix in ADAPTERS
    )
    host, device = pl.when(is_host).then(words.list.first()), pl.when(is_host).then(words.list.last())
    return host, pl.when(~device.str.starts_with("HCA-")).then(device)


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in host and device from the node, where it names them."""
    nodes, node = distinct_rows(rows[:, ["node"]], ["node"])  # each has a row for every counter of its ports
    host, device = host_and_device("node")
    named = nodes.select(host=host, device=device)[node]
    return rows.with_columns(pl.coalesce(name, named[name]).alias(name) for name in ("host", "device"))


@analysis(FABRIC_NODE, of=("map_node", "map_port", "listed_port", "listed_node", "linked_node", "link_line"))
def fabric_node(
    map_node: pl.DataFrame,
    map_port: pl.DataFrame,
    listed_port: pl.DataFrame,
    listed_node: pl.DataFrame,
    linked_node: pl.DataFrame,
    link_line: pl.DataFrame,
) -> pl.DataFrame:
    """One row per LID, GUID and description of a node in the fabric."""
    switches = map_node.select("lid", guid=guid_of("node_guid"), node=node_of("node"), kind=text_of("form"))
    hosts = add_heading_above(
        map_port, map_node.select(*OUTPUT_KEY, "line", "node_guid", head_node="node", kind=text_of("form"))
    )
    ports = hosts.filter(pl.col("lid").is_not_null()).select(
        "lid", guid=guid_of("node_guid"), node=node_of("head_node"), kind="kind"
    )
    listed = listed_node.select(
        "lid", guid=guid_of("guid"), node=node_of("node"), kind=text_of("node_kind").replace_strict(KINDS)
    )
    ends = [
        links.select(
            lid=f"{side}lid", guid=guid_of(f"{side}guid"), node=node_of(f"{side}node"), kind=pl.lit(None, pl.String())
        )
        for links in (listed_port, link_line)
        for side in ("", "peer_")
    ]
    heads = linked_node.select("guid", "named", "node_kind", *OUTPUT_KEY, "line")
    near = add_heading_above(link_line.select(*OUTPUT_KEY, "line", "lid", port_guid="guid"), heads)
    linked = near.select(
        "lid",
        guid=pl.coalesce(guid_of("guid"), guid_of("port_guid")),
        node=node_of("named"),
        kind=text_of("node_kind").replace_strict(KINDS),
    )
    nodes = pl.concat([switches, ports, listed, *ends, linked], how="vertical_relaxed").filter(
        pl.col("node").is_not_null()
    )
    return nodes.group_by("lid", "guid", "node", maintain_order=True).agg(pl.col("kind").drop_nulls().first())


def add_known_nodes(rows: pl.DataFrame, fabric_node: pl.DataFrame) -> pl.DataFrame:
    """Fill in node and GUID of ports that are known by LID or GUID only, from the map of the fabric."""
    for key, more in (("guid", "lid"), ("lid", "guid")):
        unique = (
            fabric_node.filter(pl.col(key).is_not_null() & (pl.col(key) != 0 if key == "lid" else True))
            .group_by(key)
            .agg(
                pl.when(pl.col("node").n_unique() == 1).then(pl.col("node").first()).alias("_node"),
                pl.when(pl.col(more).drop_nulls().n_unique() == 1)
                .then(pl.col(more).drop_nulls().first())
                .alias("_more"),
            )
        )
        rows = rows.join(unique, on=key, how="left", maintain_order="left")
        # LIDs are unique within one fabric, and a folder may hold dumps of several: they are used only without a GUID.
        is_usable = pl.lit(True) if key == "guid" else pl.col("guid").is_null()
        fills = [pl.coalesce("node", pl.when(is_usable).then("_node")).alias("node")]
        fills += [pl.coalesce("guid", "_more").alias("guid")] if more == "guid" else []
        rows = rows.with_columns(fills).drop("_node", "_more")
    return _named(rows)


@analysis(
    COUNTER, of=("counter_line", "counter_long", "counters_port", "check_warning", "diagnosed_counter", "table_edge")
)
def fabric_counter(
    counter_head: pl.DataFrame,
    counter_line: pl.DataFrame,
    counter_long: pl.DataFrame,
    counters_of: pl.DataFrame,
    counters_port: pl.DataFrame,
    counters_summary: pl.DataFrame,
    counters_setting: pl.DataFrame,
    check_warning: pl.DataFrame,
    diagnosed_port: pl.DataFrame,
    diagnosed_counter: pl.DataFrame,
    table_edge: pl.DataFrame,
    table_record: pl.DataFrame,
    fabric_node: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per counter of a port, in the unit of Linux; counters of all ports of a node have port 255."""
    reported = _reported(counters_of, counters_port)
    outputs = [
        reported,
        _unmentioned(reported, counters_summary, counters_setting),
        _checked(check_warning),
        _diagnosed(diagnosed_port, diagnosed_counter),
        _tabled(table_edge, table_record),
    ]
    return concat_filled(
        [
            *(
                _in_unit_of_linux(add_origin(part, output_heading).with_columns(host="origin_host"), fabric_node)
                for part in _queried(counter_head, counter_line, counter_long)
            ),
            *(_in_unit_of_linux(add_origin(part, output_heading), fabric_node) for part in outputs),
        ]
    )


def _in_unit_of_linux(counters: pl.DataFrame, fabric_node: pl.DataFrame) -> pl.DataFrame:
    """Return counters as rows of COUNTER."""
    rows = with_all_columns(_normalized(counters), {**COUNTER, "is_narrow": pl.Boolean()})
    most = pl.col("name").replace_strict(MOST, default=None, return_dtype=pl.Int64)
    is_stuck = pl.col("is_narrow") & (pl.col("value") == most)
    is_data = pl.col("unit") == "bytes"
    in_bytes = pl.when(pl.col("value") <= WIDEST).then(pl.col("value") * WORD)
    rows = rows.with_columns(
        is_saturated=is_stuck.fill_null(False), value=pl.when(is_data).then(in_bytes).otherwise("value")
    )
    rows = add_known_nodes(rows.drop("is_narrow"), fabric_node).filter(pl.col("value").is_not_null())
    return with_all_columns(rows[:, names_with_values(rows)], COUNTER) if rows.height else rows


def _normalized(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `name` and `unit` as in Linux; for other counters the unit is guessed from the name."""
    counters, number = distinct_rows(rows[:, ["counter"]], ["counter"])
    name = pl.col("counter").replace_strict(CANONICAL, default=None, return_dtype=pl.String)
    own = pl.col("counter").replace_strict(_own_names(counters["counter"]), default=None, return_dtype=pl.String)
    guess = (
        pl.when(
            pl.col("counter").str.contains("XmtData", literal=True)
            | pl.col("counter").str.contains("RcvData", literal=True)
        )
        .then(pl.lit("bytes"))
        .when(pl.col("counter").str.contains("Wait", literal=True))
        .then(pl.lit("ticks"))
        .when(pl.col("counter").str.contains("Error", literal=True))
        .then(pl.lit("errors"))
        .otherwise(pl.lit("events"))
    )
    unit = name.replace_strict(UNITS, default=None, return_dtype=pl.String)
    described = counters.select(name=pl.coalesce(name, own), unit=pl.coalesce(unit, guess))
    return rows.with_columns(described[number])


def _own_names(counters: pl.Series) -> dict[str, str]:
    """Map names to snake case: `PortLocalPhysicalErrors` to port_local_physical_errors."""
    return {name: _snake(name) for name in counters.unique().drop_nulls()}


def _snake(name: str) -> str:
    """Return the words of a name joined by underscores.

    >>> _snake("PortLocalPhysicalErrors"), _snake("PortFECCorrectedSymbolCounter"), _snake("port_xmit_wait")
    ('port_local_physical_errors', 'port_fec_corrected_symbol_counter', 'port_xmit_wait')
    """
    out = ""
    for at, letter in enumerate(name):
        after, before = name[at + 1 : at + 2], name[at - 1 : at]
        is_start = letter.isupper() and (before.islower() or (before.isupper() and after.islower()))
        out += ("_" if at and is_start else "") + letter.lower()
    return out


def _queried(
    counter_head: pl.DataFrame, counter_line: pl.DataFrame, counter_long: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Yield the counters that perfquery prints, in parts that bound the memory of what is done with them.

    Without a heading PortSelect shows the port, and its node is unknown.
    """
    longer = counter_long.rename({"long_counter": "counter"})
    counters = concat_filled([counter_line, longer])
    if counter_line.height and longer.height:
        counters = counters.sort("source", "line")
    selects = counters.filter(text_of("counter") == "PortSelect")
    headed = add_heading_above(selects, counter_head.select(*OUTPUT_KEY, "line"))
    orphans = headed.filter((pl.col("line") - pl.col("head_line")).fill_null(2) > 1)
    heads = pl.concat(
        [
            counter_head.select(*OUTPUT_KEY, "line", "lid", "port", head_form=text_of("form")),
            orphans.select(*OUTPUT_KEY, "line", port=pl.col("count").cast(pl.Int32, strict=False)),
        ],
        how="diagonal_relaxed",
    )
    heads = heads.sort("source", "line")
    for part in counters.iter_slices(SLICE_ROWS):
        named = part.with_columns(counter=text_of("counter")).filter(~pl.col("counter").is_in(NO_COUNTERS))
        rows = add_heading_above(named, heads)
        yield rows.with_columns(value="count", is_narrow=pl.col("head_form") == "plain")


def _reported(counters_of: pl.DataFrame, counters_port: pl.DataFrame) -> pl.DataFrame:
    """Counters that ibqueryerrors prints, one line per port: `[name == value (the value with a unit)]`."""
    heads = counters_of.select(*OUTPUT_KEY, "line", node=node_of("node"))
    ports = add_heading_above(counters_port, heads).with_columns(
        guid=guid_of("guid"),
        port=text_of("port_name").replace("ALL", str(ALL_PORTS)).cast(pl.Int32, strict=False),
    )
    reported = find_values(ports["counts"], "reported_counter").select(
        pl.col("text").cast(pl.UInt32),
        counter=text_of("counter"),
        value="count",
        is_narrow=pl.col("unit").is_null(),
    )
    pairs = ports.with_row_index("text").join(reported, on="text", maintain_order="left_right").drop("text")
    above = pl.when(pl.col("counter").is_in([DISCARDS, RECEIVE_ERRORS])).then("counter").forward_fill()
    pairs = pairs.with_columns(above=above.over("source", "line"))
    there, back = DETAILS, {true: printed for printed, true in DETAILS.items()}
    exchanged = (
        pl.when(pl.col("above") == DISCARDS)
        .then(pl.col("counter").replace(there))
        .when(pl.col("above") == RECEIVE_ERRORS)
        .then(pl.col("counter").replace(back))
        .otherwise("counter")
    )
    pairs = pairs.with_columns(counter=exchanged)
    # The sum of all ports is used only where single ports are not printed.
    is_sum = pl.col("port") == ALL_PORTS
    return pairs.filter(~is_sum | is_sum.all().over(*OUTPUT_KEY, "head_line"))


def _unmentioned(pairs: pl.DataFrame, counters_summary: pl.DataFrame, counters_setting: pl.DataFrame) -> pl.DataFrame:
    """Return the zeros that a run of ibqueryerrors left out: counters that another run of as many nodes prints.

    Only runs count that finished, queried all nodes, and print everything that is not zero.
    """
    at = ["source", "line"]
    runs = counters_summary.filter(text_of("form") == "").select(*at, "nodes", run="line").sort(at)
    notes = pl.concat([counters_summary.filter(text_of("form") != ""), counters_setting], how="diagonal").sort(at)
    notes = notes.drop("nodes").join_asof(runs, on="line", by="source", strategy="backward", check_sortedness=False)
    is_partial = (pl.col("failures") > 0) | pl.col("thresholds").is_not_null() | pl.col("suppressed").is_not_null()
    partial = notes.filter(is_partial.fill_null(value=False)).select("source", "run")
    full_runs = runs.join(partial, on=["source", "run"], how="anti")
    printed = (
        pairs.filter(pl.col("counter").replace(CANONICAL).is_in(ERRORS) & (pl.col("port") != ALL_PORTS))
        .sort(at)
        .join_asof(full_runs, on="line", by="source", strategy="forward", check_sortedness=False)
        .filter(pl.col("run").is_not_null())
    )
    counter_key = ["guid", "port", "counter"]
    known = printed.group_by(*counter_key, "nodes", maintain_order=True).agg(pl.col("node").drop_nulls().first())
    absent = known.join(full_runs, on="nodes").join(printed, on=[*counter_key, "source", "run"], how="anti")
    labels = [pl.lit(None, pairs.schema[name]).alias(name) for name in ("launcher_time", "launcher_node")]
    return absent.with_columns(*labels, value=pl.lit(0, pl.Int64), is_narrow=pl.lit(value=True))


def _checked(check_warning: pl.DataFrame) -> pl.DataFrame:
    """Counters that ibcheckerrors warns about; older versions print the LID only in the summary that follows."""
    warnings = check_warning.filter(text_of("form") == "")
    verdicts = check_warning.filter(text_of("form") == "checked").select(
        "source", "line", verdict_lid="lid", verdict_port="port_name", node="node"
    )
    joined = (
        warnings.drop("node")
        .sort("source", "line")
        .join_asof(verdicts.sort("source", "line"), on="line", by="source", strategy="forward", check_sortedness=False)
    )
    port = text_of("verdict_port").replace("all", str(ALL_PORTS)).cast(pl.Int32, strict=False)
    return joined.with_columns(
        counter=text_of("counter"),
        value="count",
        is_narrow=True,
        lid=pl.coalesce("lid", "verdict_lid"),
        port=pl.coalesce("port", port),
        node=node_of("node"),
    )


def _diagnosed(diagnosed_port: pl.DataFrame, diagnosed_counter: pl.DataFrame) -> pl.DataFrame:
    """Counters in ibdiagnet2.pm; a counter of 64 bits replaces the narrow one of the same name."""
    parts = pl.col("port_name").str.split("/")
    heads = diagnosed_port.select(
        *OUTPUT_KEY,
        "line",
        "port",
        pl.col("lid").cast(pl.Int32, strict=False),
        guid=guid_of("guid"),
        # `leaf-4/U1/3`, `gpu-a012/mlx5_0/1`: the port follows the last slash.
        node=parts.list.head(parts.list.len() - 1).list.join("/").str.replace_many(_SLASHES),
    )
    rows = add_heading_above(diagnosed_counter, heads).with_columns(counter=text_of("counter"), value="count")
    return _widest(rows, ["source", "head_line"])


def _widest(rows: pl.DataFrame, port: list[str]) -> pl.DataFrame:
    """Keep the 64-bit one of two equal counters; drop values that no Int64 holds, such as 0xfffffffffffffffe."""
    wide = pl.col("counter").str.ends_with("_extended")
    named = rows.with_columns(is_narrow=~wide, counter=pl.col("counter").str.strip_suffix("_extended"))
    valid = named.filter(pl.col("value").is_not_null()).sort("is_narrow", descending=True, maintain_order=True)
    return valid.unique([*port, "counter"], keep="last", maintain_order=True)


def _tabled(table_edge: pl.DataFrame, table_record: pl.DataFrame) -> pl.DataFrame:
    """The table PM_INFO of ibdiagnet2.db_csv."""
    values = table_cells(table_edge, table_record, "PM_INFO").rename({"column": "counter"})
    owners = values.group_by("source", "line").agg(
        pl.col("cell").filter(pl.col("counter") == name).first().alias(column)
        for name, column in (("NodeGUID", "guid"), ("PortNumber", "port"))
    )
    hexadecimal = pl.col("cell").str.strip_prefix("0x").str.to_integer(base=16, strict=False)
    value = pl.when(pl.col("cell").str.starts_with("0x")).then(hexadecimal)
    counted = values.join(owners, on=["source", "line"]).with_columns(
        guid=guid_of("guid"),
        port=pl.col("port").cast(pl.Int32, strict=False),
        value=value.otherwise(pl.col("cell").cast(pl.Int64, strict=False)),
    )
    return _widest(counted.filter(~pl.col("counter").is_in(NAMES)), ["source", "line"])
