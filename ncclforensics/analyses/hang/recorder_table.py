"""Calls in the table that PyTorch's analyser of Flight Recorder dumps prints (torchfrtrace -j): a column for each rank.

The analyser first drops the calls of each rank that are older than the first one of the rank that keeps fewest. So a
rank without calls in the table is unknown, and none is judged by calls that it does not show. Only with `-v` it prints
process group and number of a call; without these, calls of several groups cannot be told apart
(torch/distributed/flight_recorder/components/utils.py, just_print_entries; types.py, Op.__repr__).
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.text.torch_text import minority_of
from ncclforensics.data.names import parse_short_integer
from ncclforensics.data.torch_calls import EQUAL_SIZED, SYMMETRIC
from ncclforensics.frames.columns import LINE, Row, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import TEXT, find_values

PRINTED_CALL = {
    "rank": pl.Int32(),
    "name": pl.String(),  # as PyTorch calls it: all_reduce
    "sizes": pl.String(),  # of its input, as printed
    "is_open": pl.Boolean(),  # it has not completed
    "group": pl.String(),  # the name that no other group of the job has; null without -v
    "group_desc": pl.String(),
    "sequence": pl.Int64(),  # number of the collective in its group; null without -v
    "is_p2p": pl.Boolean(),
    **LINE,
}

PRINTED_DIFFERENCE = {
    "how": pl.String(),  # lag: ranks did not make a call; another: they made another one under its number
    "ranks": pl.List(pl.Int32()),  # that differ
    "others": pl.List(pl.Int32()),
    "call": pl.String(),  # of the others
    "own_call": pl.String(),  # of the ranks that differ: instead, or their last one
    "group": pl.String(),  # as the program calls it; null without -v
    "sequence": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # where the others made their call
    "own_line": pl.Int32(),
}


@analysis(PRINTED_CALL, of=("analyzer_row",))
def printed_call(
    analyzer_heads: pl.DataFrame, analyzer_ruler: pl.DataFrame, analyzer_row: pl.DataFrame
) -> pl.DataFrame:
    """One row per call in a table, in the order in which its rank made them."""
    heads = analyzer_heads.sort("pos").select("source", "pos", heads=text_of("heads"))
    tables = analyzer_ruler.sort("pos").select("source", "pos", ruler=text_of("ruler"))
    tables = tables.join_asof(heads, on="pos", by="source", check_sortedness=False)
    cells = analyzer_row.sort("pos").select(
        "source", "line", "pos", cells=pl.concat_str(text_of("cells"), pl.lit("input_sizes="), text_of("further_cells"))
    )
    cells = cells.join_asof(tables, on="pos", by="source", check_sortedness=False).drop_nulls("heads")
    found = [
        {"rank": rank, "source": row["source"], "line": row["line"], "item": row["cells"][begin:end]}
        for row in cells.to_dicts()
        for rank, begin, end in _columns(row["heads"], row["ruler"])
    ]
    printed = pl.DataFrame(found, schema={"rank": pl.Int32, "source": pl.Int32, "line": pl.Int32, "item": pl.String})
    return (
        find_values(printed["item"], "analyzer_call")
        .join(printed.with_row_index(TEXT), on=TEXT, maintain_order="left")
        .select(
            "rank",
            name=text_of("call"),
            sizes=text_of("call_sizes"),
            is_open=text_of("call_state") != "completed",
            group=text_of("call_group"),
            group_desc=text_of("call_desc"),
            sequence="call_number",
            is_p2p=pl.col("sender").is_not_null(),
            source="source",
            line="line",
        )
    )


def _columns(heads: str, ruler: str) -> list[tuple[int, int, int]]:
    """Rank, begin and end of every column: `Rank 0    Rank 1` above `--------  --------`."""
    ranks = [rank for word in heads.split() if (rank := parse_short_integer(word)) is not None]
    columns, begin = [], 0
    for rank, rule in zip(ranks, ruler.split("  "), strict=False):
        columns.append((rank, begin, begin + len(rule)))
        begin += len(rule) + len("  ")
    return columns


@analysis(PRINTED_DIFFERENCE, of=("printed_call",))
def printed_difference(printed_call: pl.DataFrame) -> pl.DataFrame:
    """One row per call that ranks of its group did not make, or made otherwise; the first one of every group."""
    with_group = printed_call.filter(pl.col("group").is_not_null() & ~pl.col("is_p2p"))
    with_group = with_group.filter(~pl.col("sequence").is_null().any().over("group"))  # their order is not known
    idle = set(printed_call["rank"]) - set(printed_call.filter("is_open")["rank"])
    rows: list[Row] = []
    for _, of_group in with_group.group_by("group", maintain_order=True):
        calls = of_group.to_dicts()
        rows += _other_calls(calls) or _lag(calls, idle)
    if with_group.is_empty():
        rows = _lag_without_groups(printed_call.to_dicts(), idle)
    return pl.DataFrame(rows, schema=PRINTED_DIFFERENCE)


def _other_calls(calls: list[Row]) -> list[Row]:
    """The first number of a group under which some ranks made another call than most, where one is still open."""
    of_number: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        of_number[call["sequence"]][call["rank"]].append(call)
    for number in sorted({call["sequence"] for call in calls if call["is_open"]}):
        called = of_number[number]
        made = {rank: tuple(sorted({_text(call) for call in own})) for rank, own in called.items()}
        ranks = minority_of(made)
        if len(set(made.values())) == 1 or len(ranks) == len(made):
            continue
        others = sorted(set(called) - set(ranks))
        return [_difference("another", ranks, others, called[others[0]][0], called[ranks[0]][0])]
    return []


def _text(call: Row) -> str:
    """The name of a call, and its size where all members must pass the same."""
    return f"{call['name']} of {call['sizes']}" if call["name"] in EQUAL_SIZED else str(call["name"])


def _lag(calls: list[Row], idle: set[int]) -> list[Row]:
    """The ranks without any open call that did not make the oldest open one of a group."""
    oldest = min((call["sequence"] for call in calls if call["is_open"]), default=None)
    last = {call["rank"]: call for call in calls}
    ranks = sorted(rank for rank in idle & set(last) if oldest is not None and last[rank]["sequence"] < oldest)
    standing = [call for call in calls if call["sequence"] == oldest and call["is_open"]]
    if not ranks:
        return []
    return [_difference("lag", ranks, sorted({call["rank"] for call in standing}), standing[0], last[ranks[0]])]


def _lag_without_groups(calls: list[Row], idle: set[int]) -> list[Row]:
    """The ranks without an open call, where all others stand in one and the same collective."""
    first_open: dict[int, Row] = {}
    for call in calls:
        if call["is_open"]:
            first_open.setdefault(call["rank"], call)
    standing = list(first_open.values())
    is_one = len({(call["name"], call["sizes"]) for call in standing}) == 1 and standing[0]["name"] in SYMMETRIC
    if not is_one or not 0 < len(idle) < len(standing):
        return []
    last = {call["rank"]: call for call in calls}
    return [_difference("lag", sorted(idle), sorted(first_open), standing[0], last[min(idle)])]


def _difference(how: str, ranks: list[int], others: list[int], call: Row, own: Row) -> Row:
    return {
        "how": how,
        "ranks": ranks,
        "others": others,
        "call": _text(call),
        "own_call": _text(own),
        "group": call["group_desc"] or call["group"],
        "sequence": call["sequence"],
        "source": call["source"],
        "line": call["line"],
        "own_line": own["line"],
    }
