"""The file of a saved run: the frames of a run as Parquet, and a manifest of its inputs.

It is a ZIP archive of uncompressed members; the first member holds its media type, by which it is recognised. The file
may be malicious: nothing is unpacked into a folder, names are checked, and implausible sizes are refused before
reading. Frames are read in `parquet`, so that recognising a saved run does not import Polars.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ncclforensics.archive.atomic_write import replacing
from ncclforensics.errors import NoInputError

if TYPE_CHECKING:
    import polars as pl

# From 2 on, frames of few rows stand in one file, and columns of nulls are left out. In 3, some calls are only counted.
SCHEMA, SCHEMA_OF_EVERY_CALL = 3, 2
TYPE = b"application/vnd.ncclforensics.run"
_HEAD = 30  # bytes of a ZIP archive before the name of its first member
BEGINNING = _HEAD + len("mimetype") + len(TYPE)  # bytes by which a saved run is recognised
MOST_MEMBERS = 2000
MOST_MANIFEST = 64 << 20  # bytes
MANIFEST = "manifest.json"
TABLES = "tables"  # folder of tables for people and other programs; this program does not read them
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "path": str, "kind": str, "bytes": int, "sha256": str, "problems": list, "rank_hint": (int, type(None)),
    "lines_read": int, "is_cut": bool, "is_binary": bool, "is_document": bool, "recognised": int, "application": int,
    "unrecognised": int, "damaged": int, "last_time": (str, type(None)),
    "is_read_through": (bool, type(None)),  # of calls, those at both ends were kept, and the others counted
    "outputs_dropped": (int, type(None)),
    # `inputs.file_state`, of files that lines could be appended to
    **dict.fromkeys(("observed", "modified", "changed", "folder_modified", "inode"), (int, float, type(None))),
}  # fmt: skip
# What a file can have: a line's number is one of 32 bits.
MOST: Mapping[str, int] = {
    "bytes": 1 << 62, "rank_hint": 1 << 31,
    **dict.fromkeys(("lines_read", "recognised", "application", "unrecognised", "damaged"), 2_000_000_000),
}  # fmt: skip
# Errors raised by reading a damaged archive.
_DAMAGE = (zipfile.BadZipFile, OSError, ValueError, EOFError)


class SavedError(NoInputError):
    """A saved run cannot be read."""


class OversizeError(SavedError):
    """A frame of a saved run would take more memory than its file explains: nothing of it is used."""


class _Archive(zipfile.ZipFile):
    """A zip file that is only read: it does not matter whether closing it fails."""

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


def is_saved(head: bytes) -> bool:
    """Whether a file with this beginning is a saved run."""
    return head.startswith(b"PK\x03\x04") and head[_HEAD:BEGINNING] == b"mimetype" + TYPE


class Saved:
    """An open saved run; its frames are read on demand. Raises SavedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells_read = self.bytes_read = 0  # of frames: in memory, and before they were compressed
        self.small_rows: dict[str, list[str]] | None = None  # frame -> rows as JSON, once they have been read
        try:
            self.size = path.stat().st_size
            self._archive = _Archive(path)
        except _DAMAGE as error:
            raise SavedError(f"is a damaged saved run: {error}") from error
        self._check_members()
        self._read_manifest()

    def _check_members(self) -> None:
        members = self._archive.infolist()
        names = [member.filename for member in members]
        if len(members) > MOST_MEMBERS or len(set(names)) < len(names):
            raise SavedError("is no saved run of this program: too many files in it, or two of one name")
        for member in members:
            folder, _, file = member.filename.rpartition("/")
            is_frame = folder in ("frames", TABLES) and file.endswith(".parquet") and file[:-8].isidentifier()
            if not is_frame and member.filename not in ("mimetype", MANIFEST):
                raise SavedError("is no saved run of this program: it holds what does not belong there")
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                raise SavedError("is no saved run of this program: its files are packed")

    def _read_manifest(self) -> None:
        try:
            if self._archive.getinfo(MANIFEST).file_size > MOST_MANIFEST:
                raise SavedError("is no saved run of this program: its manifest is too long")
            manifest = orjson.loads(self._archive.read(MANIFEST))
            if manifest["schema"] > SCHEMA:
                raise SavedError(
                    f"was saved by ncclforensics {manifest['tool']['version']} with schema {manifest['schema']}; this"
                    f" version reads up to {SCHEMA}: use that version or a later one"
                )
            self.inputs: list[dict[str, Any]] = [
                {name: entry.get(name) for name in FIELDS} for entry in manifest["inputs"]
            ]
            self.frames = {str(name): int(rows) for name, rows in manifest["frames"].items()}
            self.small_frames = frozenset(map(str, manifest.get("small_frames", ())))
            self.broken = frozenset(map(str, manifest.get("broken", ())))  # frames of analyses that failed
            self.made_by = str(manifest["made_by"])
        except (*_DAMAGE, KeyError, TypeError, AttributeError) as error:
            raise SavedError(f"is a damaged saved run: its manifest: {error!r}") from error
        fit = all(isinstance(entry[name], kind) for entry in self.inputs for name, kind in FIELDS.items())
        if not fit or not all(0 <= (entry[name] or 0) < most for entry in self.inputs for name, most in MOST.items()):
            raise SavedError("is a damaged saved run: its manifest")
        if any(f"frames/{name}.parquet" in self._archive.NameToInfo for name in self.small_frames):
            raise SavedError("is no saved run of this program: two frames of one name")

    @cached_property
    def is_ours(self) -> bool:
        """Whether this version of the program wrote it: then its computed frames are still valid."""
        return self.made_by == fingerprint()

    def holds(self, name: str) -> bool:
        """Whether it contains this frame; large computed frames are left out."""
        return name in self.small_frames or f"frames/{name}.parquet" in self._archive.NameToInfo

    def is_empty(self, name: str) -> bool:
        """Whether this frame had no rows when the run was saved."""
        return name not in self.frames and name not in self.broken

    def parquet(self, name: str) -> bytes:
        """The Parquet bytes of a frame. Raises SavedError."""
        try:
            return self._archive.read(f"frames/{name}.parquet")
        except (*_DAMAGE, KeyError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, error: BaseException) -> SavedError:
        """The error for a frame that cannot be read."""
        return SavedError(f"{self.path}: is a damaged saved run: frame {name}: {error}")


@cache
def fingerprint() -> str:
    """A digest of the program and its grammars."""
    package = Path(__file__).parents[1]
    grammars = package / "grammars" if (package / "grammars").is_dir() else package.parent / "grammars"
    files = [*sorted(package.rglob("*.py")), *sorted(grammars.glob("*.lark"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def write(
    path: Path,
    manifest: Mapping[str, Any],
    frames: Mapping[str, Callable[[], pl.DataFrame]],
    tables: Mapping[str, Callable[[], pl.DataFrame]],
) -> None:
    """Write a saved run, one frame or table at a time. After an error, `path` still holds the old file."""
    members = {f"frames/{name}.parquet": made for name, made in frames.items()}
    members |= {f"{TABLES}/{name}.parquet": made for name, made in tables.items()}
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_member("mimetype"), TYPE)
        for name, made in members.items():
            encoded = io.BytesIO()  # Polars would report a full disk as a failure of its own
            made().write_parquet(encoded, compression="zstd", statistics=False)
            archive.writestr(_member(name), encoded.getbuffer())
        archive.writestr(_member(MANIFEST), orjson.dumps(manifest))


def _member(name: str) -> zipfile.ZipInfo:
    """A member without a time, so that the same run gives the same bytes."""
    return zipfile.ZipInfo(name)
