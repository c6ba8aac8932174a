"""Make a failing case smaller while it fails in the same way: without files, without lines, without bytes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Files = dict[str, bytes]
Fails = Callable[[Files], bool]


def files_in(folder: Path) -> list[Path]:
    """The regular files below a folder; no links, which may lead anywhere."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def read_files(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_in(folder)}


def write_files(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def reduced(files: Files, fails: Fails, seconds: float) -> Files:
    """Fewer files, then fewer lines, until nothing can be left out or the time is over."""
    end = time.monotonic() + seconds
    names = _fewer(list(files), lambda kept: fails({name: files[name] for name in kept}), end)
    files = {name: files[name] for name in names}
    for name in names:
        separator = b"\n" if files[name].count(b"\n") > 1 else b""
        parts = (
            files[name].split(separator) if separator else [files[name][at : at + 1] for at in range(len(files[name]))]
        )
        if len(parts) > 200_000 or name.endswith(".ncclf"):
            continue
        kept = _fewer(parts, lambda kept: fails({**files, name: separator.join(kept)}), end)  # noqa: B023
        files[name] = separator.join(kept)
    return files


def _fewer(parts: Sequence, fails: Callable[[list], bool], end: float) -> list:
    """The classic of delta debugging: leave out ever smaller blocks."""
    kept, size = list(parts), max(len(parts) // 2, 1)
    while kept and time.monotonic() < end:
        at, smaller = 0, False
        while at < len(kept) and time.monotonic() < end:
            rest = kept[:at] + kept[at + size :]
            if rest and fails(rest):
                kept, smaller = rest, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        size = max(size // 2, 1)
    return kept
