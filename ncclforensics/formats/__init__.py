"""Input formats: the grammars of each, and what an input that holds its lines is called.

A new format is one grammar and one row in `data/line_formats.py`, or a module here if code reads its inputs. NCCL's own
log is looked for in every input. Other formats are embedded: their shapes are tried only on inputs that hold a line of
their signature frames.
"""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ncclforensics.data.line_formats import LINE_FORMATS
from ncclforensics.data.nouns import Noun
from ncclforensics.formats import nccl
from ncclforensics.grammar.dialect import Dialect, EmbeddedFormat
from ncclforensics.grammar.grammar_file import load

if TYPE_CHECKING:
    import polars as pl


class Format(Protocol):
    """The names of a format; a module of this package that has no grammar lacks them."""

    GRAMMARS: tuple[str, ...]  # in the order they are tried
    # Frames; an input with a line of one of them holds this format. Empty: found otherwise, or looked for everywhere.
    SIGNATURES: tuple[str, ...]
    KINDS: Mapping[str, str]  # frame -> `inputs[].kind` of an input that fills it; the last entry that fits counts


class OptionalNames(Protocol):
    """The names that a module of this package may define besides."""

    NOUN: Noun  # what reports call and count its contents
    # Redaction replaces columns of the type HOSTNAME. A format says where else hosts stand, and where not.
    HOST_COLUMNS: Mapping[str, tuple[str, ...]]  # grammar -> further columns that hold names of hosts
    NO_HOST_COLUMNS: tuple[str, ...]  # columns of type HOSTNAME that hold something else
    ID_COLUMNS: tuple[tuple[str, str], ...]  # frame and column of identifiers that are unique to a machine
    SECRET_COLUMNS: tuple[tuple[str, str, str], ...]  # frame, column of a variable's name, column of its value
    IS_SIDE_OUTPUT: bool  # its lines stand among others: of an input that holds another format, too, that is the kind
    ONE_RECORD_A_LINE: bool  # of a document: the number of a record is that of its line
    FILLS: Mapping[str, str]  # frame of this format -> frame of another one; its rows are rows of that, too
    CODE_COLUMNS: tuple[tuple[str, str], ...]  # frame and column of source files, relative ones among them


Record = tuple[str, dict[str, Any]]  # the frame, and the columns
Records = tuple[list[Record], list[str]]  # in order; problems
DAMAGED = "damaged"  # in place of a frame: a record that cannot be read


class Document(Format, Protocol):
    """A format that is one JSON object instead of lines; its records take the place of lines."""

    MAGIC: bytes  # the first bytes
    MARKER: bytes  # bytes that stand somewhere in its beginning

    def records(self, data: bytes) -> Records:
        """Frame and columns of every record, in order, and the problems of the document as a whole."""


class TraceRecords(NamedTuple):
    """The frames of a trace, without the columns `source` and `line`; its problems; its records that cannot be read."""

    frames: dict[str, pl.DataFrame]
    problems: list[str]
    damaged: int


class Trace(Format, Protocol):
    """A format that is one long document, which is never held in memory as a whole."""

    def is_trace(self, beginning: bytes) -> bool:
        """Whether a file with this beginning belongs to the format."""

    def read_trace(self, stream: io.BufferedIOBase, *, is_whole: bool) -> TraceRecords:
        """Its records; only those of its head, if not `is_whole`: then the rest answers another question."""


class Folder(Format, Protocol):
    """A format of many files that hold a single value each; the path says what it is the value of."""

    def holds(self, path: str, beginning: bytes) -> bool:
        """Whether the file at this path, with this beginning, belongs to the format."""

    def value(self, path: str, data: bytes) -> Records:
        """Frame and columns of the one record in the file."""


class Dump(Format, Protocol):
    """A format that is one document, of which the head may be enough for an answer."""

    def is_dump(self, beginning: bytes) -> bool:
        """Whether a file with this beginning belongs to the format."""

    def head(self, data: bytes) -> Records | None:
        """The first records of a document, from its first bytes; None if these do not hold all of the head."""

    def records(self, data: bytes) -> Records:
        """All records, those of the head first."""


class DocumentReader(NamedTuple):
    """How the records of one document are read: all, or the first ones from its first bytes."""

    records: Callable[[bytes], Records]
    head: Callable[[bytes], Records | None] | None = None
    one_record_a_line: bool = False


class TraceReader(NamedTuple):
    """The format by which the records of one trace are read."""

    name: str

    def read(self, stream: io.BufferedIOBase, *, is_whole: bool) -> TraceRecords:
        """Read them. Raises KeyError if this process does not have the format."""
        return cast(Trace, all_formats()[self.name]).read_trace(stream, is_whole=is_whole)


Reader = DocumentReader | TraceReader
_ADDED: dict[str, Format] = {}


def add_format(name: str, module: Format) -> None:
    """Add a format that is no module of this package, such as one of a user's own folder."""
    _ADDED[name] = module
    for cached in (all_formats, _other_than_lines, dialect, _fills):
        cached.cache_clear()


@lru_cache(maxsize=1)
def all_formats() -> Mapping[str, Format]:
    """Every module of this package, all formats of lines without code, and what was added, by name."""
    modules = {found.name: import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)}
    for module in modules.values():
        vars(module).update({"GRAMMARS": (), "SIGNATURES": (), "KINDS": {}} | vars(module))
    return cast(dict[str, Format], dict(sorted({**LINE_FORMATS, **modules}.items()))) | _ADDED


def declared(name: str) -> list[Any]:
    """The values of an optional name, of all formats that define it."""
    return [getattr(module, name) for module in all_formats().values() if hasattr(module, name)]


def nouns() -> list[Noun]:
    """What reports count, each noun once."""
    return list(dict.fromkeys(declared("NOUN")))


def filled_by(frame: str) -> tuple[str, ...]:
    """The frames whose rows are rows of this frame, too."""
    return _fills().get(frame, ())


@lru_cache(maxsize=1)
def _fills() -> dict[str, tuple[str, ...]]:
    """Frame -> the frames whose rows are rows of it."""
    found: dict[str, tuple[str, ...]] = {}
    for fills in declared("FILLS"):
        for own, filled in fills.items():
            found[filled] = (*found.get(filled, ()), own)
    return found


def document(beginning: bytes, path: str) -> Reader | None:
    """The reader of a file with this beginning and path, if it is one document or a single value; None for lines."""
    readers = (reader for recognise in _other_than_lines() if (reader := recognise(beginning, path)))
    return next(readers, None)


@lru_cache(maxsize=1)
def _other_than_lines() -> tuple[Callable[[bytes, str], Reader | None], ...]:
    """One for each format of which an input may be one document or a single value: what recognises it."""
    recognise: list[Callable[[bytes, str], Reader | None]] = []
    for name, candidate in all_formats().items():
        if hasattr(candidate, "is_trace"):
            recognise.append(partial(_as_trace, name, cast(Trace, candidate)))
        elif hasattr(candidate, "is_dump"):
            recognise.append(partial(_as_dump, cast(Dump, candidate)))
        elif hasattr(candidate, "records"):
            is_one_a_line = getattr(candidate, "ONE_RECORD_A_LINE", False)
            recognise.append(partial(_as_document, cast(Document, candidate), is_one_a_line))
        if hasattr(candidate, "holds"):
            recognise.append(partial(_as_value, cast(Folder, candidate)))
    return tuple(recognise)


def _as_trace(name: str, trace: Trace, beginning: bytes, _path: str) -> TraceReader | None:
    return TraceReader(name) if trace.is_trace(beginning) else None


def _as_dump(dump: Dump, beginning: bytes, _path: str) -> DocumentReader | None:
    return DocumentReader(dump.records, head=dump.head) if dump.is_dump(beginning) else None


def _as_document(candidate: Document, is_one_a_line: bool, beginning: bytes, _path: str) -> DocumentReader | None:
    is_one = beginning.startswith(candidate.MAGIC) and candidate.MARKER in beginning
    return DocumentReader(candidate.records, one_record_a_line=is_one_a_line) if is_one else None


def _as_value(folder: Folder, beginning: bytes, path: str) -> DocumentReader | None:
    return DocumentReader(partial(folder.value, path)) if folder.holds(path, beginning) else None


@lru_cache(maxsize=1)
def dialect() -> Dialect:
    """The shapes of NCCL's lines, with all other formats as embedded formats.

    Grammars of an added format without signatures are looked for in every input, behind those of NCCL.
    """
    embedded = [
        EmbeddedFormat(name, module.GRAMMARS, module.SIGNATURES)
        for name, module in all_formats().items()
        if module.SIGNATURES
    ]
    everywhere = [name for module in _ADDED.values() if not module.SIGNATURES for name in module.GRAMMARS]
    shapes = [shape for name in dict.fromkeys(everywhere) for shape in load(name).shapes]
    nccl_dialect = nccl.dialect()
    return replace(nccl_dialect, shapes=(*nccl_dialect.shapes, *shapes), embedded_formats=tuple(embedded))
