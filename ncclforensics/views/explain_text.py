"""The text of `explain`: a rule, a verdict, a category, a variable, an error by number or name, or lines of a log."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import groupby
from textwrap import wrap

from ncclforensics.data.driver_topics import DRIVER_TOPICS
from ncclforensics.data.failure_topics import TOPICS
from ncclforensics.data.line_rules import rules_of_line
from ncclforensics.data.names import printable, sentence
from ncclforensics.data.variable_catalogue import line_to_look_for
from ncclforensics.errors import UsageError
from ncclforensics.grammar.folders import path_of, shown
from ncclforensics.grammar.grammar_file import load
from ncclforensics.grammar.meanings import ANSWERED, Kind
from ncclforensics.parsing.explain_line import LineExplanation
from ncclforensics.rules.registry import Rule
from ncclforensics.views.explain_code import Code, code_of_cuda_text, codes_in
from ncclforensics.views.explain_slow import OF_SLOW
from ncclforensics.views.explain_variable import of_variable, unknown_variable

WIDTH = 100  # columns of a list of rules
MOST_SUGGESTIONS = 6
_OF_KIND = {Kind.FACT: "fact: by itself it shows no failure", Kind.NOISE: "noise: nothing follows from it"}
# Columns with numbers of errors -> the word by which `codes_in` knows their table; of a category: further ones.
CODE_COLUMNS = {"xid": "Xid", "sxid": "SXid"}
CODE_COLUMNS_OF = {
    "init-failure": {"result": "NCCL"},
    "ib-error": {"status": "status", "vendor_error": "vendor"},
    "cuda-error": {"code": "CUDA"},
}
WORDS_OF_NAMES = 3  # at most, in a name that somebody may type with blanks
UNREAD = "unread"  # the grammar of lines that no other one reads
NO_HANG = "no-hang"
OF_NO_HANG = f"""{NO_HANG}  (a verdict that is no finding)

All ranks made the same calls, and nothing failed.

Means: the logs end alike on all ranks. Certain if every communicator was destroyed, which ends a run; likely if
most were. Else possible: the last calls completed, or all ranks hang in them, in a kernel or in the network.
Not when: the job stands still, and no communicator was destroyed: then all ranks hang in the last call.
Do: if the job stands still, take a Flight Recorder dump or the stacks of all ranks (`ncclforensics collect`), and give
them to `hang` with the logs."""


def is_line(text: str) -> bool:
    """Whether a text is to be explained as lines of a log: `-`, one that guides quote, or many words."""
    return text == "-" or (
        not codes_in(text) and (len(text.split()) > WORDS_OF_NAMES or line_to_look_for(text) is not None)
    )


def quoted(line: str) -> str:
    """Return a line as a heading above what is said of it."""
    return printable(f"> {line[: WIDTH - 3]}{'…' * (len(line) > WIDTH - 3)}")


def of_name(name: str, rules: list[Rule]) -> str:
    """Return the page of a rule, a verdict, a variable or an error, and the rules of a category. Raises UsageError."""
    wanted = name.lower()  # a report prints verdicts in capitals
    pages = [of_rule(rule) for rule in rules if wanted in {rule.name, rule.verdict} - {""}]
    pages += [OF_NO_HANG] * (wanted == NO_HANG)
    if wanted in OF_SLOW:
        pages.append(f"{wanted}  (a verdict of `slow`)\n\n{OF_SLOW[wanted]}")
    of_category = [rule for rule in rules if wanted == rule.category]
    if of_category:
        pages.append(of_rules(of_category))
    pages += [] if pages else filter(None, [of_variable(name)])
    pages += [_of_code(code, rules) for code in ([] if pages else codes_in(name))]
    if not pages:
        if of_no_variable := unknown_variable(name):
            raise UsageError(of_no_variable)
        names = {known for rule in rules for known in (rule.name, str(rule.category), rule.verdict)}
        raise UsageError(_unknown(name, names - {""} | {NO_HANG, *OF_SLOW}))
    return "\n\n".join(pages)


def _of_code(code: Code, rules: Iterable[Rule]) -> str:
    """The page of an error: what it means, and the page of the rule that judges most lines with it."""
    rows = [code.title, *([""] if code.sentences else []), *code.sentences]
    rows += [f"Source: {code.source}."] if code.source else []
    pages = {rule.name: of_rule(rule) for rule in rules if rule.name in code.rules[:1]}
    judged = [f"Lines with it are judged by {' or '.join(code.rules)}:", "", pages[code.rules[0]]] if code.rules else []
    return "\n".join([*rows, *([""] if judged else []), *judged])


def _unknown(wanted: str, known: set[str]) -> str:
    """Say that there is no such name, and which are similar."""
    parts = {part for part in wanted.lower().replace("_", "-").replace(" ", "-").split("-") if part}
    similar = get_close_matches(wanted.lower(), known, n=MOST_SUGGESTIONS, cutoff=0.6)
    similar += sorted((name for name in known if parts & set(name.split("-")) and name not in similar), key=len)
    if not similar:
        return f"{wanted}: unknown rule; `ncclforensics explain` lists all rules"
    return f"{wanted}: unknown rule; similar names: {', '.join(similar[:MOST_SUGGESTIONS])}"


def of_rule(rule: Rule) -> str:
    """Return the page of a rule."""
    return f"{rule.name}  ({rule.category}, {rule.severity})\n\n{rule.page}"


def of_rules(rules: Iterable[Rule]) -> str:
    """Return the names of rules by category, each with the first sentence of what it means."""
    rows: list[str] = []
    for category, group in groupby(sorted(rules, key=_place), key=lambda rule: str(rule.category)):
        rows += ["", category]
        for rule in group:
            rows += _summary(rule)
    return "\n".join([*rows[1:], "", "ncclforensics explain RULE shows one of them whole."])


def _place(rule: Rule) -> tuple[str, str]:
    return str(rule.category), rule.name


def of_line(line: LineExplanation, rules: Iterable[Rule]) -> str:
    """Return what a line says and means, what its codes of errors mean, and the page of the rule that judges it.

    Which rule that is, is known by what the line is; whether it holds, only its log shows.
    """
    shape = line.shape
    if shape is None:
        return "\n".join(map(printable, _unknown_line(line)))
    meaning = load(shape.grammar).meanings[shape.frame][line.form]
    codes = _codes(line, meaning.category)
    by_code = next((list(code.rules) for code in codes if code.rules), [])
    names = by_code or rules_of_line(shape.frame, line.form)
    judging = sorted((rule for rule in rules if rule.name in names), key=lambda rule: names.index(rule.name))
    specific = [rule for rule in judging if not rule.fallback] or judging
    topic = TOPICS.get(line.topic)
    driver_topic = DRIVER_TOPICS.get(line.driver_topic)
    is_unread = shape.grammar == UNREAD or driver_topic is not None
    rows = _fields(line)
    rows += ["read as a message without its prefix, or inside a text"] if line.is_inside else []
    if meaning.text:
        rows += [f"{meaning.kind}: {meaning.text}"]
    elif not is_unread:
        rows += [_OF_KIND[meaning.kind], f"among: {load(shape.grammar).subject}"]
    rows += [sentence(meaning.remedy)] if meaning.remedy else []
    rows += [f"by its words: {topic.text}", sentence(topic.remedy)] if topic else []
    if driver_topic:
        rows += [f"by its words, the driver {driver_topic.text}", sentence(driver_topic.meaning)]
    for code in codes:
        rows += ["", code.title, *code.sentences]
    if specific:
        is_judged = is_unread or meaning.kind in ANSWERED
        judged = "Judged, with the lines around it," if is_judged else "Such lines are looked at"
        rows += ["", f"{judged} by {' or '.join(rule.name for rule in specific)}:"]
    if by_code or (len(specific) == 1 and (is_unread or meaning.kind in (Kind.FAILURE, Kind.CONDITION))):
        rows += ["", *of_rule(specific[0]).splitlines()]
    else:
        rows += [row for rule in specific for row in _summary(rule)]
    return "\n".join(map(printable, rows)).strip("\n")


def _fields(line: LineExplanation) -> list[str]:
    """Return the fields of a line, below what a launcher says of it and what it is."""
    rows = [f"{name}: {value}" for name, value in line.labels.items()]
    if line.shape is not None:
        form = f", form {line.form}" if line.form else ""
        rows += [f"{line.shape.frame}  ({shown(path_of(line.shape.grammar))}{form})"]
        rows += [f"  {name} = {value}" for name, value in line.fields.items()]
    rows += [f"printed by {line.message.origin}"] if line.message else []
    return rows


def _unknown_line(line: LineExplanation) -> list[str]:
    """Return where a line stops matching the nearest pattern, or what to look for in its place."""
    rows = _fields(line)
    if line.instead:
        return [*rows, "guides quote such a line, but no release of NCCL prints it", f"look for {line.instead}"]
    if line.nearest is None:
        return [*rows, "unknown line: no pattern matches its beginning; it counts as a line of the application"]
    return [
        *rows,
        f"unknown line; nearest pattern: {line.nearest.frame} ({shown(path_of(line.nearest.grammar))})",
        f"  {line.text}",
        f"  {' ' * line.at}^ expected here: {line.expected}",
    ]


def _codes(line: LineExplanation, category: str) -> list[Code]:
    """Return what the numbers and names of errors in a line mean: those that are of one table, by its category."""
    columns = CODE_COLUMNS | CODE_COLUMNS_OF.get(category, {})
    texts = (f"{kind} {line.fields[name]}" for name, kind in columns.items() if name in line.fields)
    codes = [code for text in texts for code in codes_in(text)]
    by_text = code_of_cuda_text(str(line.fields.get("error", ""))) if category == "cuda-error" and not codes else None
    return [*codes, *filter(None, [by_text])]


def _summary(rule: Rule) -> list[str]:
    """Return the name of a rule with the first sentence of what it means."""
    meaning = rule.section("Means").partition(". ")[0].rstrip(".")
    return wrap(f"{rule.name}: {meaning}", WIDTH, initial_indent="  ", subsequent_indent="      ")
