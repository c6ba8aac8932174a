"""Init: was it refused, and who never came to it?

There is no time-out in NCCL's bootstrap: a rank that does not come makes the others wait in silence. Up to 2.21 the
START line is printed only after the bootstrap, so that those logs do not even say which communicator they wait for.
"""

from __future__ import annotations

from collections import defaultdict

from ncclforensics.analyses.hang.job import Case, Diagnosis, Row, numbers_but
from ncclforensics.analyses.job.failure_events import LOST, NETWORK, REFUSED
from ncclforensics.data.variables import COLLECT_BOOTSTRAP

FAILED = "init failed"  # begins the reason where it was a fault, and not NCCL that refused
CHATTER = 20  # lines; launchers say that much when they end a job
BOOTSTRAP_ONLY = ["bootstrap", "network", "driver", "entered"]


def refused(case: Case) -> Diagnosis | None:
    """NCCL itself names the reason why a communicator cannot be made."""
    lines = [t for t in case.failure_events if t["kind"] == REFUSED]
    unfinished = [row for row in case.memberships if not row["is_complete"]]
    if not lines or (case.members and not unfinished):
        return None
    first = min(lines, key=lambda t: _STRENGTH.get(t["form"], len(_STRENGTH)))
    culprits, reason = _named(case, first, lines)
    key = next((row["key"] for row in unfinished), None)
    victims = [rank_id for rank_id in case.rank_ids if rank_id not in culprits]
    diagnosis = Diagnosis("init-failed", reason, culprits=culprits, victims=victims, key=key)
    if first["form"] == "rank_twice":  # who is there twice should have been the one that is not
        diagnosis.missing = case.absent
    diagnosis.show("failure", [t for t in lines if t["form"] == first["form"]][:4])
    diagnosis.show("culprit", [row for row in unfinished if row["rank_id"] in culprits][:4])
    if not culprits or first["form"] in ("message_truncated", "root_info"):
        diagnosis.doubt("likely")
    return diagnosis


def failed(case: Case) -> Diagnosis | None:
    """A rank met a fault of its own while it made a communicator."""
    inside: dict[int, list[Row]] = defaultdict(list)
    for row in case.memberships:
        if not row["is_complete"]:
            inside[row["rank_id"]].append(row)
    begun = {(row["host"], row["pid"]) for row in case.milestones}
    seated = {row["rank_id"] for row in case.memberships}
    early = {
        rank_id
        for rank_id, row in case.rank_ids.items()
        if rank_id not in seated and (row["host"], row["pid"]) in begun and case.last_call(rank_id) is None
    }

    def is_inside(t: Row) -> bool:
        return t["rank_id"] in early or any(t["pos"] > row["created_pos"] for row in inside.get(t["rank_id"], []))

    faults = [t for t in case.failure_events if t["form"] in _FAULTS and not t["at_exit"] and is_inside(t)]
    reason = min((_FAULTS[t["form"]] for t in faults), key=list(_FAULTS.values()).index, default="")
    if not faults:  # another fault, if NCCL went back out of init and no peer had gone away
        lost = {t["rank_id"] for t in case.failure_events if t["kind"] in (LOST, NETWORK)}
        faults = [
            t for t in case.failure_events if t["form"] == "unwinding" and t["rank_id"] not in lost and is_inside(t)
        ]
        reason = "NCCL gave up"
    culprits = sorted({t["rank_id"] for t in faults if t["rank_id"] is not None})
    if not culprits:
        return None
    diagnosis = Diagnosis("init-failed", f"{FAILED}: {reason}", "likely", culprits=culprits)
    diagnosis.victims = [rank_id for rank_id in case.rank_ids if rank_id not in culprits]
    diagnosis.key = next((row["key"] for rank_id in culprits for row in inside.get(rank_id, [])), None)
    diagnosis.show("failure", [next(t for t in faults if t["rank_id"] == rank_id) for rank_id in culprits[:4]])
    return diagnosis


# Forms of failures that are a fault of the rank's own, in words; the most telling first.
_FAULTS = {
    "shared_memory_full": "/dev/shm is full",
    "out_of_memory": "no memory was left",
    "shared_memory": "a shared memory segment could not be made",
    "verbs_call": "the InfiniBand library refused a call",
    "cuda": "a call of CUDA's failed",
}

# The most telling refusal first; the others follow from it.
_STRENGTH = {
    name: place
    for place, name in enumerate(
        [
            "gpu_twice",
            "gpu_shared",
            "version_mismatch",
            "rank_twice",
            "rank_count",
            "root_info",
            "no_interface",
            "message_truncated",
            "no_transport",
        ]
    )
}


def _named(case: Case, line: Row, lines: list[Row]) -> tuple[list[int], str]:
    by_number: dict[int | None, list[int]] = defaultdict(list)
    for rank_id in case.rank_ids:
        by_number[case.number(rank_id)].append(rank_id)
    pair = [a for number in (line["rank"], line["other"]) for a in by_number.get(number, [])]
    match line["form"]:
        case "gpu_twice":
            return sorted(set(pair)), f"ranks {line['rank']} and {line['other']} use the same GPU"
        case "gpu_shared":
            shared = _one_gpu_twice(case) or sorted({t["rank_id"] for t in lines if t["rank_id"] is not None})
            return shared, f"ranks {_list(case.numbers(shared))} use the same GPU"
        case "rank_twice":
            told = f"two processes call themselves rank {line['rank']}"
            return by_number.get(line["rank"], []), told + (f", none rank {_list(case.absent)}" if case.absent else "")
        case "rank_count" | "root_info" if line["nroots"] == line["otherroots"] and _odd_sizes(case):
            odd = _odd_sizes(case)
            return odd, f"rank {_list(case.numbers(odd))} was started with another number of ranks than the others"
        case "version_mismatch":
            return pair[1:], f"ranks {line['rank']} and {line['other']} run different versions of NCCL"
        case "root_info" | "message_truncated" if len(case.releases) > 1:
            odd = [
                rank_id
                for rank_id in case.rank_ids
                if not any(case.roles.get((rank_id, key)) == 0 for key in case.members)
            ]
            return (
                odd,
                f"processes speak different versions of NCCL to one another ({', '.join(case.releases)} are seen)",
            )
        case "no_interface":
            return sorted({t["rank_id"] for t in lines if t["form"] == "no_interface" and t["rank_id"] is not None}), (
                "no network interface fits NCCL_SOCKET_IFNAME on this host"
            )
    return [], "init was refused; the warning cited says why"


def _one_gpu_twice(case: Case) -> list[int]:
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank_id, row in case.rank_ids.items():
        if row["busid"]:
            seen[row["host"], row["busid"]].append(rank_id)
    return sorted(rank_id for rank_ids in seen.values() if len(rank_ids) > 1 for rank_id in rank_ids)


def _odd_sizes(case: Case) -> list[int]:
    """Members that state another nranks than most, under one commId."""
    for row in case.members.values():
        sizes: dict[int, list[int]] = defaultdict(list)
        for membership in row:
            sizes[membership["nranks"]].append(membership["rank_id"])
        if len(sizes) > 1:
            most = max(sizes.values(), key=len)
            return sorted(rank_id for rank_ids in sizes.values() if rank_ids is not most for rank_id in rank_ids)
    return []


def never_came(case: Case) -> Diagnosis | None:
    """Init that some ranks began and others did not come to."""
    inside: dict[str, list[Row]] = defaultdict(list)
    for row in case.memberships:
        if not row["is_complete"] and row["end"] is None:
            inside[row["key"]].append(row)
    if inside:
        return _incomplete(case, inside)
    return _entered(case) or _in_bootstrap(case)


def _incomplete(case: Case, inside: dict[str, list[Row]]) -> Diagnosis | None:
    edges = [w for w in case.waits if w["kind"] == "init"]
    waiting = {w["waiter"] for w in edges}
    key = max(inside, key=lambda k: (inside[k][0]["nranks"], len(inside[k])))
    rows = inside[key]
    left_out = sorted({w["waits_for"] for w in edges} - waiting)
    if edges and not left_out:
        return _crossed(case, inside, edges)
    victims = sorted({row["rank_id"] for row in rows})
    unseen = case.unseen(key)
    if left_out:
        diagnosis = Diagnosis("init-incomplete", "never began the init that the others wait in", culprits=left_out)
        diagnosis.show("culprit", [case.last_line(rank_id) for rank_id in left_out[:4]])
    elif unseen and not any(row["is_complete"] for row in case.members[key]):
        missing = numbers_but(rows[0]["nranks"], {row["rank"] for row in case.members[key]})
        told = f"never came to the init of the communicator of {rows[0]['nranks']} ranks: no log shows "
        diagnosis = Diagnosis("rank-missing", told + ("it" if len(missing) == 1 else "them"), missing=missing)
    elif unseen:
        return None  # some came through: the absent logs were not collected, and the ends tell the rest
    elif any(_goes_on(case, rank_id) for rank_id in victims):
        return None  # the application wrote on: the end of init is not in this log, or was not printed
    else:
        diagnosis = Diagnosis("init-incomplete", "every rank began this init, and these never came out of it", "likely")
    diagnosis.key, diagnosis.victims = key, victims
    diagnosis.show("waiting", rows[:3])
    return diagnosis


def _goes_on(case: Case, rank_id: int) -> bool:
    """Whether the file of a rank has many lines of the application behind NCCL's last one."""
    process = case.process(rank_id)
    last: int = process["last_line"]
    lines: int = case.sources[process["last_source"]]["lines"]
    return last > 0 and lines - last > CHATTER


def _crossed(case: Case, inside: dict[str, list[Row]], edges: list[Row]) -> Diagnosis:
    """Ranks that wait for one another in the init of different communicators."""
    involved = {w["key"] for w in edges}
    groups = sorted((rows for key, rows in inside.items() if key in involved), key=len)
    few = groups[0] if len(groups) > 1 and len(groups[0]) < len(groups[-1]) else [r for rows in groups for r in rows]
    culprits = sorted({row["rank_id"] for row in few})
    verdict = "cross-communicator-deadlock" if len(groups) > 1 else "init-incomplete"
    diagnosis = Diagnosis(
        verdict,
        "created the communicators in another order than the others: each side waits for the other",
        culprits=culprits,
    )
    diagnosis.key = str(few[0]["key"])
    diagnosis.victims = sorted({row["rank_id"] for rows in groups for row in rows} - set(culprits))
    diagnosis.show("minority", few[:4])
    diagnosis.show("majority", groups[-1][:2])
    return diagnosis


def _entered(case: Case) -> Diagnosis | None:
    """Ranks that began one more init than they have communicators, in a version that prints START later."""
    owners: dict[tuple[str, int], int] = defaultdict(int)
    last: dict[tuple[str, int], Row] = {}
    for row in case.milestones:
        if row["form"] == "entered":
            owners[row["host"], row["pid"]] += 1
            last[row["host"], row["pid"]] = row
    created: dict[tuple[str, int], int] = defaultdict(int)
    for row in case.memberships:
        created[row["host"], row["pid"]] += 1
    ours = {rank_id: (row["host"], row["pid"]) for rank_id, row in case.rank_ids.items()}
    pending = [rank_id for rank_id, owner in ours.items() if owners[owner] > created[owner] > 0]
    idle = [rank_id for rank_id, owner in ours.items() if owners[owner] == created[owner] > 0]
    if not pending or not idle or len(idle) >= len(pending):
        return None
    told = "did not begin the creation of a communicator that the others are inside of"
    diagnosis = Diagnosis("init-incomplete", told, "likely", culprits=idle, victims=pending)
    diagnosis.show("waiting", [{**last[ours[rank_id]], "rank_id": rank_id} for rank_id in pending[:3]])
    diagnosis.show("culprit", [case.last_line(rank_id) for rank_id in idle[:4]])
    return diagnosis


def _in_bootstrap(case: Case) -> Diagnosis | None:
    """No communicator anywhere: all that these logs show is that every rank waits in the bootstrap."""
    reached = {row["form"] for row in case.milestones}
    if case.members or not reached & set(BOOTSTRAP_ONLY) or any(_goes_on(case, rank_id) for rank_id in case.rank_ids):
        return None
    numbers = case.numbers(case.rank_ids)
    gaps = numbers_but(max(numbers, default=0), set(numbers))
    victims = list(case.rank_ids)
    collect = COLLECT_BOOTSTRAP
    if gaps and len(gaps) < len(numbers):
        told = "left no log, though the files are numbered past it, and all others wait in the bootstrap"
        diagnosis = Diagnosis("rank-missing", told, "possible", missing=gaps, victims=victims, collect=collect)
    else:
        told = "every rank seen waits in the bootstrap, before this version prints which communicator it is"
        diagnosis = Diagnosis("init-incomplete", told, "likely", victims=victims, collect=collect)
    diagnosis.show("waiting", [case.last_line(rank_id) for rank_id in victims[:3]])
    return diagnosis


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
