"""Find the sources that paths name: files, folders, globs, URLs, stdin, archives, compressed files, saved runs.

A source that cannot be read has a `problem`; the others are read all the same.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import zstandard

from ncclforensics.archive.atomic_write import temporary_prefix
from ncclforensics.archive.manifest import BEGINNING, Saved, SavedError, is_saved
from ncclforensics.data.paths import STDIN
from ncclforensics.errors import NoInputError, UsageError
from ncclforensics.inputs.archives import (
    HEAD,
    MOST_TIMES,
    Unpacked,
    is_tar,
    is_zip,
    most_of_document,
    most_unpacked,
    unpack,
)
from ncclforensics.inputs.bundles import is_bundle, unpack_dumps
from ncclforensics.inputs.file_state import FileState, state_of
from ncclforensics.inputs.remote import RemoteObject, find_objects, is_remote
from ncclforensics.inputs.unpacked import measure, positioned
from ncclforensics.inputs.wide_text import BYTE_ORDER_MARK, open_wide

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Opener = Callable[[Path | io.BufferedReader], io.BufferedIOBase]
STEP = 1 << 17  # bytes decompressed at once
# What the decompressors raise on a file that is cut or damaged.
DAMAGED_ARCHIVE = (EOFError, lzma.LZMAError, zstandard.ZstdError, zlib.error, OSError, ValueError)


def is_system_error(error: BaseException) -> bool:
    """Whether a read itself failed: the bytes may be in order, and the next read may succeed."""
    return isinstance(error, OSError) and error.errno is not None


class _Zstd(io.RawIOBase):
    """A .zst file, frame after frame; `zstandard.open` ends after the first, and silently where a file is cut."""

    _STEP = 1 << 12  # compressed bytes at once: repetitive text grows a thousandfold

    def __init__(self, file: Path | io.BufferedReader) -> None:
        self._file = open(file, "rb") if isinstance(file, Path) else file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = b""  # compressed
        self._ready = memoryview(b"")  # decompressed
        self._is_inside = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            self._waiting = self._waiting or self._file.read(self._STEP)
            if not self._waiting and self._is_inside:
                raise EOFError("it ends inside a compressed frame")
            if not self._waiting:
                return 0
            self._ready = memoryview(self._frame.decompress(self._waiting))
            self._is_inside = not self._frame.eof
            self._waiting = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class _Bounded(io.RawIOBase):
    """What is decompressed, up to `most` bytes. Raises ValueError for more."""

    def __init__(self, stream: io.BufferedIOBase, most: int) -> None:
        self._stream, self._left = stream, most

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read1(len(view))  # `readinto` would lose what precedes a damaged place
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {MOST_TIMES:,} times its size; the rest is left out")
        view[: len(data)] = data
        return len(data)


def _open_bzip2(stored: Path | io.BufferedReader) -> io.BufferedIOBase:
    return bz2.open(stored, "rb")


def _open_zstd(stored: Path | io.BufferedReader) -> io.BufferedIOBase:
    return io.BufferedReader(_Zstd(stored))


# Compression is recognised by the first bytes, never by the name. A source is pickled with what opens it.
_MAGIC: dict[bytes, Opener] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": _open_bzip2,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _open_zstd,
    BYTE_ORDER_MARK: open_wide,
}


def _decompressed(opener: Opener, stored: Path | io.BufferedReader, size: int) -> io.BufferedIOBase:
    """The bytes of a compressed file of this size."""
    return io.BufferedReader(_Bounded(opener(stored), most_unpacked(size)), STEP)


class Source(NamedTuple):
    """One input: its path as the user gave it, the file with its bytes, and whether windows of it can be read."""

    path: str
    file: Path
    size: int
    seekable: bool
    opener: Callable[[Path], io.BufferedIOBase]
    problem: str = ""
    rank_hint: int | None = None
    is_part: bool = False  # of a rotated log: the next part continues it
    saved: Saved | None = None  # a saved run takes the place of all its inputs
    archive: Path | None = None  # that the file was unpacked from
    remote: RemoteObject | None = None  # it is read over the network, and `file` is no file
    state: FileState | None = None  # of a file that lines may be appended to: no pipe, archive or compressed file
    # Of a compressed file that was unpacked once: the number of its bytes then, and the last of them. It has windows.
    length: int | None = None
    tail: bytes = b""

    @property
    def has_windows(self) -> bool:
        """Whether its bytes can be read in any order."""
        return self.seekable or self.length is not None

    @property
    def text_size(self) -> int:
        """Bytes, decompressed where that was measured."""
        return self.size if self.length is None else self.length

    def open(self) -> io.BufferedIOBase:
        """The bytes, decompressed. Raises OSError or one of DAMAGED_ARCHIVE."""
        if self.length is not None:
            return positioned(partial(self.opener, self.file), self.length, self.tail)
        return self.opener(self.file)

    def measured(self, kept: int) -> Source:
        """The same compressed file with its length and its last `kept` bytes; itself where it cannot be unpacked."""
        if self.seekable or self.problem or self.saved or self.opener is _plain:
            return self
        try:
            with self.open() as stream:
                length, tail = measure(stream, kept)
        except DAMAGED_ARCHIVE:
            return self
        return self._replace(length=length, tail=tail)

    def most_of_document(self, *, is_export: bool = False) -> int | None:
        """How many bytes are read if it is a document: of a file that was compressed, not any number; None: all."""
        stored = self.size
        if self.archive is not None:
            with suppress(OSError):  # of one that was read over the network
                stored = self.archive.stat().st_size
        elif self.seekable or self.opener is _plain:
            return None
        return most_of_document(stored, is_export=is_export)

    def open_stored(self) -> io.BufferedIOBase:
        """The bytes as they are stored, compressed or not. Raises OSError."""
        return self.remote.open() if self.remote else open(self.file, "rb")


def _plain(path: Path) -> io.BufferedIOBase:
    return open(path, "rb")


def source_at(path: Path, name: str, *, may_wait: bool = False) -> Source:
    """The source at one path. `may_wait`: a pipe is read to its end; never done for pipes found in a folder."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            any(path.iterdir())  # a folder that could not be walked: raises the reason
        if stat.S_ISFIFO(status.st_mode) and may_wait:
            return spool(open(path, "rb"), name)
        if not stat.S_ISREG(status.st_mode):
            return Source(name, path, 0, False, _plain, "is neither a file nor a folder")
        with open(path, "rb") as stream:
            head = stream.read(BEGINNING)
    except OSError as error:
        return Source(name, path, 0, False, _plain, f"cannot be read: {error.strerror}")
    if is_saved(head):
        try:
            return Source(name, path, status.st_size, False, _plain, saved=Saved(path))
        except SavedError as error:
            return Source(name, path, 0, False, _plain, str(error))
    for magic, opener in _MAGIC.items():
        if head.startswith(magic):
            opened = partial(_decompressed, opener, size=status.st_size)
            return Source(name, path, status.st_size, False, opened)
    return Source(name, path, status.st_size, True, _plain)


def _files_in(source: Source) -> list[Source]:
    """The files in an archive, the dumps in a document that holds several; any other source is the only one in it."""
    if source.problem or source.saved:
        return [source]
    try:
        with source.open() as stream:
            head = stream.read(HEAD)
        is_archive = is_tar(head) or (is_zip(head) and (source.opener is _plain or (source.remote and source.seekable)))
        if not (is_archive or is_bundle(head)):
            return [source]
        folder = Path(tempfile.gettempdir(), temporary_prefix() + token_hex(4))
        _SPOOLED.append(folder)
        folder.mkdir(mode=0o700)
        with source.open() as stream:
            unpacked = (
                unpack(stream, source.size, head, folder)
                if is_archive
                else unpack_dumps(stream, source.most_of_document(), folder)
            )
    except DAMAGED_ARCHIVE as error:
        if is_system_error(error):
            return [source._replace(problem=f"cannot be read: {getattr(error, 'strerror', error)}")]
        return [source]  # reported where it is read as a log
    return _unpacked(source, unpacked) if unpacked else [source]


def _unpacked(source: Source, unpacked: Unpacked) -> list[Source]:
    """The files that were taken out of a source, and the source itself where they are not all of it."""
    name, archive = source.path, source.file
    found = [
        source_at(file, f"{name}/{path_text(member)}")._replace(archive=archive) for member, file in unpacked.files
    ]
    if unpacked.problem or not found:
        found.append(source._replace(problem=unpacked.problem or "is an archive without files"))
    return found


def _remote(found: RemoteObject) -> Source:
    """The source of an object that is read over the network; a saved run is copied to a temporary file."""
    head = b"" if found.problem else found.open().read(BEGINNING)
    if is_saved(head):
        return spool(found.open(), found.url)
    unpack = next((opener for magic, opener in _MAGIC.items() if head.startswith(magic)), None)

    def opened(_: Path) -> io.BufferedIOBase:
        return _decompressed(unpack, found.open(), found.size) if unpack else found.open()

    return Source(found.url, Path(found.url), found.size, unpack is None, opened, found.problem, remote=found)


def spool(stream: BinaryIO | io.BufferedIOBase, name: str) -> Source:
    """Copy a pipe to a temporary file, because evidence is read a second time."""
    path = Path(tempfile.gettempdir(), temporary_prefix() + token_hex(4))
    _SPOOLED.append(path)  # before the file exists: a signal may end the program at any time
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        shutil.copyfileobj(stream, copy)
    return source_at(path, name)


_SPOOLED: list[Path] = []


def forget_spooled() -> None:
    """Delete the temporary copies of pipes and of files in archives."""
    while _SPOOLED:
        path = _SPOOLED.pop()
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _inside(folder: Path) -> Iterator[Path]:
    denied: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=lambda error: denied.append(Path(error.filename))):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))
    yield from denied


def files_at(path: str) -> Iterator[tuple[Path, bool]]:
    """The files that one path names, and whether it names the file itself or a folder around it."""
    for match in _matches(path):
        if match.is_dir():
            yield from ((file, False) for file in _inside(match))
        else:
            yield match, True


def _matches(path: str) -> list[Path]:
    return [Path(path)] if os.path.lexists(path) else [Path(m) for m in sorted(glob.glob(path, recursive=True))]


RANK_IN_NAME = r"rank[^0-9A-Za-z]?([0-9]+)"


def find(paths: Iterable[str], rank_from: str = RANK_IN_NAME) -> list[Source]:
    """Find every source that the paths name, once, in the order given; folders are walked.

    `rank_from`: a pattern whose first group finds a rank in a path; only a hint: ranks in the log take precedence.
    Raises NoInputError if nothing can be read, UsageError if the pattern is none.
    """
    try:
        pattern = re.compile(rank_from)
    except re.error as error:
        raise UsageError(f"--rank-from {rank_from}: {error}") from error
    if pattern.groups < 1:
        raise UsageError(f"--rank-from {rank_from}: needs a group, such as {RANK_IN_NAME}")
    sources: list[Source] = []
    seen: set[str] = set()
    named = list(dict.fromkeys(paths))
    for path in named:
        if path == STDIN:
            sources += _files_in(spool(sys.stdin.buffer, STDIN))
            continue
        if is_remote(path):
            for found in find_objects(path):
                if (key := found.url if found.key else path) not in seen:
                    seen.add(key)
                    sources += _files_in(_remote(found))
            continue
        files = list(files_at(path))
        if not files and not _matches(path):
            sources.append(Source(path_text(path), Path(path), 0, False, _plain, "does not exist"))
        for file, is_named in files:
            if (key := os.path.realpath(file)) not in seen:
                seen.add(key)
                for source in _files_in(source_at(file, path_text(file), may_wait=is_named)):
                    # Next to the logs it was made of, it would count every line twice.
                    is_second = source.saved and (not is_named or source.archive)
                    sources.append(_not_named(source) if is_second else _with_state(source, file))
    readable = [source for source in sources if not source.problem]
    if not readable:
        problems = "; ".join(f"{source.path} {source.problem}" for source in sources[:3])
        raise NoInputError(problems or f"no file in {', '.join(map(path_text, named[:3]))}")
    return [source._replace(rank_hint=_hint(source.path, pattern)) for source in sources]


def path_text(path: str | Path) -> str:
    """A path as text; bytes that are no UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _with_state(source: Source, file: Path) -> Source:
    """The source with the state of its file, unless its bytes are those of another file or packed."""
    return source._replace(state=state_of(file)) if source.seekable and source.file == file else source


def _not_named(source: Source) -> Source:
    return Source(source.path, source.file, 0, False, _plain, "is a saved run in a folder: name it itself to read it")


def _hint(path: str, pattern: re.Pattern[str]) -> int | None:
    found = [match[1] for match in pattern.finditer(path)]
    return int(found[-1]) if found and found[-1] and found[-1].isdecimal() and len(found[-1]) < 10 else None
