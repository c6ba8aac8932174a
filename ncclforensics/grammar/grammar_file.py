"""A `.lark` file becomes shapes: for every rule a Lark parser, derived patterns, a schema and example lines.

A line grammar is regular. Lark is the reference; applied line by line it is too slow to be the engine (3 MB/s against
more than 200), so each rule is also derived into anchored ASCII patterns with named groups, which Polars applies to a
whole column. A property test holds both engines to the same fields.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import orjson
import polars as pl

from ncclforensics import __version__
from ncclforensics.errors import GrammarError

if TYPE_CHECKING:
    from lark import Lark

KEPT = 90 * 24 * 3600  # seconds
HERE = Path(__file__).parent
PACKAGE = HERE.parent
GRAMMARS = PACKAGE / "grammars" if (PACKAGE / "grammars").is_dir() else PACKAGE.parent / "grammars"


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


def _number(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Int32, strict=False)


def _decimal(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Float64, strict=False)


def _hexadecimal(column: pl.Expr) -> pl.Expr:
    # A hexadecimal number of more than 63 bits is no counter: it becomes null rather than wrapping around.
    return column.str.to_integer(base=16, strict=False)


def _address(column: pl.Expr) -> pl.Expr:
    return column.str.strip_prefix("0x").str.to_integer(base=16, dtype=pl.UInt64, strict=False)


def _pci(column: pl.Expr) -> pl.Expr:
    # The number that NCCL makes of it: domain, bus, device and function, which kernels leave out, for GPUs have one.
    place = column.str.split(".").list.first().str.replace_all(":", "", literal=True)
    return (place.str.to_lowercase().str.strip_chars_start("0") + "0").cast(pl.Categorical)


BASES: Mapping[str, Base] = {
    "INT": Base(pl.Int64(), "", _integer),
    "NUMBER": Base(pl.Int32(), "below 2^31", _number),
    "HEX": Base(pl.Int64(), "printed in hexadecimal", _hexadecimal),
    "DECIMAL": Base(pl.Float64(), "", _decimal),
    "FLOAT": Base(pl.Float64(), "null where it says N/A", _decimal),
    "PTR": Base(pl.Categorical(), "pointer, valid within one process", _category),
    "MEMORY_ADDRESS": Base(pl.UInt64(), "place in memory", _address),
    "HEXID": Base(pl.Categorical(), "identifier", _category),
    "PCI": Base(pl.Categorical(), "as NCCL prints it: `0000:5d:00` is 5d000", _pci),
    "NAME": Base(pl.Categorical(), "", _category),
    "HOSTNAME": Base(pl.Categorical(), "", _category),
    "WORD": Base(pl.String(), "", _text),
    "LOCAL_TIME": Base(pl.String(), "as printed, format chosen by the user", _text),
    "GLOG_TIME": Base(pl.String(), "month, day and time as glog prints them", _text),
    "CLOCK": Base(pl.String(), "time as a launcher or collector prints it", _text),
    "TEXT": Base(pl.String(), "", _text),
}
NUMBERS = ("INT", "NUMBER", "HEX", "DECIMAL", "FLOAT", "PTR", "MEMORY_ADDRESS", "HEXID", "PCI")
# A terminal that is written out in place (an enumeration, a pattern of its own) is text from a small vocabulary.
PLAIN = Base(pl.Categorical(), "", _category)

FORM = "form"  # the column that says which alternative of a rule matched
RESERVED = (FORM, "source", "line", "pos", "after")  # columns of every frame, for good or on the way to it


class Behind(TypedDict):
    """What stands in a pattern behind the part that it begins with, such as a prefix."""

    regex: str
    columns: list[str]
    starts: list[str]  # literal texts, with one of which it begins
    anchor: str  # a literal that it contains; empty if there is none


@dataclass(frozen=True, slots=True)
class Pattern:
    """One alternative of a rule, as a Rust/Python regular expression."""

    form: str
    regex: str
    anchor: str  # a literal that every matching line contains; empty if there is none
    columns: tuple[str, ...]
    is_open: bool  # ends with a value that would still match if the line were cut inside it
    between: Mapping[str, tuple[str, ...]]  # column -> literal before it, its regex, literal behind it
    behind: Mapping[str, Behind]  # of each part it begins with

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


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells of some frames."""

    regex: str  # of any of their lines
    anchors: list[str]  # literals, one of which stands in every such line
    loose: str  # but for those that this regex has


class Grammar:
    """A `.lark` file.

    Raises GrammarError if a rule recurses or uses what a line pattern cannot express.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = GRAMMARS / f"{name}.lark"

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The rules that stand in this file (imported rules and rules starting with `_` are only parts)."""
        return self._shapes("rules")

    def part(self, rule: str) -> Shape:
        """A rule that is only a part, such as a prefix, as a shape."""
        return self._shapes(f"{rule}-shape", rule)[0]

    def _shapes(self, what: str, *parts: str) -> tuple[Shape, ...]:
        def derived() -> list[Any]:
            from ncclforensics.grammar import compiler

            examples, needs = _comments(self.path.read_text(encoding="utf-8"))
            return [
                {
                    "frame": rule,
                    "priority": priority,
                    "patterns": [asdict(pattern) for pattern in patterns],
                    "columns": {column: base_of(terminal, self.name) for column, terminal in terminals.items()},
                    "examples": examples.get(rule, ()),
                    "needs": needs,
                }
                for rule, priority, patterns, terminals in compiler.rules(self.path, *parts)
            ]

        return tuple(_shape(self.name, **found) for found in _remembered(self.path, what, derived))

    def signs(self, frames: Collection[str]) -> Signs:
        """By what a line of these frames is known, without the shapes themselves."""

        def derived() -> dict[str, Any]:
            patterns = [pattern for shape in self.shapes if shape.frame in frames for pattern in shape.patterns]
            anchors = sorted({pattern.anchor for pattern in patterns} - {""})
            loose = [pattern for pattern in patterns if not pattern.anchor]
            return asdict(Signs(_any_of(patterns), anchors, _any_of(loose)))

        return Signs(**_remembered(self.path, f"signs of {', '.join(sorted(frames))}", derived))

    def regex(self, part: str) -> str:
        """The regex of a part, without columns: to search for inside a line."""

        def derived() -> str:
            from ncclforensics.grammar import compiler

            return compiler.part(self.path, part)

        return str(_remembered(self.path, f"{part}-regex", derived))

    @cached_property
    def steps(self) -> dict[str, list[list[tuple[str, str]]]]:
        """Frame -> every alternative as pieces: the regex of each, and what it is called."""

        def derived() -> dict[str, list[list[tuple[str, str]]]]:
            from ncclforensics.grammar import compiler

            return compiler.steps(self.path, [shape.frame for shape in self.shapes])

        found: dict[str, list[list[tuple[str, str]]]] = _remembered(self.path, "steps", derived)
        return found

    @cached_property
    def parser(self) -> Lark:
        """Lark's own parser, for `parse(line, start=frame)`: the reference for the derived patterns."""
        from ncclforensics.grammar import compiler

        return compiler.parser(self.path, [shape.frame for shape in self.shapes])


def _remembered(path: Path, what: str, derive: Callable[[], Any]) -> Any:
    """What was derived from the grammars as they are, from the user's cache if it is there: Lark takes 0.3 s."""
    key = hashlib.sha256(f"{__version__} {path.stem} {what} ".encode() + _everything(path.parent)).hexdigest()
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ncclforensics"
    except RuntimeError:  # a user without a home
        return derive()
    file = folder / f"{path.stem}-{key[:16]}.json"
    with suppress(OSError, orjson.JSONDecodeError):
        return orjson.loads(file.read_bytes())
    result = orjson.loads(orjson.dumps(derive()))
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_bytes(orjson.dumps(result))
        new.replace(file)
        for old in folder.glob(f"{path.stem}-*.json"):  # of versions that are no longer used
            if old.stat().st_mtime < time.time() - KEPT:
                old.unlink(missing_ok=True)
    return result


@cache
def _everything(folder: Path) -> bytes:
    """A digest of all that patterns are derived from: the grammars, which import one another, and the derivation."""
    texts = [file.read_bytes() for file in (Path(__file__), HERE / "compiler.py", *sorted(folder.glob("*.lark")))]
    return hashlib.sha256(b"".join(texts)).digest()


def _shape(
    grammar: str,
    *,
    frame: str,
    priority: int,
    patterns: Iterable[Mapping[str, Any]],
    columns: Mapping[str, str],
    examples: Iterable[str],
    needs: str,
) -> Shape:
    """A shape, fresh from the derivation or from the cache, which knows neither tuples nor bases."""
    bases = {column: BASES.get(base, PLAIN) for column, base in columns.items()}
    return Shape(frame, grammar, tuple(_pattern(**each) for each in patterns), bases, tuple(examples), needs, priority)


def _pattern(
    columns: Iterable[str], between: Mapping[str, Iterable[str]], behind: Mapping[str, Behind], **rest: Any
) -> Pattern:
    around = {name: tuple(parts) for name, parts in between.items()}
    return Pattern(columns=tuple(columns), between=around, behind=behind, **rest)


def _any_of(patterns: Iterable[Pattern]) -> str:
    """One regex for all of these, without names: a call of the engine costs more than what it has to look at."""
    pieces = "|".join(pattern.regex for pattern in patterns).split("(?P<")
    return "(?:".join([pieces[0], *(piece.partition(">")[2] for piece in pieces[1:])])


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


def base_of(name: str, grammar: str) -> str:
    """The base terminal that `COUNT: INT` is made of, if any. Lark's trees do not tell: INT stands expanded there."""
    home, _, own = name.rpartition("__")
    made_of = _plain_definitions(home or grammar).get(own)
    if made_of is None:
        return own if own in BASES else ""
    return made_of if made_of in BASES else base_of(made_of, home or grammar)


@cache
def _plain_definitions(grammar: str) -> dict[str, str]:
    """`COUNT: INT` and its like: terminals that only give another one a name, those imported included."""
    found: dict[str, str] = {}
    for line in (GRAMMARS / f"{grammar}.lark").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(": ")
        if name.partition(".")[0] in BASES and grammar != "terminals":
            raise GrammarError(f"{grammar}.lark: {name} is a base terminal; its dtype is not that of this one")
        if name.isupper() and value.replace("_", "").isalpha() and value.isupper():
            found[name] = value
        elif line.startswith("%import .") and "terminals" not in line:
            other, _, rest = line.removeprefix("%import .").partition(" (")
            found = {**_plain_definitions(other), **found} if rest else found
    return found


@cache
def load(name: str) -> Grammar:
    """The grammar of that name, loaded once."""
    return Grammar(name)


def names() -> list[str]:
    """Every grammar that describes lines (`terminals` only holds the base terminals)."""
    return sorted(path.stem for path in GRAMMARS.glob("*.lark") if path.stem != "terminals")
