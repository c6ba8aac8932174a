"""Load a `.lark` file as shapes: for every rule its patterns, a schema and example lines.

A line grammar is regular. Lark is the reference, but at 3 MB/s line by line it is too slow to be the engine; so each
rule is compiled to anchored ASCII patterns with named groups, which Polars applies to whole columns at more than
200 MB/s. A property test checks that both engines give the same fields.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, cached_property
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclforensics import __version__
from ncclforensics.data.user_cache import digest, kept
from ncclforensics.errors import GrammarError
from ncclforensics.grammar import folders
from ncclforensics.grammar.column_types import COLUMN_TYPES, VOCABULARY, column_type_name
from ncclforensics.grammar.meanings import Meaning, read_meanings
from ncclforensics.grammar.patterns import OutputHead, Pattern, Shape, Signature, any_of
from ncclforensics.grammar.template import Template

if TYPE_CHECKING:
    from lark import Lark

HERE = Path(__file__).parent


class Grammar:
    """A `.lark` file. Properties compile it on first use, or read the result from the user's cache.

    Raises GrammarError if a rule recurses or uses what a line pattern cannot express.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = folders.path_of(name)
        self._part_regexes: dict[str, str] = {}

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The rules defined in this file; imported rules and rules whose name begins with `_` are only parts."""
        return self._shapes("rules")

    def part_shape(self, rule: str) -> Shape:
        """A rule that is only a part, such as a prefix, as a shape."""
        return self._shapes(f"{rule}-shape", rule)[0]

    def _shapes(self, cache_name: str, *rules: str) -> tuple[Shape, ...]:
        def compile_shapes() -> list[Any]:
            from ncclforensics.grammar import compiler

            examples, needs = _read_comments(self.path.read_text(encoding="utf-8"))
            return [
                {
                    "frame": rule,
                    "priority": priority,
                    "patterns": [[*pattern] for pattern in patterns],
                    "columns": {name: column_type_name(terminal, self.path) for name, terminal in terminals.items()},
                    "examples": examples.get(rule, ()),
                    "needs": needs,
                }
                for rule, priority, patterns, terminals in compiler.compile_rules(self.path, *rules)
            ]

        return tuple(_shape(self.name, **fields) for fields in _cached(self.path, cache_name, compile_shapes))

    def signatures(self, frames: Collection[str]) -> list[Signature]:
        """How lines of these frames are recognised, without loading the shapes; `frame.form` is one of its forms."""

        def compile_signatures() -> list[Any]:
            return [
                [pattern.anchor, pattern.words, pattern.literals, any_of([pattern])]
                for shape in self.shapes
                for pattern in shape.patterns
                if {shape.frame, f"{shape.frame}.{pattern.form}"} & {*frames}
            ]

        kept = _cached(self.path, f"signatures of {', '.join(sorted(frames))}", compile_signatures)
        return [Signature(*values) for values in kept]

    def template(self, rule: str, counter: str) -> Template:
        """The first alternative of a rule, cut at this counter and at values without a column."""

        def compile_template() -> list[Any]:
            from ncclforensics.grammar import compiler

            return [*compiler.template(self.path, rule, counter)]

        shared, own, number, starts, stops, counter_stop, around = _cached(
            self.path, f"template of {rule} by {counter}", compile_template
        )
        literals = {name: (before, after) for name, (before, after) in around.items()}
        return Template(tuple(shared), tuple(own), number, tuple(starts), tuple(stops), counter_stop, literals)

    def part_regex(self, rule: str) -> str:
        """The regex of a part, without columns and anchors: to search for inside a line."""

        def compile_regex() -> str:
            from ncclforensics.grammar import compiler

            return compiler.part_regex(self.path, rule)

        if rule not in self._part_regexes:
            self._part_regexes[rule] = str(_cached(self.path, f"{rule}-regex", compile_regex))
        return self._part_regexes[rule]

    def compile_parts(self) -> None:
        """Compile all parts as regexes and, where no column stands twice in one, as shapes."""
        from ncclforensics.grammar import compiler

        for rule in compiler.parts(self.path):
            self.part_regex(rule)
            with suppress(GrammarError):
                self.part_shape(rule)

    @cached_property
    def pieces(self) -> dict[str, list[list[tuple[str, str]]]]:
        """Frame -> its alternatives, each as pieces in order: (regex, name shown to users)."""

        def compile_pieces() -> dict[str, list[list[tuple[str, str]]]]:
            from ncclforensics.grammar import compiler

            return compiler.pieces(self.path, [shape.frame for shape in self.shapes])

        pieces: dict[str, list[list[tuple[str, str]]]] = _cached(self.path, "pieces", compile_pieces)
        return pieces

    @cached_property
    def needs(self) -> str:
        """The `// needs:` line of the file: how to have its lines printed; empty if there is none."""
        return _read_comments(self.path.read_text(encoding="utf-8"))[1]

    @cached_property
    def subject(self) -> str:
        """What its lines are, in a sentence: the first one of the file."""
        heading = takewhile(lambda line: line.startswith("// "), self.path.read_text(encoding="utf-8").splitlines())
        return " ".join(line.removeprefix("// ") for line in heading).partition(". ")[0].rstrip(".")

    @cached_property
    def may_collapse(self) -> bool:
        """Whether equal lines of its rules mean what the first one does: the `// repeated:` line of the file."""
        return "\n// repeated:" in self.path.read_text(encoding="utf-8")

    @cached_property
    def sampled(self) -> tuple[OutputHead, ...]:
        """Where outputs begin that are collected again and again: the `// sampled:` line. Raises GrammarError."""
        return self._output_heads("// sampled:")

    @cached_property
    def above_outputs(self) -> tuple[OutputHead, ...]:
        """Lines above an output that tell what it is of: the `// above outputs:` line. Raises GrammarError."""
        return self._output_heads("// above outputs:")

    def _output_heads(self, mark: str) -> tuple[OutputHead, ...]:
        """`frame column column; frame.form column`: columns that tell what is sampled, of lines of one form or any."""
        _, _, rest = self.path.read_text(encoding="utf-8").partition(f"\n{mark}")
        heads = [part.split() for part in rest.partition("\n")[0].split(";") if part.strip()]
        columns = {shape.frame: shape.schema.keys() for shape in self.shapes} if heads else {}
        found = []
        for name, *named in heads:
            frame, dot, form = name.partition(".")
            if unknown := {*named} - {*columns.get(frame, ())} | {frame} - {*columns}:
                raise GrammarError(f"{self.path.name}: {mark} names {', '.join(sorted(unknown))}, which no rule has")
            found.append(OutputHead(frame, form if dot else None, tuple(named)))
        return tuple(found)

    @cached_property
    def meanings(self) -> dict[str, dict[str, Meaning]]:
        """Frame -> form -> what such a line means: the `//!` marks of the file. Raises GrammarError."""
        forms = {shape.frame: dict.fromkeys(pattern.form for pattern in shape.patterns) for shape in self.shapes}
        try:
            return read_meanings(self.path.read_text(encoding="utf-8"), forms)
        except GrammarError as error:
            raise GrammarError(f"{self.path.name}, rule {error}") from None

    def form_classes(self, frame: str) -> dict[str, str]:
        """Form -> class, from the `// class:` comments beside the alternatives of a rule. Raises GrammarError."""
        return self._classes.get(frame, {})

    @cached_property
    def _classes(self) -> dict[str, dict[str, str]]:
        return _read_classes(self.path.read_text(encoding="utf-8"))

    @cached_property
    def parser(self) -> Lark:
        """Lark's own parser, for `parse(line, start=frame)`: the reference for the compiled patterns."""
        from ncclforensics.grammar import compiler

        return compiler.parser(self.path, [shape.frame for shape in self.shapes])

    @cached_property
    def _complete_parser(self) -> Lark:
        from ncclforensics.grammar import compiler

        return compiler.parser(self.path, [shape.frame for shape in self.shapes], is_complete=True)

    def is_read_as(self, frame: str, text: str, fields: tuple[str, dict[str, str]] | None) -> bool:
        """Whether Lark, too, reads a text as this alternative with these columns, or as no line of the rule if None.

        It reads with the longest match of every terminal; where that gives something else, also with shorter ones.
        """
        from ncclforensics.grammar import compiler

        return fields == compiler.reference_fields(self.parser, frame, text) or fields == compiler.reference_fields(
            self._complete_parser, frame, text
        )


def _cached(path: Path, name: str, compute: Callable[[], Any]) -> Any:
    """The JSON value `compute` gives, from the user's cache where present: importing and running Lark takes 0.3 s."""
    read = folders.import_folders(path)
    key = digest(f"{__version__} {path.stem} {name} {_inputs_digest(read)}")
    return kept(path.stem, key[:16], key, compute, lambda: _are_unchanged(read))


@cache
def _inputs_digest(grammar_folders: tuple[Path, ...]) -> str:
    """A digest of all that compiled patterns depend on: the grammars, which import one another, and the compiler."""
    states = _first_states(grammar_folders)

    def of_texts() -> str:
        return hashlib.sha256(b"".join(Path(file).read_bytes() for file in states)).hexdigest()

    where, key = digest(" ".join(map(str, grammar_folders)))[:16], digest(f"{states}")
    return str(kept("ncclforensics.grammars", where, key, of_texts, lambda: _are_unchanged(grammar_folders)))


def _states(grammar_folders: tuple[Path, ...]) -> dict[str, tuple[int, int]]:
    """Path -> size in bytes and time in ns of the files that compiled patterns depend on."""
    files: list[os.DirEntry[str]] = []
    for folder, end in [(HERE, ".py"), *((folder, ".lark") for folder in grammar_folders)]:
        own = (entry for entry in os.scandir(folder) if entry.name.endswith(end))
        files += sorted(own, key=attrgetter("name"))
    return {file.path: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


_first_states = cache(_states)  # when this process read them first


def _are_unchanged(grammar_folders: tuple[Path, ...]) -> bool:
    return _states(grammar_folders) == _first_states(grammar_folders)


def _shape(
    grammar: str,
    *,
    frame: str,
    priority: int,
    patterns: Iterable[Iterable[Any]],
    columns: Mapping[str, str],
    examples: Iterable[str],
    needs: str,
) -> Shape:
    """A shape from its JSON form, which has lists for tuples and names for column types."""
    column_types = {name: COLUMN_TYPES.get(column_type, VOCABULARY) for name, column_type in columns.items()}
    return Shape(frame, grammar, tuple(map(Pattern._make, patterns)), column_types, tuple(examples), needs, priority)


def place_of_rule(shape: Shape) -> str:
    """Return where a shape is described, as `file.lark:line`; the file alone where no line begins with its name."""
    path = folders.path_of(shape.grammar)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith((f"{shape.frame}:", f"{shape.frame}.")):
            return f"{path.name}:{number}"
    return path.name


def _read_comments(text: str) -> tuple[dict[str, tuple[str, ...]], str]:
    """The `//>` examples above each rule, and the text of the file's `// needs:` line."""
    examples: dict[str, tuple[str, ...]] = {}
    pending: list[str] = []
    needs = ""
    for line in text.splitlines():
        if line.startswith("//>"):
            pending.append(line[4:])
        elif line.startswith("// needs:"):
            needs = line.removeprefix("// needs:").strip()
        elif line[:1].islower() and ":" in line:
            name = line.partition(":")[0].partition(".")[0].strip()
            examples[name], pending = tuple(pending), []
    return examples, needs


def _read_classes(text: str) -> dict[str, dict[str, str]]:
    """Frame -> form -> the text of the `// class:` comment at the end of the alternative's line.

    Raises GrammarError if two alternatives of one form have different classes.
    """
    classes: dict[str, dict[str, str]] = {}
    frame = ""
    for line in text.splitlines():
        if line[:1].islower() and ":" in line:
            frame = line.partition(":")[0].partition(".")[0].strip()
        alternative, mark, name = line.partition("  // class: ")
        form = alternative.rpartition("-> ")[2].strip()
        if mark and classes.setdefault(frame, {}).setdefault(form, name) != name:
            raise GrammarError(f"{frame}, form {form}: classes {classes[frame][form]} and {name}")
    return classes


def grammar_of(rule: str) -> str | None:
    """The name of the grammar that defines a rule; found in the texts, because compiling all grammars takes seconds."""
    return _grammars_of_rules(folders.folders()).get(rule)


@cache
def _grammars_of_rules(grammar_folders: tuple[Path, ...]) -> dict[str, str]:
    """Rule -> the name of the first grammar that defines it."""

    def find_rules() -> dict[str, str]:
        texts = {path.stem: path.read_text(encoding="utf-8") for path in reversed([*folders.grammar_files()])}
        begins = ((stem, line.partition(":")) for stem, text in texts.items() for line in text.splitlines())
        return {name.partition(".")[0]: stem for stem, (name, colon, _) in begins if colon and name[:1].islower()}

    key = _inputs_digest(grammar_folders)
    return dict(kept("rules", key[:16], key, find_rules, lambda: _are_unchanged(grammar_folders)))


@cache
def load(name: str) -> Grammar:
    """The grammar of that name, loaded once."""
    return Grammar(name)


def names() -> list[str]:
    """The names of all grammars that describe lines (`terminals` only holds the base terminals)."""
    return sorted(path.stem for path in folders.grammar_files() if path.stem != "terminals")
