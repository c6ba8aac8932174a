"""The report for an issue or a chat: Markdown."""

from __future__ import annotations

from ncclforensics import __version__
from ncclforensics.data.names import printable
from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Severity
from ncclforensics.views import text_report
from ncclforensics.views.author_note import Cover


def markdown(report: Report, *, everything: bool = False) -> str:
    """The terminal's report as Markdown; text from logs stands in fences that it cannot end."""
    return section(f"ncclforensics: {_title(report)}", text_report.text(report, width=120, everything=everything))


def section(title: str, body: str) -> str:
    """A title, and text that is shown as it is."""
    return f"## {title}\n\n{_fenced(body)}"


def postmortem(report: Report, cover: Cover) -> str:
    """The same for an issue or a chat: the author's words, the verdict, and all that was found."""
    parts = [f"## ncclforensics: {printable(cover.title)}\n"]
    if cover.note:
        parts.append(cover.note.strip() + "\n")
    if judged(report):
        parts += ["### Verdict\n", _fenced(text_report.text(report, width=120))]
    parts += ["### Everything found\n", _fenced(text_report.text(report, width=120, everything=True))]
    parts += ["### How this was made\n", f"ncclforensics {__version__}\n", _fenced(f"{printable(cover.command)}\n")]
    hashes = [f"{digest}  {printable(report.path_of(source))}\n" for source, digest in report.hashes.items()]
    return "\n".join([*parts, "SHA-256 of the files:\n", _fenced("".join(hashes))])


def judged(report: Report) -> list[Row]:
    """The verdicts; a benchmark that shows no call is not asked who hangs."""
    is_measured = report.run["benchmark"].height > 0
    return [row for row in report.verdicts if not (is_measured and row["verdict"] == "undecidable")]


def headline(report: Report) -> str:
    """What a report is called if its author gives no title: the verdicts, or the first finding."""
    verdicts = list(dict.fromkeys(row["verdict"] for row in judged(report)))
    serious = [each.title for each in report.findings if each.severity is not Severity.INFO]
    if serious and set(verdicts) <= {"no-hang", "undecidable"}:
        return serious[0]
    return " and ".join(verdicts) or "no findings"


def _title(report: Report) -> str:
    """The verdicts in a few words."""
    return " and ".join(dict.fromkeys(row["verdict"] for row in report.verdicts)) or "no NCCL log"


def _fenced(body: str) -> str:
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}text\n{body}{fence}\n"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
