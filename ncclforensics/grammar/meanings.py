"""What lines mean: the `//!` marks of a grammar, by frame and form.

A mark stands above a rule, beside its examples, and holds for all forms of the rule or for those it names:

    //! failure ib-error open query: an InfiniBand device cannot be used -> compare ibv_devinfo with another host
    //! condition link-degraded speed: the speed of a port changed
    //! fact

What to do stands behind `->`, for lines that no rule judges by itself; the others are left to their rules.

`// default: fact` in the head of a file holds for all rules of the file that have no mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from ncclforensics.errors import GrammarError

MARK, DEFAULT = "//! ", "// default: "


class Kind(StrEnum):
    """What a line is for the question what went wrong."""

    FAILURE = "failure"  # something ended, was refused, or did not work
    CONSEQUENCE = "consequence"  # it follows from another failure, whatever stands beside it
    CONDITION = "condition"  # a state of a machine, a setting or a program in which failures are more likely
    FACT = "fact"  # what a healthy run prints, too
    NOISE = "noise"  # nothing that an analysis or a rule reads


ANSWERED = (Kind.FAILURE, Kind.CONDITION, Kind.CONSEQUENCE)  # kinds of lines that no report leaves unanswered


class Meaning(NamedTuple):
    """What a form of a rule means. The texts are empty for facts and noise."""

    kind: Kind
    category: str = ""  # of findings, as in the contract
    text: str = ""  # what happened, as the beginning of a title
    remedy: str = ""  # what to do; empty where a rule of its own judges such lines


def read_meanings(text: str, forms: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Meaning]]:
    """Read the marks of a grammar: frame -> form -> meaning.

    `text`: the grammar; `forms`: its rules that are shapes, each with its forms. Raises GrammarError for a mark that
    cannot be read, that names no form of its rule, or where a form has two or none.
    """
    default: Meaning | None = None
    marks: list[str] = []
    of_rules: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith(DEFAULT):
            default = _meaning(line.removeprefix(DEFAULT))[0]
        elif line.startswith(MARK):
            marks.append(line.removeprefix(MARK))
        elif line[:1].islower() and ":" in line:
            of_rules[line.partition(":")[0].partition(".")[0].strip()], marks = marks, []
    found = {}
    for frame, of_rule in forms.items():
        try:
            found[frame] = _of_forms(of_rules.get(frame, []), [*of_rule], default)
        except GrammarError as error:
            raise GrammarError(f"{frame}: {error}") from None
    return found


def _of_forms(marks: Iterable[str], forms: list[str], default: Meaning | None) -> dict[str, Meaning]:
    found: dict[str, Meaning] = {}
    of_rest = default
    for mark in marks:
        meaning, named = _meaning(mark)
        if unknown := [form for form in named if form not in forms or form in found]:
            raise GrammarError(f"the mark `{mark}` names {', '.join(unknown)}, which is no form, or has a mark already")
        found |= dict.fromkeys(named, meaning)
        of_rest = of_rest if named else meaning
    missing = [form for form in forms if form not in found]
    if of_rest is None and missing:
        forms_text = ", ".join(form or "the first" for form in missing)
        raise GrammarError(f"no mark such as `//! fact` for {forms_text}, and no `// default: fact` in the file")
    found |= {form: of_rest for form in missing if of_rest}
    return {form: found[form] for form in forms}  # in the order of the rule


def _meaning(mark: str) -> tuple[Meaning, list[str]]:
    """The meaning of one mark, and the forms that it names."""
    head, _, sentence = mark.partition(": ")
    word, *names = head.split()
    text, _, remedy = (part.strip() for part in sentence.partition(" -> "))
    if word not in {*Kind}:
        raise GrammarError(f"the mark `{mark}` begins with none of {', '.join(Kind)}")
    kind = Kind(word)
    if kind not in ANSWERED:
        return Meaning(kind), names
    if not (names and text):
        raise GrammarError(f"the mark `{mark}` lacks a category, or what happened")
    return Meaning(kind, names[0], text, remedy), names[1:]
