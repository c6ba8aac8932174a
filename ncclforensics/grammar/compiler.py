"""From the rule trees of a `.lark` file to patterns: what Lark parses, a regular expression finds.

The one module that imports Lark, and the one place that touches its internals (Lark is pinned in pyproject.toml): the
raw trees of a grammar's rules. The result is remembered by `grammar`, so most starts of the program do not come here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lark import Lark, Token, Tree
from lark.load_grammar import FromPackageLoader, GrammarBuilder

from ncclforensics.errors import GrammarError
from ncclforensics.grammar.grammar_file import NUMBERS, RESERVED, Behind, Pattern, base_of

LONG, MANY = 16, 24  # characters of a beginning that are looked at, and beginnings of one alternative

if TYPE_CHECKING:
    from lark.load_grammar import Definition


def parser(path: Path, rules: Iterable[str]) -> Lark:
    """Lark's own parser, which may start at any of these rules."""
    return Lark(
        path.read_text(encoding="utf-8"),
        start=list(rules),
        parser="earley",
        lexer="dynamic",
        source_path=str(path),
        import_paths=[str(path.parent)],
    )


def rules(path: Path, *parts: str) -> Iterator[tuple[str, int, tuple[Pattern, ...], dict[str, str]]]:
    """Name, priority, patterns, and column -> terminal of every rule that stands in the file, or of the parts named.

    Imported rules and rules starting with `_` are only parts. Raises GrammarError.
    """
    definitions = _definitions(path)
    own = (name for name, one in definitions.items() if not (one.is_term or name.startswith("_") or "__" in name))
    for name in parts or own:
        definition = definitions[name]
        walk = _Walk(definitions, path.stem, name)
        patterns = tuple(walk.pattern(alternative) for alternative in _alternatives(definition.tree))
        priority = int(getattr(definition.options, "priority", None) or 0)
        yield str(name), priority, patterns, dict(walk.terminals)


def part(path: Path, rule: str) -> str:
    """The regex of a rule that is only a part, without columns and anchors: to search for inside a line."""
    return _Walk(_definitions(path), path.stem, rule).part(rule)


def steps(path: Path, rules: Iterable[str]) -> dict[str, list[list[tuple[str, str]]]]:
    """Every alternative of rules as the pieces that a line goes through: the regex of each, and what it is called."""
    definitions = _definitions(path)
    found: dict[str, list[list[tuple[str, str]]]] = {}
    for rule in rules:
        for alternative in _alternatives(definitions[rule].tree):
            walk = _Walk(definitions, path.stem, rule)
            walk.pattern(alternative)  # the alternative is one, before its pieces are
            found.setdefault(rule, []).append(walk.pieces(alternative))
    return found


def _definitions(path: Path) -> dict[str, Definition]:
    builder = GrammarBuilder(False, [str(path.parent), FromPackageLoader("lark", ("grammars",))])
    builder.load_grammar(path.read_text(encoding="utf-8"), str(path))
    definitions: dict[str, Definition] = builder._definitions
    return definitions


def _alternatives(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a pattern: its regex, and the literal text of it (None: not a literal)."""

    regex: str
    literal: str | None = None
    anchor: str = ""
    borrowed: str = ""  # an anchor inside a rule referred to, such as a prefix: many shapes share it
    is_open: bool = False
    is_optional: bool = False
    column: str = ""
    starts: tuple[str, ...] = ("",)  # literal texts, with one of which it begins
    is_start: bool = False  # it is nothing else


class _Walk:
    """Turns one alternative of a rule into a pattern."""

    def __init__(self, definitions: Mapping[str, Definition], grammar: str, rule: str) -> None:
        self._definitions = definitions
        self._grammar = grammar
        self._place = f"{grammar}.lark, rule {rule}"
        self._columns: list[str] = []
        self._open: list[str] = []
        self._between: dict[str, tuple[str, str, str]] = {}
        self.terminals: dict[str, str] = {}

    def pattern(self, alternative: Tree[Token]) -> Pattern:
        self._columns, self._between, form = [], {}, ""
        if alternative.data == "alias":
            form = str(alternative.children[1].name)  # type: ignore[union-attr]  # Lark types an alias as a token
            alternative = alternative.children[0]  # type: ignore[assignment]
        piece = self._piece(alternative, inside=None)
        anchor = piece.anchor or piece.borrowed
        behind = dict(self._behind([alternative]))
        return Pattern(form, f"^{piece.regex}$", anchor, tuple(self._columns), piece.is_open, self._between, behind)

    def _behind(self, nodes: list[object]) -> Iterator[tuple[str, Behind]]:
        """What stands behind each of the parts that an alternative begins with, the one inside the other."""
        while isinstance(nodes[0], Tree) and nodes[0].data in ("expansion", "value"):
            nodes = [*nodes[0].children, *nodes[1:]]
        name = "" if isinstance(nodes[0], Token | Tree) else str(getattr(nodes[0], "name", nodes[0]))
        if name and not self._definitions[name].is_term and len(nodes) > 1:
            walk = _Walk(self._definitions, self._grammar, name)
            piece = _sequence([walk._piece(node, inside=None) for node in nodes[1:]])
            yield (
                name,
                {
                    "regex": f"^{piece.regex}$",
                    "columns": walk._columns,
                    "starts": list(piece.starts),
                    "anchor": piece.anchor or piece.borrowed,
                },
            )
            if len(parts := self._definitions[name].tree.children) == 1:
                yield from self._behind([*parts, *nodes[1:]])

    def pieces(self, node: object) -> list[tuple[str, str]]:
        """The pieces of an alternative, parts such as a prefix opened."""
        if isinstance(node, Tree) and node.data in ("alias", "expansion", "literal", "value"):
            children = node.children[:1] if node.data == "alias" else node.children
            return [piece for child in children for piece in self.pieces(child)]
        name = "" if isinstance(node, Token | Tree) else str(getattr(node, "name", node))
        if name and not self._definitions[name].is_term and len(self._definitions[name].tree.children) == 1:
            return self.pieces(self._definitions[name].tree.children[0])
        piece = self._piece(node, inside="")
        shown = f'"{piece.literal}"' if piece.literal is not None else name.rpartition("__")[2] or "an optional part"
        return [(piece.regex, shown)]

    def part(self, rule: str) -> str:
        """The regex of a rule without columns."""
        return self._piece(self._definitions[rule].tree, inside=rule).regex

    def _piece(self, node: object, inside: str | None) -> _Piece:
        if isinstance(node, Token):
            return self._literal(node)
        if not isinstance(node, Tree):
            return self._symbol(node, inside)
        children = [child for child in node.children if child is not None]
        match str(node.data):
            case "literal" | "value":
                return self._piece(children[0], inside)
            case "alias":
                return self._piece(children[0], inside)
            case "expansion":
                pieces = [self._piece(child, inside) for child in children]
                for before, piece, behind in zip(pieces, pieces[1:], pieces[2:], strict=False):
                    if piece.column and before.literal and behind.literal:
                        self._between[piece.column] = (before.literal, piece.regex, behind.literal)
                return _sequence(pieces)
            case "expansions":
                return _choice([self._piece(child, inside) for child in children])
            case "maybe":
                inner = self._piece(children[0], inside)
                starts = ("", *inner.starts)
                optional = f"(?:{inner.regex})?"
                return _Piece(optional, is_open=inner.is_open, is_optional=True, starts=starts, is_start=inner.is_start)
            case "expr":
                return self._repeated(children, inside)
        raise GrammarError(f"{self._place}: `{node.data}` cannot become a line pattern")

    def _repeated(self, children: list[object], inside: str | None) -> _Piece:
        inner, sign = self._piece(children[0], inside), str(children[1])
        if len(children) == 2 and sign in ("?", "*", "+"):
            starts = inner.starts if sign == "+" else ("", *inner.starts)
            return _Piece(
                f"(?:{inner.regex}){sign}",
                is_open=inner.is_open,
                is_optional=sign != "+",
                starts=starts,
                is_start=inner.is_start and sign == "?",
            )
        raise GrammarError(f"{self._place}: repetition `{sign}` is not supported")

    def _symbol(self, symbol: object, inside: str | None) -> _Piece:
        name = str(getattr(symbol, "name", symbol))
        if name not in self._definitions:
            raise GrammarError(f"{self._place}: `{name}` is not defined")
        if name in self._open:
            raise GrammarError(f"{self._place}: `{name}` refers to itself, a line pattern cannot")
        definition = self._definitions[name]
        self._open.append(name)
        is_column = definition.is_term and inside is None and not name.startswith("_")  # also where imported
        piece = self._piece(definition.tree, name if definition.is_term else inside)
        self._open.pop()
        if not definition.is_term:
            return replace(piece, literal=None, anchor="", borrowed=piece.anchor or piece.borrowed, column="")
        if not is_column:
            return piece
        column = name.rpartition("__")[2].lower()
        if column in self._columns:
            raise GrammarError(f"{self._place}: `{column.upper()}` stands twice in one alternative")
        if column in RESERVED:
            raise GrammarError(f"{self._place}: `{column.upper()}` is a column that every frame has")
        self._columns.append(column)
        self.terminals[column] = name
        is_open = base_of(name, self._grammar) in NUMBERS or piece.regex.rstrip(")").endswith(("]+", "]*"))
        return _Piece(
            f"(?P<{column}>{piece.regex})",
            is_open=is_open,
            column=column,
            starts=piece.starts,
            is_start=piece.is_start,
        )

    def _literal(self, token: Token) -> _Piece:
        if token.type == "REGEXP":
            body, flags = str(token)[1:].rsplit("/", 1)
            if flags or "(?" in body or "\\b" in body:
                raise GrammarError(f"{self._place}: {token} uses what the two engines do not share")
            body = body.replace("\\/", "/")
            body = _uncapture(body)
            return _Piece(f"(?:{body})" if "|" in body else body)
        if token.type == "STRING":
            text = str(ast.literal_eval(str(token)))
            return _Piece(_quoted(text), text, text, starts=(text[:LONG],), is_start=len(text) <= LONG)
        raise GrammarError(f"{self._place}: {token.type} cannot become a line pattern")


def _uncapture(regex: str) -> str:
    r"""Plain groups of a grammar's regex become non-capturing; `\(` stays a parenthesis.

    >>> _uncapture(r"([0-9]+|\(nil\))")
    '(?:[0-9]+|\\(nil\\))'
    """
    out, escaped, in_class = [], False, False
    for character in regex:
        plain = not escaped and not in_class
        if plain and character == "(":
            out.append("(?:")
        else:
            out.append(character)
        if not escaped:
            in_class = (in_class or character == "[") and character != "]"
        escaped = character == "\\" and not escaped
    return "".join(out)


def _starts(pieces: Iterable[_Piece]) -> tuple[tuple[str, ...], bool]:
    """What a sequence may begin with, and whether that is all of it."""
    starts: tuple[str, ...] = ("",)
    for piece in pieces:
        longer = tuple(dict.fromkeys((before + start)[:LONG] for before in starts for start in piece.starts))
        if len(longer) > MANY:
            return starts, False
        starts = longer
        if not piece.is_start:
            return starts, False
    return starts, True


def _quoted(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\.+*?()|[]{}^$#&-~" else c for c in text)


def _sequence(pieces: list[_Piece]) -> _Piece:
    regex = "".join(piece.regex for piece in pieces)
    if all(piece.literal is not None for piece in pieces):
        text = "".join(piece.literal or "" for piece in pieces)
        return _Piece(regex, text, text, starts=(text[:LONG],), is_start=len(text) <= LONG)
    runs, run = [""], ""
    for piece in pieces:
        run = run + piece.literal if piece.literal is not None else ""
        runs += [run, piece.anchor]
    is_open = False
    for piece in reversed(pieces):
        is_open |= piece.is_open
        if not piece.is_optional:
            break
    borrowed = max((piece.borrowed for piece in pieces), key=len)
    starts, is_start = _starts(pieces)
    return _Piece(regex, None, max(runs, key=len), borrowed, is_open, starts=starts, is_start=is_start)


def _choice(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    regex = "|".join(piece.regex for piece in pieces)
    starts = tuple(dict.fromkeys(start for piece in pieces for start in piece.starts))
    is_start = all(piece.is_start for piece in pieces)
    if len(starts) > MANY:
        starts, is_start = ("",), False
    is_open = any(piece.is_open for piece in pieces)
    return _Piece(f"(?:{regex})", is_open=is_open, starts=starts, is_start=is_start)
