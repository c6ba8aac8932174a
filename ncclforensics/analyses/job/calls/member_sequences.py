"""The collectives of each member of a communicator as a sequence, and the sequence that most members share."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import polars as pl

from ncclforensics.frames.columns import Row
from ncclforensics.frames.templated import SLICE_ROWS

Shape = tuple[int, int]  # number of ranks of a communicator, and how many its rank had created before


class Sequence(NamedTuple):
    """The collectives of one member in order. Members that show the same calls share the columns of one of them."""

    key: str
    member: int
    rank_id: int
    shape: Shape
    has_init: bool
    content: int  # equal for members that show the same calls with the same counters: most of thousands do
    signature: pl.Series
    opcount: pl.Series

    @property
    def height(self) -> int:
        """The number of its collectives."""
        return self.signature.len()

    @property
    def identity(self) -> Row:
        """The columns of a gap that say whose it is."""
        return {"key": self.key, "member": self.member, "rank_id": self.rank_id}


def sequences(calls: pl.DataFrame, call_line: pl.DataFrame, compared: pl.DataFrame) -> list[Sequence]:
    """The sequence of every member that is compared and makes a call, in the order of `member`."""
    signature, is_compared = call_line["signature"], pl.col("member").is_in(compared["member"].implode())
    is_compared &= pl.col("nth").is_not_null()
    weighted = pl.struct("signature", "opcount").hash() * pl.col("nth").hash()
    contents = [pl.DataFrame(schema={"member": pl.UInt32(), "content": pl.UInt64()})]
    for part in (part.filter(is_compared) for part in calls.iter_slices(SLICE_ROWS)):
        signed = part.with_columns(signature.gather(part["call_line"]))
        contents.append(signed.group_by("member").agg(content=weighted.sum() + pl.len().cast(pl.UInt64)))
    of_members = pl.concat(contents).group_by("member").agg(pl.col("content").sum())
    of_members = of_members.join(compared, on="member").sort("member")
    first = of_members.unique("content", keep="first", maintain_order=True)
    shown = calls.filter(is_compared & pl.col("member").is_in(first["member"].implode())).sort("member", "nth")
    signed = shown.select("member", "opcount", signature.gather(shown["call_line"]))
    columns = dict(zip(first["content"], signed.partition_by("member", maintain_order=True), strict=True))
    return [
        Sequence(
            row["key"], row["member"], row["rank_id"], (row["nranks"], row["place"]), row["has_init"], row["content"],
            columns[row["content"]]["signature"], columns[row["content"]]["opcount"],
        )
        for row in of_members.iter_rows(named=True)
    ]  # fmt: skip


def distinct_sequences(members: list[Sequence]) -> dict[int, Sequence]:
    """The first member of each content."""
    distinct: dict[int, Sequence] = {}
    for member in members:
        distinct.setdefault(member.content, member)
    return distinct


def model_of(members: list[Sequence]) -> Sequence | None:
    """The member whose sequence most others share up to the shorter end, longest first; None if none has a majority.

    Fewer are enough where no two of the others agree: programs that are wrong, and logs that lost lines, differ each in
    its own way. Two members of one communicator have none: there, the communicators of equal size that each rank
    created at the same place decide, for programs run the same calls on all of them.
    """
    distinct, counts = list(distinct_sequences(members).values()), Counter(member.content for member in members)
    if not distinct:
        return None
    starts = pl.concat(
        calls.signature.to_frame().with_columns(end=pl.int_range(pl.len()), number=number, alike=counts[calls.content])
        for number, calls in enumerate(distinct)
    )
    weighted = pl.col("signature").hash() * pl.col("end").hash()
    starts = starts.with_columns(start=weighted.cum_sum().over("number"))  # equal for sequences that begin alike
    shown = starts.group_by("number").last().select("end", "start", "alike")
    alike = starts.drop("alike").join(shown, on=["end", "start"]).group_by("number").agg(pl.sum("alike"), pl.max("end"))
    alike = alike.sort("alike", "end", "number", descending=[True, True, False])
    best, most = int(alike["number"][0]), int(alike["alike"][0])
    if most < 2:
        return None
    if most * 2 > len(members):
        return distinct[best]
    others = [shared for number, shared, _ in alike.rows() if not _begin_alike(distinct[number], distinct[best])]
    return distinct[best] if max(others, default=1) == 1 else None


def _begin_alike(first: Sequence, second: Sequence) -> bool:
    """Whether two sequences are equal up to the end of the shorter one."""
    length = min(first.height, second.height)
    return bool((first.signature.head(length) == second.signature.head(length)).all())
