"""The hosts, GPUs and NIC ports that took part in a run, and those that its verdicts and findings name as a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import polars as pl

from ncclforensics.data.redaction_rules import EVERYWHERE
from ncclforensics.frames.columns import MADE_UP, short_name
from ncclforensics.frames.protocol import Frames
from ncclforensics.history.tables import GPU, HOST, PORT
from ncclforensics.report.build import Report
from ncclforensics.report.nics import nics_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity

Part = dict[str, object]  # a row of the table `part`
Key = tuple[str, str, str]


def parts(run: Frames) -> list[Part]:
    """Return every host, GPU and port that took part in a run; none of hosts whose name is not known."""
    processes = run["rank"]
    hosts = {*_texts(run["process"]["host"]), *_texts(processes["host"]), *_texts(run["benchmark"]["hosts"].explode())}
    gpus = processes.select(pl.col("host", "busid").cast(pl.String)).drop_nulls().unique()
    found: set[Key] = {(HOST, short_name(host), "") for host in hosts if host}
    found |= {(GPU, short_name(host), busid) for host, busid in gpus.iter_rows()}
    found |= _ports(run)
    found = {key for key in found if not key[1].startswith(MADE_UP) and key[1] not in EVERYWHERE}
    ranks: dict[Key, set[int]] = {}
    for rank, keys in _rank_places(run).items():
        for key in keys:
            ranks.setdefault(key, set()).add(rank)
    return [
        {"kind": key[0], "host": key[1], "name": key[2], "ranks": numbers_text(ranks.get(key, ()))}
        for key in sorted(found)
    ]


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers of ranks as they are stored: `3,11`."""
    return ",".join(map(str, sorted(numbers)))


def _texts(column: pl.Series) -> Iterator[str]:
    yield from column.cast(pl.String).drop_nulls().unique()


def _ports(run: Frames) -> set[Key]:
    found = nics_of(run)
    return {(PORT, short_name(host), device if port is None else f"{device}:{port}") for host, device, port in found}


def namings(report: Report, taking_part: list[Part]) -> Iterator[dict[str, object]]:
    """Yield the parts that a verdict or a finding names as the cause, with the numbers of the ranks there.

    What names all hosts of a run names none of them in particular, unless the run has only one; the same for GPUs and
    ports. Findings of severity info, consequences, and those on missing evidence name nothing.
    """
    known = {(str(part["kind"]), str(part["host"]), str(part["name"])) for part in taking_part}
    many = Counter(kind for kind, _, _ in known)
    places = _rank_places(report.run)
    for finding in [*report.findings, *report.not_selected]:
        if not _names_a_cause(finding):
            continue
        ranks = _culprits(report, finding.job) if finding.job is not None else finding.ranks
        named: dict[Key, set[int]] = {}
        for rank in ranks:
            for key in places.get(rank, ()):
                named.setdefault(key, set()).add(rank)
        if finding.job is None:
            for host in finding.hosts:
                named.setdefault((HOST, short_name(host), ""), set())
            for key in _ports_of(finding, known):
                named.setdefault(key, set())
        counts = Counter(kind for kind, _, _ in named)
        for key, numbers in sorted(named.items()):
            if key in known and (many[key[0]] == 1 or counts[key[0]] < many[key[0]]):
                kind, host, name = key
                yield {
                    "kind": kind,
                    "host": host,
                    "name": name,
                    "rule": finding.rule,
                    "certainty": finding.certainty,
                    "ranks": numbers_text(numbers),
                }


def _names_a_cause(finding: Finding) -> bool:
    return (
        finding.severity is not Severity.INFO
        and finding.role is Role.CAUSE
        and finding.category is not Category.INCOMPLETE_EVIDENCE
    )


def _culprits(report: Report, job: int) -> list[int]:
    """Return the culprits of the verdict on a job; a finding on it also names those that were affected."""
    return next((report.numbers(answer.culprits) for answer in report.verdicts if answer.job == job), [])


def _rank_places(run: Frames) -> dict[int, set[Key]]:
    """Return the host and the GPU of every rank; several where several jobs have a rank of that number."""
    places: dict[int, set[Key]] = {}
    rows = run["rank"].select("rank", pl.col("host", "busid").cast(pl.String)).drop_nulls(["rank", "host"])
    for rank, host, busid in rows.iter_rows():
        keys = places.setdefault(rank, set())
        keys.add((HOST, short_name(host), ""))
        if busid is not None:
            keys.add((GPU, short_name(host), busid))
    return places


def _ports_of(finding: Finding, known: Iterable[Key]) -> Iterator[Key]:
    """Yield the ports that a finding is about."""
    of_run = [key for key in known if key[0] == PORT]
    for host, device, port in finding.nics:
        if port is not None:
            yield PORT, short_name(host), f"{device}:{port}"
            continue
        ends = [key for key in of_run if key[1] == short_name(host) and key[2].rpartition(":")[0] == device]
        yield from ends if len(ends) == 1 else ()  # which port of the device is not known
