"""What must hold of every answer, whatever the input holds.

The program fails nowhere, no answer takes longer or more memory than its bound, and no answer contradicts itself.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ncclforensics import analyze
from ncclforensics.archive.write import save
from ncclforensics.data.names import CERTAINTIES, VERDICTS
from ncclforensics.diff.compare import compare_reports
from ncclforensics.errors import Defect, ForensicsError, NoInputError
from ncclforensics.formats import dialect
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.mcp import answers
from ncclforensics.parsing.explain_line import explain_line
from ncclforensics.report.build import Report, build_report
from ncclforensics.report.redacted_run import redact
from ncclforensics.report.redaction import assign_pseudonyms
from ncclforensics.rules.finding import Category, Severity
from ncclforensics.views import (
    ci_formats,
    json_difference,
    json_history,
    json_report,
    markdown,
    text_difference,
    text_history,
    text_report,
)
from ncclforensics.watch.followed_files import FollowedFiles
from ncclforensics.watch.watch import Watch
from tests.fuzz.reduction import files_in

MOST_SECONDS = 10.0  # of a processor, for less than 1 MB
LOOKS = 5  # of `watch` at growing logs, each of which is an answer
MOST_MEMORY = 1 << 30  # bytes that are resident at any time
COUNTS = ("recognised", "application", "unrecognised", "damaged")
MOST_OF_ANSWER = 1 << 20  # characters for an agent
FRESH = 150 << 20  # bytes that a process takes before its first answer
HARM = ("slow", "memory", "control character")
# What a terminal would interpret. A report has lines and, in JSON, nothing else.
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")

# Ways through the program, the cheap ones first. `check` is always gone.
WAYS = (
    "hang",
    "windows",
    "redact",
    "saved",
    "explain",
    "diff",
    "history",
    "agent",
    "command",
    "watch",
    "html",
    "screens",
)


class BrokenInvariantError(AssertionError):
    """An answer that must not be; `kind` is the same for faults that look alike."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Cost:
    """What an answer cost."""

    seconds: float = 0.0
    memory: int = 0


def require(holds: bool, kind: str, text: object) -> None:
    if not holds:
        raise BrokenInvariantError(kind, str(text)[:2000])


def check_all(folder: Path, ways: Iterable[str]) -> Cost:
    """Ask all that is asked of a folder. Raises BrokenInvariantError, and whatever the program raises."""
    cost = Cost()
    paths = [str(path) for path in folder.iterdir() if path.suffix == ".ncclf"] or [str(folder)]
    try:
        with _measured(cost, "check"):
            report = analyze(paths, everything=True)
            answer = _check_views(report)
    except ForensicsError:
        return cost  # a sentence for the user: there is nothing to read, or it is no saved run of ours
    except Exception as error:
        if is_forged(paths, error):
            return cost
        raise
    for way in ways:
        try:
            with _measured(cost, way, LOOKS if way == "watch" else 1):
                _go(way, folder, paths, report, answer)
        except Exception as error:
            if not is_forged(paths, error):
                raise
    return cost


def is_forged(paths: list[str], error: Exception) -> bool:
    """Whether rows that no program wrote led to this error: the command names it as a defect, without a traceback.

    What a forged saved run must not do all the same: take time or memory, or send control characters to a terminal.
    """
    is_saved = any(path.endswith(".ncclf") for path in paths)
    return is_saved and not (isinstance(error, BrokenInvariantError) and error.kind.startswith(HARM))


@contextmanager
def _measured(cost: Cost, name: str, answers: int = 1) -> Iterator[None]:
    _reset_peak()
    kept, began = max(_peak() - FRESH, 0), time.process_time()  # what earlier tests of this process keep
    yield
    seconds, memory = time.process_time() - began, _peak() - kept
    cost.seconds, cost.memory = max(cost.seconds, seconds), max(cost.memory, memory)
    require(seconds <= MOST_SECONDS * answers, f"slow-{name}", f"{name} took {seconds:.1f} s")
    require(memory <= MOST_MEMORY, f"memory-{name}", f"{name} took {memory >> 20} MB")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    """The largest resident size since the last reset, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) << 10 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _go(way: str, folder: Path, paths: list[str], report: Report, answer: dict[str, Any]) -> None:
    if way == "hang":
        _check_views(analyze(paths))
    elif way == "windows":
        run = open_run(find(paths), ReadPolicy(window=2 << 10, small_file=4 << 10))
        run.read_until_decided()
        _check_views(build_report(run))
    elif way == "redact":
        _check_views(redact(report, assign_pseudonyms(report.run)))
    elif way == "saved":
        _check_saved(report, answer)
    elif way == "explain":
        _check_explain(folder)
    elif way == "diff":
        _check_diff(report)
    elif way == "history":
        _check_history(report)
    elif way == "agent":
        _check_answers_for_agents(report)
    elif way == "command":
        _check_command(paths)
    elif way == "watch":
        _check_watch(folder)
    elif way == "html":
        _check_html(report)
    elif way == "screens":
        _check_screens(report)


def check_defects(defects: Iterable[Defect]) -> None:
    """Nothing in the program failed. Raises BrokenInvariantError."""
    for defect in defects:
        places = re.findall(r'ncclforensics/([\w/]+\.py)", line \d+, in (\w+)', defect.trace)
        place = ":".join(places[-1]) if places else defect.part
        raise BrokenInvariantError(f"{defect.error.partition(':')[0]} in {place}", f"{defect}\n{defect.trace}")


def _check_views(report: Report) -> dict[str, Any]:
    check_defects(report.defects)
    data = json_report.json(report)
    answer: dict[str, Any] = json.loads(data)
    _check_answer(report, answer)
    texts = {
        "json": data.decode(),
        "text": text_report.text(report, verbose=True),
        "text of check": text_report.text(report, width=60, everything=True),
        "markdown": markdown.markdown(report, everything=True),
        "junit": ci_formats.junit(report, ["error"]).decode(),
        "sarif": ci_formats.sarif(report).decode(),
    }
    check_defects(report.defects)  # those that only a view asked for
    for name, text in texts.items():
        found = CONTROLS.search(text)
        require(
            found is None,
            f"control character in {name}",
            found and text[max(found.start() - 200, 0) : found.end() + 50],
        )
    return answer


def _check_answer(report: Report, answer: dict[str, Any]) -> None:
    for given in answer["inputs"]:
        require(given["lines"] == sum(given[kind] for kind in COUNTS), "lines are counted twice or not", given)
        require(min(given[kind] for kind in COUNTS) >= 0, "negative count of lines", given)
    world_size = answer["run"]["world_size"]
    for name in ("ranks_seen", "ranks_missing"):
        _check_ranks(answer["run"][name], world_size, name)
    for finding in answer["findings"]:
        _check_ranks(finding["ranks"], world_size, f"finding {finding['rule']}")
        require(finding["category"] in set(Category), "unknown category", finding)
        require(finding["certainty"] in CERTAINTIES, "unknown certainty", finding)
    for hang in answer.get("jobs") or [answer["hang"]]:
        for name in ("culprits", "victims", "suspects"):
            _check_ranks(hang[name], world_size, f"{hang['verdict']}: {name}")
        both = set(hang["culprits"]) & set(hang["victims"])
        require(not both, "culprit and victim at once", f"{hang['verdict']}: {sorted(both)[:20]}")
        require(hang["verdict"] in VERDICTS, "unknown verdict", hang["verdict"])
        require(hang["certainty"] in CERTAINTIES, "unknown certainty", hang["certainty"])
        for wait in hang["waits_for"]:
            require(wait["rank"] is None or wait["rank"] not in wait["for_ranks"], "a rank waits for itself", wait)
            _check_ranks(wait["for_ranks"], world_size, "waits_for")
        of, ranks = hang["heard"]["of"], hang["heard"]["ranks"]
        require(of is None or ranks <= of, "more ranks have evidence than there are", hang["heard"])


def _check_ranks(ranks: list[int], world_size: int | None, where: str) -> None:
    require(ranks == sorted(set(ranks)), "ranks are out of order or doubled", f"{where}: {ranks[:50]}")
    bad = [rank for rank in ranks if rank < 0 or (world_size is not None and rank >= world_size)]
    require(not bad, "a rank beyond the size of the world", f"{where}: {bad[:20]} of {world_size}")


def _check_saved(report: Report, answer: dict[str, Any]) -> None:
    if any(given["problems"] for given in answer["inputs"]):
        return  # what could not be read is not saved
    with TemporaryDirectory(prefix="ncclforensics-fuzz-") as folder:
        file = Path(folder, "run.ncclf")
        save(report, file)
        again = _check_views(analyze([str(file)], everything=True))
    for name in ("run", "findings", "hang", "counters", "links"):
        # Commands on files that may not be here are left out of what is to be done next.
        old, new = ({**part[name], "collect_next": []} if name == "hang" else part[name] for part in (answer, again))
        require(new == old, f"a saved run answers otherwise: {name}", f"{old}\n{new}")


def _check_explain(folder: Path) -> None:
    for path in files_in(folder)[:3]:
        for line in path.read_bytes()[:20_000].decode("utf-8", "replace").split("\n")[:5]:
            explain_line(line, dialect().with_all_formats)


def _check_diff(report: Report) -> None:
    from tests.incidents import INCIDENTS, Incident, checked

    incident = Incident(INCIDENTS / "one-rank-stops-before-an-allreduce")
    with chdir(incident.folder):  # its lines are quoted
        good = checked(incident).report
        _check_comparisons(good, report)


def _check_comparisons(good: Report, report: Report) -> None:
    for comparison in (compare_reports(good, report), compare_reports(report, good)):
        json.loads(json_difference.json(comparison))
        texts = (text_difference.markdown(comparison), text_difference.text(comparison, width=80))
        require(not any(CONTROLS.search(text) for text in texts), "control character in diff", texts)
        check_defects([*comparison.good.defects, *comparison.bad.defects])


def _check_history(report: Report) -> None:
    from ncclforensics.history import store
    from ncclforensics.history.overview import Overview
    from ncclforensics.history.record import record_of
    from ncclforensics.history.redaction import redact as redacted

    try:
        record = record_of(report, "run")
    except NoInputError:
        return  # nothing to remember
    with TemporaryDirectory(prefix="ncclforensics-fuzz-") as folder:
        file = Path(folder, "history.db")
        store.add(file, record)
        require(store.add(file, record).outcome is store.Outcome.KNOWN, "a run is recorded twice", record.path)
        runs = store.read(file)
    for history in (runs, redacted(runs, None, ())):
        overview = Overview(history)
        texts = (text_history.text(overview, width=80, verbose=True), text_history.markdown(overview))
        require(not any(CONTROLS.search(text) for text in texts), "control character in history", texts)
        json.loads(json_history.json(overview))


def _check_answers_for_agents(report: Report) -> None:
    made = [answers.verdict(report), answers.findings(report, None, Severity.INFO, 0)]
    made += [answers.calls(report, rank, None, None) for rank in (0, 1)]
    for answer in made:
        text = json.dumps(answers.readable(answer))
        require(len(text) < MOST_OF_ANSWER, "an answer that no agent can read", len(text))
        require(not CONTROLS.search(text), "control character for agents", text)


def _check_command(paths: list[str]) -> None:
    from ncclforensics import cli

    output, errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = cli.main(["check", "--format", "markdown", *paths])
    output.seek(0)
    require(code in (0, 1, 2, 3), f"exit code {code}", errors.getvalue())
    for text in (output.read(), errors.getvalue()):
        require(not CONTROLS.search(text), "control character from the command", text)


def _check_watch(folder: Path) -> None:
    """Logs that grow while they are watched, and then stop."""
    moment = time.time()
    watch = Watch(FollowedFiles([str(folder)]), longest_pause=1.0, clock=lambda: moment)
    watch.step()
    for path in files_in(folder)[:3]:
        data = path.read_bytes()
        with open(path, "ab") as file:
            file.write(data[: 64 << 10])
    for _ in range(LOOKS - 1):
        moment += 60.0
        if watch.step():
            break


def _check_html(report: Report) -> None:
    from ncclforensics.views import postmortem
    from ncclforensics.views.author_note import Cover

    page = postmortem.html(report, Cover("title", "note", "command")).decode()
    require("<script>alert" not in page, "a log's script in the page", "")


def _check_screens(report: Report) -> None:
    from ncclforensics.tui import content
    from ncclforensics.tui.app import Forensics, Request

    class Loaded(Forensics):
        def _begin(self) -> None:
            self._set_content(content.build_content(report, is_whole=True))

    async def walk() -> None:
        app = Loaded(Request(("run",)))
        async with app.run_test(size=(80, 24)) as pilot:
            for key in ("1", "2", "3", "4", "5", "6", "7"):
                await pilot.press(key, "down", "enter")
                await pilot.pause()

    asyncio.run(walk())
