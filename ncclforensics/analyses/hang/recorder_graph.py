"""Find out from Flight Recorder dumps which rank waits for which, and which wait for none.

A rank stands at its oldest call that has not completed. It waits there for the members that did not make the call, and
for those that made it but stand at an older call of their own. A rank is at the root of the hang if others wait for it
and it has no open call (it is outside of the library), or if the call it stands at is one that other members completed:
each of them needed its part of the data, so the rank took part and did not finish (its GPU, or the thread that sees
what a GPU has done).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.recorder_attempts import LONG_AFTER
from ncclforensics.analyses.job.text.recorder_groups import WORLD, Place, RecordedCall
from ncclforensics.data.torch_calls import SYMMETRIC, WATCHED_LIBRARIES
from ncclforensics.frames.columns import Row, typed_rows


@dataclass(slots=True)
class Standing:
    """The members of a group at one collective."""

    group: str
    sequence: int | None  # null: of a message in a damaged dump
    missing: list[int] = field(default_factory=list)  # did not call it
    queued: list[int] = field(default_factory=list)  # called it, and stand at an older call
    standing: list[int] = field(default_factory=list)  # stand at it
    completed: list[int] = field(default_factory=list)
    without_dump: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)  # called it; where they stand is in entries that were not read


def noun_of(dumps: Iterable[Row]) -> str:
    """Return what to call these rows of `recorded_rank`."""
    return "torchcomms log" if all(row["is_log"] for row in dumps) else "Flight Recorder dump"


class Recordings:
    """What the dumps of one job show, by rank and process group."""

    def __init__(self, position: pl.DataFrame, call: pl.DataFrame, recorded_rank: pl.DataFrame) -> None:
        used = recorded_rank.filter("is_used").to_dicts()
        self.dumps: dict[int, Row] = {row["rank"]: row for row in used}
        unused = recorded_rank.filter(~pl.col("is_used") & ~pl.col("rank").is_in(list(self.dumps)).fill_null(False))
        # Ranks whose dump is cut before its calls or is older by what clocks may differ; None for such a dump that does
        # not show its rank.
        is_old = (pl.col("older_ns") == 0) | (pl.col("older_ns") > LONG_AFTER)
        self.cut = set(unused.filter(~is_old.fill_null(False))["rank"])
        self.positions: dict[str, dict[int, Row]] = defaultdict(dict)
        for place in position.to_dicts():
            self.positions[place["group"]][place["rank"]] = place
        # A collective without a number, as in a damaged dump, has no place among those of other ranks.
        has_place = pl.col("is_p2p") | pl.col("sequence").is_not_null()
        unplaced = call.filter(~has_place & pl.col("is_open"))["rank"]
        call = call.filter(has_place)
        self.calls = call
        # Ranks whose oldest open call is not recorded, or not known.
        self.overwritten = {*position.filter("is_overwritten")["rank"], *unplaced}
        # Ranks whose entries were read and show where they stand; of dumps that list open calls alone, an empty one
        # shows a rank that is in none (torch: ProcessGroupNCCL.cpp, dumpDebuggingInfo, onlyActive).
        self.read = set(call["rank"]) - self.overwritten
        if not call.is_empty() and call["is_open"].all():
            self.read |= {rank for rank in set(self.dumps) - set(call["rank"]) if self._has_completed_all(rank)}
        self.open_calls: dict[int, list[RecordedCall]] = defaultdict(list)
        for row in typed_rows(call.filter("is_open"), RecordedCall):
            self.open_calls[row.rank].append(row)
        self.without_messages: set[int] = set()  # ranks whose point-to-point calls are left out of account
        self._standings: dict[Place, Standing] = {}

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """The ranks of every process group: as the dumps list them, else those whose dumps have it.

        The group of all ranks has all numbers up to the highest one that is known.
        """
        listed: dict[str, list[int]] = {}
        for group, rows in self.positions.items():
            known = next((row["members"] for row in rows.values() if row["members"]), None)
            shown = [*numbers_below(max(rows) + 1)] if group == WORLD else sorted(rows)
            listed[group] = list(known) if known else shown
        return listed

    @cached_property
    def noun(self) -> str:
        """What shows the calls of a rank."""
        return noun_of(self.dumps.values())

    def is_listed(self, group: str) -> bool:
        """Whether a dump lists the members of a group; those of gloo do not."""
        return any(row["members"] for row in self.positions[group].values())

    @cached_property
    def without_dump(self) -> list[int]:
        """Members of process groups, as the dumps list them, of which there is no dump."""
        listed = {rank for group, ranks in self.members.items() if self.is_listed(group) for rank in ranks}
        return sorted(listed - set(self.dumps))

    @cached_property
    def may_lack_messages(self) -> bool:
        """Whether point-to-point calls were made unseen: those of gloo are not recorded before torch 2.14."""
        has_messages = any(row["has_p2p"] for rows in self.positions.values() for row in rows.values())
        return not has_messages and set(self.calls["library"].unique()) == {"gloo"}

    def group_text(self, group: str) -> str:
        """Name a process group: `process group 5 (tp)`."""
        desc = next((row["group_desc"] for row in self.positions[group].values() if row["group_desc"]), None)
        return f"process group {group}" + (f" ({desc})" if desc and desc != "undefined" else "")

    def enqueued(self, group: str, rank: int) -> int:
        """Return the number of the last collective that a rank called in a group; 0 if it called none."""
        row = self.positions[group].get(rank)
        return max(row["enqueued"] or 0, 0) if row else 0

    def completed(self, group: str, rank: int) -> int:
        """Return the number of the last collective that a rank completed in a group."""
        row = self.positions[group].get(rank)
        return max(row["completed"] or 0, 0) if row else 0

    def is_idle(self, rank: int) -> bool:
        """Whether a rank has no open call; where its entries are not here, by its numbers of collectives.

        A rank may then stand in a message, or in a call that was overwritten: it is not known to be idle.
        """
        if rank in self.read:
            return self.blocking(rank) is None
        own = [rows[rank] for rows in self.positions.values() if rank in rows]
        return self._has_completed_all(rank) and not any(row["has_p2p"] for row in own)

    def _has_completed_all(self, rank: int) -> bool:
        """Whether a rank completed every call that it made, by the head of its dump."""
        own = [rows[rank] for rows in self.positions.values() if rank in rows]
        completed = all((row["completed"] or 0) >= (row["enqueued"] or 0) and not row["has_open"] for row in own)
        return completed and not self._lacks_numbers(rank)

    def _lacks_numbers(self, rank: int) -> bool:
        """Whether a call of this rank may be open unseen: overwritten, or of a group that a cut dump does not name.

        Its head numbers the groups, and only its calls give their names.
        """
        is_cut = rank in self.dumps and self.dumps[rank]["is_cut"]
        is_unnamed = is_cut and any(
            rank in self.members[group] and rank not in rows for group, rows in self.positions.items()
        )
        return rank in self.overwritten or is_unnamed

    def blocking(self, rank: int | None, *, with_messages: bool = False) -> RecordedCall | None:
        """Return the oldest open call of a rank: where it stands.

        A rank that completed later calls does not stand at a message: it posted that in advance.
        """
        if rank is None:
            return None
        calls = self.open_calls.get(rank, [])
        if rank in self.without_messages and not with_messages:
            calls = [row for row in calls if not row.is_p2p]
        last = self._last_completed.get(rank, 0)
        return next((row for row in calls if not row.is_p2p or row.line > last), calls[0] if calls else None)

    @cached_property
    def _last_completed(self) -> dict[int, int]:
        """Rank -> line of the last call that it completed."""
        completed = self.calls.filter(~pl.col("is_open")).group_by("rank").agg(pl.col("line").max())
        return dict(completed.iter_rows())

    def batch(self, call: RecordedCall) -> list[RecordedCall]:
        """Return the messages that a rank posted together with this one, and that complete together."""
        place = (call.group, call.sequence)
        if call.sequence is None:
            return [call]
        return [row for row in self.open_calls[call.rank] if row.is_p2p and (row.group, row.sequence) == place]

    def meets(self, message: RecordedCall) -> bool:
        """Whether the peer of a message stands at its other side."""
        counterpart = self.blocking(message.peer)
        if counterpart is None or not counterpart.is_p2p:
            return False
        return any(
            (row.group, row.peer) == (message.group, message.rank) and row.name != message.name
            for row in self.batch(counterpart)
        )

    def last_call(self, rank: int) -> RecordedCall | None:
        """Return the last call of a rank, if its entries were read."""
        return self._last_calls.get(rank)

    @cached_property
    def _last_calls(self) -> dict[int, RecordedCall]:
        last = self.calls.group_by("rank", maintain_order=True).last()
        return {row.rank: row for row in typed_rows(last, RecordedCall)}

    def head(self, rank: int) -> Row:
        """Return the place of the head of a rank's dump."""
        return {"rank": rank, "source": self.dumps[rank]["source"], "line": 1}

    @cached_property
    def families(self) -> dict[str, str]:
        """Process group -> the family of groups that the ranks of one program use at the same place."""
        return dict(self.calls.select("group", "family").unique().iter_rows())

    def in_sister_groups(self, group: str, sequence: int) -> dict[int, list[RecordedCall]]:
        """Return what the ranks of the sister groups called as their collective of this number."""
        is_there = pl.col("group").is_in(self.sister_groups(group)) & (pl.col("sequence") == sequence)
        called: dict[int, list[RecordedCall]] = defaultdict(list)
        for row in typed_rows(self.calls.filter(is_there & ~pl.col("is_p2p")), RecordedCall):
            called[row.rank].append(row)
        return called

    def sister_groups(self, group: str) -> list[str]:
        """Return the other groups of the family of a group that have as many members."""
        size, own = len(self.members[group]), self.families.get(group)
        return [
            other
            for other, family in self.families.items()
            if other != group and family == own and len(self.members.get(other, [])) == size
        ]

    def forget_messages(self, ranks: set[int]) -> None:
        """Leave out the point-to-point calls of these ranks: a receive may be posted long before its data."""
        self.without_messages |= ranks
        self._standings.clear()

    @cached_property
    def outdated(self) -> set[int]:
        """Ranks whose dump is older than those of others: others completed collectives with them that it does not show.

        Calls of libraries that only report their end count as completed when they fail; there one call is no sign.
        """
        found: set[int] = set()
        for group, rows in self.positions.items():
            if any(row["has_p2p"] for row in rows.values()):
                continue
            furthest = max(rows, key=lambda rank: self.completed(group, rank))
            for rank in rows:
                lead = self.completed(group, furthest) - self.enqueued(group, rank)
                if lead <= 0:
                    continue
                shown = self._call(group, self.enqueued(group, rank) + 1, furthest)
                if shown and (shown.name not in SYMMETRIC or (shown.library not in WATCHED_LIBRARIES and lead == 1)):
                    continue
                times = [self.dumps[number]["newest_ns"] or 0 for number in (rank, furthest)]
                found.add(rank if times[0] <= times[1] else furthest)
        return found

    def _call(self, group: str, sequence: int, rank: int) -> RecordedCall | None:
        rows = self._collectives.get((group, sequence), [])
        return next((row for row in rows if row.rank == rank), None)

    @cached_property
    def _collectives(self) -> dict[Place, list[RecordedCall]]:
        """The calls at every number at which a rank stands or a group ends, and the next after the end of a rank."""
        wanted = {
            (group, number)
            for group, rows in self.positions.items()
            for rank in rows
            for number in (self.enqueued(group, rank), self.enqueued(group, rank) + 1)
        }
        for rows in self.open_calls.values():
            oldest = {row.group: row.collective for row in reversed(rows) if not row.is_p2p}
            wanted |= set(oldest.values())
        places = pl.DataFrame(list(wanted), schema={"group": pl.String(), "sequence": pl.Int64()}, orient="row")
        found = self.calls.filter(~pl.col("is_p2p")).join(places, on=["group", "sequence"], how="semi")
        collectives: dict[Place, list[RecordedCall]] = defaultdict(list)
        for row in typed_rows(found, RecordedCall):
            collectives[row.collective].append(row)
        return collectives

    def collectives_at(self, group: str, sequence: int) -> dict[int, list[RecordedCall]]:
        """Return what each rank called as this collective, if all of it is recorded; several rows for a batch."""
        called: dict[int, list[RecordedCall]] = defaultdict(list)
        for row in self._collectives.get((group, sequence), []):
            if not row.is_partial:
                called[row.rank].append(row)
        return called

    def standing(self, group: str, sequence: int) -> Standing:
        """Sort the members of a group by where they are in relation to one of its collectives."""
        if (group, sequence) in self._standings:
            return self._standings[group, sequence]
        result = Standing(group, sequence)
        for rank in self.members[group]:
            if rank not in self.dumps or rank in self.outdated:
                result.without_dump.append(rank)
            elif self.enqueued(group, rank) < sequence:
                result.missing.append(rank)
            elif self.completed(group, rank) >= sequence:
                result.completed.append(rank)
            elif rank not in self.read:
                result.unread.append(rank)
            else:
                own = self.blocking(rank)
                is_here = own is not None and not own.is_p2p and (own.group, own.sequence) == (group, sequence)
                (result.standing if is_here else result.queued).append(rank)
        self._standings[group, sequence] = result
        return result

    def is_unfinished(self, rank: int) -> bool:
        """Whether a rank stands at a collective that other members completed, who needed its part of the data."""
        call = self.blocking(rank)
        if call is None or call.is_p2p or call.name not in SYMMETRIC or rank in self.outdated:
            return False
        place = self.standing(*call.collective)
        others = len(place.standing) + len(place.queued) + len(place.unread)
        return not place.missing and len(place.completed) >= max(others, 1)

    def waiting_for(self, ranks: Collection[int]) -> list[RecordedCall]:
        """The calls at which ranks stand that wait for one of these."""
        waiting = [rank for rank in sorted(self.read) if not set(ranks).isdisjoint(self.targets(rank))]
        return [call for rank in waiting if (call := self.blocking(rank))]

    def targets(self, rank: int) -> list[int]:
        """Return the ranks that a rank waits for."""
        call = self.blocking(rank)
        if call is None or self.is_unfinished(rank):
            return []
        if not call.is_p2p:
            place = self.standing(*call.collective)
            return [*place.missing, *place.queued]
        known = [row for row in self.batch(call) if row.peer in self.dumps and row.peer not in self.outdated]
        return sorted({row.peer for row in known if row.peer is not None and not self.meets(row)})
