"""Learn the tag that an unknown launcher or collector puts in front of lines, from lines whose beginning is certain.

`[1,mpirank:0,algo-1]<stdout>:gpu-a012:41887:42107 [3] NCCL INFO …`: what stands in front of lines of NCCL, PyTorch
and Python is the tag, and lines of any text have it, too. Words and numbers that change are told apart from what stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import REST
from ncclforensics.grammar.patterns import Pattern

LEARNED = "learned"  # the form of a pattern that was learned
RANK, NODE = "launcher_rank", "launcher_node"
MIN_LINES = 2  # whose beginning is certain, and that have the tag
MIN_SHARE = 0.5  # of the lines whose beginning is certain: those with any tag
MAX_FORMS = 4  # of tags in one input
MIN_FORM = 0.1  # of the lines with a tag: those with a tag of that form
MIN_COMMON = 0.8  # of the lines with a tag: those with a tag of any learned form
PLAIN = 0.9  # of all lines: those with a tag that has no sign by which it could be recognised
LONGEST = 160  # characters

_WORD = re.compile(r"[0-9A-Za-z_.-]+| +")
_DIGITS = re.compile(r"[0-9]+")


def learn_tag(texts: pl.Series, known: Iterable[Pattern] = ()) -> Pattern | None:
    """The tag in front of lines whose beginning is certain, as a pattern; groups: REST, and if named, RANK and NODE.

    `known`: prefixes that a grammar describes; one that stands behind the tag does not belong to it.
    """
    fronts = _fronts(texts)
    # The key of a JSON record is no tag, nor are blanks: a table of torchrun is indented.
    tagged = [front for front in fronts if front.strip() and not front.startswith("{")]
    if len(tagged) == 1 and texts.len() > MIN_LINES and _share(texts.str.starts_with(tagged[0])) >= PLAIN:
        tagged *= MIN_LINES  # every line shows it
    if len(tagged) < MIN_LINES or len(tagged) < MIN_SHARE * len(fronts):
        return None
    forms: dict[str, list[list[str]]] = {}
    for front in tagged:
        forms.setdefault(_WORD.sub(lambda word: " " if word[0].isspace() else "w", front), []).append(_words(front))
    common = sorted(forms.values(), key=len, reverse=True)[:MAX_FORMS]
    common = [form for form in common if len(form) >= max(MIN_LINES, MIN_FORM * len(tagged))]
    if sum(map(len, common)) < MIN_COMMON * len(tagged):
        return None
    alternatives: list[str] = []
    for form in common:
        form = _without_known(form, known)
        regex = _regex(form, is_first=not any(f"<{RANK}>" in other for other in alternatives))
        if len(common) == 1 and RANK not in regex and all(map(_is_host, form)):
            value, _, blank = regex.rpartition(":")
            regex = f"(?P<{NODE}>{value}):{blank}"
        if not _is_distinctive(form) and _share(texts.str.contains(f"^{regex}")) < PLAIN:
            continue
        alternatives.append(regex)
    if not alternatives:
        return None
    regex = f"^(?:{'|'.join(alternatives)})(?P<{REST}>.*)$"
    columns = tuple(name for name in (RANK, NODE, REST) if f"<{name}>" in regex)
    return Pattern(LEARNED, regex, "", ("",), (), columns, is_open=False, suffixes={})


def may_show_tag(text: pl.Expr) -> pl.Expr:
    """Whether a line has a certain beginning somewhere: a tag is learned from no others."""
    return text.str.contains(_part("_certain_start"))


def have_tag(texts: pl.Series, tag: Pattern) -> bool:
    """Whether nearly all lines of another input have this prefix, too."""
    filled = texts.filter(texts.str.strip_chars(" ") != "")
    return filled.len() > 0 and _share(filled.str.contains(tag.regex)) >= PLAIN


def learn_tail(texts: pl.Series) -> str | None:
    """A regex of what closes nearly all lines of which a tag was removed; null where nothing does."""
    filled = texts.filter(texts.str.strip_chars(" ") != "")
    tail = f"(?:{_part('_tail')}) *$"
    return tail if filled.len() >= MIN_LINES and _share(filled.str.contains(tail)) >= MIN_SHARE else None


def own_time() -> str:
    """A regex of the time that NCCL itself prints in front of a line."""
    return _part("_own_time")


def without_tail(rows: pl.DataFrame, tail: str) -> pl.DataFrame:
    """Lines without what closes them."""
    return rows.with_columns(pl.col("text").str.replace(tail, ""))


def _share(hits: pl.Series) -> float:
    return int(hits.sum()) / (hits.len() or 1)


def _fronts(texts: pl.Series) -> list[str]:
    """What stands in front of each line whose beginning is certain; empty where nothing does."""
    certain = f"^(?P<front>.*?)(?P<start>{_part('_certain_start')})"
    found = texts.str.extract_groups(certain).struct.unnest().drop_nulls("start")
    hosts = {start.split(":")[0] for front, start in found.iter_rows() if not front}
    hosts |= {start.split(":")[0] for front, start in found.iter_rows() if not front[-1:].isalnum()}
    fronts = []
    for front, start in found.iter_rows():
        if front.endswith(", ") or (start.endswith("Error: ") and re.match(_part("_caught_level"), front)):
            continue  # a sentence goes on: `…, Traceback (most recent call last):`, `[DEBUG] no x: KeyError:`
        if start.startswith("│") and re.fullmatch(_part("_before_code"), front):
            continue
        if re.fullmatch(_part("_table_heading"), front):
            continue
        host = start.split(":")[0]
        # `rank0.log-12-gpu-a012:41887`: grep joins its context with signs that a name of a host may have.
        true = min((name for name in hosts if host.endswith(f"-{name}")), key=len, default=_without_time(front, host))
        tag = front + host.removesuffix(true)
        own = "_own_time" if re.fullmatch(_part("_start_of_nccl"), start) else "_own_tag"
        tag = re.sub(f"{_part(own)}$", "", tag)
        # One in front of another one is that of a launcher: torchrun with `--role rank`.
        is_own = len(tag) > LONGEST or (own == "_own_time" and re.fullmatch(_part("_own_tag"), tag))
        fronts.append("" if is_own else tag)
    return fronts


def _without_time(front: str, host: str) -> str:
    """The name of a host without the end of a time that a collector glued to it."""
    time = re.search(_part("_glued_time"), front + host)
    return (front + host)[time.end() :] if time and len(front) < time.end() < len(front + host) else host


def _without_known(form: list[list[str]], known: Iterable[Pattern]) -> list[list[str]]:
    """The pieces of tags up to the known prefix that all of them end with; all pieces where there is none."""
    known = tuple(known)
    for stop in range(1, len(form[0])):
        ends = {"".join(pieces[stop:]) for pieces in form}
        is_blank = any(end.startswith(" ") for end in ends)  # blanks belong to the tag
        if not is_blank and any(all(_is_whole(end, pattern) for end in ends) for pattern in known):
            return [pieces[:stop] for pieces in form]
    return form


def _is_whole(end: str, prefix: Pattern) -> bool:
    found = re.search(prefix.regex, f"{end}x")
    return found is not None and found[REST] == "x"


def _words(front: str) -> list[str]:
    """The words, runs of blanks and signs of a tag, in turn."""
    return [piece for piece in re.split(f"({_WORD.pattern})", front) if piece]


def _regex(form: list[list[str]], *, is_first: bool) -> str:
    """A regex of the tags of one form, given as pieces. `is_first`: whether the rank may become a group."""
    pieces: list[str] = []
    has_rank = not is_first
    last = len(form[0]) - 1
    for place, values in enumerate(zip(*form, strict=True)):
        value = values[0]
        if value.isspace():
            pieces.append(re.escape(value) if len(set(values)) == 1 and place == last else " *" if not place else " +")
            continue
        masks = Counter(_DIGITS.sub("0", value) for value in values)
        piece = "".join("[0-9]+" if part == "0" else _quoted(part) for part in re.split("(0)", next(iter(masks))))
        if len(masks) > 1:
            piece = "[0-9A-Za-z_.-]+"
        before = "".join(form[0][:place])
        number = re.match("[A-Za-z_]*", value)
        if number and not has_rank and len(masks) == 1 and piece.removeprefix(number[0]) == "[0-9]+":
            has_rank = re.fullmatch(_part("_before_rank"), before + number[0]) is not None
            piece = f"{number[0]}(?P<{RANK}>[0-9]+)" if has_rank else piece
        pieces.append(piece)
    return "".join(pieces)


def _is_host(tag: list[str]) -> bool:
    return re.fullmatch(_part("_tag_of_host"), "".join(tag)) is not None


def _quoted(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")


def _is_distinctive(form: list[list[str]]) -> bool:
    """Whether a sign or a word that never changes shows the tag."""
    return any(
        not _WORD.fullmatch(values[0]) or (len(set(values)) == 1 and any(map(str.isalpha, values[0])))
        for values in zip(*form, strict=True)
    )


def _part(rule: str) -> str:
    return grammar_file.load("copied").part_regex(rule)
