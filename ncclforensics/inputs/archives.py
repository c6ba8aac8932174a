"""The files in tar and zip archives: an incident folder that somebody packed, the dumps of all ranks in one file.

They are unpacked to files of their own in a temporary folder, since evidence is read a second time. An archive may be
malicious: names in it are shown and never used as paths, only regular files are taken, and their number and size are
bounded.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Self

HEAD = 512  # bytes of an archive by which it is recognised
MOST_FILES = 100_000
MOST_BYTES = 64 << 30  # unpacked, and never more than half of the space that is free
# A file of which more than a thousand times its size is unpacked holds no log, beyond what takes a few seconds to read.
MOST_TIMES, ALWAYS_UNPACKED = 1000, 512 << 20  # bytes
# A document is read as a whole, into values that take more memory than its bytes: the records of an export 20 times.
MOST_TIMES_OF_DOCUMENT, MOST_TIMES_OF_EXPORT, ALWAYS_OF_DOCUMENT = 100, 32, 32 << 20  # bytes
MOST_HEADER = 1 << 20  # bytes of a long name in a tar archive, or of other fields of a file
STEP = 1 << 20
_TAR_MAGIC = slice(257, 262), b"ustar"
_BEFORE_A_HEADER = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_ZIP_MAGIC = b"PK\x03\x04"
# What the libraries raise on an archive that is cut, damaged or encrypted.
OF_OFFICE = "[Content_Types].xml"  # in every document of Word, Excel and PowerPoint
NOT_TEXT = "is a document of Word or another office program: save its text as a .txt file"
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error)


@dataclass(slots=True)
class Unpacked:
    """The files of an archive: their names in it and where they lie now. `problem`: why these are not all of them."""

    files: list[tuple[str, Path]]
    problem: str = ""


def most_unpacked(size: int) -> int:
    """How many bytes are taken out of a compressed file of so many bytes."""
    return max(MOST_TIMES * size, ALWAYS_UNPACKED)


def most_of_document(size: int, *, is_export: bool = False) -> int:
    """How many bytes are taken out of a compressed file, or an archive, of so many bytes if they are a document."""
    return max((MOST_TIMES_OF_EXPORT if is_export else MOST_TIMES_OF_DOCUMENT) * size, ALWAYS_OF_DOCUMENT)


def is_tar(head: bytes) -> bool:
    """Whether an archive of tar begins with these bytes."""
    place, magic = _TAR_MAGIC
    return head[place] == magic


def is_zip(head: bytes) -> bool:
    """Whether a zip archive begins with these bytes."""
    return head.startswith(_ZIP_MAGIC)


def unpack(archive: BinaryIO | io.BufferedIOBase, size: int, head: bytes, folder: Path) -> Unpacked:
    """Write the files of an archive into an empty folder, numbered. Raises OSError if they cannot be written.

    `size`: of the archive as it is stored. `head`: its first bytes. Files in it whose path has a part that begins with
    a dot are left out, as in a folder.
    """
    found = Unpacked([])
    left = min(MOST_BYTES, most_unpacked(size), shutil.disk_usage(folder).free // 2)
    try:
        for name, content in _tar_files(archive) if is_tar(head) else _zip_files(archive):
            if any(part.startswith(".") and part not in (".", "..") for part in name.split("/")):
                continue
            if len(found.files) == MOST_FILES:
                found.problem = f"holds more than {MOST_FILES:,} files; the others are left out"
                break
            path = folder / str(len(found.files))
            found.files.append((name, path))
            left -= _copy(content, path, left)
            if left <= 0:
                found.problem = "is too large when unpacked; the rest is left out"
                break
    except _DAMAGE as error:
        is_document = str(error) == NOT_TEXT
        found.problem = NOT_TEXT if is_document else f"is a damaged archive: {error}"
    return found


class _Member(tarfile.TarInfo):
    """The header of a file; tarfile reads what precedes it, such as a long name, into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises ReadError if it announces more fields than a file has."""
        member = super().frombuf(buf, encoding, errors)
        if member.size > MOST_HEADER and member.type in _BEFORE_A_HEADER:
            raise tarfile.ReadError("a name that is too long")
        return member


def _tar_files(archive: BinaryIO | io.BufferedIOBase) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=archive, mode="r|", tarinfo=_Member) as opened:
        for member in opened:
            if member.isreg() and (content := opened.extractfile(member)):
                yield member.name, content


def _zip_files(archive: BinaryIO | io.BufferedIOBase) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        if OF_OFFICE in opened.namelist():
            raise zipfile.BadZipFile(NOT_TEXT)
        for member in opened.infolist():
            if not member.is_dir():
                with opened.open(member) as content:
                    yield member.filename, content


def _copy(content: IO[bytes], path: Path, most: int) -> int:
    """Copy at most so many bytes; return how many."""
    size = 0
    with open(path, "wb") as copy:
        while size < most and (block := content.read(min(STEP, most - size))):
            copy.write(block)
            size += len(block)
    return size
