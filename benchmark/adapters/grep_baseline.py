"""Answer with what a person with `grep` would: `python -m benchmark.adapters.grep_baseline FOLDER ANSWERS.json`.

Needs nothing but Python. It counts the calls in the log of each rank, looks for the words of an error, and compares
means of step times: what the guides on hung jobs advise. It is sure where exactly one rank differs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmark.adapters.asking import NO_ANSWER, answer_all
from benchmark.case_files import BenchmarkCase
from benchmark.judge import Json

CALL = re.compile(r"NCCL INFO (?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|Send|Recv|AlltoAll): opCount")
WARNING = re.compile(r"NCCL WARN (.*)")
RANK = re.compile(r"rank(\d+)\b")


def answer(question: str, texts: Mapping[int, str]) -> Json:
    """Answer from the text of each rank."""
    return {"hang": _hang, "slow": _slow}.get(question, lambda _: NO_ANSWER)(texts)


def _hang(texts: Mapping[int, str]) -> Json:
    """The rank with fewest calls is behind; a process that prints a warning failed."""
    warned = sorted(rank for rank, text in texts.items() if WARNING.search(text))
    if warned:
        return {"verdict": "rank-died", "culprits": warned, "certainty": "likely" if len(warned) == 1 else "possible"}
    calls = {rank: len(CALL.findall(text)) for rank, text in texts.items()}
    if len(set(calls.values())) < 2:
        return NO_ANSWER
    fewest = [rank for rank, count in calls.items() if count == min(calls.values())]
    return {
        "verdict": "lagging-ranks", "culprits": sorted(fewest),
        "certainty": "likely" if len(fewest) == 1 else "possible",
    }  # fmt: skip


def _slow(texts: Mapping[int, str]) -> Json:
    """The rank whose kernels take longest is the slow one."""
    busy = {rank: _kernel_time(text) for rank, text in texts.items()}
    if not busy or not max(busy.values()):
        return NO_ANSWER
    (slowest, most), (_, second) = Counter(busy).most_common(2)
    return {
        "verdict": "slow-rank",
        "culprits": [slowest],
        "certainty": "likely" if most > 1.05 * second else "possible",
    }


def _kernel_time(text: str) -> float:
    try:
        events = json.loads(text)["traceEvents"]
    except (ValueError, KeyError):
        return 0.0
    return sum(float(event.get("dur", 0.0)) for event in events if event.get("cat") == "kernel")


def ask(case: BenchmarkCase, files: Path) -> Json:
    """Answer a case from the files that name a rank."""
    texts = {}
    for path in sorted(files.rglob("*")):
        if path.is_file() and (found := RANK.search(path.name)):
            texts[int(found[1])] = path.read_text(encoding="utf-8", errors="replace")
    return answer(case.question, texts)


if __name__ == "__main__":
    answer_all("grep", "", ask, ("hang", "slow", "fabric"))
