"""Build the wait graph: an edge from each rank that made a call to the members that did not make it.

Log lines show that a call was made, not that it completed, so an edge means "cannot be past this call". One edge leads
to all these members: thousands of ranks may wait for thousands.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ncclforensics.frames.columns import OWNER, Category, Large, columns_of, text_of, with_line
from ncclforensics.frames.registry import analysis

RECORDED = "recorded"  # kind of an edge that a Flight Recorder dump shows

MOST_PLACES = (
    8  # of one communicator at which ranks are behind: those behind at a later place wait for these themselves
)

MOST_INITS = 64  # of a job, or of the children of a communicator, of which all the ranks that they lack are listed
FEW_AWAITED = 64  # of those that any other init lacks: else the edges of a rank's own init each are ranks x ranks

VISIBLE = {
    "rank_id": pl.Int32(),
    "calls": pl.Int32(),  # call lines in this rank's log
    "is_visible": pl.Boolean(),  # the log would show a call if there were one
    "may_hide": pl.Boolean(),  # it shows none, and would show none with another NCCL_DEBUG_SUBSYS: no journal does
}


@analysis(VISIBLE)
def visibility(rank: pl.DataFrame, last_call: pl.DataFrame, journal_init: pl.DataFrame) -> pl.DataFrame:
    """Whether a rank's log shows calls: without COLL lines, a missing call proves nothing.

    A rank without call lines counts as having made none only if the logs of most ranks of its job show calls, or if it
    wrote the journal of a capture, which has a line before every call.
    """
    lines_by_rank = last_call.group_by("rank_id").agg(pl.col("lines").sum())
    by_rank = rank.join(lines_by_rank, on="rank_id", how="left").with_columns(calls=pl.col("lines").fill_null(0))
    shows_calls = pl.col("calls") > 0
    most_show = shows_calls.mean().over("job") > 0.5
    with_journal = journal_init.filter(pl.col("phase") == "COMPLETE").select(OWNER).unique()
    journaled = rank.join(with_journal, on=OWNER, how="semi")["rank_id"]
    is_noted = pl.col("rank_id").is_in(journaled.implode())
    is_visible = shows_calls | most_show | is_noted
    return by_rank.select("rank_id", "calls", is_visible=is_visible, may_hide=~shows_calls & ~is_noted)


class Edge(NamedTuple):
    """A rank that waits in a call for the ranks that did not make it: a row of `wait`, with -1 where `nth` is null."""

    job: int
    kind: str  # collective, send, recv, init; recorded: by a Flight Recorder dump
    key: Category
    nth: int  # of the collective, or of the message of this pair; null for init
    waiter: int
    waits_for: tuple[int, ...]  # rank ids in ascending order
    source: int  # of the line of the waiter's call
    line: int
    pos: Large

    @property
    def call(self) -> tuple[str, str, int]:
        """The call in which it waits; a message of the same place may be of another pair."""
        return self.key, self.kind, self.nth

    @property
    def rank_id(self) -> int:
        """The rank of its line."""
        return self.waiter


@analysis(Edge, of=("member",))
def wait(
    call: pl.DataFrame,
    last_call: pl.DataFrame,
    message: pl.DataFrame,
    match: pl.DataFrame,
    member: pl.DataFrame,
    visibility: pl.DataFrame,
    rank: pl.DataFrame,
    process: pl.DataFrame,
    unseen_start: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
) -> pl.DataFrame:
    """Every edge of the wait graph, from a rank in a call to the ranks with a log that did not make it."""
    collectives = _collective_edges(call, last_call, member, visibility)
    parts = [
        _without_calls_to_come(collectives, call, rank, call_template, call_occurrence),
        _message_edges(message, match, visibility),
        _init_edges(member, rank, process, unseen_start),
    ]
    parts = [part.select(Edge._fields).cast(pl.Schema(columns_of(Edge))) for part in parts]
    # ncclCommDestroy returns after the communicator's own work: a rank that printed its end waits for no other.
    ended = member.filter(pl.col("end") == "Destroy").select("key", waiter="rank_id")
    edges = pl.concat(parts).join(ended, on=["key", "waiter"], how="anti")
    return edges.sort("pos", pl.col("waits_for").list.first())


def _grouped(edges: pl.DataFrame) -> pl.DataFrame:
    """One edge for each call, of edges between two ranks."""
    calls = [name for name in Edge._fields if name != "waits_for"]
    return edges.group_by(calls).agg(pl.col("waits_for").unique().sort())


def _collective_edges(
    call: pl.DataFrame, last_call: pl.DataFrame, member: pl.DataFrame, visibility: pl.DataFrame
) -> pl.DataFrame:
    memberships = (
        member.filter(
            pl.col("is_complete") | pl.col("end").is_not_null() | pl.col("key").is_in(last_call["key"].implode())
        )
        .filter(pl.col("nranks") > 1)
        .join(last_call.select("rank_id", "key", "calls"), on=["rank_id", "key"], how="left")
        .with_columns(pl.col("calls").fill_null(0))
        .join(visibility.select("rank_id", "is_visible"), on="rank_id")
        .select("job", "key", "rank_id", "calls", "is_visible")
    )
    lagging = memberships.filter((pl.col("calls") < pl.col("calls").max().over("key")) & pl.col("is_visible"))
    ahead = memberships.select("key", waiter="rank_id", made="calls")
    lagging_places = lagging.group_by("job", "key", "calls").agg(waits_for=pl.col("rank_id").unique().sort())
    lagging_places = lagging_places.sort("key", "calls").group_by("key", maintain_order=True).head(MOST_PLACES)
    edges = lagging_places.join(ahead, on="key").filter(pl.col("made") > pl.col("calls"))
    edges = edges.select("job", "key", "waiter", "waits_for", nth="calls", kind=pl.lit("collective"))
    places = edges.select("key", "nth").unique()
    nths, keys = (places[name].unique().implode() for name in ("nth", "key"))
    is_near = pl.col("nth").is_in(nths) & pl.col("key").is_in(keys)
    # Filter before the join, which copies its keys.
    lines = call.filter(is_near).join(places, on=["key", "nth"], how="semi")
    lines = with_line(lines).select("key", "nth", "source", "line", "pos", waiter="rank_id")
    return edges.join(lines, on=["key", "nth", "waiter"], how="inner")


def _without_calls_to_come(
    edges: pl.DataFrame,
    call: pl.DataFrame,
    rank: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
) -> pl.DataFrame:
    """Leave out that a rank waits for one that its own thread drives, and comes to later in every collective.

    The log ends among the calls of one collective then: the thread makes them one after another.
    """
    driven, columns = rank.filter(pl.len().over(OWNER) > 1), edges.columns
    if driven.is_empty() or edges.is_empty():
        return edges
    of_process = call_template.with_row_index("call_template").join(driven.select(OWNER).unique(), on=OWNER)
    threads = call_occurrence.join(of_process.select("call_template", *OWNER, "tid"), on="call_template")
    made = call.filter(pl.col("rank_id").is_in(driven["rank_id"].implode()) & pl.col("nth").is_not_null())
    made = made.join(threads.select("pos", *OWNER, "tid"), on="pos").sort("pos")
    thread = [*OWNER, "tid"]
    last = made.group_by(thread, maintain_order=True).last().select(*thread, "key", "nth", last_rank="rank_id")
    before = made.with_columns(nth=pl.col("nth") + 1).select(*thread, "key", "nth", "rank_id", turn="pos")
    turns = last.join(before, on=[*thread, "key", "nth"])
    last_turn = pl.col("turn").filter(pl.col("rank_id") == pl.col("last_rank")).first().over(thread)
    to_come = turns.filter(pl.col("turn") > last_turn).group_by(*thread, "key", "nth").agg(to_come="rank_id")
    own = made.select(*thread, waiter="rank_id").unique()
    edges = edges.join(to_come.join(own, on=thread), on=["key", "nth", "waiter"], how="left")
    awaited = pl.col("waits_for").list.set_difference(pl.col("to_come").fill_null([])).list.sort()
    return edges.with_columns(waits_for=awaited).filter(pl.col("waits_for").list.len() > 0).select(columns)


def _message_edges(message: pl.DataFrame, match: pl.DataFrame, visibility: pl.DataFrame) -> pl.DataFrame:
    sent_more = pl.col("sends") > pl.col("receives")
    uneven = match.filter(pl.col("sends") != pl.col("receives"))
    if uneven.is_empty():
        return pl.DataFrame(schema=columns_of(Edge))
    edges = uneven.select(
        "key",
        nth=pl.min_horizontal("sends", "receives"),
        waiter=pl.when(sent_more).then("sender").otherwise("receiver"),
        waits_for=pl.when(sent_more).then("receiver").otherwise("sender"),
        kind=pl.when(sent_more).then(pl.lit("send")).otherwise(pl.lit("recv")),
    ).join(visibility.filter("is_visible").select(waits_for="rank_id"), on="waits_for")
    lines = message.filter(pl.col("key").is_in(uneven["key"].unique().implode())).select(
        "job", "key", "source", "line", "pos", waiter="rank_id", waits_for="peer",
        kind=text_of("name").str.to_lowercase(), nth=pl.col("turn").cast(pl.Int32),
    )  # fmt: skip
    return _grouped(edges.join(lines, on=["key", "kind", "nth", "waiter", "waits_for"], how="inner"))


def _init_edges(
    member: pl.DataFrame, rank: pl.DataFrame, process: pl.DataFrame, unseen_start: pl.DataFrame
) -> pl.DataFrame:
    """Return an edge from each rank inside the init of a communicator to the members that have not begun it.

    A rank that is in an init of which the first lines are not in its log has begun one. A rank without a line of NCCL,
    of which there is a stack or a dump, may have begun one, too.
    The members are known if the communicator holds all ranks of the job, with the same numbers, or if it is the n-th
    child of a parent and a member of the parent has no n-th child.
    """
    inside = member.filter(~pl.col("is_complete") & pl.col("end").is_null())
    if inside.is_empty():
        return pl.DataFrame(schema=columns_of(Edge))
    job_size = rank.group_by("job").agg(world=pl.col("rank").max() + 1)
    largest = member.group_by("job").agg(largest=pl.col("nranks").max())
    of_whole_job = (
        inside.join(job_size, on="job")
        .join(largest, on="job")
        .filter((pl.col("nranks") == pl.col("largest")) & (pl.col("world") <= pl.col("nranks")))
    )
    is_inside = pl.col("waits_for").is_in(inside["rank_id"].implode())
    joined = member.select("key", waits_for="rank_id").unique()
    with_log = rank.join(process.select(OWNER), on=OWNER, how="semi")
    ranks = with_log.join(unseen_start, on="rank_id", how="anti").select("job", waits_for="rank_id")
    absent = _awaited(of_whole_job, ranks.sort(is_inside, "waits_for"), joined, ["key"], "job")
    children = member.filter(pl.col("parent_key").is_not_null())
    waiting = children.filter(~pl.col("is_complete") & pl.col("end").is_null())
    present = children.select("parent_key", "child_number", waits_for="rank_id").unique()
    parents = member.select(parent_key="key", waits_for="rank_id").unique().sort(is_inside, "waits_for")
    child = ["parent_key", "child_number"]
    childless = _awaited(waiting, parents, present, child, "parent_key")
    edges = pl.concat(
        [
            of_whole_job.join(absent, on="key").select(_INIT_COLUMNS),
            waiting.join(childless, on=child).select(_INIT_COLUMNS),
        ]
    )
    if edges.select("key", "rank_id").is_duplicated().any():  # for the ranks of the job, and for those of its parent
        columns = [name for name in edges.columns if name != "waits_for"]
        edges = edges.explode("waits_for").group_by(columns).agg(pl.col("waits_for").unique().sort())
    return edges.with_columns(kind=pl.lit("init"), nth=pl.lit(None, dtype=pl.Int32)).rename(
        {"rank_id": "waiter", "created_pos": "pos"}
    )


def _awaited(
    waiting: pl.DataFrame, ranks: pl.DataFrame, present: pl.DataFrame, of: list[str], group: str
) -> pl.DataFrame:
    """The ranks of a group that are expected in an init (columns `of`) and not present, as one list.

    `ranks`: those that wait in no init come first. Of the inits of a group, MOST_INITS list all
    ranks, and the others FEW_AWAITED.
    """
    inits = waiting.group_by(*dict.fromkeys([*of, group])).agg(pl.col("created_pos").min()).sort("created_pos", *of)
    inits = inits.with_columns(place=pl.int_range(pl.len()).over(group))
    first, later = inits.filter(pl.col("place") < MOST_INITS), inits.filter(pl.col("place") >= MOST_INITS)
    expected = [first.join(ranks, on=group).select(*of, "waits_for")]
    if later.height:
        numbered = ranks.with_columns(place=pl.int_range(pl.len()).over(group))
        # Ranks that are present are left out below: an init that lacks any rank keeps one.
        sizes = later.drop("place").join(present.group_by(of).agg(size=pl.len()), on=of, how="left", nulls_equal=True)
        places = sizes.with_columns(place=pl.int_ranges(pl.col("size").fill_null(0) + FEW_AWAITED)).explode("place")
        expected.append(places.join(numbered, on=[group, "place"]).select(*of, "waits_for"))
    absent = pl.concat(expected).join(present, on=[*of, "waits_for"], how="anti")
    return absent.group_by(of).agg(pl.col("waits_for").unique().sort())


_INIT_COLUMNS = ["job", "key", "rank_id", "waits_for", "source", "line", "created_pos"]


def edges_of(wait: pl.DataFrame) -> list[Edge]:
    """The edges; those of one call share the tuple of the ranks that they wait for."""
    shared: dict[tuple[str, str, int, int | None], tuple[int, ...]] = {}
    edges = []
    places = wait.select("source", "line", "pos").rows()
    columns = wait.select("job", "kind", pl.col("key").cast(pl.String), pl.col("nth").fill_null(-1), "waiter")
    for number, (job, kind, key, nth, waiter) in enumerate(columns.iter_rows()):
        call = (kind, key, nth, waiter if kind in ("send", "recv", RECORDED) else None)
        if call not in shared:
            shared[call] = tuple(wait["waits_for"][number])
        edges.append(Edge(job, kind, key, nth, waiter, shared[call], *places[number]))
    return edges
