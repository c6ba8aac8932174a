"""Lines that show a finding, cut to rows of a small terminal so that their decisive words stay."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import LAST_WORDS
from ncclforensics.inputs.lines import SHOWN
from ncclforensics.report.build import Report
from ncclforensics.report.condensed_lines import MARKERS, OWN_COUNT, condensed, cut, cut_middle
from ncclforensics.rules.finding import Finding, Line, places_of
from ncclforensics.rules.registry import RETURNED
from ncclforensics.views.text_layout import indented, place_of, quoted, without_middle

MOST_LINES = 3
MOST_ROWS = 3  # that a line takes which says more than its headline
SHORTEST = 34  # characters of a line that are always shown, on a narrow terminal in a second row
LABELS = 12  # characters in which labels of launchers stand
CUT_OFF = SHOWN - 20  # characters: as long a quote lacks its end, even without its tag
DUMP = "flight-recorder"  # inputs of this kind have one line, which holds everything
DUMP_TEXT = "the calls in its Flight Recorder dump"
WARNINGS = MARKERS[:2]  # what a rank reported last, which says more than that it is the last line


def evidence(
    report: Report,
    width: int,
    finding: Finding | None,
    cause: Finding | None = None,
    culprits: Collection[int] = (),
    first: str = "",
) -> list[list[RenderableType]]:
    """Cite lines that show a finding and its cause, each on one row of `width` characters, in ever shorter versions.

    First come a line of the cause and one of each culprit, which no version lacks, then those of each kind, of which
    those with the label `first` come before the others. The first line takes further rows where one would cut words
    off that the headline lacks.
    """
    callers = _callers(report)
    findings = [found for found in (cause, finding) if found]
    places = [(line.source, line.line) for found in findings for line in _of_each_kind(found.evidence, first)]
    of_culprits: dict[int, tuple[int, int]] = {}
    for place in places:
        rank, _ = callers.get(place, (None, None))
        if rank is not None and rank in culprits:
            of_culprits.setdefault(rank, place)
    reasons = [(line.source, line.line) for found in findings for line in found.evidence if line.what == RETURNED]
    decisive = dict.fromkeys(
        [*places[: cause is not None], *reasons[:1], *list(of_culprits.values())[: MOST_LINES - bool(reasons)]]
    )
    last_lines = set(report.run["process"].select("last_source", "last_line").iter_rows())
    last_lines |= places_of(line for found in findings for line in found.evidence if line.what == LAST_WORDS)
    shown: dict[str, tuple[str, str]] = {}  # file and line -> who printed the line, and its text
    repeated: dict[str, tuple[str, str]] = {}  # the same for lines of a message that is shown
    messages: set[str] = set()
    fewest, most = 1, max(MOST_LINES, len(decisive) + 1)
    for place in dict.fromkeys([*decisive, *places]):
        cited = report.cited(*place)
        is_dump = report.run.kinds.get(place[0]) == DUMP
        text = DUMP_TEXT if is_dump and place in of_culprits.values() else "" if is_dump else quoted(cited).strip()
        text = text and (report.run.whole_text(*place) or text)
        if text and (name := place_of(report, cited)) not in shown and len(shown) < most:
            rank, ordinal = callers.get(place, (None, None))
            number = "" if ordinal is None else f" #{ordinal}"
            is_last = place in last_lines and ordinal is None and not any(mark in text for mark in WARNINGS)
            prefix = "" if rank is None else f"rank {rank}{number}{', its last line read' * is_last}: "
            label = text.find(f"[rank{rank}]:")  # behind the one of a launcher, such as srun's task
            message = prefix + condensed(text, 0)
            is_new = message not in messages or place in decisive
            messages.add(message)
            quoted_by = prefix, text[label:].partition(":")[2].strip() if 0 <= label < LABELS else text
            (shown if is_new else repeated)[name] = quoted_by
            fewest = len(shown) if place in decisive else fewest
    rows = [(without_middle(name), quote) for name, quote in (shown | repeated).items()][:most]
    widest = max((len(name) for name, _ in rows), default=0)
    headlines = " ".join(f"{found.title} {found.detail}" for found in findings)
    parts: list[RenderableType] = []
    wrapped: list[RenderableType] = []
    for name, (prefix, text) in rows:
        room = max(width - 4 - widest - len(prefix), SHORTEST)
        shorten = cut if len(text) >= CUT_OFF else cut_middle  # the end of a quote that is cut off decides nothing
        short = condensed(text, room)
        if prefix:  # PyTorch's watchdog names its rank, too
            short = short.replace(f"[{prefix.partition(',')[0].removesuffix(': ').capitalize()}] ", "", 1)
        row = shorten(short, room)
        if not parts and _says_more(short, f"{row} {headlines}"):
            indent = " " * (widest + 2)
            text_rows = textwrap.wrap(shorten(short, room * MOST_ROWS), room, break_on_hyphens=False)
            quote = f"\n{indent}".join(text_rows)
            wrapped = [indented(Text.assemble((name.ljust(widest), "cyan"), "  ", prefix, quote))]
        parts.append(indented(Text.assemble((name.ljust(widest), "cyan"), "  ", prefix, row)))
    versions = [parts[:count] for count in range(len(parts), fewest - 1, -1)] or [[]]
    return [*([*wrapped, *version[1:]] for version in versions if wrapped), *versions]


def last_words(report: Report, width: int, finding: Finding | None) -> list[RenderableType]:
    """Cite what ranks printed last of whose end a finding on a job knows nothing else."""
    lines = [line for line in finding.evidence if line.what == LAST_WORDS] if finding else []
    return evidence(report, width, replace(finding, evidence=lines))[0] if finding and lines else []


def _says_more(quote: str, shown: str) -> bool:
    """Whether a quote has words that stand in no text that is shown beside it, or less often."""
    return not Counter(_words(quote)) <= Counter(_words(shown))


def _words(text: str) -> list[str]:
    """Split a text into its words, without signs around them, and without numbers."""
    words = (word.strip(".,:;()[]{}<>'\"`*…").casefold() for word in text.split())
    return [word for word in words if any(letter.isalpha() for letter in word)]


def legend(report: Report, finding: Finding | None) -> list[RenderableType]:
    """Say what the number of a call counts where the cited lines hold another one, NCCL's own."""
    digits = _ordinal(finding.title) if finding else ""
    lines = [report.cited(line.source, line.line)["text"] for line in finding.evidence] if finding else []
    if not digits or not any(OWN_COUNT in line for line in lines):
        return []
    text = f"#{digits}: its position among a rank's calls on this communicator, from 0; not NCCL's {OWN_COUNT}"
    return [indented(Text(text, style="dim"))]


def _ordinal(title: str) -> str:
    """Return the digits of the first call that a title numbers."""
    rest = title.partition(" #")[2]
    return rest[: next((place for place, letter in enumerate(rest) if not letter.isdecimal()), len(rest))]


def _callers(report: Report) -> dict[tuple[int, int], tuple[int, int | None]]:
    """Return the rank that printed a line, and the position of its call, of lines that show calls or a verdict.

    Of what a rank printed last, too.
    """
    numbers = report.run["rank"].select("rank_id", "rank").drop_nulls()
    position = {"ordinal": pl.lit(None, pl.Int32)}
    rows = [
        report.run["shown_call"].select("source", "line", "rank_id", pl.col("ordinal").cast(pl.Int32)),
        report.run["verdict_evidence"].select("source", "line", "rank_id").with_columns(**position),
    ]
    known = pl.concat(rows).drop_nulls(["source", "line", "rank_id"]).join(numbers, on="rank_id")
    known = pl.concat([known, report.run["last_word"].with_columns(**position)], how="diagonal")
    callers: dict[tuple[int, int], tuple[int, int | None]] = {}
    for source, line, rank, ordinal in known.select("source", "line", "rank", "ordinal").iter_rows():
        callers.setdefault((source, line), (rank, ordinal))
    return callers


def _of_each_kind(lines: list[Line], first: str) -> list[Line]:
    """Order lines so that one of each label comes first, and of these the one with the label `first`."""
    seen: Counter[str] = Counter()
    turns = []
    for line in lines:
        turns.append(seen[line.what])
        seen[line.what] += 1
    order = sorted(range(len(lines)), key=lambda place: (turns[place], lines[place].what != first, place))
    return [lines[place] for place in order]
