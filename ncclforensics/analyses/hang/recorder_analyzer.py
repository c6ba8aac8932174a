"""Ranks that did not join a collective, as PyTorch's analyser of Flight Recorder dumps (torchfrtrace) prints them.

The analyser compares each call alone, so that it names ranks as missing that wait in another process group, and of a
message all ranks of the group but one. A rank that it shows in another call that has not completed is left out here,
and so are messages (torch/distributed/flight_recorder/components/utils.py, error_analysis).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import numbers_of_ranges

ANALYZED_CALL = {
    "sequence": pl.Int64(),
    "group": pl.String(),
    "name": pl.String(),  # as PyTorch calls it: nccl:all_reduce
    "missing": pl.List(pl.Int32()),  # ranks that the analyser names as missing
    "joined": pl.List(pl.Int32()),  # the other members of the group
    "suspects": pl.List(pl.Int32()),  # of the missing: those that stand in no call that was printed
    **LINE,
}
MESSAGES = ("send", "recv")
COMPLETED = "completed"


@analysis(ANALYZED_CALL, of=("analyzer_entry",))
def analyzed_call(analyzer_entry: pl.DataFrame, analyzer_field: pl.DataFrame) -> pl.DataFrame:
    """One row per collective that not all ranks joined."""
    entries = analyzer_entry.sort("pos").with_row_index("entry")
    fields = analyzer_field.sort("pos").join_asof(
        entries.select("source", "pos", "entry"), on="pos", by="source", check_sortedness=False
    )

    def first_of(form: str, column: str) -> pl.Expr:
        return text_of(column).filter(text_of("form") == form).first()

    of_entry = fields.group_by("entry").agg(
        group=first_of("group", "group_name"),
        name=first_of("collective", "profiling_name"),
        state=first_of("state", "state"),
        missing=first_of("missing", "ranks"),
        expected=first_of("expected", "ranks"),
    )
    rows = entries.filter(text_of("form") == "not_joined").join(of_entry, on="entry", maintain_order="left").to_dicts()
    for row in rows:
        row["missing"], expected = _ranks(row["missing"]), _ranks(row["expected"])
        row["joined"] = sorted(set(expected) - set(row["missing"]))
    calls = [row for row in rows if row["missing"] and not _is_message(row["name"])]
    standing = {rank for row in calls if row["state"] != COMPLETED for rank in row["joined"]}
    for row in calls:
        row["suspects"] = sorted(set(row["missing"]) - standing)
    return pl.DataFrame(calls, schema=ANALYZED_CALL)


def _ranks(text: str | None) -> list[int]:
    return sorted(numbers_of_ranges(text))


def _is_message(name: str | None) -> bool:
    return (name or "").rpartition(":")[2].partition(" ")[0] in MESSAGES
