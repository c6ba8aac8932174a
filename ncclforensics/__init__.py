"""ncclforensics: find the ranks that hang, the operation they hang in and the culprits, from the logs of an NCCL job.

>>> from ncclforensics import analyze
>>> report = analyze("fixtures/incidents/one-rank-stops-before-an-allreduce/*.log")
>>> print(report.verdicts[0].verdict)
lagging-ranks
>>> report.frames["wait"].filter(rank=0)["waits_for"].to_list()
[[11]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclforensics.data.settings import Settings
    from ncclforensics.report.earlier_look import EarlierLook
    from ncclforensics.report.selection import Selection
    from ncclforensics.views.printed_report import PrintedReport

__version__ = "0.1.0"


def analyze(
    paths: str | Path | Iterable[str | Path],
    *,
    full: bool = False,
    everything: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    rank_from: str | None = None,
    selection: Selection | None = None,
    since: str | None = None,
    until: str | None = None,
    since_look: str | EarlierLook | None = None,
    on: str | None = None,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PrintedReport:
    """Read logs and report findings and verdicts.

    `paths`: a file, a folder, a glob or a saved run, or several of them.
    `full`: read every byte instead of windows at both ends of each file. `everything`: also run all rules, not only
    those on a hang; so it is where the inputs show no rank. Of more than three million calls, those at both ends of
    each process are kept, and the others counted, so that memory is bounded.
    `select`, `ignore`: names of rules or categories, to run only these or to skip them. `rank_from`: a pattern that
    finds a rank in a path. `selection`: what the report shows; verdicts use all ranks. `since`, `until`: use only lines
    printed between these times; reads every byte. `since_look`: a saved run of the same logs from earlier, or what was
    seen then; if no rank has made a call since, and these are the files that the job writes to, it stands still.
    `settings`: what the machines of the site should have, thresholds, and which rules `everything` means; the command
    line reads them from ncclforensics.toml. `on`: a Dask cluster that reads and parses the logs, `dask://HOST:PORT`; it
    reads every byte. `progress` is called with the bytes parsed so far and the total.
    Raises NoInputError if nothing can be read, UsageError if `rank_from` is no regular expression, a
    time cannot be parsed, a rule or category does not exist, or the cluster does not answer.
    """
    import ncclforensics.analyses  # noqa: F401  # registers the analyses
    from ncclforensics.data.settings import Settings
    from ncclforensics.frames.open_run import open_run
    from ncclforensics.frames.run import limit_threads
    from ncclforensics.frames.time_range import TimeRange, parse_time
    from ncclforensics.inputs import sources
    from ncclforensics.inputs.read_policy import ReadPolicy
    from ncclforensics.report.build import build_report
    from ncclforensics.rules.registry import select_rules
    from ncclforensics.views.printed_report import PrintedReport

    settings = settings or Settings()
    chosen = settings if everything else Settings()
    choose = partial(select_rules, select=select or chosen.select, ignore=ignore or chosen.ignore)
    rules = choose(everything=everything)
    time_range = TimeRange(parse_time(since, "--since"), parse_time(until, "--until")) if since or until else None
    if isinstance(since_look, str):
        from ncclforensics.report.earlier_look import read_earlier_look

        since_look = read_earlier_look(since_look)
    given = [paths] if isinstance(paths, str | Path) else paths
    found = sources.find([str(path) for path in given], rank_from or sources.RANK_IN_NAME)
    total = sum(source.size for source in found)
    done = 0

    def parsed(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    if on:
        from ncclforensics.archive.cluster import connected, read_apart

        with connected(on) as (executor, threads):
            found = read_apart(found, executor, threads, parsed)
    reads_whole = full or everything or time_range is not None
    policy = ReadPolicy(full=True) if reads_whole else ReadPolicy.of_windows(len(found))
    run = open_run(found, policy, time_range=time_range, settings=settings, progress=parsed)

    def judge() -> PrintedReport:
        run.read_until_decided()
        # Where no rank can hang, whatever is found answers more.
        holds_no_rank = run["rank"].is_empty() and run["source"]["is_whole"].all()
        report = build_report(run, selection, choose(everything=True) if holds_no_rank else rules, since_look)
        report.time_range, report.is_about_hang = time_range, all(rule.hang for rule in rules)
        return PrintedReport.of(report)

    return limit_threads(run, judge)
