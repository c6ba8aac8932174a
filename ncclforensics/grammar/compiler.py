"""Compile the rules of a `.lark` file to regular expressions.

The only module that imports Lark. `grammar_file` caches the results, so most starts of the program do not come here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark import __version__ as lark_version
from lark.exceptions import LarkError

from ncclforensics.errors import GrammarError
from ncclforensics.grammar import folders
from ncclforensics.grammar.column_types import NUMERIC, column_type_name
from ncclforensics.grammar.patterns import RESERVED, Pattern, Suffix
from ncclforensics.grammar.template import Part, Template, cut

OLDEST_LARK = "1.3.0"  # the oldest version that was tried, as in pyproject.toml
MAX_START_LENGTH = 16  # characters of a literal start that are kept
MAX_STARTS = 24  # literal starts of one alternative; more are given up


@dataclass(slots=True)
class _Definition:
    """A rule or terminal of a grammar, as Lark read it."""

    tree: Tree[Token]
    is_term: bool
    priority: int = 0
    piece: _Piece | None = None  # of a terminal that was compiled


def parser(path: Path, rules: Iterable[str], *, is_complete: bool = False) -> Lark:
    """Lark's own parser for a grammar; `is_complete`: terminals may match less than they could, which is far slower."""
    return Lark(
        path.read_text(encoding="utf-8"),
        start=list(rules),
        parser="earley",
        lexer="dynamic_complete" if is_complete else "dynamic",
        source_path=str(path),
        import_paths=[str(folder) for folder in folders.import_folders(path)],
    )


def reference_fields(lark_parser: Lark, rule: str, text: str) -> tuple[str, dict[str, str]] | None:
    """The alternative that a text is and its columns, by Lark itself; None if the text is no line of the rule."""
    try:
        tree = lark_parser.parse(text, start=rule)
    except LarkError:
        return None
    form = "" if tree.data == rule else str(tree.data)
    tokens = tree.scan_values(lambda leaf: isinstance(leaf, Token) and not leaf.type.startswith("__ANON_"))
    return form, {token.type.rpartition("__")[2].lower(): str(token) for token in tokens}


def compile_rules(path: Path, *rules: str) -> Iterator[tuple[str, int, tuple[Pattern, ...], dict[str, str]]]:
    """Compile the rules of a file, or only those named: yields name, priority, patterns, and column -> terminal.

    Without names, imported rules and rules whose name begins with `_` are left out, as they are only parts of others.
    Raises GrammarError.
    """
    definitions = _definitions(path)
    in_file = (
        name for name, found in definitions.items() if not (found.is_term or name.startswith("_") or "__" in name)
    )
    for name in rules or in_file:
        definition = definitions[name]
        compiler = _AlternativeCompiler(definitions, path, name)
        patterns = tuple(compiler.pattern(alternative) for alternative in _alternatives(definition.tree))
        yield name, definition.priority, patterns, dict(compiler.terminals)


def parts(path: Path) -> list[str]:
    """The rules and terminals of a file that are parts of others, not those that it imports."""
    return [name for name in _definitions(path) if name.startswith("_") and "__" not in name]


def part_regex(path: Path, rule: str) -> str:
    """The regex of a rule or terminal, without columns and anchors: to search for inside a line."""
    return _AlternativeCompiler(_definitions(path), path, rule).part_regex(rule)


def pieces(path: Path, rules: Iterable[str]) -> dict[str, list[list[tuple[str, str]]]]:
    """Rule -> its alternatives, each as pieces in order: (regex, name shown to users)."""
    definitions = _definitions(path)
    by_rule: dict[str, list[list[tuple[str, str]]]] = {}
    for rule in rules:
        for alternative in _alternatives(definitions[rule].tree):
            compiler = _AlternativeCompiler(definitions, path, rule)
            by_rule.setdefault(rule, []).append(compiler.pieces(alternative))
    return by_rule


def template(path: Path, rule: str, counter: str) -> Template:
    """The first alternative of a rule, cut at a counter and at values without a column. Raises GrammarError."""
    definitions = _definitions(path)
    return cut(_AlternativeCompiler(definitions, path, rule).parts(_alternatives(definitions[rule].tree)[0]), counter)


def _definitions(path: Path) -> dict[str, _Definition]:
    """The rules and terminals of a file and of what it imports, by name. Raises GrammarError."""
    return _definitions_in(path.read_text(encoding="utf-8"), path, folders.import_folders(path))


@lru_cache(maxsize=8)
def _definitions_in(text: str, path: Path, import_folders: tuple[Path, ...]) -> dict[str, _Definition]:
    """The same, of the text of a file; the last ones are kept, because a grammar of parts is asked for each of them.

    Lark documents no access to the trees of rules before they are compiled; `load_grammar` may change between versions.
    Raises GrammarError if the file is not a grammar, or if this version of Lark cannot be used.
    """
    try:
        from lark.load_grammar import FromPackageLoader, GrammarBuilder

        grammar_folders = [str(folder) for folder in import_folders]
        builder = GrammarBuilder(False, [*grammar_folders, FromPackageLoader("lark", ("grammars",))])
        builder.load_grammar(text, str(path))
        grammar = builder.build()
        terminals = {str(name): _Definition(tree, is_term=True) for name, (tree, _) in grammar.term_defs}
        rules = {
            str(name): _Definition(tree, is_term=False, priority=int(options.priority or 0))
            for name, _, tree, options in grammar.rule_defs
        }
    except LarkError as error:
        raise GrammarError(f"{path.name}: {error}") from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise GrammarError(f"lark {lark_version} cannot be used ({error}); install lark>={OLDEST_LARK},<2") from error
    return terminals | rules


def _alternatives(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A compiled part of a pattern."""

    regex: str
    literal: str | None = None  # the text it stands for; None: not a literal
    anchor: str = ""
    shared_anchor: str = ""  # inside a rule referred to, such as a prefix: less selective, for many shapes share it
    is_open: bool = False
    is_optional: bool = False
    column: str = ""
    starts: tuple[str, ...] = ("",)  # literals; every matching text begins with one of them
    is_only_starts: bool = False  # matches exactly these literals
    words: tuple[str, ...] = ("",)  # literals; one of them stands in every matching text
    literals: tuple[str, ...] = ()  # all of which stand in every matching text, in this order

    def without_anchors(self) -> _Piece:
        """This part inside of another one, which is no literal, and by which no shape is chosen."""
        return replace(self, literal=None, anchor="", shared_anchor="", is_optional=False, column="")


class _AlternativeCompiler:
    """Compiles the alternatives of one rule to patterns."""

    def __init__(self, definitions: Mapping[str, _Definition], path: Path, rule: str) -> None:
        self._definitions = definitions
        self._path = path
        self._rule = f"{path.name}, rule {rule}"  # for error messages
        self._columns: list[str] = []
        self._expanding: list[str] = []  # rules and terminals being expanded, to detect recursion
        self.terminals: dict[str, str] = {}

    def pattern(self, alternative: Tree[Token]) -> Pattern:
        self._columns, form = [], ""
        if alternative.data == "alias":
            form = str(alternative.children[1].name)  # type: ignore[union-attr]  # Lark types an alias as a token
            alternative = alternative.children[0]  # type: ignore[assignment]
        piece = self._piece(alternative, inside=None)
        anchor = piece.anchor or piece.shared_anchor
        columns, suffixes = tuple(self._columns), dict(self._suffixes([alternative]))
        return Pattern(form, f"^{piece.regex}$", anchor, piece.words, piece.literals, columns, piece.is_open, suffixes)

    def _suffixes(self, nodes: list[object]) -> Iterator[tuple[str, Suffix]]:
        """The part rules that an alternative begins with, but for `file__rule`, outermost first, and what follows."""
        while isinstance(nodes[0], Tree) and nodes[0].data in ("expansion", "value"):
            nodes = [*nodes[0].children, *nodes[1:]]
        name = "" if isinstance(nodes[0], Token | Tree) else str(getattr(nodes[0], "name", nodes[0]))
        if name and "__" not in name and not self._definitions[name].is_term and len(nodes) > 1:
            compiler = _AlternativeCompiler(self._definitions, self._path, name)
            piece = _sequence([compiler._piece(node, inside=None) for node in nodes[1:]])
            yield (
                name,
                {
                    "regex": f"^{piece.regex}$",
                    "columns": compiler._columns,
                    "starts": list(piece.starts),
                    "anchor": piece.anchor or piece.shared_anchor,
                    "words": list(piece.words),
                    "literals": list(piece.literals),
                },
            )
            if len(parts := self._definitions[name].tree.children) == 1:
                yield from self._suffixes([*parts, *nodes[1:]])

    def pieces(self, alternative: Tree[Token]) -> list[tuple[str, str]]:
        """The pieces of an alternative, with parts such as a prefix expanded: (regex, name shown to users)."""
        self.pattern(alternative)  # raises GrammarError where the alternative is none as a whole
        return self._pieces(alternative)

    def _pieces(self, node: object) -> list[tuple[str, str]]:
        if isinstance(node, Tree) and node.data in ("alias", "expansion", "literal", "value"):
            children = node.children[:1] if node.data == "alias" else node.children
            return [piece for child in children for piece in self._pieces(child)]
        name = "" if isinstance(node, Token | Tree) else str(getattr(node, "name", node))
        if name and not self._definitions[name].is_term and len(self._definitions[name].tree.children) == 1:
            return self._pieces(self._definitions[name].tree.children[0])
        piece = self._piece(node, inside="")
        shown = f'"{piece.literal}"' if piece.literal is not None else name.rpartition("__")[2] or "an optional part"
        return [(piece.regex, shown)]

    def parts(self, alternative: Tree[Token]) -> list[Part]:
        """The parts of an alternative, those of rules in it as one."""
        found = [(self._piece(node, inside=None), self._is_terminal(node)) for node in alternative.children]
        return [
            Part(piece.regex, piece.literal, piece.column, is_terminal and piece.literal is None and not piece.column)
            for piece, is_terminal in found
        ]

    def _is_terminal(self, node: object) -> bool:
        """Whether a piece is one terminal."""
        while isinstance(node, Tree) and node.data in ("literal", "value"):
            node = node.children[0]
        definition = self._definitions.get(str(getattr(node, "name", node)))
        return definition is not None and definition.is_term

    def part_regex(self, rule: str) -> str:
        """The regex of a rule or terminal, without columns."""
        return self._piece(self._definitions[rule].tree, inside=rule).regex

    def _piece(self, node: object, inside: str | None) -> _Piece:
        if isinstance(node, Token):
            return self._literal(node)
        if not isinstance(node, Tree):
            return self._symbol(node, inside)
        children = [child for child in node.children if child is not None]
        match str(node.data):
            case "literal" | "value" | "alias":
                return self._piece(children[0], inside)
            case "expansion":
                return _sequence([self._piece(child, inside) for child in children])
            case "expansions":
                return _choice([self._piece(child, inside) for child in children])
            case "maybe":
                return _optional(self._piece(children[0], inside), "?")
            case "expr":
                return self._repeated(children, inside)
        raise GrammarError(f"{self._rule}: `{node.data}` cannot become a line pattern")

    def _repeated(self, children: list[object], inside: str | None) -> _Piece:
        inner, operator = self._piece(children[0], inside), str(children[1])
        if len(children) == 2 and operator == "+":
            return replace(inner.without_anchors(), regex=f"(?:{inner.regex})+", is_only_starts=False)
        if len(children) == 2 and operator in ("?", "*"):
            return _optional(inner, operator)
        raise GrammarError(f"{self._rule}: repetition `{operator}` is not supported")

    def _symbol(self, symbol: object, inside: str | None) -> _Piece:
        name = str(getattr(symbol, "name", symbol))
        if name not in self._definitions:
            raise GrammarError(f"{self._rule}: `{name}` is not defined")
        if name in self._expanding:
            raise GrammarError(f"{self._rule}: `{name}` refers to itself, a line pattern cannot")
        definition = self._definitions[name]
        self._expanding.append(name)
        is_column = definition.is_term and inside is None and not name.startswith("_")  # so are imported terminals
        if definition.is_term:  # which is the same wherever it stands
            definition.piece = definition.piece or self._piece(definition.tree, name)
        piece = definition.piece or self._piece(definition.tree, inside)
        self._expanding.pop()
        if not definition.is_term:
            return replace(piece, literal=None, anchor="", shared_anchor=piece.anchor or piece.shared_anchor, column="")
        if not is_column:
            return piece
        column = name.rpartition("__")[2].lower()
        if column in self._columns:
            raise GrammarError(f"{self._rule}: `{column.upper()}` stands twice in one alternative")
        if column in RESERVED:
            raise GrammarError(f"{self._rule}: `{column.upper()}` is the name of a column that every frame has")
        self._columns.append(column)
        self.terminals[column] = name
        is_open = column_type_name(name, self._path) in NUMERIC or piece.regex.rstrip(")").endswith(("]+", "]*"))
        return replace(piece.without_anchors(), regex=f"(?P<{column}>{piece.regex})", is_open=is_open, column=column)

    def _literal(self, token: Token) -> _Piece:
        if token.type == "REGEXP":
            body, flags = str(token)[1:].rsplit("/", 1)
            if flags or "(?" in body or "\\b" in body:
                raise GrammarError(
                    f"{self._rule}: {token} uses flags, look-around or \\b, which the two engines do not share"
                )
            body = _without_captures(body.replace("\\/", "/"))
            return _Piece(f"(?:{body})" if "|" in body else body)
        if token.type == "STRING":
            text = str(ast.literal_eval(str(token)))
            return _text(_quoted(text), text)
        raise GrammarError(f"{self._rule}: {token.type} cannot become a line pattern")


def _without_captures(regex: str) -> str:
    r"""Plain groups of a grammar's regex become non-capturing; `\(` stays a parenthesis.

    >>> _without_captures(r"([0-9]+|\(nil\))")
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
    """The literals that a sequence may begin with, and whether it matches exactly these."""
    starts: tuple[str, ...] = ("",)
    for piece in pieces:
        longer = tuple(
            dict.fromkeys((before + start)[:MAX_START_LENGTH] for before in starts for start in piece.starts)
        )
        if len(longer) > MAX_STARTS:
            return starts, False
        starts = longer
        if not piece.is_only_starts:
            return starts, False
    return starts, True


def _quoted(text: str) -> str:
    """A regex that matches exactly this text, in both engines."""
    return "".join(f"\\{c}" if c in "\\.+*?()|[]{}^$#&-~" else c for c in text)


def _text(regex: str, text: str) -> _Piece:
    start, is_only_start = text[:MAX_START_LENGTH], len(text) <= MAX_START_LENGTH
    return _Piece(regex, text, text, starts=(start,), is_only_starts=is_only_start, words=(text,), literals=(text,))


def _sequence(pieces: list[_Piece]) -> _Piece:
    regex = "".join(piece.regex for piece in pieces)
    if all(piece.literal is not None for piece in pieces):
        text = "".join(piece.literal or "" for piece in pieces)
        return _text(regex, text)
    runs, run, literals = [""], "", list[str]()
    for piece in pieces:
        if run and piece.literal is not None:
            literals[-1] += piece.literal
        else:
            literals += piece.literals
        run = run + piece.literal if piece.literal is not None else ""
        runs += [run, piece.anchor]
    is_open = False
    for piece in reversed(pieces):
        is_open |= piece.is_open
        if not piece.is_optional:
            break
    shared_anchor = max((piece.shared_anchor for piece in pieces), key=len)
    starts, is_only_starts = _starts(pieces)
    anchor = max(runs, key=len)
    words = max([(anchor,), *(piece.words for piece in pieces)], key=lambda words: min(map(len, words)))
    return _Piece(regex, None, anchor, shared_anchor, is_open, False, "", starts, is_only_starts, words, (*literals,))


def _optional(piece: _Piece, operator: str) -> _Piece:
    return _Piece(
        f"(?:{piece.regex}){operator}",
        is_open=piece.is_open,
        is_optional=True,
        starts=("", *piece.starts),
        is_only_starts=piece.is_only_starts and operator == "?",
    )


def _choice(pieces: list[_Piece]) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]
    regex = "|".join(piece.regex for piece in pieces)
    starts = tuple(dict.fromkeys(start for piece in pieces for start in piece.starts))
    is_only_starts = all(piece.is_only_starts for piece in pieces)
    if len(starts) > MAX_STARTS:
        starts, is_only_starts = ("",), False
    is_open = any(piece.is_open for piece in pieces)
    words = tuple(dict.fromkeys(word for piece in pieces for word in piece.words))
    if "" in words or len(words) > MAX_STARTS:
        words = ("",)
    return _Piece(f"(?:{regex})", is_open=is_open, starts=starts, is_only_starts=is_only_starts, words=words)
