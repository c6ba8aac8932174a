"""A `.lark` file becomes shapes: for every rule a Lark parser, derived patterns, a schema and example lines.

A line grammar is regular. Lark is the reference; applied line by line it is too slow to be the engine (3 MB/s against
more than 200), so each rule is also derived into anchored ASCII patterns with named groups, which Polars applies to a
whole column. A property test holds both engines to the same fields.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from lark import Lark, Token, Tree

# The one place that touches Lark's internals (Lark is pinned in pyproject.toml): the raw trees of a grammar's rules.
from lark.load_grammar import FromPackageLoader, GrammarBuilder

from ncclforensics.errors import GrammarError

if TYPE_CHECKING:
    from lark.load_grammar import Definition

HERE = Path(__file__).parent
GRAMMARS = HERE / "grammars" if (HERE / "grammars").is_dir() else HERE.parent / "grammars"


@dataclass(frozen=True, slots=True)
class Base:
    """A base terminal: the dtype of the columns made of it, and how their text becomes a value."""

    dtype: pl.DataType
    unit: str
    cast: Callable[[pl.Expr], pl.Expr]


def _text(column: pl.Expr) -> pl.Expr:
    return column


def _category(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Categorical)


def _integer(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Int64, strict=False)


def _decimal(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Float64, strict=False)


def _hexadecimal(column: pl.Expr) -> pl.Expr:
    # A hexadecimal number of more than 63 bits is no counter: it becomes null rather than wrapping around.
    return column.str.to_integer(base=16, strict=False)


BASES: Mapping[str, Base] = {
    "INT": Base(pl.Int64(), "", _integer),
    "HEX": Base(pl.Int64(), "printed in hexadecimal", _hexadecimal),
    "DECIMAL": Base(pl.Float64(), "", _decimal),
    "PTR": Base(pl.Categorical(), "pointer, valid within one process", _category),
    "HEXID": Base(pl.Categorical(), "identifier", _category),
    "NAME": Base(pl.Categorical(), "", _category),
    "HOSTNAME": Base(pl.Categorical(), "", _category),
    "WORD": Base(pl.String(), "", _text),
    "MOMENT": Base(pl.String(), "local time as printed, format chosen by the user", _text),
    "TEXT": Base(pl.String(), "", _text),
}
_NUMBERS = [BASES[name] for name in ("INT", "HEX", "DECIMAL", "PTR", "HEXID")]
# A terminal that is written out in place (an enumeration, a pattern of its own) is text from a small vocabulary.
PLAIN = Base(pl.Categorical(), "", _category)

FORM = "form"  # the column that says which alternative of a rule matched
FALLBACK_BELOW = 0  # a rule of negative priority is tried after all the others


@dataclass(frozen=True, slots=True)
class Pattern:
    """One alternative of a rule, as a Rust/Python regular expression."""

    form: str
    regex: str
    anchor: str  # a literal that every matching line contains; empty if there is none
    columns: tuple[str, ...]
    is_open: bool  # ends with a value that would still match if the line were cut inside it

    @property
    def is_greedy(self) -> bool:
        """Whether free text ends the line."""
        return self.regex.rstrip("$)?").endswith((".+", ".*"))


@dataclass(frozen=True, slots=True)
class Shape:
    """One rule of a grammar: the frame its lines go to, the patterns that find them, and example lines."""

    frame: str
    grammar: str
    patterns: tuple[Pattern, ...]
    columns: Mapping[str, Base]
    examples: tuple[str, ...]
    needs: str
    priority: int

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Column -> dtype, without the two columns every parsed frame carries (`source`, `line`)."""
        return {FORM: pl.Categorical(), **{name: base.dtype for name, base in self.columns.items()}}


class Grammar:
    """A loaded `.lark` file.

    Raises GrammarError if a rule recurses or uses what a line pattern cannot express.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = GRAMMARS / f"{name}.lark"
        self.text = self.path.read_text(encoding="utf-8")
        self._definitions = _definitions(self.text, str(self.path))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The rules that stand in this file (imported rules and rules starting with `_` are only parts)."""
        examples, needs = _comments(self.text)
        return tuple(self._shape(rule, examples.get(rule, ()), needs) for rule in self._own_rules())

    def _own_rules(self) -> Iterator[str]:
        for name, definition in self._definitions.items():
            if not definition.is_term and not name.startswith("_") and "__" not in name:
                yield str(name)

    def _shape(self, rule: str, examples: tuple[str, ...], needs: str) -> Shape:
        definition = self._definitions[rule]
        walk = _Walk(self._definitions, f"{self.path.name}, rule {rule}")
        patterns = tuple(walk.pattern(alternative) for alternative in _alternatives(definition.tree))
        columns = {column: base_of(terminal, self._definitions) for column, terminal in walk.terminals.items()}
        options = definition.options
        priority = int(getattr(options, "priority", None) or 0)
        return Shape(rule, self.name, patterns, columns, examples, needs, priority)

    def opening(self, rule: str) -> str:
        """The regex of a rule that is only a part, without columns and anchors: to search for inside a line."""
        return _Walk(self._definitions, f"{self.path.name}, rule {rule}").part(rule)

    def parser(self, rule: str) -> Lark:
        """Lark's own parser for one rule: the reference that the derived patterns are tested against."""
        return Lark(
            self.text,
            start=rule,
            parser="earley",
            lexer="dynamic",
            source_path=str(self.path),
            import_paths=[str(GRAMMARS)],
        )


def _definitions(text: str, path: str) -> dict[str, Definition]:
    builder = GrammarBuilder(False, [str(GRAMMARS), FromPackageLoader("lark", ("grammars",))])
    builder.load_grammar(text, path)
    definitions: dict[str, Definition] = builder._definitions
    return definitions


def _comments(text: str) -> tuple[dict[str, tuple[str, ...]], str]:
    """The `//>` examples above each rule, and the `// needs:` line of the file."""
    examples: dict[str, tuple[str, ...]] = {}
    waiting: list[str] = []
    needs = ""
    for line in text.splitlines():
        if line.startswith("//>"):
            waiting.append(line[4:])
        elif line.startswith("// needs:"):
            needs = line.removeprefix("// needs:").strip()
        elif line[:1].islower() and ":" in line:
            name = line.partition(":")[0].partition(".")[0].strip()
            examples[name], waiting = tuple(waiting), []
    return examples, needs


def _alternatives(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def base_of(name: str, definitions: Mapping[str, Definition]) -> Base:
    """The base terminal that `COUNT: INT` is made of: Lark puts INT's own tree in the place of its name."""
    bases = [(d.tree, n.rpartition("__")[2]) for n, d in definitions.items() if n.rpartition("__")[2] in BASES]
    node: object = definitions[name].tree
    while isinstance(node, Tree):
        for tree, base in bases:
            if node == tree:
                return BASES[base]
        if len(node.children) != 1:
            break
        node = node.children[0]
    return PLAIN


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a pattern: its regex, and the literal text of it (None: not a literal)."""

    regex: str
    literal: str | None = None
    anchor: str = ""
    borrowed: str = ""  # an anchor inside a rule referred to, such as a prefix: many shapes share it
    is_open: bool = False
    is_optional: bool = False


class _Walk:
    """Turns one alternative of a rule into a pattern."""

    def __init__(self, definitions: Mapping[str, Definition], place: str) -> None:
        self._definitions = definitions
        self._place = place
        self._columns: list[str] = []
        self._open: list[str] = []
        self.terminals: dict[str, str] = {}

    def pattern(self, alternative: Tree[Token]) -> Pattern:
        self._columns, form = [], ""
        if alternative.data == "alias":
            form = str(alternative.children[1].name)  # type: ignore[union-attr]  # Lark types an alias as a token
            alternative = alternative.children[0]  # type: ignore[assignment]
        piece = self._piece(alternative, inside=None)
        return Pattern(form, f"^{piece.regex}$", piece.anchor or piece.borrowed, tuple(self._columns), piece.is_open)

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
                return _sequence([self._piece(child, inside) for child in children])
            case "expansions":
                return _choice([self._piece(child, inside) for child in children])
            case "maybe":
                inner = self._piece(children[0], inside)
                return _Piece(f"(?:{inner.regex})?", is_open=inner.is_open, is_optional=True)
            case "expr":
                return self._repeated(children, inside)
        raise GrammarError(f"{self._place}: `{node.data}` cannot become a line pattern")

    def _repeated(self, children: list[object], inside: str | None) -> _Piece:
        inner, sign = self._piece(children[0], inside), str(children[1])
        if len(children) == 2 and sign in ("?", "*", "+"):
            return _Piece(f"(?:{inner.regex}){sign}", is_open=inner.is_open, is_optional=sign != "+")
        raise GrammarError(f"{self._place}: repetition `{sign}` is not supported")

    def _symbol(self, symbol: object, inside: str | None) -> _Piece:
        name = str(getattr(symbol, "name", symbol))
        if name not in self._definitions:
            raise GrammarError(f"{self._place}: `{name}` is not defined")
        if name in self._open:
            raise GrammarError(f"{self._place}: `{name}` refers to itself, a line pattern cannot")
        definition = self._definitions[name]
        self._open.append(name)
        is_column = definition.is_term and inside is None and not name.rpartition("__")[2].startswith("_")
        piece = self._piece(definition.tree, name if definition.is_term else inside)
        self._open.pop()
        if not definition.is_term:
            return _Piece(piece.regex, None, "", piece.anchor or piece.borrowed, piece.is_open)
        if not is_column:
            return piece
        column = name.rpartition("__")[2].lower()
        if column in self._columns:
            raise GrammarError(f"{self._place}: `{column.upper()}` stands twice in one alternative")
        self._columns.append(column)
        self.terminals[column] = name
        is_open = base_of(name, self._definitions) in _NUMBERS or piece.regex.rstrip(")").endswith(("]+", "]*"))
        return _Piece(f"(?P<{column}>{piece.regex})", is_open=is_open)

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
            return _Piece(_quoted(text), text, text)
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


def _quoted(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\.+*?()|[]{}^$#&-~" else c for c in text)


def _sequence(pieces: list[_Piece]) -> _Piece:
    regex = "".join(piece.regex for piece in pieces)
    if all(piece.literal is not None for piece in pieces):
        text = "".join(piece.literal or "" for piece in pieces)
        return _Piece(regex, text, text)
    runs, run = [""], ""
    for piece in pieces:
        run = run + piece.literal if piece.literal is not None else ""
        runs += [run, piece.anchor]
    is_open = False
    for piece in reversed(pieces):
        is_open |= piece.is_open
        if not piece.is_optional:
            break
    return _Piece(regex, None, max(runs, key=len), max((piece.borrowed for piece in pieces), key=len), is_open)


def _choice(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    regex = "|".join(piece.regex for piece in pieces)
    return _Piece(f"(?:{regex})", is_open=any(piece.is_open for piece in pieces))


@cache
def load(name: str) -> Grammar:
    """The grammar of that name, loaded once."""
    return Grammar(name)


def names() -> list[str]:
    """Every grammar that describes lines (`terminals` only holds the base terminals)."""
    return sorted(path.stem for path in GRAMMARS.glob("*.lark") if path.stem != "terminals")
