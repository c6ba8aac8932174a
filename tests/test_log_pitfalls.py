"""How NCCL's log has to be read: each of these, ignored, gives a wrong verdict. One test for each, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views.json_report import as_object
from tests.incidents import INCIDENTS

INIT = (
    "{host}:{pid}:{pid} [{dev}] NCCL INFO ncclCommInitRank comm {comm} rank {rank} nranks {nranks} cudaDev {dev} "
    "nvmlDev {dev} busId 1b000 commId 0x8f3bd2a4c1e07755 - Init {phase}\n"
)
CALL = (
    "{host}:{pid}:{pid} [{dev}] NCCL INFO AllReduce: opCount {opcount} sendbuff 0x7f10 recvbuff 0x7f20 count 4096 "
    "datatype 9 op 2 root 0 comm {comm} [nranks={nranks}] stream 0x5580\n"
)
END = (
    "{host}:{pid}:{pid} [{dev}] NCCL INFO comm {comm} rank {rank} nranks {nranks} cudaDev {dev} busId 1b000 - "
    "Destroy COMPLETE\n"
)
Json = dict[str, Any]


def process(rank: int, nranks: int = 2, **more: object) -> Json:
    names = {"host": "gpu-a012", "pid": 4100 + rank, "dev": 0, "comm": f"0x55d1c3e0a2b{rank}"}
    return {**names, "rank": rank, "nranks": nranks, **more}


def created(**who: object) -> str:
    return INIT.format(phase="START", **who) + INIT.format(phase="COMPLETE", **who)


def calls(counts: list[str], **who: object) -> str:
    return "".join(CALL.format(opcount=count, **who) for count in counts)


def read(folder: Path, *texts: str, everything: bool = False) -> Report:
    for number, text in enumerate(texts):
        (folder / f"log{number}.log").write_text(text, encoding="utf-8")
    return analyze([str(folder)], everything=everything)


def verdict(report: Report) -> str:
    return str(as_object(report)["hang"]["verdict"])


VERSION = "NCCL version 2.27.7+cuda12.9\n"


def test_read_prefix_is_device_not_rank(tmp_path: Path) -> None:
    """`[7]` is the device of the thread; behind a CUDA shutdown it is garbage."""
    garbage = "gpu-a012:4105:4105 [909195890] NCCL INFO Connected all rings\n"
    logs = [created(**process(rank, dev=7 - rank)) for rank in range(2)]

    report = read(tmp_path, logs[0], created(**process(1, dev=3, pid=4105)) + garbage)

    ranks = {row["pid"]: (row["rank"], row["cudadev"]) for row in report.run["rank"].to_dicts()}
    assert ranks == {4100: (0, 7), 4105: (1, 3)}


def test_read_opcount_is_hex_and_datatype_and_op_are_numbers(tmp_path: Path) -> None:
    who = process(0, nranks=1)

    report = read(tmp_path, VERSION + created(**who) + calls(["9", "a", "1f"], **who))

    assert report.run["operation"]["opcount"].to_list() == [9, 10, 31]
    last = as_object(report)["hang"]["last_operations"][0]
    assert (last["datatype"], last["op"]) == ("bfloat16", "max")


def test_read_opcount_may_stay_zero(tmp_path: Path) -> None:
    """Calls are matched by their order: two calls with opCount 0 are two calls."""
    logs = [created(**process(rank)) + calls(["0"] * count, **process(rank)) for rank, count in ((0, 5), (1, 4))]

    report = read(tmp_path, VERSION + logs[0], logs[1])

    found = as_object(report)["hang"]
    assert (found["verdict"], found["culprits"], found["operation"]["ordinal"]) == ("lagging-ranks", [1], 4)


def test_read_comm_pointer_is_local(tmp_path: Path) -> None:
    """One pointer in two processes is two memberships, and a pointer used again is another communicator."""
    same = "0x55d1c3e0a2b0"
    again = {"comm": same, "nranks": 2}
    texts = []
    for rank in range(2):
        who = process(rank, **again)
        first = created(**who) + calls(["0", "1"], **who) + END.format(**who)
        texts.append(first + first.replace("8f3bd2a4c1e07755", "1c5b6a7f0e3d2211"))

    report = read(tmp_path, *texts)

    assert report.run["member"]["key"].n_unique() == 2
    assert verdict(report) == "no-hang"


def test_read_subsystem_gap(tmp_path: Path) -> None:
    """No calls in the log is no proof of none: not decidable, and what to set is said."""
    report = read(tmp_path, *(VERSION + created(**process(rank)) for rank in range(2)))

    found = as_object(report)["hang"]
    assert found["verdict"] == "undecidable"
    assert any("COLL" in step for step in found["collect_next"])


def test_read_launched_is_not_completed() -> None:
    """Every rank made the call, and PyTorch timed out in it: the job stands still all the same."""
    report = analyze([str(INCIDENTS / "the-others-abort-after-a-timeout" / "*.log")])

    assert "completed" not in as_object(report)["findings"][0]["title"]
    assert verdict(report) != "no-hang"


def test_read_error_arrow_chain(tmp_path: Path) -> None:
    """`-> 3` is the stack unwinding; the warning before it is what happened."""
    who = process(0)
    warning = "gpu-a012:4100:4200 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
    warning += "10.0.4.13<45210> with error 12, opcode 0, len 0, vendor err 129 (Send)\n"
    chain = "".join(f"gpu-a012:4100:4200 [0] NCCL INFO transport/net.cc:{n} -> 6\n" for n in (1134, 696, 780))

    report = read(tmp_path, VERSION + created(**who) + warning + chain, VERSION + created(**process(1)))

    assert report.run["failure"]["form"].cast(str).to_list()[0].startswith("ib_completion")
    causes = {row["form"] for row in report.run["failure_event"].to_dicts() if row["kind"] not in ("after", "")}
    assert causes == {"ib_completion_error"}


def test_read_last_warning_may_be_unrelated(tmp_path: Path) -> None:
    """What a framework prints as `Last error:` is not a failure of its own."""
    reported = "[rank0]: Last error:\n[rank0]: Attribute busid of node nic not found\n"

    report = read(tmp_path, VERSION + created(**process(0, nranks=1)) + reported)

    assert report.run["failure_event"].is_empty()


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ("node1:77:330 [0] init.cc:1500 NCCL WARN some text that no grammar knows", "warning"),
        ("node1:77:330 [0] init.cc:1500 (commCheck) NCCL WARN some text that no grammar knows", "warning"),
        ("[2026-03-02 11:04:57] node1:77:330 [0] init.cc:1 (commCheck) NCCL WARN some text", "warning"),
        ("node1:77:330 NCCL CALL ncclGroupStart()", "request"),
        ("NCCL version 2.18.6+cuda12.4", "version"),
    ],
)
def test_read_warn_may_carry_function(tmp_path: Path, line: str, frame: str) -> None:
    report = read(tmp_path, f"{line}\n")

    assert report.run.tally["recognised"].sum() == 1
    assert report.run[frame].height == 1 or frame == "request"


def test_read_channel_list_is_truncated(tmp_path: Path) -> None:
    """The printed ring ends early: no rank is missing because it is not in it."""
    ring = "gpu-a012:4100:4100 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
    logs = [created(**process(rank, nranks=8)) + END.format(**process(rank, nranks=8)) for rank in range(8)]

    report = read(tmp_path, logs[0] + ring, *logs[1:])

    assert as_object(report)["run"]["ranks_missing"] == []
    assert verdict(report) == "no-hang"


def test_read_format_is_unstable(tmp_path: Path) -> None:
    """A line that nobody knows is kept and counted, and the share of those known is told."""
    report = read(tmp_path, "node1:77:77 [0] NCCL INFO a text of a version to come\n" + VERSION)

    (given,) = as_object(report)["inputs"]
    assert (given["unrecognised"], given["recognised"]) == (1, 1)


def test_read_ib_using_may_be_empty(tmp_path: Path) -> None:
    """`NET/IB : Using` without a device is no InfiniBand."""
    reported = [
        "NET/IB : No device found.",
        "NET/IB : Using [RO]; OOB eth0:10.0.4.12<0>",
        "NET/Socket : Using [0]eth0:10.0.4.12<0>",
        "Using network Socket",
    ]
    text = "".join(f"gpu-a012:4100:4100 [0] NCCL INFO {line}\n" for line in reported)

    report = read(tmp_path, VERSION + text)

    assert as_object(report)["run"]["networks"] == ["Socket"]
    assert report.run.tally["unrecognised"].sum() == 0


@pytest.mark.parametrize("tag", ["[1,{rank}]<stdout>:", "{rank}: ", "(Worker pid={pid}) ", "\x1b[36m[default{rank}]:"])
def test_read_launcher_decoration(tmp_path: Path, tag: str) -> None:
    """What stands in front is taken away and does not change the answer."""
    lines = [
        tag.format(rank=rank, pid=4100 + rank) + line
        for rank, count in ((0, 3), (1, 2))
        for line in (created(**process(rank)) + calls(["0"] * count, **process(rank))).splitlines(keepends=True)
    ]

    found = as_object(read(tmp_path, "".join(lines)))["hang"]

    assert (found["verdict"], found["culprits"]) == ("lagging-ranks", [1])


def test_a_label_that_two_processes_share_is_no_rank(tmp_path: Path) -> None:
    """`srun -l` counts tasks: with one task a node, all ranks of the node have its label."""
    labels = ((1, 0), (1, 1), (2, 2))
    text = "".join(
        f"{label}: gpu-a012:{4100 + n}:{4100 + n} [{n}] NCCL INFO Connected all rings\n" for label, n in labels
    )

    report = read(tmp_path, text)

    assert as_object(report)["run"]["ranks_seen"] == [2]
    assert verdict(report) == "undecidable"


def test_read_one_run_is_weak() -> None:
    """Two runs in the same files are told apart and judged each for itself, never as one."""
    report = analyze([str(INCIDENTS / "two-runs-in-the-same-files" / "*.log")])

    assert len({answer.job for answer in report.verdicts}) == 2


def test_read_missing_log_is_evidence(tmp_path: Path) -> None:
    """Ranks that the log promises and that no log shows are named, and lower the certainty."""
    report = read(
        tmp_path,
        *(VERSION + created(**process(rank, nranks=4)) + END.format(**process(rank, nranks=4)) for rank in (0, 2)),
    )

    assert as_object(report)["run"]["ranks_missing"] == [1, 3]
    assert as_object(report)["hang"]["certainty"] != "certain"


def test_a_rank_outside_of_its_communicator_is_damage(tmp_path: Path) -> None:
    """A number that was torn or mistyped must not become a rank that does not exist."""
    for log in (INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log"):
        text = log.read_text(encoding="utf-8").replace("rank 11 nranks 16", "rank 116 nranks 16")
        (tmp_path / log.name.replace("rank11", "of-a-rank")).write_text(text, encoding="utf-8")

    report = analyze([str(tmp_path)])

    assert max(report.run["rank"]["rank"].drop_nulls()) < 16
    assert report.verdicts[0].verdict != "no-hang"


def test_communicators_whose_pointers_were_left_out_are_known_by_their_size(tmp_path: Path) -> None:
    """Texts for other readers have `0x...` for pointers: their calls cannot be told apart, and are not judged."""
    texts = []
    for rank in range(2):
        owner = process(rank, comm="0x...", nranks=2)
        text = VERSION + created(**owner) + calls(["0", "1"][: rank + 1], **owner)
        texts.append(text.replace("0x8f3bd2a4c1e07755", "0x...").replace("busId 1b000", "busId XXXX"))

    report = read(tmp_path, *texts)

    assert as_object(report)["run"]["communicators"][0]["nranks"] == 2
    assert report.verdicts[0].verdict == "undecidable"
    assert "left out" in report.verdicts[0].reason
