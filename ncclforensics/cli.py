"""One function per command. Exceptions become exit codes here, and nothing else prints.

This module imports neither polars nor lark nor rich, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import IntEnum, StrEnum
from pathlib import Path
from time import monotonic, sleep, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclforensics import __version__, analyze
from ncclforensics.capture.scripts import Scheduler
from ncclforensics.data.names import printable
from ncclforensics.errors import ForensicsError, UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ncclforensics.capture.drills import Drill
    from ncclforensics.capture.plan import Plan
    from ncclforensics.capture.result import Captured
    from ncclforensics.comparison import Comparison
    from ncclforensics.redaction import Pseudonyms
    from ncclforensics.report import Report
    from ncclforensics.views.cover import Cover


# Polars' allocator gives memory back only under pressure; a tool that runs on a login node gives it back at once.
# Read when the library is loaded, so it is set before that.
os.environ.setdefault("_RJEM_MALLOC_CONF", "background_thread:true,narenas:4,dirty_decay_ms:100,muzzy_decay_ms:0")


class Exit(IntEnum):
    """Exit codes of every command."""

    NOTHING = 0  # nothing at or above the threshold
    FINDINGS = 1
    USAGE = 2  # wrong usage, or no readable input
    UNDECIDABLE = 3  # readable, but not enough to decide
    INTERRUPTED = 130


class Format(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"


class Sheet(StrEnum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class FailOn(StrEnum):
    """The lowest severity that makes exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


SERIOUS = {FailOn.ERROR: ["error"], FailOn.WARNING: ["error", "warning"], FailOn.NEVER: []}
HERE = Path(__file__).parent
DEMO = (
    HERE / "demo" if (HERE / "demo").is_dir() else HERE.parent / "fixtures/incidents/one-rank-stops-before-an-allreduce"
)
SOON = 0.5  # seconds until a progress bar appears
INSTALL = "pip install 'ncclforensics[tui]'"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Who is stuck, on what, and who is to blame? From the logs of a stuck NCCL job.",
    epilog="Exit codes: 0 nothing found, 1 findings, 2 wrong usage or no input, 3 not decidable, 130 interrupted.",
)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Files, folders, globs, saved runs, or - for standard input; .gz .zst .xz .bz2 are read as they are.",
    ),
]
_SIDE = "A file, a folder or a quoted glob of the run that"
Good = Annotated[str, typer.Argument(metavar="GOOD", help=f"{_SIDE} was as it should be.")]
Bad = Annotated[str, typer.Argument(metavar="BAD", help=f"{_SIDE} was not.")]
SheetOption = Annotated[Sheet, typer.Option("--format", help="How to print the comparison.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print the report.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report there, not to stdout.")
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="The lowest severity that makes exit code 1.")]
Full = Annotated[
    bool, typer.Option("--full", help="Read every byte, in place of both ends of each file as far as needed.")
]
RankFrom = Annotated[
    str | None,
    typer.Option(
        "--rank-from", metavar="REGEX", help="Finds the rank in a path (first group), where the log does not tell it."
    ),
]
Ranks = Annotated[str | None, typer.Option("--ranks", metavar="0-7,12", help="Show only what concerns these ranks.")]
Host = Annotated[str | None, typer.Option("--host", metavar="NAME", help="Show only what concerns this host.")]
Comm = Annotated[str | None, typer.Option("--comm", metavar="ID", help="Show only what concerns this communicator.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Judge only lines printed from then on, where lines have times."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Judge only lines printed up to then.")]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="RULE|CATEGORY", help="Ask only these rules; may be given several times."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="RULE|CATEGORY", help="Do not ask these; as often as needed.")
]
Redact = Annotated[
    bool, typer.Option("--redact", help="Pseudonyms for hosts, addresses, users and paths; secrets vanish.")
]
RedactMap = Annotated[
    Path | None,
    typer.Option(
        "--redact-map", metavar="FILE", help="Keep there what stands for what, and go on with it; implies --redact."
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress bar, no warnings on stderr.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also the last call of every rank, and lists in full.")]
NoColor = Annotated[bool, typer.Option("--no-color", envvar="NO_COLOR", help="No colours.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ncclforensics {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def hang(
    paths: Paths,
    form: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    full: Full = False,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Who is stuck, on what, and who is to blame? Names culprits, victims and the lines that prove it."""
    report = _analyzed(
        paths, full=full, rank_from=rank_from, quiet=quiet, ranks=ranks, host=host, comm=comm, since=since, until=until
    )
    if redact or redact_map:
        report, _ = _redacted(report, redact_map)
    _show(report, form, output, fail_on=fail_on, verbose=verbose, no_color=no_color)
    raise typer.Exit(_exit_code(report, fail_on))


@app.command()
def check(
    paths: Paths,
    form: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    select: Select = None,
    ignore: Ignore = None,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """What the logs tell about a run, and everything that the rules find in it. Reads every byte."""
    report = _analyzed(
        paths,
        full=True,
        everything=True,
        select=select or (),
        ignore=ignore or (),
        rank_from=rank_from,
        quiet=quiet,
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    if redact or redact_map:
        report, _ = _redacted(report, redact_map)
    _show(report, form, output, fail_on=fail_on, verbose=verbose, no_color=no_color, everything=True)
    raise typer.Exit(_exit_code(report, fail_on, is_measured=report.run["benchmark"].height > 0))


class Backend(StrEnum):
    """Over what the ranks of a capture talk."""

    NCCL = "nccl"
    GLOO = "gloo"


@app.command()
def capture(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="A folder of its own; default capture-TIME.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    backend: Annotated[
        Backend, typer.Option("--backend", help="gloo rehearses on CPUs, without NCCL and without a GPU.")
    ] = Backend.NCCL,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks to start here; default one per GPU, 4 with gloo.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="0,1", help="Only these GPUs, as CUDA counts.")] = None,
    ranks_per_gpu: Annotated[
        int, typer.Option("--ranks-per-gpu", min=1, help="Several ranks on one GPU: a rehearsal over sockets.")
    ] = 1,
    share: Annotated[bool, typer.Option("--share", help="Use GPUs that others are using, too.")] = False,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="DRILL",
            help="A fault on purpose: hang:RANK@STEP, mismatch:RANK@STEP, slow:RANK:MS, crash:RANK@STEP, absent:RANK; "
            "with NCCL also socket, no-gdr, channels:N. As often as needed.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="AllReduce calls before the measurements.")] = 30,
    collectives: Annotated[
        str | None, typer.Option("--collectives", metavar="LIST", help="Measure only these: all_reduce,all_gather,…")
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms", metavar="LIST", help="Also measure all_reduce with each of these alone: Ring,Tree"
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", metavar="SIZE", help="The largest message; default what --memory holds."),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Of each GPU, for the buffers of a rank.")
    ] = "4G",
    stall: Annotated[
        float, typer.Option("--stall", metavar="SECONDS", min=1, help="A call that takes longer counts as hung.")
    ] = 30,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", min=5, help="Everything has ended by then.")
    ] = 600,
    subsystems: Annotated[
        str, typer.Option("--subsys", metavar="LIST", help="NCCL_DEBUG_SUBSYS of the ranks.")
    ] = "INIT,ENV,NET,GRAPH,COLL,TUNING",
    nccl_tests: Annotated[
        str | None, typer.Option("--nccl-tests", metavar="PROGRAM", help="Run this all_reduce_perf, not our own ranks.")
    ] = None,
    script: Annotated[
        Scheduler | None, typer.Option("--print", help="Write a job script for several hosts, and stop.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Hosts in that script.")] = 2,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each host in it.")] = 8,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Capture so often, each time in a folder below.")] = 1,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0, help="From one start to the next.")] = 0,
    min_busbw: Annotated[
        float | None,
        typer.Option("--min-busbw", metavar="GB/S", help="Stop with 1 once all_reduce stays below this at every size."),
    ] = None,
    form: FormatOption = Format.TEXT,
    fail_on: FailOnOption = FailOn.WARNING,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Run instrumented collectives here, write fresh logs, and analyse them as `check` does."""
    from ncclforensics.capture import order, scripts, tables

    wanted = order.Order(
        folder=output,
        backend=backend,
        nproc=nproc,
        gpus=gpus,
        ranks_per_gpu=ranks_per_gpu,
        share=share,
        steps=steps,
        inject=inject or (),
        collectives=collectives,
        algorithms=algorithms,
        largest=max_bytes,
        memory=memory,
        stall=stall,
        limit=limit,
        subsystems=subsystems,
        program=nccl_tests,
    )
    if script is not None:
        typer.echo(scripts.script(script, nodes, gpus_per_node, limit, wanted.arguments()), nl=False)
        return
    plan = order.planned(wanted, os.environ, strftime("capture-%Y%m%d-%H%M%S"))
    compared = order.algorithms(wanted)
    if dry_run:
        typer.echo("\n".join(map(printable, plan.described())))
        return
    folder, is_enough = _turns(plan, repeat, every, min_busbw, quiet=quiet)
    alone = {name: _captured(plan.only(name), quiet=quiet).measured for name in compared}
    if not plan.leads:
        return  # rank 0 has the word
    for name, smallest, largest in tables.fastest(alone):
        typer.echo(f"fastest all_reduce from {smallest} to {largest} bytes: {name}", err=True)
    report = _analyzed([str(folder)], full=True, everything=True, quiet=quiet)
    _show(report, form, None, fail_on=fail_on, verbose=verbose, no_color=no_color, everything=True)
    if not quiet:
        for drill in plan.drills:
            typer.echo(_outcome(drill, report), err=True)
    code = _exit_code(report, fail_on, is_measured=report.run["benchmark"].height > 0)
    raise typer.Exit(code if is_enough else Exit.FINDINGS)


def _turns(plan: Plan, repeat: int, every: float, least: float | None, *, quiet: bool) -> tuple[Path, bool]:
    """Capture again and again, until it is slower than is wanted: the last folder, and whether it was fast enough."""
    for turn in range(1, repeat + 1):
        began = monotonic()
        one = plan if repeat == 1 else replace(plan, folder=plan.folder / f"turn-{turn:03}")
        captured = _captured(one, quiet=quiet)
        if least is not None and plan.leads and not captured.is_as_fast_as(least):
            return one.folder, False
        if turn < repeat:
            sleep(max(0.0, began + every - monotonic()))
    return one.folder, True


def _captured(plan: Plan, *, quiet: bool) -> Captured:
    """Run one capture, and say what came of it."""
    from ncclforensics.capture import order, result

    if not plan.program:
        order.need_torch()
    result.prepare(plan)
    if not quiet:
        typer.echo("\n".join(map(printable, plan.described())), err=True)
    with _Bar("capturing", of_bytes=False) if sys.stderr.isatty() and not quiet else nullcontext() as bar:
        captured = result.capture(plan, bar.tell if bar else lambda done, total: None)
    if not quiet:
        for line in captured.told():
            typer.echo(printable(line), err=True)
    return captured


def _outcome(drill: Drill, report: Report) -> str:
    """Whether the analysis finds what was done on purpose."""
    if (truth := drill.truth) is None:
        return f"Drill {drill.text}: whether it shows is in the report."
    told = [row for row in report.verdicts if row["verdict"] == truth["finding"]]
    named = [sorted({*report.numbers(row["culprits"]), *row["missing"]}) for row in told]
    named += [finding.ranks for finding in report.findings if finding.category == truth["finding"]]
    found = "the analysis names it" if truth["ranks"] in named else "the analysis does not name it"
    return f"Drill {drill.text}: {truth['finding']} of rank {truth['ranks'][0]}; {found}."


@app.command()
def diff(
    good: Good,
    bad: Bad,
    form: SheetOption = Sheet.TEXT,
    output: Output = None,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """What differs between two runs that matters: how they came out, and what may explain it. Reads every byte.

    Logs, benchmarks and dumps of machines alike; what only one of both tells is named and never counted as a
    difference. Exit code 0: nothing that matters differs, 1: something does, 3: too little in common to tell.
    """
    from ncclforensics.comparison.compared import compared
    from ncclforensics.sources import forget_spooled

    def read(path: str) -> Report:
        return _read(
            [path],
            full=True,
            quiet=quiet,
            everything=True,
            rank_from=rank_from,
            ranks=ranks,
            host=host,
            comm=comm,
            since=since,
            until=until,
        )

    try:
        comparison = compared(read(good), read(bad))
    finally:
        forget_spooled()
    _put(_drawn(comparison, form, color=_is_colored(output, no_color)), output)
    if not comparison.is_enough:
        raise typer.Exit(Exit.UNDECIDABLE)
    raise typer.Exit(Exit.FINDINGS if comparison.matters else Exit.NOTHING)


@app.command()
def report(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write it; its suffix is .html, .md or .json."),
    ],
    title: Annotated[str | None, typer.Option("--title", help="The title, in place of the verdict.")] = None,
    note: Annotated[
        Path | None, typer.Option("--note", metavar="FILE.md", help="Your own words, in Markdown, to stand in front.")
    ] = None,
    fail_on: FailOnOption = FailOn.WARNING,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
) -> None:
    """An attachment to a postmortem: HTML in one file that opens offline, Markdown, or JSON. Reads every byte."""
    written = _WRITTEN_AS.get(output.suffix)
    if written is None:
        raise UsageError(f"{output}: the suffix says what to write: {', '.join(_WRITTEN_AS)}")
    words = note.read_text(encoding="utf-8", errors="replace") if note else ""
    answer = _analyzed(
        paths,
        full=True,
        everything=True,
        hashed=True,
        rank_from=rank_from,
        quiet=quiet,
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    command = sys.argv[1:]
    if redact or redact_map:
        answer, known = _redacted(answer, redact_map)
        title, words = known.text(title) if title else None, known.text(words)
        command = [known.argument(each) for each in command]
    output.write_bytes(written(answer, title, words, command))
    raise typer.Exit(_exit_code(answer, fail_on, is_measured=answer.run["benchmark"].height > 0))


def _redacted(report: Report, mapping: Path | None) -> tuple[Report, Pseudonyms]:
    from ncclforensics import redaction

    known = redaction.pseudonyms(report.run, mapping)
    redacted = redaction.redacted(report, known)
    if mapping is not None:
        redaction.write(known, mapping)
    return redacted, known


def _html(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    try:
        from ncclforensics.views import postmortem
    except ModuleNotFoundError as missing:
        wanted = f"{missing.name} is not installed; for HTML: pip install 'ncclforensics[report]'"
        raise UsageError(f"{wanted}; .md and .json need nothing more") from missing
    return postmortem.html(answer, _cover(answer, title, note, command))


def _markdown(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import document

    return document.postmortem(answer, _cover(answer, title, note, command)).encode()


def _json(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import exchange

    return exchange.json(answer)


_WRITTEN_AS = {".html": _html, ".md": _markdown, ".json": _json}


def _cover(answer: Report, title: str | None, note: str, command: list[str]) -> Cover:
    from shlex import join

    from ncclforensics.views import document
    from ncclforensics.views.cover import Cover

    return Cover(title or document.headline(answer), note, join(["ncclforensics", *command]))


@app.command()
def save(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="NAME.ncclf", help="Where to keep the run; other commands take it as PATH."
        ),
    ],
    rank_from: RankFrom = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
) -> None:
    """Parse once and keep the run: one file that is accepted wherever PATH is. Reads every byte."""
    from ncclforensics import saving

    answer = _analyzed(paths, full=True, everything=True, hashed=True, rank_from=rank_from, quiet=quiet)
    if redact or redact_map:
        answer, _ = _redacted(answer, redact_map)
    saving.save(answer, output)


@app.command()
def tui(
    paths: Paths,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it in a browser instead, to whoever can reach it.")
    ] = False,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="With --serve: the address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="NUMBER", help="With --serve: the port.")] = 8000,
    rank_from: RankFrom = None,
    no_color: NoColor = False,
) -> None:
    """Browse a run on the screen: the verdict, ranks, calls, who waits for whom, connections, benchmarks, the log."""
    gc.enable()
    if no_color:
        os.environ["NO_COLOR"] = "1"  # read by the library of the screens
    try:
        if serve:
            from ncclforensics.tui import serving

            if bind not in serving.LOOPBACK:
                typer.echo(f"{bind}: {serving.EXPOSED}", err=True)
            serving.serve(paths, bind, port, rank_from=rank_from, no_color=no_color)
        else:
            from ncclforensics.tui import terminal

            terminal.show(paths, rank_from=rank_from)
    except ModuleNotFoundError as missing:
        library = str(missing.name).partition(".")[0]
        raise UsageError(f"{library} is not installed; the screens need: {INSTALL}") from missing


@app.command()
def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="A rule's name, as findings give it.")] = None,
    line: Annotated[
        str | None, typer.Option("--line", metavar="TEXT", help="A line of a log: which shape it is, or nearly is.")
    ] = None,
) -> None:
    """What a rule means, how sure it is and what would make it a false alarm; or what a line of a log is."""
    from ncclforensics.formats import language
    from ncclforensics.nearest import anatomy
    from ncclforensics.rules import all_rules
    from ncclforensics.views import pages

    if (rule is None) == (line is None):
        raise UsageError("explain wants either the name of a rule or --line TEXT")
    if line is not None:
        typer.echo(pages.of_line(anatomy(line, language().whole)))
        return
    known = {each.name: each for each in all_rules()}
    if rule not in known:
        raise UsageError(f"{rule}: no such rule; there are {', '.join(sorted(known))}")
    typer.echo(pages.of_rule(known[rule]))


@app.command()
def demo(form: FormatOption = Format.TEXT, no_color: NoColor = False) -> None:
    """Run `hang` on an incident that ships with the program: a rank stops before an AllReduce."""
    report = _analyzed([str(DEMO / "*.log")], full=False, quiet=True)
    _show(report, form, None, fail_on=FailOn.WARNING, verbose=False, no_color=no_color)
    raise typer.Exit(_exit_code(report, FailOn.WARNING))


def _analyzed(paths: list[str], *, full: bool, quiet: bool, **more: Any) -> Report:
    from ncclforensics.sources import forget_spooled

    try:
        return _read(paths, full=full, quiet=quiet, **more)
    finally:
        forget_spooled()


def _read(
    paths: list[str],
    *,
    full: bool,
    quiet: bool,
    everything: bool = False,
    hashed: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    rank_from: str | None = None,
    ranks: str | None = None,
    host: str | None = None,
    comm: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Report:
    """The report on these paths; what is wrong with them goes to stderr."""
    from ncclforensics import selection

    shown = selection.Selection(selection.ranks(ranks) if ranks else frozenset(), host, comm)
    with _Bar() if sys.stderr.isatty() and not quiet else nullcontext() as bar:
        report = analyze(
            paths,
            whole=full,
            everything=everything,
            select=select,
            ignore=ignore,
            rank_from=rank_from,
            selection=shown,
            since=since,
            until=until,
            progress=bar.tell if bar else lambda done, total: None,
        )
    if hashed:
        report.hash_inputs()
    if not quiet:
        for reading in report.run.readings:
            for problem in report.problems(reading.number):
                typer.echo(f"{printable(reading.source.path)} {problem}", err=True)
    return report


class _Bar(AbstractContextManager["_Bar"]):
    """A progress bar on stderr, from the moment on that reading takes longer than SOON."""

    def __init__(self, doing: str = "reading", *, of_bytes: bool = True) -> None:
        self._doing, self._of_bytes = doing, of_bytes
        self._began = monotonic()
        self._progress: Progress | None = None

    def tell(self, done: int, total: int) -> None:
        from ncclforensics.views.progress import progress

        if self._progress is None and monotonic() - self._began > SOON:
            self._progress = progress(self._doing, of_bytes=self._of_bytes)
            self._progress.start()
            self._progress.add_task(self._doing, total=total)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done)

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _show(
    report: Report,
    form: Format,
    output: Path | None,
    *,
    fail_on: FailOn,
    verbose: bool,
    no_color: bool,
    everything: bool = False,
) -> None:
    if form is Format.JSON:
        from ncclforensics.views import exchange

        data = exchange.json(report)
    elif form is Format.MARKDOWN:
        from ncclforensics.views import document

        data = document.markdown(report, everything=everything).encode()
    elif form in (Format.JUNIT, Format.SARIF):
        from ncclforensics.views import gates

        data = gates.junit(report, SERIOUS[fail_on]) if form is Format.JUNIT else gates.sarif(report)
    else:
        from ncclforensics.views import terminal

        color = _is_colored(output, no_color)
        width = terminal.width_of_terminal()
        data = terminal.text(report, width=width, color=color, verbose=verbose, everything=everything).encode()
    _put(data, output)


def _drawn(comparison: Comparison, form: Sheet, *, color: bool) -> bytes:
    from ncclforensics.views import difference, difference_exchange, terminal

    if form is Sheet.JSON:
        return difference_exchange.json(comparison)
    if form is Sheet.MARKDOWN:
        return difference.markdown(comparison).encode()
    return difference.text(comparison, width=terminal.width_of_terminal(), color=color).encode()


def _is_colored(output: Path | None, no_color: bool) -> bool:
    return output is None and sys.stdout.isatty() and not no_color


def _put(data: bytes, output: Path | None) -> None:
    if output is not None:
        output.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _exit_code(report: Report, fail_on: FailOn, *, is_measured: bool = False) -> Exit:
    if any(finding.severity in SERIOUS[fail_on] for finding in report.findings):
        return Exit.FINDINGS
    verdicts = {row["verdict"] for row in report.verdicts}
    if is_measured and not verdicts:  # a benchmark alone is not asked who hangs
        return Exit.NOTHING
    return Exit.UNDECIDABLE if not verdicts or "undecidable" in verdicts else Exit.NOTHING


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; one sentence on stderr in place of a traceback."""
    try:
        app(argv)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Exit.NOTHING
    except ForensicsError as error:
        typer.echo(f"ncclforensics: {printable(str(error))}", err=True)
    except OSError as error:
        typer.echo(f"ncclforensics: {printable(str(error.filename or ''))} {error.strerror or error}", err=True)
    return Exit.USAGE


def run() -> None:
    """The console script."""
    # What it makes it needs to the end; looking for what has become garbage takes a twentieth of a short run.
    gc.disable()
    code = main()
    # Everything is written; to wind down the threads of Polars one by one would take another tenth of a second.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = Exit.USAGE  # the reader of a pipe has gone
    os._exit(code)
