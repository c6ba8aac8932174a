"""One page in the site per family of messages and per variable, and one that finds the family of a pasted line.

They are written as HTML: as documents that Sphinx reads, 1,000 more would take minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from ncclforensics.data.names import printable, sentence
from ncclforensics.data.variable_catalogue import Variable, judges, names, variable
from ncclforensics.formats.nccl import dialect
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.meanings import Meaning
from ncclforensics.grammar.patterns import Shape
from ncclforensics.rules.registry import all_rules
from ncclforensics.views import explain_variable

Page = tuple[str, dict[str, Any], str]
SCRIPT = Path(__file__).with_name("find.js")
FAMILIES, VARIABLES, FIND = "messages", "variables", "find"
SHORTEST = 6  # characters of a literal that may show a family alone
KINDS = {
    "failure": "A failure", "condition": "A condition", "consequence": "A consequence of an earlier failure",
    "fact": "A fact", "noise": "Of no interest",
}  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the pages, and what the page that finds them needs."""
    app.connect("html-collect-pages", _pages)
    app.connect("build-finished", _write_data)
    return {"parallel_read_safe": True}


def links_of_rule(rule: str) -> str:
    """Return links from a page of a rule to the messages that it rests on, and to the variables that it judges."""
    frames = next((known.of for known in all_rules() if known.name == rule), ())
    links = [_to(f"../{FAMILIES}/{frame}", frame) for frame in frames if frame in families()]
    links += [_to(f"../{VARIABLES}/{found.name}", found.name) for found in _variables() if rule in judges(found)]
    return f"Messages and variables: {', '.join(links)}\n\n" if links else ""


def with_links(page: str, text: str) -> str:
    """Return the text of a document with links to the pages of messages and variables."""
    if page == "index":
        return text + f"\n\n{_to(FIND, 'Find a line of a log')}: paste it, and see what it means.\n"
    if page == VARIABLES:
        return re.sub(r"(?m)^\| `(\w+)` \|", lambda name: f"| {_to(f'{VARIABLES}/{name[1]}', name[1])} |", text)
    link = "## {0}\n\n" + _to("../messages/{0}", "What its lines mean") + "\n"
    return re.sub(r"(?m)^## (\w+)$", lambda name: link.format(name[1]) if name[1] in families() else name[0], text)


@cache
def families() -> Mapping[str, list[Shape]]:
    """The shapes of every frame that is parsed."""
    found: dict[str, list[Shape]] = {}
    for shape in dialect().with_all_formats.shapes:
        found.setdefault(shape.frame, []).append(shape)
    return found


@cache
def _variables() -> list[Variable]:
    return [found for name in sorted(names()) if (found := variable(name)) is not None]


def _to(page: str, text: str) -> str:
    return f'<a href="{escape(page)}.html">{escape(text)}</a>'


def _pages(_app: Sphinx) -> Iterator[Page]:
    for frame, shapes in families().items():
        yield _page(f"{FAMILIES}/{frame}", f"Messages: {frame}", _family(frame, shapes))
    for found in _variables():
        yield _page(f"{VARIABLES}/{found.name}", found.name, _variable(found))
    yield _page(FIND, "Find a line", _find())


def _page(name: str, title: str, body: Iterable[str]) -> Page:
    return name, {"title": title, "body": f"<h1>{escape(title)}</h1>\n" + "\n".join(body)}, "page.html"


def _family(frame: str, shapes: list[Shape]) -> Iterator[str]:
    """What lines of one frame mean, with examples, and which rules judge them."""
    grammars = dict.fromkeys(shape.grammar for shape in shapes)
    needs = "; ".join(dict.fromkeys(shape.needs for shape in shapes))
    columns = [f'<a href="../frames/{grammar}.html#{frame}">{grammar}.lark</a>' for grammar in grammars]
    yield f"<p>Logged with: {escape(needs)}. Columns: {', '.join(columns)}.</p>"
    for (kind, text, remedy), examples in _groups(shapes).items():
        yield f"<h2>{KINDS[kind]}{': ' + escape(text) if text else ''}</h2>"
        yield f"<p>What to do: {escape(sentence(remedy))}</p>" if remedy else ""
        yield f"<pre>{escape(chr(10).join(map(printable, examples)))}</pre>"
    judging = sorted(rule.name for rule in all_rules() if frame in rule.of)
    if judging:
        yield f"<h2>Rules that judge them</h2><p>{', '.join(_to(f'../rules/{rule}', rule) for rule in judging)}</p>"


def _groups(shapes: list[Shape]) -> dict[tuple[str, str, str], list[str]]:
    """The examples of a family by what they mean: kind, text, and what to do."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for shape in shapes:
        meanings: Mapping[str, Meaning] = grammar_file.load(shape.grammar).meanings.get(shape.frame, {})
        for example in shape.examples:
            form = next((pattern.form for pattern in shape.patterns if re.search(pattern.regex, example)), "")
            own = meanings.get(form)
            known = (str(own.kind), own.text, own.remedy) if own else ("fact", "", "")
            groups.setdefault(known, []).append(example)
    return groups


def _variable(found: Variable) -> Iterator[str]:
    """What `explain` says of a variable, with links to the rules that judge it."""
    text = explain_variable.of_variable(found.name) or ""
    yield f"<pre>{escape(text.partition(chr(10))[2].strip())}</pre>"
    rules = [_to(f"../rules/{rule}", rule) for rule in judges(found)]
    yield f"<p>Judged by {', '.join(rules)}. </p>" if rules else ""
    yield f"<p>{_to('../variables', 'All variables')}</p>"


def _find() -> Iterator[str]:
    yield "<p>Paste one line or several, for the messages that they belong to and the variables that they name.</p>"
    yield '<textarea id="find-line" rows="6" style="width: 100%; font-family: monospace" autofocus></textarea>'
    yield '<ul id="find-found"></ul>'
    yield '<script src="_static/find_data.js"></script>'
    yield '<script src="_static/find.js"></script>'


def _write_data(app: Sphinx, problem: Exception | None) -> None:
    """Write the script that finds the families of lines, and what it reads."""
    if problem is None and app.builder.format == "html":
        folder = Path(app.outdir) / "_static"
        (folder / "find_data.js").write_text(f"const FIND = {json.dumps(find_data())};\n", encoding="utf-8")
        (folder / "find.js").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")


def find_data() -> dict[str, Any]:
    """Return what `find.js` reads: patterns of all families in the syntax of JavaScript, and names of variables."""
    rows = [
        (
            frame,
            pattern.anchor or "",
            pattern.regex.replace("(?P<", "(?<").removeprefix("^").removesuffix("$"),
            shape.priority < 0,  # it takes what no other shape does
        )
        for frame, shapes in families().items()
        for shape in shapes
        for pattern in shape.patterns
    ]
    return {"shapes": rows, "variables": [found.name for found in _variables()], "shortest": SHORTEST}
