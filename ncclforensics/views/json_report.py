"""The report as JSON, as the contract describes it."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import orjson
import polars as pl

from ncclforensics import __version__
from ncclforensics.analyses.fabric.counters import PORT, path_of_dump
from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.analyses.verdict.answer import Answer, Operation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import INVISIBLE, NO_KIND, datatype, reduction
from ncclforensics.frames.columns import Row
from ncclforensics.parsing.parser import COUNTS
from ncclforensics.report.build import Report
from ncclforensics.report.chain import Link, chain
from ncclforensics.report.job_parts import LastCall, Rival
from ncclforensics.report.slow import slow_answer
from ncclforensics.report.summary import not_shown, summary
from ncclforensics.report.without_job import reason_without_job, steps_without_job, verdict_without_job
from ncclforensics.rules.finding import Finding

SCHEMA_VERSION = 1
# Characters that orjson does not escape: DEL, U+0080 to U+009F, and what is invisible or turns text around.
_CONTROLS = re.compile(rb"\x7f|\xc2[\x80-\x9f]|" + b"|".join(chr(code).encode() for code in INVISIBLE))
NO_LOG: dict[str, Any] = {
    "certainty": "certain",
    "reason": None,
    "standstill": {"shown": False, "by": []},
    "heard": {"ranks": 0, "of": None},
    "culprits": [],
    "suspects": [],
    "victims": [],
    "communicator": None,
    "operation": None,
    "mismatch": None,
    "last_operations": [],
    "waits_for": [],
    "explanations": [],
    "unexplained": [],
    "collect_next": [],
    "chain": [],
}


def _without_job(report: Report) -> dict[str, Any]:
    """The verdict where there is nothing to judge."""
    return {
        "verdict": verdict_without_job(report.run),
        **NO_LOG,
        "reason": reason_without_job(report.run, report.findings),
        "collect_next": steps_without_job(report.run, report.findings),
    }


def json(report: Report) -> bytes:
    """Return the report as one JSON object, with the keys in the order of the contract."""
    return dump_json(as_object(report))


def json_lines(report: Report) -> bytes:
    """Return one JSON object a line, each with its `type`: every finding, then the rest of the report as `report`."""
    answer = as_object(report)
    findings = [{"type": "finding", **finding} for finding in answer.pop("findings")]
    return b"".join(dump_json(line, indent=False) for line in [*findings, {"type": "report", **answer}])


def dump_json(answer: dict[str, Any], *, indent: bool = True) -> bytes:
    """Return an object as JSON in which characters that a terminal would interpret are escapes."""
    text = orjson.dumps(answer, option=orjson.OPT_INDENT_2 if indent else None) + b"\n"
    return _CONTROLS.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), text)


def as_object(report: Report) -> dict[str, Any]:
    """Return the report as the contract describes it; unknown values are None."""
    jobs = report.verdicts
    out: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ncclforensics", "version": __version__},
        "inputs": inputs(report),
        "run": summary(report.run, report.findings),
        "not_shown": not_shown(report.run),
        "findings": [_finding(report, finding) for finding in report.findings],
        "hang": _hang(report, jobs[0]) if jobs else _without_job(report),
    }
    if (slow := slow_answer(report)) is not None:
        out["slow"] = _slow(report, slow)
    if len(jobs) > 1:
        out["jobs"] = [_hang(report, row) for row in jobs]
    return {
        **out,
        "benchmarks": _benchmarks(report) + _links(report) + _pairs(report),
        "counters": _counters(report),
        "links": _ports(report),
        "topology": _topology(report),
        "defects": [{"part": defect.part, "error": defect.error} for defect in report.defects],
        "configuration": {
            "files": list(report.run.settings.files),
            "rule_folders": list(report.run.settings.rule_folders),
        },
    }


def inputs(report: Report) -> list[Row]:
    """Return each input with its counts of lines and its problems."""
    tally = {row["source"]: row for row in report.run.tally.to_dicts()}
    rows = []
    for reading in report.run.inputs:
        counts = {name: tally.get(reading.number, {}).get(name, 0) for name in COUNTS}
        rows.append(
            {
                "path": reading.source.path,
                "kind": report.run.kinds.get(reading.number, NO_KIND),
                "bytes": reading.source.size,
                "bytes_read": reading.bytes_read,
                "lines": sum(counts.values()),
                **counts,
                "problems": report.problems(reading.number),
            }
        )
    return rows


def _topology(report: Report) -> list[Row]:
    rows = report.run["dump"].select("source", "gpus", "nics").iter_rows()
    return [{"path": report.run.inputs[source].source.path, "gpus": gpus, "nics": nics} for source, gpus, nics in rows]


def _counters(report: Report) -> list[Row]:
    """Return the counters of each port and sample; data counters are in bytes."""
    dumps = report.run["source"].select("source", dump=path_of_dump())
    samples = report.run["counter_sample"].filter(pl.col("value") != 0).join(dumps, on="source", maintain_order="left")
    rows = samples.group_by("dump", *PORT, "sample", maintain_order=True).agg("name", "value", "moment", "is_saturated")
    return [
        {
            **{name: row[name] for name in PORT},
            "path": row["dump"],
            "moment": None if row["moment"][0] is None else row["moment"][0].isoformat(),
            "nonzero": dict(zip(row["name"], row["value"], strict=True)),
            "saturated": [name for name, is_stuck in zip(row["name"], row["is_saturated"], strict=True) if is_stuck],
        }
        for row in rows.to_dicts()
    ]


def _ports(report: Report) -> list[Row]:
    """Return the last known state of each port, combined from all dumps that name it."""
    known = report.run["port_state"].drop("line", "moment").group_by("source", *PORT, maintain_order=True)
    rows = known.agg(pl.all().drop_nulls().last()).to_dicts()
    return [
        {
            **{name: row[name] for name in PORT},
            "path": report.run.inputs[row.pop("source")].source.path,
            **{name: value for name, value in row.items() if name not in PORT},
        }
        for row in rows
    ]


def _benchmarks(report: Report) -> list[Row]:
    return [
        {
            "path": report.run.inputs[row["source"]].source.path,
            "tool": row["tool"],
            "collective": row["collective"],
            "nranks": row["nranks"],
            "hosts": row["hosts"],
            "rows": row["rows"],
            "avg_busbw_GBps": _finite(row["average"]),
            "max_busbw_GBps": row["max_busbw"],
            "max_busbw_bytes": row["max_size"],
            "wrong": None if _finite(row["wrong"]) is None else int(row["wrong"]),
            "complete": row["is_complete"],
            "unfinished_bytes": row["unfinished_size"],
        }
        for row in report.run["benchmark"].to_dicts()
    ]


def _links(report: Report) -> list[Row]:
    """Return the tests of single links, which have no collective, ranks or bus bandwidth."""
    tables = (
        report.run["link_measurement"]
        .group_by("source", "table", maintain_order=True)
        .agg(
            pl.col("test", "device").first(),
            rows=pl.len(),
            best=pl.col("bandwidth_GBps").max(),
            size=pl.col("size").sort_by("bandwidth_GBps", nulls_last=False).last(),
            latency_us=pl.col("latency_us").min(),
        )
    )
    return [
        {
            **_without_collective(report, row, "perftest"),
            "test": row["test"],
            "device": row["device"],
            "max_bandwidth_GBps": row["best"],
            "max_bandwidth_bytes": row["size"] if row["best"] is not None else None,
            "min_latency_us": row["latency_us"],
        }
        for row in tables.to_dicts()
    ]


def _pairs(report: Report) -> list[Row]:
    """Return the bandwidth matrices between GPUs; each has a row per cell."""
    cells = report.run["gpu_pair"].filter(pl.col("kind") == "bandwidth")
    matrices = cells.group_by("source", "matrix", maintain_order=True).agg(
        pl.col("tool", "test").first(), rows=pl.len(), best=pl.col("value").max(), least=pl.col("value").min()
    )
    return [
        {
            **_without_collective(report, row, row["tool"]),
            "test": row["test"],
            "max_bandwidth_GBps": row["best"],
            "min_bandwidth_GBps": row["least"],
        }
        for row in matrices.to_dicts()
    ]


def _without_collective(report: Report, row: Row, tool: str) -> Row:
    """Return the contract's fields of a benchmark that has no ranks and no bus bandwidth."""
    unknown = ("avg_busbw_GBps", "max_busbw_GBps", "max_busbw_bytes", "wrong", "complete")
    return {
        "path": report.run.inputs[row["source"]].source.path,
        "tool": tool,
        "collective": None,
        "nranks": None,
        "rows": row["rows"],
        **dict.fromkeys(unknown),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _finding(report: Report, finding: Finding) -> Row:
    evidence = [{name: line[name] for name in ("path", "line", "text")} for line in report.evidence(finding)]
    return {
        "rule": finding.rule,
        "category": finding.category,
        "severity": finding.severity,
        "certainty": finding.certainty,
        "title": finding.title,
        "detail": report.detail(finding),
        "remedy": finding.remedy,
        "ranks": finding.ranks,
        "hosts": finding.hosts,
        "communicator": finding.communicator,
        "role": finding.role,
        "evidence": evidence,
    }


def _hang(report: Report, answer: Answer) -> Row:
    culprits = {*report.numbers(answer.culprits), *answer.missing}
    return {
        "verdict": answer.verdict,
        "certainty": answer.certainty,
        "reason": answer.reason,
        "standstill": {"shown": bool(answer.stall_evidence), "by": [*answer.stall_evidence]},
        "heard": report.job(answer.job).reporting,
        "culprits": sorted(culprits),
        "suspects": _suspects(report, answer),
        "victims": [number for number in report.numbers(answer.victims) if number not in culprits],
        "communicator": answer.key,
        "operation": _operation(answer.operation) if answer.operation.name is not None else None,
        "mismatch": {"how": answer.how, "fields": [*answer.fields]} if answer.how else None,
        "last_operations": [_last(report, call) for call in report.job(answer.job).last_calls],
        "waits_for": _waits(report, answer.job),
        "explanations": [_explanation(rival) for rival in report.job(answer.job).considered],
        "unexplained": [
            {"rank": failure.rank, "text": failure.text, "path": failure.place["path"], "line": failure.place["line"]}
            for failure in report.job(answer.job).unexplained
        ],
        "collect_next": report.collect_next(answer),
        "chain": [_chain_link(report, link) for link in chain(report, answer)],
    }


def _suspects(report: Report, answer: Answer) -> list[int]:
    """Return the ranks one of which may be the culprit; where nothing is decided, also those of what was considered."""
    rivals = report.job(answer.job).considered if answer.verdict == Kind.UNDECIDABLE else []
    named = (rank for rival in rivals if rival.assumes and not rival.is_answer for rank in rival.ranks)
    return sorted({*answer.suspects, *named})


def _slow(report: Report, answer: SlowAnswer) -> Row:
    """What makes the job slow. Shares are of a step, from 0 to 1."""
    return {
        "verdict": str(answer.verdict),
        "certainty": answer.certainty,
        "reason": answer.claim,
        "details": list(answer.details),
        "ranks": list(answer.ranks),
        "hosts": list(answer.hosts),
        "group": answer.group,
        "link": answer.link,
        "since_step": answer.since_step,
        "since": answer.since,
        "step_seconds": answer.step_seconds,
        "step_share": answer.step_share,
        "uneven_share": answer.uneven_share,
        "gpu_hours_per_day": answer.gpu_hours_per_day,
        "cause": answer.cause,
        "missing": list(answer.missing),
        "assumes": list(answer.assumes),
        "evidence": [report.path_of(source) for source, _ in answer.evidence],
        "explanations": [
            {"verdict": verdict, "reason": claim, "certainty": certainty, "assumes": list(assumes)}
            for verdict, claim, certainty, assumes in answer.considered
        ],
        "collect_next": list(answer.collect),
    }


def _explanation(rival: Rival) -> Row:
    """One explanation that was considered; the answer is one of them."""
    return {
        "fault": rival.fault,
        "ranks": rival.ranks,
        "hosts": rival.hosts,
        "cost": rival.cost or None,
        "assumes": rival.assumes,
        "against": None if rival.is_answer else rival.against or None,
        "contradicted_by": [] if rival.is_answer else rival.quoted,
        "is_answer": rival.is_answer,
    }


def _operation(call: Operation) -> Row:
    return {
        "name": call.name,
        "ordinal": call.ordinal,
        "count": call.count,
        "datatype": datatype(call.datatype),
        "op": reduction(call.name, call.op),
        "root": call.root,
    }


def _chain_link(report: Report, link: Link) -> Row:
    place = report.cited(link.line.source, link.line.line)
    return {"text": link.text, "role": link.role, "kind": link.kind, "path": place["path"], "line": place["line"]}


def _last(report: Report, call: LastCall) -> Row:
    place = report.cited(call.source, call.line)
    return {
        "rank": call.rank,
        "communicator": call.key,
        **_operation(call.operation),
        "path": place["path"],
        "line": place["line"],
    }


def _waits(report: Report, job: int) -> list[Row]:
    return [
        {
            "rank": wait.rank,
            "communicator": wait.key,
            "ordinal": wait.operation.ordinal if wait.operation else None,
            "for_ranks": wait.for_ranks,
        }
        for wait in report.job(job).waits
    ]
