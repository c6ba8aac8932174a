"""What files lie in: compressed files, archives within archives, and what a file system does."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import zstandard

from tests.fuzz.ingredients import all_examples, faulty_incident, logs_of, small_incidents, write
from tests.fuzz.mutation import Draw, mutate_bytes, mutate_lines

PACKERS: tuple[Callable[[bytes], bytes], ...] = (
    gzip.compress,
    bz2.compress,
    lzma.compress,
    zstandard.compress,
)


def compressed(draw: Random, folder: Path) -> None:
    """Compressed logs that are cut, damaged, doubled, or hold another compressed file."""
    files = {}
    for name, data in logs_of(draw.choice(small_incidents())).items():
        if draw.random() < 0.2:
            data = data[:200] + draw.choice((b"\n", b"\0", b"a")) * 30_000_000  # a bomb
        packed = draw.choice(PACKERS)(data)
        if draw.random() < 0.6:
            packed = mutate_bytes(draw, packed)
        if draw.random() < 0.1:
            packed = draw.choice(PACKERS)(packed)
        files[f"{name}.gz"] = packed
    write(folder, files)


def _packed(draw: Random, files: Mapping[str, bytes], depth: int) -> bytes:
    """An archive; some of its files are archives, too, and some have names that lead elsewhere."""
    names = (
        "../../etc/passwd",
        "/etc/passwd",
        "a\nb.log",
        "\x1b[31m.log",
        "x/" * 200 + "deep.log",
        ".",
        "rank0.log",
        "\u202e.log",
    )
    members = [(draw.choice(names) if draw.random() < 0.1 else name, data) for name, data in files.items()]
    if depth:
        members.append((f"inner{depth}.tar", _packed(draw, files, depth - 1)))
    file = io.BytesIO()
    if draw.random() < 0.5:
        with zipfile.ZipFile(file, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for name, data in members:
                archive.writestr(zipfile.ZipInfo(name), data)
    else:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.type = draw.choice((tarfile.REGTYPE,) * 8 + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
                member.linkname, member.size = "/etc/passwd", len(data) if member.isreg() else 0
                tar.addfile(member, io.BytesIO(data))
    return draw.choice((bytes, *PACKERS))(file.getvalue())


def archives(draw: Random, folder: Path) -> None:
    """Tar and zip archives within archives, damaged or with members that are no files."""
    files = {}
    for number in range(draw.randrange(1, 4)):
        packed = _packed(draw, logs_of(draw.choice(small_incidents()), 5), draw.choice((0, 1, 3)))
        files[f"incident-{number}.tar"] = mutate_bytes(draw, packed) if draw.random() < 0.4 else packed
    write(folder, files)


def folders(draw: Draw, folder: Path) -> None:
    """What a file system does: links in circles, pipes, holes, folders with names of logs, many small files."""
    faulty_incident(draw, folder)
    names = [path for path in folder.rglob("*") if path.is_file()]
    for number in range(draw.choice((3, 30, 60))):
        path, log = folder / f"nccl_rank{number}.extra.log", draw.choice(names)
        kind = draw.randrange(9)
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            path.symlink_to(
                draw.choice((path, folder, log, Path("/nowhere"), Path("/dev/zero"), Path("/proc/self/mem")))
            )
        elif kind == 2:
            os.mkfifo(path)
        elif kind == 3:
            with open(path, "wb") as file:
                file.write(log.read_bytes()[:500])
                file.truncate(draw.choice((1 << 20, 20 << 20)))
        elif kind == 4:
            path.hardlink_to(log)
        elif kind == 5:
            path.write_bytes(b"\n".join(mutate_lines(draw, log.read_bytes().split(b"\n")[:20], all_examples(), 0.5)))
        elif kind == 6:
            path.write_bytes(
                draw.choice((b"", b"\0", b"\n", b"\xef\xbb\xbf", b"\x1f\x8b", b"PK\x03\x04", b"{", b"\x80\x02"))
            )
        elif kind == 7:
            path.write_bytes(mutate_bytes(draw, log.read_bytes()[:2000]))
        else:
            inner = folder / ("d/" * draw.choice((1, 50, 300))) / f"rank{number}.log"
            inner.parent.mkdir(parents=True, exist_ok=True)
            inner.write_bytes(log.read_bytes()[:3000])
