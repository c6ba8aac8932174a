"""What a history keeps of one run: verdicts, facts, measurements, and the parts that took part or were named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

from ncclforensics.data.busbw import DIP_FROM, IN_PLACE
from ncclforensics.data.names import bytes_text
from ncclforensics.data.paths import STDIN
from ncclforensics.diff.job import environment, versions
from ncclforensics.errors import BrokenFrameError, NoInputError
from ncclforensics.frames.columns import short_name, text_of
from ncclforensics.frames.protocol import Frames, call_with
from ncclforensics.frames.time_range import NO_YEAR, as_time, in_last_year
from ncclforensics.history.parts import namings, parts
from ncclforensics.history.tables import MOMENT, Record, frame_of
from ncclforensics.inputs.remote import is_remote
from ncclforensics.report.build import Report
from ncclforensics.report.marked_names import is_secret
from ncclforensics.rules.finding import Category, Severity

Rows = list[dict[str, object]]
FACTS = (versions, environment)  # topics that two runs are compared by, too; both are given, and not results
OF_MACHINE = ("GPU model",)  # another one shows other machines, and no change of these
MOST_TEXT = 500  # characters of a value, as of a line of evidence


def record_of(report: Report, path: str, *, at: datetime | None = None) -> Record:
    """Return what is kept of a run, whose inputs were hashed and to which all rules were applied.

    `at`: when it ran, if the user knows. Raises NoInputError if nothing in it can be judged.
    """
    run = report.run
    starts = list(_starts(report))
    measurements = list(_measurements(run))
    if not starts and not measurements:
        raise NoInputError(f"{path}: holds no communicator and no benchmark; nothing was recorded")
    moment, clock = (at, "given") if at is not None else _moment(run)
    identity = hashlib.sha256("\n".join(sorted(report.hashes.values())).encode()).hexdigest()
    head = {
        "identity": identity,
        "path": path if path == STDIN or is_remote(path) else str(Path(path).absolute()),
        "moment": moment.strftime(MOMENT),
        "clock": clock,
        "added": datetime.now().strftime(MOMENT),
        "lines": int(run.tally.select(pl.exclude("source").sum()).sum_horizontal().sum()),
    }
    taking_part = parts(run)
    rows: dict[str, Rows] = {
        "run": [head],
        "communicator": [{"commid": name} for name in run["member"].select(text_of("commid"))["commid"].drop_nulls()],
        "start": starts,
        "fact": list(_facts(run)),
        "part": taking_part,
        "naming": list(namings(report, taking_part)),
        "finding": list(_findings(report)),
        "measurement": measurements,
    }
    return Record({table: frame_of(table, of_table) for table, of_table in rows.items()})


def _starts(report: Report) -> Iterator[dict[str, object]]:
    """Yield every job of the run: each is one start of a program, and several may lie in one folder."""
    for answer in report.verdicts:
        known = report.job(answer.job).reporting
        yield {
            "job": answer.job,
            "verdict": answer.verdict,
            "certainty": answer.certainty,
            "ranks": known["of"] or known["ranks"],
        }


def _findings(report: Report) -> Iterator[dict[str, object]]:
    for finding in [*report.findings, *report.not_selected]:
        if finding.severity is not Severity.INFO and finding.category is not Category.INCOMPLETE_EVIDENCE:
            yield {"rule": finding.rule, "severity": str(finding.severity)}


def _facts(run: Frames) -> Iterator[dict[str, object]]:
    """Yield versions and variables, each with all its values in the run; secrets are left out."""
    for topic in FACTS:
        try:
            rows: pl.DataFrame = call_with(run, topic)
        except BrokenFrameError:
            continue  # its analysis failed, which the command reports
        values = rows.select(pl.col("what", "value").cast(pl.String)).drop_nulls().unique().sort("what", "value")
        for (what,), of_what in values.group_by("what", maintain_order=True):
            value = ", ".join(of_what["value"])[:MOST_TEXT]
            if what not in OF_MACHINE and not is_secret(str(what), value):
                yield {"what": str(what), "value": value}


def _measurements(run: Frames) -> Iterator[dict[str, object]]:
    """Yield the bus bandwidth of every benchmark at its largest size, and the test that it is comparable with.

    Below a megabyte the time is latency, and busbw is meaningless.
    """
    tests = run["benchmark"].select("benchmark", "collective", "nranks", "hosts", "aggregated", "graph")
    rows = run["measurement"].filter(
        (pl.col("half") != IN_PLACE).fill_null(value=True),
        pl.col("size") >= DIP_FROM,
        pl.col("busbw").is_finite(),
        pl.col("busbw") > 0,
    )
    largest = rows.filter(pl.col("size") == pl.col("size").max().over("benchmark"))
    settings = ["benchmark", "size", "type", "redop", "root"]
    repeated = largest.group_by(settings, maintain_order=True).agg(pl.col("busbw").median())
    for row in repeated.join(tests, on="benchmark", maintain_order="left").to_dicts():
        hosts = sorted({short_name(host) for host in row["hosts"] or []})
        options = [
            row["type"],
            row["redop"],
            f"root {row['root']}" if (row["root"] or -1) >= 0 else None,
            f"{row['aggregated']} at once" if (row["aggregated"] or 0) > 1 else None,
            "by a CUDA graph" if (row["graph"] or 0) > 0 else None,
        ]
        test = " ".join([row["collective"] or "a test", *filter(None, options)])
        size = f"{row['nranks'] or '?'} ranks" + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")
        yield {
            "benchmark": row["benchmark"],
            "series": f"{test}, {size}, {bytes_text(row['size'])}",
            "hosts": ", ".join(hosts),
            "busbw": float(row["busbw"]),
        }


def _moment(run: Frames) -> tuple[datetime, str]:
    """Return when the run ended, and by which clock: of its log lines, of its files, or now."""
    printed = run["source"]["last_time"].drop_nulls().to_frame("last_time")
    last = printed.select(in_last_year(as_time(pl.col("last_time"), NO_YEAR)).max()).item()
    if isinstance(last, datetime):
        return last, "log"
    modified = []
    for reading in run.inputs:
        file = reading.source.archive or reading.source.file
        if reading.source.remote is None and not reading.source.problem and file.exists():
            modified.append(file.stat().st_mtime)
    return (datetime.fromtimestamp(max(modified)), "file") if modified else (datetime.now(), "added")
