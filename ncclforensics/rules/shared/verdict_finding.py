"""Turn a verdict into a finding: culprits, hosts, the call, and the lines of evidence."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer, answers
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.frames.columns import printed_pid
from ncclforensics.rules.finding import Finding, Line
from ncclforensics.rules.shared.grouping import UNNAMED

MOST_PIDS = 4  # in a title, of each host
LONGEST_GROUP = 40  # characters of the ranks of a communicator in a title
WITHOUT_SUBJECT = ("init-failed", "undecidable", "stuck-together")  # verdicts whose reason is no predicate of ranks


def answers_on(job_diagnosis: pl.DataFrame, *verdicts: str) -> list[Answer]:
    """Return the answers with one of these verdicts."""
    if set(verdicts).isdisjoint(job_diagnosis["verdict"]):  # as for most of the rules that ask
        return []
    return answers(job_diagnosis.filter(pl.col("verdict").is_in(verdicts)))


def ranks_with_output(answer: Answer, rank: pl.DataFrame, source: pl.DataFrame, last_word: pl.DataFrame) -> set[int]:
    """Return the ranks that lines or their tags name, or the name of a file; not those without a log of a verdict."""
    return {*rank["rank"], *source["hint"]} - {*answer.absent} | {*last_word["rank"]}


def claimed(answer: Answer) -> str:
    """Return a title that says of the culprits what the answer claims."""
    return "{ranks} " + answer.claim.replace("{", "{{").replace("}", "}}")


def verdict_finding(answer: Answer, rank: pl.DataFrame, title: str) -> Finding:
    """Return the finding on one job; `{ranks}` and `{call}` in the title become the culprits and the call."""
    culprits = rank.filter(pl.col("rank_id").is_in(answer.culprits))
    numbers = sorted({*culprits["rank"].drop_nulls().to_list(), *answer.missing})
    hosts = sorted(culprits["host"].cast(pl.String).drop_nulls().unique().to_list())
    processes = _processes_text(culprits.filter(pl.col("rank").is_null()))
    culprits_text = ranks_text(numbers) or processes or "no rank in particular"
    where = f" on {hosts[0]}" if len(hosts) == 1 and numbers else ""
    evidence = [Line(line.source, line.line, line.what) for line in answer.evidence_lines]
    is_of_ranks = answer.verdict not in WITHOUT_SUBJECT
    subject = (ranks_text(numbers) or processes) if is_of_ranks else ""
    members = answer.call_ranks or ()  # culprits may lack calls of several communicators, of which the answer names one
    group = ranks_text(members) if set(numbers) <= set(members) else ""
    call = answer.operation
    is_shown = call.name and call.caller is None and 0 < len(group) <= LONGEST_GROUP
    return Finding(
        title=title.format(ranks=culprits_text + where, call=call.text + (f" of {group}" if is_shown else "")),
        detail=f"{subject} {answer.reason}".strip(),
        certainty=answer.certainty,
        ranks=numbers,
        hosts=hosts,
        communicator=answer.key,
        evidence=evidence,
        job=answer.job,
    )


def _processes_text(rows: pl.DataFrame) -> str:
    """Name processes whose ranks are unknown, by host."""
    texts = []
    for (host,), of_host in rows.group_by("host", maintain_order=True):
        pids = [str(pid) for pid in of_host["pid"] if printed_pid(pid) is not None]
        named = f"process{'es' * (len(pids) > 1)} {some_of(pids, MOST_PIDS)}" if pids else ""
        unnamed = of_host.height - len(pids)
        more = (f"{unnamed} processes" if unnamed > 1 else UNNAMED) * bool(unnamed)
        text = " and ".join(filter(None, (named, more)))
        texts.append(f"{text} on {host}" if host else text)
    return ", ".join(texts)
