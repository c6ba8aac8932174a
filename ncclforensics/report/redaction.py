"""Assign pseudonyms to what the frames and the lines of a run name: hosts, files, users, jobs, identifiers, secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import polars as pl

from ncclforensics.archive.atomic_write import replacing
from ncclforensics.data.stack_classes import own_files
from ncclforensics.errors import UsageError
from ncclforensics.formats import declared
from ncclforensics.frames.columns import printed_hosts
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.column_types import COLUMN_TYPES
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, is_system_error
from ncclforensics.report import marked_names
from ncclforensics.report.marked_names import is_secret
from ncclforensics.report.pseudonyms import REMOVED, Pseudonyms

SEARCHED_BYTES = 64 << 20  # at the beginning of a file: for users and jobs that no cited line names
BLOCK = 4 << 20  # bytes
LONGEST_NAME = 1 << 10  # bytes by which blocks overlap
SHORTEST_PLACE = 3  # characters of the name of a rack or rail that is redacted


def assign_pseudonyms(run: Frames, map_file: Path | None = None) -> Pseudonyms:
    """Assign pseudonyms to the hosts, files and users of a run, in rank order; extend those of `map_file`."""
    pseudonyms = (
        read_map(map_file) if map_file is not None and map_file.exists() else Pseudonyms(_key(run, _hosts(run)))
    )
    add_pseudonyms(run, pseudonyms)
    return pseudonyms


def add_pseudonyms(run: Frames, pseudonyms: Pseudonyms) -> None:
    """Assign pseudonyms to the names of a run that have none so far."""
    for name in (*_hosts(run), *run.settings.hosts):
        pseudonyms.host(name)
    pseudonyms.kept |= _kept_identifiers(run)
    for reading in run.inputs:
        path = reading.source.path
        redacted_path = pseudonyms.path(path, reading.source.rank_hint)
        pseudonyms.set(path, redacted_path)
        if not Path(path).name.isalpha():  # a name such as `job` may be an ordinary word
            pseudonyms.set(Path(path).name, Path(redacted_path).name)
    for frame, column in (columns for declaration in declared("CODE_COLUMNS") for columns in declaration):
        for path in own_files(run[frame][column].cast(pl.String).drop_nulls().unique(maintain_order=True)):
            pseudonyms.set(path, pseudonyms.path(path))
            pseudonyms.set(Path(path).name, pseudonyms.path(Path(path).name))
    for value in (*_secrets(run), *run.settings.redact_words):
        pseudonyms.set(value, REMOVED)
    for kind, names in (("rack", run.settings.racks), ("rail", run.settings.rails)):
        for number, name in enumerate(names, 1):
            if len(name) >= SHORTEST_PLACE and not name.isdecimal():  # others are in many texts, and name no place
                pseudonyms.set(name, f"{kind}-{number:02}")
    for identifier in _identifiers(run):
        pseudonyms.identifier(identifier)
    for text in _joined(_texts(run)):
        pseudonyms.add_names(text, marked_names.found_in_file)


def _key(run: Frames, hosts: Iterable[str]) -> bytes:
    """Derive the key from the logs: the same logs get the same pseudonyms, and others cannot compute it."""
    texts = [column.cast(pl.String).drop_nulls() for column in (run["rank"]["pid"], run["member"]["comm"])]
    return hashlib.sha256("\n".join(sorted([*hosts, *texts[0], *texts[1]])).encode("utf-8", "replace")).digest()


def _hosts(run: Frames) -> list[str]:
    """Return every printed host name in any column: those of ranks first, in their order."""
    rank_hosts = run["rank"].sort("job", "rank", nulls_last=True)["host"]
    columns = [rank_hosts]
    more_hosts = {grammar: names for declaration in declared("HOST_COLUMNS") for grammar, names in declaration.items()}
    no_hosts = {name for names in declared("NO_HOST_COLUMNS") for name in names}
    labels = [name for name, base in run.dialect.labels.items() if base is COLUMN_TYPES["HOSTNAME"]]
    for shape in run.dialect.with_all_formats.shapes:
        host_columns = [
            name
            for name, base in shape.columns.items()
            if (base is COLUMN_TYPES["HOSTNAME"] and name not in no_hosts) or name in more_hosts.get(shape.grammar, ())
        ]
        if (host_columns or labels) and (frame := run[shape.frame]).height:
            columns += [frame[name] for name in {*host_columns, *labels} if name in frame.columns]
    names = printed_hosts(text for column in columns for text in column.cast(pl.String).drop_nulls().unique())
    first = printed_hosts(rank_hosts.cast(pl.String).drop_nulls())
    return list(dict.fromkeys([*first, *sorted(names)]))


def _kept_identifiers(run: Frames) -> set[str]:
    """Return the identifiers of communicators and the pointers, which have the form of a GUID and name no machine."""
    bases = (COLUMN_TYPES["HEXID"], COLUMN_TYPES["PTR"])
    columns = [run["member"]["key"], run["member"]["comm"], run["verdict"]["key"], run["wait"]["key"]]
    for shape in run.dialect.with_all_formats.shapes:
        names = [name for name, base in shape.columns.items() if base in bases]
        if names and (frame := run[shape.frame]).height:
            columns += [frame[name] for name in names]
    texts = {text for column in columns for text in column.cast(pl.String).drop_nulls().unique()}
    return texts | {text.removeprefix("0x") for text in texts} | {f"0x{text}" for text in texts}


def _identifiers(run: Frames) -> list[str]:
    """Return the identifiers that are unique to a machine."""
    columns = (columns for declaration in declared("ID_COLUMNS") for columns in declaration)
    texts = (run[frame][column].cast(pl.String).drop_nulls().unique() for frame, column in columns)
    return sorted({text for column in texts for text in column if text.strip("0x:.")})


def _secrets(run: Frames) -> list[str]:
    """Return the values of variables whose names mark them as secret."""
    values = []
    for frame, name, value in (columns for declaration in declared("SECRET_COLUMNS") for columns in declaration):
        variables = run[frame].select(pl.col(name, value).cast(pl.String)).drop_nulls().unique()
        values += [text for variable, text in variables.iter_rows() if text and is_secret(variable, text)]
    return sorted(values)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Join short texts: Polars compiles every pattern again for each text that is searched."""
    parts, size = [], 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size > BLOCK:
            yield "\n".join(parts)
            parts, size = [], 0
    yield "\n".join(parts)


def _texts(run: Frames) -> Iterator[str]:
    """Yield the texts in which names of users and jobs are looked for: the beginnings of the files.

    All columns take the place of files that are not there, as in a saved run, or that cannot be read a second time.
    """
    are_all_read = True
    for reading in run.inputs:
        if reading.source.problem or reading.source.saved:
            are_all_read &= not reading.source.saved
            continue
        try:
            with reading.source.open() as stream:
                rest, size = b"", 0
                while size < SEARCHED_BYTES and (block := stream.read(BLOCK)):
                    yield (rest + block).decode("utf-8", "replace")
                    rest, size = block[-LONGEST_NAME:], size + len(block)
        except DAMAGED_ARCHIVE as error:
            are_all_read &= not is_system_error(error)
    if not are_all_read:
        for shape in run.dialect.with_all_formats.shapes:
            if (frame := run[shape.frame]).height:
                for column in frame.select(pl.col(pl.String, pl.Categorical).cast(pl.String)).iter_columns():
                    yield "\n".join(column.drop_nulls().unique(maintain_order=True))


def read_map(map_file: Path) -> Pseudonyms:
    """Read the pseudonyms of earlier runs. Raises UsageError if the file holds none."""
    try:
        stored = orjson.loads(map_file.read_bytes())
        names, parts = ({str(name): str(to) for name, to in stored[key].items()} for key in ("names", "parts"))
        return Pseudonyms(bytes.fromhex(stored["key"]), names, parts)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{map_file}: not a pseudonym map of ncclforensics") from error


def write_map(pseudonyms: Pseudonyms, map_file: Path) -> None:
    """Write the pseudonym map atomically, readable only by its owner."""
    stored = {"key": pseudonyms.key.hex(), "names": pseudonyms.names, "parts": pseudonyms.parts}
    text = orjson.dumps(stored, option=orjson.OPT_INDENT_2) + b"\n"
    with replacing(map_file, mode=0o600) as file:
        file.write(text)
