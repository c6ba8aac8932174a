"""Flight Recorder dumps: read without being executed, and judged by who stands where."""

from __future__ import annotations

import json
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.archive import write
from ncclforensics.data.variables import stacks_of
from ncclforensics.formats import flight_recorder
from ncclforensics.inputs import plain_pickle
from ncclforensics.report import redacted_run, redaction
from ncclforensics.views import json_report
from tests.budget import IS_FULL

Json = dict[str, Any]
INCIDENTS = Path(__file__).parents[1] / "fixtures/incidents"
START = 1_795_339_528_000_000_000
WORLD = ("0", "default_pg")
TP = {rank: (str(1 + rank // 2), "tp") for rank in range(4)}
MEMBERS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}


class Recorder:
    """What one rank records, in its order."""

    def __init__(self, rank: int, groups: dict[str, list[int]] | None = None) -> None:
        self.rank = rank
        self.groups = {name: ranks for name, ranks in (groups or MEMBERS).items() if rank in ranks}
        self.entries: list[Json] = []
        self.kept = 1 << 20
        self.made = dict.fromkeys(self.groups, 0)
        self.messages = dict.fromkeys(self.groups, 0)

    def call(
        self,
        group: tuple[str, str] = WORLD,
        title: str = "nccl:all_reduce",
        *,
        done: bool = True,
        elements: int = 1024,
        dtype: str = "Float",
        place: str = "/home/maria/job/train.py",
    ) -> Recorder:
        """Record a call; a title with an arrow is a message."""
        is_p2p = "-" in title
        counted = self.messages if is_p2p else self.made
        counted[group[0]] += 1
        number = len(self.entries)
        own = {"name": "loop", "filename": place, "line": 145}
        entry = {
            "frames": [{"name": "f", "filename": "/opt/venv/lib/torch/distributed/c.py", "line": 1}, own],
            "record_id": number, "pg_id": sorted(self.groups).index(group[0]), "process_group": group,
            "collective_seq_id": self.made[group[0]], "p2p_seq_id": self.messages[group[0]], "op_id": number,
            "profiling_name": title, "time_created_ns": START + 1_000_000 * number + self.rank,
            "input_sizes": [[elements]], "input_dtypes": [dtype], "output_sizes": [[elements]],
            "output_dtypes": [dtype], "state": "completed" if done else "started", "retired": done,
            "time_discovered_started_ns": 1, "time_discovered_completed_ns": 2 if done else None,
            "timeout_ms": 600000, "is_p2p": is_p2p,
        }  # fmt: skip
        self.entries.append(entry)
        return self

    def batch(self, group: tuple[str, str], peer: int, *, done: bool) -> Recorder:
        """Record a send to and a recv from a rank of a group, as `batch_isend_irecv` does."""
        own = self.groups[group[0]].index(self.rank)
        self.call(group, f"nccl:send {own}->{peer}", done=False)
        self.messages[group[0]] -= 1
        self.call(group, f"nccl:recv {own}<-{peer}", done=False)
        self.messages[group[0]] -= 1
        self.call(group, "nccl:coalesced", done=done)
        for entry in self.entries[-3:]:
            entry |= {"is_p2p": True, "p2p_seq_id": self.messages[group[0]] + 1}
        self.made[group[0]] -= 1
        self.messages[group[0]] += 1
        return self

    def document(self) -> Json:
        """The dump, in the order of PyTorch's keys."""
        status = {}
        for number, name in enumerate(sorted(self.groups)):
            still_open = [
                entry["collective_seq_id"]
                for entry in self.entries
                if entry["process_group"][0] == name and entry["state"] != "completed" and not entry["is_p2p"]
            ]
            completed = min(still_open) - 1 if still_open else self.made[name]
            status[str(number)] = {
                "last_enqueued_collective": self.made[name],
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        descs = {"0": "default_pg", "1": "tp", "2": "tp"}
        config = {
            name: {"name": name, "desc": descs.get(name, "pp"), "ranks": str(r)} for name, r in self.groups.items()
        }
        return {
            "version": "2.10", "pg_config": config, "comm_lib_version": "2.27.7", "pg_status": status,
            "entries": self.entries[-self.kept :],
        }  # fmt: skip


def recorders() -> list[Recorder]:
    """Four ranks that made three calls together."""
    ranks = [Recorder(rank) for rank in range(4)]
    for _ in range(3):
        for recorder in ranks:
            recorder.call(TP[recorder.rank]).call()
    return ranks


def judged(folder: Path, ranks: list[Recorder], **options: Any) -> Json:
    """Write the dumps and return the JSON of `hang`."""
    for recorder in ranks:
        path = folder / f"comm_lib_trace_rank_{recorder.rank}"
        path.write_bytes(pickle.dumps(recorder.document(), protocol=2))
    return json_report.as_object(analyze([str(folder)], **options))


def verdict(report: Json) -> tuple[str, list[int], str]:
    hang = report["hang"]
    return hang["verdict"], hang["culprits"], hang["certainty"]


def one_stops() -> list[Recorder]:
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank != 2:
            recorder.call(done=False)
    return ranks


def test_a_rank_whose_open_call_has_no_number_is_not_accused(tmp_path: Path) -> None:
    ranks = one_stops()
    ranks[1].entries[-1]["collective_seq_id"] = 1 << 70  # as in a damaged dump

    report = judged(tmp_path, ranks)

    assert report["defects"] == []
    assert 1 not in report["hang"]["culprits"]


def one_is_unfinished() -> list[Recorder]:
    """Rank 1 stands in a call of its pair that rank 0 completed; all others stand in the next call of all."""
    ranks = recorders()
    for recorder in ranks:
        recorder.call(TP[recorder.rank], "nccl:_all_gather_base", done=recorder.rank != 1).call(done=False)
    return ranks


def one_passes_another_size() -> list[Recorder]:
    ranks = recorders()
    for recorder in ranks:
        recorder.call(done=False, elements=4096 if recorder.rank == 3 else 1024)
    return ranks


def one_calls_another_operation() -> list[Recorder]:
    ranks = recorders()
    for recorder in ranks:
        recorder.call(title="nccl:broadcast" if recorder.rank == 0 else "nccl:all_reduce", done=False)
    return ranks


def one_uses_groups_in_another_order() -> list[Recorder]:
    """Rank 1 calls the group of all before its pair; 0 waits for it in the pair, and 2 and 3 for both of them."""
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank in (0, 1):
            recorder.call(WORLD if recorder.rank == 1 else TP[0], done=False)
        else:
            recorder.call(TP[2]).call(done=False)
    return ranks


def all_stand_together() -> list[Recorder]:
    return [recorder.call(done=False) for recorder in recorders()]


def one_gpu_does_not_begin() -> list[Recorder]:
    ranks = all_stand_together()
    ranks[2].entries[-1]["state"] = "scheduled"
    return ranks


def no_gpu_is_seen_to_begin() -> list[Recorder]:
    """Without TORCH_NCCL_ENABLE_TIMING no call has a begin."""
    ranks = all_stand_together()
    for recorder in ranks:
        recorder.entries[-1]["state"] = "scheduled"
    return ranks


def open_calls_alone_are_dumped() -> list[Recorder]:
    """Rank 2 is in no call, so that its dump is empty; the others wait for it, one in a message."""
    ranks = one_stops()
    ranks[3].call(title="nccl:recv 3<-2", done=False)
    for recorder in ranks:
        recorder.entries = [entry for entry in recorder.entries if entry["state"] != "completed"]
    return ranks


def an_empty_dump_whose_head_tells_of_an_open_call() -> list[Recorder]:
    """Rank 2 called what the others did, and its dump was cleared."""
    ranks = recorders()
    for recorder in ranks:
        recorder.call(done=False)
    ranks[3].call(title="nccl:recv 3<-2", done=False)
    for recorder in ranks:
        recorder.kept = len(recorder.entries) - 6  # open calls alone
    ranks[2].document = lambda made=ranks[2].document: made() | {"entries": []}
    return ranks


def one_waits_for_a_message() -> list[Recorder]:
    """Rank 3 waits for a message of rank 2, which makes no call."""
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank == 3:
            recorder.call(title="nccl:recv 3<-2", done=False)
    return ranks


def one_posted_a_receive_and_stops() -> list[Recorder]:
    """Rank 2 has posted a receive from rank 0, and does not come to the call at which rank 0 stands."""
    ranks = one_stops()
    ranks[2].call(title="nccl:recv 2<-0", done=False)
    return ranks


def one_posted_a_receive_in_advance() -> list[Recorder]:
    """Rank 2 completed a call after it had posted a receive from rank 0, and stands in one with rank 3, which stops."""
    ranks = recorders()
    ranks[2].call(title="nccl:recv 2<-0", done=False)
    for recorder in ranks:
        recorder.call(TP[recorder.rank])
        if recorder.rank != 3:
            recorder.call(TP[2] if recorder.rank == 2 else WORLD, done=False)
    return ranks


def two_wait_for_messages_of_each_other(*, in_one_line: bool = True) -> list[Recorder]:
    ranks = recorders()
    for recorder in ranks:
        title = {0: "nccl:recv 0<-1", 1: "nccl:recv 1<-0"}.get(recorder.rank, "nccl:all_reduce")
        place = "/job/backward.py" if recorder.rank == 0 and not in_one_line else "/job/train.py"
        recorder.call(title=title, done=False, place=place)
    return ranks


def two_wait_in_different_lines() -> list[Recorder]:
    """Ranks 0 and 1 wait for messages of each other, of which one may have left out its own before."""
    return two_wait_for_messages_of_each_other(in_one_line=False)


def one_leaves_out_a_message_that_the_other_pair_made() -> list[Recorder]:
    """Each first rank sends and then receives, each second one receives and then sends; rank 0 leaves out its send."""
    ranks = recorders()
    for recorder in ranks:
        is_done = recorder.rank > 1
        if recorder.rank % 2 == 0:
            if recorder.rank:
                recorder.call(TP[2], "nccl:send 0->1")
            recorder.call(TP[recorder.rank], "nccl:recv 0<-1", done=is_done, place="/job/backward.py")
        else:
            recorder.call(TP[recorder.rank], "nccl:recv 1<-0", done=is_done)
            if is_done:
                recorder.call(TP[3], "nccl:send 1->0")
        if is_done:
            recorder.call(done=False)
    return ranks


def messages_in_batches(*, one_stops: bool = False) -> list[Recorder]:
    """Ranks 0 and 1 exchange messages in batches: only the entry that closes a batch has a state."""
    ranks = recorders()
    for number in range(3):
        for recorder in ranks:
            if recorder.rank < 2 and not (one_stops and recorder.rank == 0 and number == 2):
                is_over = not one_stops or number < 2
                recorder.batch(TP[0], 1 - recorder.rank, done=is_over)
    for recorder in ranks:
        if not one_stops:
            recorder.call()
        elif recorder.rank > 1:
            recorder.call(done=False)
    return ranks


def one_makes_no_batch() -> list[Recorder]:
    return messages_in_batches(one_stops=True)


def groups_of_one_name(*, late: int = 3) -> list[Recorder]:
    """Ranks 0, 1 and ranks 2, 3 have a group of the same name, as `split_group` makes them; rank 3 stops."""
    groups = {rank: {"0": [0, 1, 2, 3], "1": [0, 1] if rank < 2 else [2, 3]} for rank in range(4)}
    ranks = [Recorder(rank, groups[rank]) for rank in range(4)]
    for number in range(5):
        for recorder in ranks:
            if recorder.rank < 2 or number < 3:
                recorder.call(("1", "undefined"))
    for recorder in ranks:
        if recorder.rank != late:
            recorder.call(("1", "undefined") if recorder.rank == 2 else WORLD, done=False)
    return ranks


def a_skipped_call_in_a_group_of_two() -> list[Recorder]:
    """Rank 1 left out the call that rank 0 is in, and made the next one; the other group shows the usual order."""
    ranks = recorders()
    for recorder in ranks:
        titles = ("nccl:_all_gather_base", "nccl:_reduce_scatter_base")
        for title in titles[1:] if recorder.rank == 1 else titles:
            recorder.call(TP[recorder.rank], title, done=recorder.rank > 1)
        recorder.call(done=False)
    return ranks


def open_calls_were_overwritten() -> list[Recorder]:
    """Rank 1 ran ahead of its GPU, so that its oldest open calls are no longer recorded; rank 2 stopped."""
    ranks = recorders()
    for _ in range(6):
        for recorder in ranks:
            if recorder.rank != 2:
                recorder.call(done=False)
    ranks[1].kept = 4
    return ranks


def two_pass_another_size_than_the_other_two() -> list[Recorder]:
    ranks = recorders()
    for recorder in ranks:
        recorder.call(done=False, elements=8 if recorder.rank < 2 else 9)
    return ranks


def both_ranks_of_a_message_stand() -> list[Recorder]:
    ranks = recorders()
    ranks[0].call(title="nccl:send 0->1", done=False)
    ranks[1].call(title="nccl:recv 1<-0", done=False)
    return ranks


def one_sends_a_message_less_than_in_the_other_pair() -> list[Recorder]:
    """In each pair the second rank sends to the first, before a call of all; the last message of rank 1 is missing."""
    ranks = recorders()
    for number in range(2):
        for recorder in ranks:
            is_last = number == 1 and recorder.rank < 2
            if not (is_last and recorder.rank == 1):
                title = "nccl:send 1->0" if recorder.rank % 2 else "nccl:recv 0<-1"
                recorder.call(TP[recorder.rank], title, done=not is_last)
    for recorder in ranks[1:]:
        recorder.call(done=False)
    return ranks


def one_passes_another_size_than_the_other_pair() -> list[Recorder]:
    return [
        recorder.call(TP[recorder.rank], done=False, elements=8 if recorder.rank == 1 else 9)
        for recorder in recorders()
    ]


def both_pairs_pass_different_sizes() -> list[Recorder]:
    return [
        recorder.call(TP[recorder.rank], done=False, elements=8 if recorder.rank % 2 else 9) for recorder in recorders()
    ]


def one_dump_is_older() -> list[Recorder]:
    """The others completed collectives that the dump of rank 1 does not show: it was written before."""
    ranks = recorders()
    for _ in range(3):
        for recorder in ranks:
            if recorder.rank != 1:
                recorder.call()
    return [recorder.call(done=False) if recorder.rank != 1 else recorder for recorder in ranks]


def one_stops_behind_overwritten_messages() -> list[Recorder]:
    """Rank 2 stops. Rank 3 waits for its message and ran ahead, so that this message is no longer recorded."""
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank == 3:
            for number in range(9):
                recorder.call(TP[3], "nccl:recv 1<-0" if number % 2 == 0 else "nccl:send 1->0", done=False)
            recorder.kept = 4
        elif recorder.rank < 2:
            recorder.call(TP[0], "nccl:send 0->1" if recorder.rank == 0 else "nccl:recv 1<-0").call(done=False)
    return ranks


def one_leaves_out_a_call_and_buffers_are_short() -> list[Recorder]:
    """Rank 3 leaves out the last call of its pair; of what came before, the dumps of the others hold little."""
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank != 3:
            recorder.call(TP[recorder.rank], done=recorder.rank < 2)
        recorder.call(done=False)
        recorder.kept = 1 if recorder.rank == 3 else 2
    return ranks


def a_batch_is_cut_by_the_begin_of_a_dump() -> list[Recorder]:
    """All are in one coalesced call of three parts, of which the dump of rank 1 has only the last one."""
    ranks = recorders()
    for recorder in ranks:
        for number in range(3):
            recorder.call(title="nccl:_all_gather_base", done=False)
            recorder.made["0"] -= number < 2
        recorder.call(title="nccl:ALLGATHER_coalesced", done=False)
        recorder.made["0"] -= 1
        for entry in recorder.entries[-4:]:
            entry["collective_seq_id"] = recorder.made["0"]
        recorder.kept = 2 if recorder.rank == 1 else 9
    return ranks


def several_stop_over_gloo(late: tuple[int, ...] = (2, 3)) -> list[Recorder]:
    """Of six ranks some do not come to the last call; gloo does not record in which message they may wait."""
    ranks = [Recorder(rank, {"0": [*range(6)]}) for rank in range(6)]
    for recorder in ranks:
        recorder.call(title="gloo:all_reduce")
        if recorder.rank not in late:
            recorder.call(title="gloo:all_reduce", done=False)
    return ranks


def half_of_them_stop_over_gloo() -> list[Recorder]:
    return several_stop_over_gloo(late=(1, 3, 5))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (several_stop_over_gloo, ("lagging-ranks", [2, 3], "possible")),
        (half_of_them_stop_over_gloo, ("undecidable", [], "likely")),
        (one_stops_behind_overwritten_messages, ("lagging-ranks", [2], "likely")),
        (one_leaves_out_a_call_and_buffers_are_short, ("cross-communicator-deadlock", [3], "likely")),
        (a_batch_is_cut_by_the_begin_of_a_dump, ("stuck-together", [], "likely")),
        (one_gpu_does_not_begin, ("lagging-ranks", [2], "likely")),
        (no_gpu_is_seen_to_begin, ("stuck-together", [], "likely")),
        (one_stops, ("lagging-ranks", [2], "likely")),
        (one_is_unfinished, ("lagging-ranks", [1], "likely")),
        (one_passes_another_size, ("collective-mismatch", [3], "certain")),
        (one_calls_another_operation, ("collective-mismatch", [0], "certain")),
        (one_uses_groups_in_another_order, ("cross-communicator-deadlock", [1], "likely")),
        (all_stand_together, ("stuck-together", [], "likely")),
        (open_calls_alone_are_dumped, ("lagging-ranks", [2], "likely")),
        (an_empty_dump_whose_head_tells_of_an_open_call, ("undecidable", [], "likely")),
        (one_waits_for_a_message, ("p2p-unmatched", [2], "likely")),
        (one_posted_a_receive_and_stops, ("undecidable", [], "likely")),
        (one_posted_a_receive_in_advance, ("lagging-ranks", [3], "likely")),
        (two_wait_for_messages_of_each_other, ("p2p-unmatched", [0, 1], "possible")),
        (two_wait_in_different_lines, ("p2p-unmatched", [], "likely")),
        (one_leaves_out_a_message_that_the_other_pair_made, ("p2p-unmatched", [], "likely")),
        (messages_in_batches, ("no-hang", [], "likely")),
        (one_makes_no_batch, ("lagging-ranks", [0], "likely")),
        (groups_of_one_name, ("lagging-ranks", [3], "likely")),
        (a_skipped_call_in_a_group_of_two, ("collective-mismatch", [1], "likely")),
        (open_calls_were_overwritten, ("lagging-ranks", [2], "likely")),
        (two_pass_another_size_than_the_other_two, ("collective-mismatch", [0, 1, 2, 3], "likely")),
        (both_ranks_of_a_message_stand, ("stuck-together", [], "possible")),
        (one_sends_a_message_less_than_in_the_other_pair, ("undecidable", [], "likely")),
        (one_passes_another_size_than_the_other_pair, ("collective-mismatch", [1], "likely")),
        (both_pairs_pass_different_sizes, ("collective-mismatch", [0, 1], "likely")),
        (recorders, ("no-hang", [], "likely")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_dumps_show_which_rank_is_at_the_root(tmp_path: Path, made: Any, expected: tuple[str, list[int], str]) -> None:
    assert verdict(judged(tmp_path, made())) == expected


@pytest.mark.parametrize("is_tp_first", [True, False])
def test_of_several_calls_that_lack_a_rank_the_first_is_named(tmp_path: Path, *, is_tp_first: bool) -> None:
    """Rank 1 stops: rank 0 waits for it in their pair, or all others in the world where that call comes first."""
    ranks = recorders()
    for recorder in ranks:
        if recorder.rank > 1 and is_tp_first:
            recorder.call(TP[recorder.rank], elements=64)
        if recorder.rank == 0 and is_tp_first:
            recorder.call(TP[0], elements=64, done=False)
        elif recorder.rank != 1:
            recorder.call(done=False)

    report = judged(tmp_path, ranks)

    assert verdict(report) == ("lagging-ranks", [1], "likely")
    assert report["hang"]["operation"]["count"] == (64 if is_tp_first else 1024)


def test_a_rank_is_not_named_by_a_dump_that_is_older_than_the_others(tmp_path: Path) -> None:
    assert verdict(judged(tmp_path, one_dump_is_older())) == ("undecidable", [], "likely")


def test_a_missing_dump_makes_its_rank_a_possibility_at_most(tmp_path: Path) -> None:
    report = judged(tmp_path, [recorder for recorder in all_stand_together() if recorder.rank != 3])

    assert verdict(report) == ("lagging-ranks", [3], "possible")
    assert "rank 3" in report["hang"]["collect_next"][0]


@pytest.mark.parametrize("absent", [{1, 3}, {0, 1, 3}], ids=["few", "most"])
def test_of_several_ranks_without_a_dump_none_is_named(tmp_path: Path, absent: set[int]) -> None:
    groups = {"0": list(range(8))}
    ranks = [Recorder(rank, groups).call().call(done=False) for rank in range(8)]

    report = judged(tmp_path, [recorder for recorder in ranks if recorder.rank not in absent])

    assert verdict(report) == ("undecidable", [], "likely")
    assert report["hang"]["collect_next"][0].startswith("collect the Flight Recorder dumps of ranks")


def test_one_dump_without_an_open_call_shows_nothing_of_the_others(tmp_path: Path) -> None:
    assert verdict(judged(tmp_path, recorders()[2:3])) == ("undecidable", [], "likely")


def test_dumps_show_which_rank_waits_for_which(tmp_path: Path) -> None:
    report = judged(tmp_path, one_is_unfinished())

    waits = {wait["rank"]: (wait["communicator"], wait["for_ranks"]) for wait in report["hang"]["waits_for"]}
    assert waits == {rank: ("process group 0", [1]) for rank in (0, 2, 3)}


@pytest.mark.parametrize(
    ("late", "calls", "expected", "reason"),
    [
        (11, 30, ("lagging-ranks", [11], "likely"), "waited for no other rank"),
        (0, 3, ("lagging-ranks", [11], "likely"), "all ranks wrote them before"),
        (0, 30, ("undecidable", [], "likely"), ""),
    ],
    ids=["the logs agree", "the dumps are older", "the dumps are newer or of another run"],
)
def test_contradictions_between_dumps_and_logs_are_shown(
    tmp_path: Path, late: int, calls: int, expected: tuple[str, list[int], str], reason: str
) -> None:
    for log in (INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log"):  # rank 11 stops
        (tmp_path / log.name).write_bytes(log.read_bytes())
    ranks = [Recorder(rank, {"0": list(range(16))}) for rank in range(16)]
    for recorder in ranks:
        for _ in range(calls):
            recorder.call()
        if recorder.rank != late:
            recorder.call(done=False)

    report = judged(tmp_path, ranks)

    assert verdict(report) == expected
    assert reason in report["hang"]["reason"]
    assert report["hang"]["communicator"]


def test_heads_decide_which_entries_are_read(tmp_path: Path) -> None:
    """The verdict is that of a full read, and the dumps of ranks that wait are read no further than their heads."""
    world = {"0": list(range(32)), **{str(1 + n): list(range(4 * n, 4 * n + 4)) for n in range(8)}}
    ranks = [Recorder(rank, world) for rank in range(32)]
    for _ in range(500):
        for recorder in ranks:
            recorder.call((str(1 + recorder.rank // 4), "tp")).call()
    for recorder in ranks:
        if recorder.rank != 9:
            recorder.call((str(1 + recorder.rank // 4), "tp"), done=recorder.rank // 4 != 2)
            if recorder.rank // 4 != 2:
                recorder.call(done=False)
    in_heads = judged(tmp_path, ranks)
    in_full = judged(tmp_path, ranks, full=True)

    assert verdict(in_heads) == verdict(in_full) == ("lagging-ranks", [9], "likely")
    sizes = [entry["recognised"] for entry in in_heads["inputs"]]
    assert sum(size > 50 for size in sizes) < len(sizes) / 2
    assert all(entry["recognised"] > 50 for entry in in_full["inputs"])


def test_the_content_shows_the_rank_before_the_name_does(tmp_path: Path) -> None:
    ranks = one_stops()
    for recorder in ranks:
        recorder.groups["9"] = [recorder.rank]
        recorder.made["9"] = 0
        (tmp_path / f"dump-of-node-{7 - recorder.rank}").write_bytes(pickle.dumps(recorder.document()))

    assert verdict(json_report.as_object(analyze([str(tmp_path)]))) == ("lagging-ranks", [2], "likely")


def test_the_line_of_code_is_named_and_redacted(tmp_path: Path) -> None:
    report = judged(tmp_path, one_stops())
    detail = next(finding["detail"] for finding in report["findings"] if finding["rule"] == "coll-lagging-ranks")

    assert "/home/maria/job/train.py:145 in loop" in detail

    run = analyze([str(tmp_path)])
    leaving = redacted_run.redact(run, redaction.assign_pseudonyms(run.run))
    shown = json.dumps(json_report.as_object(leaving)) + leaving.run["recorder_call"].write_csv()
    assert "maria" not in shown
    assert "train.py" not in shown


@pytest.mark.parametrize("is_list", [True, False], ids=["torch 2.2", "torch 2.3"])
def test_dumps_of_the_first_versions_are_read(tmp_path: Path, is_list: bool) -> None:
    """Torch 2.2 wrote the entries alone, and 2.3 lists of ranks; both number a group's calls by `seq_id`."""
    world = {"0": [0, 1, 2, 3]}
    ranks = [Recorder(rank, world).call().call() for rank in range(4)]
    for recorder in ranks:
        if recorder.rank != 2:
            recorder.call(done=False)
        dropped = ("process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes")
        entries = [
            {name: value for name, value in entry.items() if name not in dropped}
            | {"seq_id": entry["collective_seq_id"]}
            for entry in recorder.entries
        ]
        document = entries if is_list else {"version": "1.4", "pg_config": {0: [0, 1, 2, 3]}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{recorder.rank}").write_bytes(pickle.dumps(document, protocol=2))

    assert verdict(json_report.as_object(analyze([str(tmp_path)]))) == ("lagging-ranks", [2], "likely")


def test_a_saved_run_gives_the_same_answer(tmp_path: Path) -> None:
    before = judged(tmp_path, one_stops(), full=True)
    write.save(analyze([str(tmp_path)], full=True), tmp_path / "run.ncclf")

    after = json_report.as_object(analyze([str(tmp_path / "run.ncclf")]))
    assert after["hang"] == before["hang"]


def test_json_and_pickle_hold_the_same_records() -> None:
    document = one_stops()[0].document()
    as_json, _ = flight_recorder.records(json.dumps(document).encode())
    as_pickle, _ = flight_recorder.records(pickle.dumps(document, protocol=2))

    assert as_json == as_pickle
    assert [frame for frame, _ in as_pickle].count("recorder_call") == 7


# The pickle is never executed


class Payload:
    """What a malicious pickle would do."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("a pickle was executed",)


def test_a_pickle_that_would_run_code_is_not_executed() -> None:
    data = pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [Payload()]}, protocol=2)

    found = plain_pickle.load(data)

    assert found.value["version"] == "2.10"
    assert "not executed" in found.problem


def test_ten_bytes_take_no_memory() -> None:
    tracemalloc.start()
    plain_pickle.load(bytes.fromhex("80024b0172ffffff0f2e"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


def test_a_dump_that_is_cut_off_gives_its_complete_entries() -> None:
    data = pickle.dumps(one_stops()[0].document(), protocol=2)
    counts = []
    for size in range(2, len(data), 97):
        records, problems = flight_recorder.records(data[:size])
        counts.append(sum(frame == "recorder_call" for frame, _ in records))
        assert "cut off" in problems[0]

    assert counts == sorted(counts)
    assert counts[-1] == 6  # the last entry is cut


def test_the_walk_and_the_unpickler_agree_for_every_protocol() -> None:
    document = one_is_unfinished()[1].document()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(document, protocol=protocol)
        assert plain_pickle.load(data).value == plain_pickle.walk(data).value == document


def test_mutated_pickles_raise_nothing() -> None:
    data = pickle.dumps(one_is_unfinished()[1].document(), protocol=2)
    chance = random.Random(7)
    for _ in range(100_000 if IS_FULL else 300):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        flight_recorder.records(bytes(mutated[: chance.randint(2, len(mutated))]))
        flight_recorder.head(bytes(mutated))


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.9], ids=["in its head", "in its middle", "in its last entry"])
def test_a_dump_that_is_cut_off_accuses_no_rank(kept: float, tmp_path: Path) -> None:
    incident = INCIDENTS / "flight-recorders-show-groups-in-another-order"
    truth = json.loads((incident / "case.json").read_text(encoding="utf-8"))["truth"]["culprits"]
    dumps = sorted(path for path in incident.iterdir() if path.suffix not in (".json", ".md"))
    for cut in dumps:
        for dump in dumps:
            data = dump.read_bytes()
            (tmp_path / dump.name).write_bytes(data[: int(len(data) * kept)] if dump == cut else data)

        report = analyze([str(tmp_path)])

        assert set(report.numbers(report.verdicts[0].culprits)) <= set(truth), cut.name


def test_a_rank_whose_last_calls_are_cut_off_is_asked_for(tmp_path: Path) -> None:
    """Rank 0 makes no more batches; its dump is cut, and a rank that exchanges messages may wait in one."""
    ranks = one_makes_no_batch()
    judged(tmp_path, ranks)
    dump = tmp_path / "comm_lib_trace_rank_0"
    dump.write_bytes(dump.read_bytes()[:-400])

    report = json_report.as_object(analyze([str(tmp_path)]))

    assert verdict(report) == ("undecidable", [], "likely")
    assert "rank 0 did not come there" in report["hang"]["reason"]
    assert report["hang"]["collect_next"] == [stacks_of("rank 0")]


def _as_object(dumps: list[Json]) -> Any:
    return {str(rank): dump for rank, dump in enumerate(dumps)}


def _as_answers(dumps: list[Json]) -> Any:
    return [{"rank": rank, "dump": dump} for rank, dump in enumerate(dumps)]


@pytest.mark.parametrize("together", [_as_object, _as_answers])
def test_one_json_file_may_hold_the_dumps_of_all_ranks(together: Any, tmp_path: Path) -> None:
    folder = INCIDENTS / "flight-recorders-are-numbered-by-process"
    dumps = [json.loads((folder / f"fr_{3 + rank}.json").read_bytes()) for rank in range(8)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(together(dumps), indent=1))
    (verdict,) = analyze([str(path)]).verdicts
    assert (verdict.verdict, verdict.culprits) == ("lagging-ranks", (5,))


def test_the_place_of_a_dump_in_an_array_is_not_its_rank(tmp_path: Path) -> None:
    folder = INCIDENTS / "flight-recorders-are-numbered-by-process"
    dumps = [json.loads((folder / f"fr_{3 + rank}.json").read_bytes()) for rank in range(8)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(dumps))
    assert not analyze([str(path)]).verdicts


def _with_a_hole(text: str, behind: str) -> str:
    """Overwrite some bytes behind the last such text, in the first of the entries that follow it."""
    begin = text.index('"state"', text.index(behind))
    return text[:begin] + "\x00" * 9 + text[begin + 9 :]


@pytest.mark.parametrize("rank", [1, 2])
def test_the_head_of_damaged_json_is_read(rank: int, tmp_path: Path) -> None:
    """The keys are sorted, so that what decides stands behind the damaged entry."""
    for recorder in one_stops():
        text = json.dumps(recorder.document(), sort_keys=True)
        damaged = _with_a_hole(text, '"entries"') if recorder.rank == rank else text
        (tmp_path / f"fr_rank_{recorder.rank}.json").write_text(damaged)

    report = json_report.as_object(analyze([str(tmp_path)]))

    assert verdict(report) == ("lagging-ranks", [2], "likely")
    assert [entry["damaged"] for entry in report["inputs"]] == [int(number == rank) for number in range(4)]
    assert report["inputs"][rank]["problems"] == ["is damaged JSON: 1 of its entries, or more, cannot be read"]


@pytest.mark.parametrize("together", [_as_object, _as_answers])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_damaged_dump_among_others_in_one_file_accuses_no_rank(together: Any, rank: int, tmp_path: Path) -> None:
    dumps = [recorder.document() for recorder in one_stops()]
    marker = {"pg_mark": 1}
    dumps[rank] |= {"pg_config": dumps[rank]["pg_config"] | marker}
    (tmp_path / "all.json").write_text(_with_a_hole(json.dumps(together(dumps)), "pg_mark"))

    report = json_report.as_object(analyze([str(tmp_path)]))

    assert verdict(report)[:2] == (("undecidable", []) if rank == 2 else ("lagging-ranks", [2]))
    problems = [problem for entry in report["inputs"] for problem in entry["problems"]]
    assert any("is damaged JSON" in problem and str(rank) in problem for problem in problems)


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_a_cut_dump_that_names_no_group_of_a_call_accuses_no_rank(kept: float, tmp_path: Path) -> None:
    """Its head numbers the groups, and the calls that would give the number of the group its name are cut away."""
    groups = {**MEMBERS, "3": [0, 2], "4": [1, 3]}
    ranks = [Recorder(rank, groups) for rank in range(4)]
    for recorder in ranks:
        for _ in range(20):
            recorder.call(TP[recorder.rank])
        recorder.call()
        if recorder.rank != 1:
            recorder.call((str(3 + recorder.rank % 2), "dp"), done=recorder.rank != 3)
        if recorder.rank in (0, 2):
            recorder.call(done=False)
    judged(tmp_path, ranks)
    dump = tmp_path / "comm_lib_trace_rank_2"
    dump.write_bytes(dump.read_bytes()[: int(dump.stat().st_size * kept)])

    report = json_report.as_object(analyze([str(tmp_path)]))

    assert report["hang"]["culprits"] == [1]


WRONG_SIZE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <="
    " op.nbytes. 512 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch"
    " in your code?\n"
)


@pytest.mark.parametrize(
    ("undumped", "expected"),
    [((1,), ("collective-mismatch", [1], "likely")), ((1, 2), ("undecidable", [], "likely"))],
    ids=["one-rank", "two-ranks"],
)
def test_a_wrong_size_names_the_only_rank_whose_call_is_not_recorded(
    tmp_path: Path, undumped: tuple[int, ...], expected: tuple[str, list[int], str]
) -> None:
    ranks = several_stop_over_gloo(late=())
    for rank in range(6):
        text = WRONG_SIZE if rank == 1 else "[W1122 09:19:41.657 socket.cpp:207] [c10d] a note\n"
        (tmp_path / f"rank{rank}.log").write_text(text)

    report = judged(tmp_path, [recorder for recorder in ranks if recorder.rank not in undumped])

    assert verdict(report) == expected
