"""Explain why NCCL refused to create a communicator, by the most specific warning that states it."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import REFUSED, FailureEvent
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Detail, Kind
from ncclforensics.data.names import pci_address, ranks_text, shown, some_of
from ncclforensics.data.redaction_rules import EVERYWHERE

# The most specific refusal first; the others follow from it.
_REFUSALS = (
    *("gpu_twice", "gpu_shared", "version_mismatch", "rank_twice", "rank_count", "root_info", "root_range"),
    *("no_interface", "no_matching_subnet", "message_truncated", "no_transport"),
)
# What the others say, where their numbers do not tell more.
_REASONS = {
    "rank_count": "processes disagree on the number of ranks",
    "root_info": "processes disagree on the ranks or on the roots of the bootstrap",
    "root_range": "a rank has a number on its host that is out of range",
    "device_counts": "hosts have different numbers of network devices",
    "no_such_interface": "no network interface is the one that NCCL_SOCKET_IFNAME asks for",
    "message_truncated": "a process received an init message of another length than it expects",
}
SHOWN_GPUS = 2
SHOWN_HOSTS = SHOWN_PAIRS = 3
_REFUSAL_ORDER = {form: order for order, form in enumerate(_REFUSALS)}


def find_refused_init(job: Job) -> Explanation | None:
    """Find a refusal: NCCL states why it cannot create a communicator."""
    unfinished = [row for row in job.memberships if not row.is_complete]
    lines = [event for event in job.failure_events if event.kind == REFUSED]
    if not lines:
        return _find_shared_gpu(job)
    first = min(lines, key=lambda event: _REFUSAL_ORDER.get(event.form, len(_REFUSAL_ORDER)))
    culprits, reason, detail = _explain_refusal(job, first, lines)
    diagnosis = job.explanation_of(Kind.INIT_FAILED, reason, culprits)
    diagnosis.key, diagnosis.detail = next((row.key for row in unfinished), None), detail
    if first.form == "rank_twice":  # the second process should have had the rank number that is absent
        doubles = len(culprits) - len(set(job.rank_numbers(culprits)))
        diagnosis.missing = job.absent if len(job.absent) <= doubles else []  # of more, some logs were not given
    elif first.form == "gpu_twice" and _are_numbers_of_job(job, lines):
        named = sorted(number for group in _numbers_on_one_gpu(lines) for number in group)
        diagnosis.missing = [number for number in named if number in job.absent]
    diagnosis.add_evidence(failure=[event for event in lines if event.form == first.form][:4])
    diagnosis.add_evidence(culprit=[row for row in unfinished if row.rank_id in culprits][:4])
    # The ranks of a communicator that were not seen may outnumber the majority.
    has_unseen_majority = any(max(row.nranks for row in rows) > len(rows) for rows in job.members.values())
    is_partly_known = {"rank_twice": not diagnosis.missing, "rank_count": has_unseen_majority}.get(first.form)
    if not culprits or is_partly_known or first.form in ("message_truncated", "root_info"):
        diagnosis.doubt(Doubt.REASON_OF_ANOTHER)
    return diagnosis


def _find_shared_gpu(job: Job) -> Explanation | None:
    """Find ranks on one GPU by the lines with which they began an init that no line shows completed.

    NCCL refuses such a communicator, with a warning that these logs do not hold.
    """
    ranks = _ranks_sharing_gpu(job)
    for key, rows in job.members.items():
        members = {row.rank_id: row for row in rows}
        shared = [rank_id for rank_id in ranks if rank_id in members]
        if shared and not any(row.is_complete for row in rows):
            reason = f"{ranks_text(job.rank_numbers(shared))} began it on the same GPU, which NCCL refuses"
            diagnosis = job.explanation_of(Kind.INIT_FAILED, reason, shared, Doubt.ONE_NAME)
            diagnosis.key, diagnosis.detail = key, Detail.SAME_GPU
            return diagnosis.add_evidence(culprit=[members[rank_id] for rank_id in shared[:4]])
    return None


def _explain_refusal(job: Job, line: FailureEvent, lines: list[FailureEvent]) -> tuple[list[int], str, Detail]:
    """Return the culprits of a refusal, its reason, and what a launcher set wrongly, from the most specific line."""
    by_number: dict[int | None, list[int]] = {None: []}
    for rank_id in job.rank_ids:
        if (number := job.rank_number(rank_id)) is not None:
            by_number.setdefault(number, []).append(rank_id)
    ranks_of_pair = [rank_id for number in (line.rank, line.other) for rank_id in by_number.get(number, [])]
    has_pair = line.rank is not None or line.other is not None
    pair = f"ranks {shown(line.rank)} and {shown(line.other)}" if has_pair else "ranks of the job"
    sizes = f"processes were started with different numbers of ranks, {shown(line.nranks)} and {shown(line.other)}"
    match line.form:
        case "gpu_twice":
            return _explain_gpu_used_twice(job, lines, by_number)
        case "gpu_shared":
            shared = _ranks_sharing_gpu(job)  # every rank prints the warning, also one with a GPU of its own
            names = ranks_text(job.rank_numbers(shared)) or "unnamed ranks"
            busids = {int(busid, 16) for rank_id in shared if (busid := job.rank_ids[rank_id].busid)}
            return shared, f"{names} use the same GPU{_gpus_text(busids)}", Detail.SAME_GPU
        case "rank_twice":
            absent = f", and no log shows {ranks_text(job.absent)}" if job.absent else ""
            twice = f"two processes have rank number {shown(line.rank)}{absent}"
            return by_number.get(line.rank, []), twice, Detail.SAME_NUMBER
        case "rank_count" | "root_info" if line.nroots == line.otherroots and (outliers := _outliers_in_size(job)):
            return outliers, f"{sizes}; the minority: {ranks_text(job.rank_numbers(outliers))}", Detail.OTHER_SIZE
        case "version_mismatch":
            return ranks_of_pair[1:], f"{pair} run different versions of NCCL", Detail.OTHER_VERSION
        case "root_info" | "message_truncated" if len(job.run.releases) > 1:
            outliers = [
                rank_id
                for rank_id in job.rank_ids
                if not any(job.communicator_index.get((rank_id, key)) == 0 for key in job.members)
            ]
            versions = f"processes of different versions of NCCL connect to each other: {', '.join(job.run.releases)}"
            return outliers, versions, Detail.OTHER_VERSION
        case "root_info" if line.nroots != line.otherroots and _is_of_another_layout(line):
            shown_versions = ", ".join(job.run.releases)
            hosts = set(job.run.frames["version"]["host"].cast(pl.String))
            silent = sorted({row.host for row in job.rank_ids.values() if row.host} - hosts)
            none = f"; no line of {some_of(silent, SHOWN_HOSTS)} that was read shows one" if silent else ""
            only = f"; the only version that these logs show is {shown_versions}{none}" if shown_versions else ""
            numbers = f"nroots {shown(line.nroots)} vs {shown(line.otherroots)}"
            layout = f"a process sent init data in another layout ({numbers}), as another version of NCCL does{only}"
            return [], layout, Detail.OTHER_VERSION
        case "no_interface" | "no_matching_subnet" as form:
            without = {event.rank_id for event in lines if event.form == form and event.rank_id is not None}
            unmatched = "matches NCCL_SOCKET_IFNAME on this host"
            if form == "no_matching_subnet":
                unmatched = "of this host is in the subnet of the address in NCCL_COMM_ID"
            return sorted(without), f"no network interface {unmatched}", Detail.NOTHING
        case "rank_count" | "root_info" if line.nranks != line.other:
            return [], sizes, Detail.OTHER_SIZE
        case "no_transport":
            return [], _unconnected_text(lines), _moment_of_connecting(job, line)
    return [], _REASONS[line.form], Detail.NOTHING


def _unconnected_text(lines: list[FailureEvent]) -> str:
    """Say between which ranks NCCL found no transport; older versions name none."""
    pairs = [f"rank {line.rank} to {line.other}" for line in lines if None not in (line.rank, line.other)]
    return f"no transport connects {some_of(list(dict.fromkeys(pairs)), SHOWN_PAIRS) or 'two of the ranks'}"


def _moment_of_connecting(job: Job, line: FailureEvent) -> Detail:
    """Return whether a rank was past init: then it connects to others at the first call that needs them (2.22)."""
    own = [row for row in job.memberships if row.rank_id == line.rank_id]
    is_past_init = bool(own) and all(row.is_complete for row in own)
    return Detail.UNCONNECTED_LATE if is_past_init else Detail.UNCONNECTED


def _is_of_another_layout(line: FailureEvent) -> bool:
    """Whether a process named more roots than there are ranks: what was read there is another field."""
    roots = max(line.nroots or 0, line.otherroots or 0)
    return line.nranks is not None and roots > line.nranks


def _explain_gpu_used_twice(
    job: Job, lines: list[FailureEvent], by_number: dict[int | None, list[int]]
) -> tuple[list[int], str, Detail]:
    """Return the ranks that share a GPU, by the warnings of all of them: each names itself and the first of the others.

    The numbers are those of the communicator, which may be one of a few ranks of the job.
    """
    groups = _numbers_on_one_gpu(lines)
    if not groups:
        unnamed = "two ranks of a communicator use one GPU; the cited line is cut before it names both"
        return [], unnamed, Detail.SAME_GPU
    numbers = sorted(number for group in groups for number in group)
    if _are_numbers_of_job(job, lines):
        culprits = sorted({rank_id for number in numbers for rank_id in by_number.get(number, [])})
        return culprits, _shared_gpus_text(groups), Detail.SAME_GPU
    printers = ranks_text(job.rank_numbers(row.rank_id for row in lines if row.rank_id is not None))
    reporter = f" ({printers} of the job reports it)" if printers else ""
    shared = _shared_gpus_text(groups, " of one communicator")
    return [], f"{shared}; in the job they may have other numbers{reporter}", Detail.SAME_GPU


def _shared_gpus_text(groups: dict[tuple[int, ...], set[int]], of: str = "") -> str:
    """Say which ranks share which GPU; `of`: whose numbers these are."""
    uses = [
        f"{_group_text(group)}{of * (number == 0)} use the same GPU{_gpus_text(busids)}"
        for number, (group, busids) in enumerate(groups.items())
    ]
    return ", ".join(uses[:SHOWN_GPUS]) + f" and {len(uses) - SHOWN_GPUS} more do" * (len(uses) > SHOWN_GPUS)


def _group_text(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 2:
        return f"ranks {numbers[0]} and {numbers[1]}"
    return f"{len(numbers)} ranks ({ranks_text(numbers)})"


def _gpus_text(busids: set[int]) -> str:
    """Name GPUs as NCCL prints their bus ids, and as nvidia-smi lists them."""
    if not busids:
        return ""
    printed = ", ".join(f"{busid:x}" for busid in sorted(busids)[:SHOWN_GPUS])
    addresses = ", ".join(pci_address(f"{busid:x}").upper() for busid in sorted(busids)[:SHOWN_GPUS])
    return f" (bus id {printed}; in nvidia-smi {addresses})"


def _numbers_on_one_gpu(lines: list[FailureEvent]) -> dict[tuple[int, ...], set[int]]:
    """Numbers of ranks that warnings join on one GPU, each group with the bus ids that these print."""
    groups: list[tuple[set[int], set[int]]] = []
    for row in (row for row in lines if row.form == "gpu_twice"):
        numbers = {number for number in (row.rank, row.other) if number is not None}
        if not numbers:
            continue
        joined = [group for group in groups if group[0] & numbers]
        busids = {row.busid} if row.busid is not None else set()
        merged = (numbers.union(*(group[0] for group in joined)), busids.union(*(group[1] for group in joined)))
        groups = [group for group in groups if group not in joined] + [merged]
    return {tuple(sorted(numbers)): busids for numbers, busids in sorted(groups, key=lambda group: min(group[0]))}


def _are_numbers_of_job(job: Job, lines: list[FailureEvent]) -> bool:
    """Whether every rank that prints such a warning names itself in it by its number in the job."""
    own = [
        job.rank_number(row.rank_id) == row.rank
        for row in lines
        if row.form == "gpu_twice" and row.rank_id is not None and job.rank_number(row.rank_id) is not None
    ]
    return bool(own) and all(own)


def _ranks_sharing_gpu(job: Job) -> list[int]:
    """Return the ranks with a GPU of the same host and bus id; several hosts may be called `localhost`."""
    ranks_by_gpu: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank_id, row in job.rank_ids.items():
        if row.busid and row.host not in EVERYWHERE:
            ranks_by_gpu[row.host, row.busid].append(rank_id)
    return sorted(rank_id for rank_ids in ranks_by_gpu.values() if len(rank_ids) > 1 for rank_id in rank_ids)


def _outliers_in_size(job: Job) -> list[int]:
    """Return the members whose nranks differs from that of most members of the same commId; none in a tie."""
    for row in job.members.values():
        sizes: dict[int, list[int]] = defaultdict(list)
        for membership in row:
            sizes[membership.nranks].append(membership.rank_id)
        if len(sizes) > 1:
            most = max(sizes.values(), key=len)
            others = sorted(rank_id for rank_ids in sizes.values() if rank_ids is not most for rank_id in rank_ids)
            return others if len(others) < len(most) else []
    return []
