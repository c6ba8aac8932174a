"""Paths become sources of bytes; what cannot be read says why and stops nobody else."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from ncclforensics import analyze
from ncclforensics.errors import NoInputError, UsageError
from ncclforensics.inputs import sources
from ncclforensics.inputs.sources import Source, find

LOG = b"gpu-a012:41887:42107 [3] NCCL INFO Connected all rings\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}

every_compression = pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)


@pytest.fixture(autouse=True)
def _copies_of_pipes_are_removed() -> Iterator[None]:
    yield
    sources.forget_spooled()


def content(source: Source) -> bytes:
    with source.open() as stream:
        return stream.read()


def names(found: list[Source], folder: Path) -> list[str]:
    return [Path(source.path).relative_to(folder).as_posix() for source in found]


def written(path: Path, data: bytes = LOG) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_file_is_one_source_named_as_the_user_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "rank0.log")
    monkeypatch.chdir(tmp_path)

    (source,) = find(["rank0.log"])

    assert (source.path, source.size, content(source)) == ("rank0.log", len(LOG), LOG)


def test_a_folder_is_walked_in_the_order_of_its_names_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "node1/c.log", ".hidden", ".git/d.log"):
        written(tmp_path / name)

    assert names(find([str(tmp_path)]), tmp_path) == ["a.log", "b.log", "node1/c.log"]


def test_a_pattern_names_every_file_it_matches(tmp_path: Path) -> None:
    for name in ("x/rank0.log", "x/rank1.log", "x/other.txt"):
        written(tmp_path / name)

    assert names(find([str(tmp_path / "**" / "rank*.log")]), tmp_path) == ["x/rank0.log", "x/rank1.log"]


def test_a_file_whose_name_looks_like_a_pattern_is_taken_by_its_name(tmp_path: Path) -> None:
    written(tmp_path / "job[1].log")

    assert names(find([str(tmp_path / "job[1].log")]), tmp_path) == ["job[1].log"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    written(tmp_path / "logs/a.log")
    (tmp_path / "latest").symlink_to("logs")

    assert len(find([str(tmp_path / name) for name in ("logs", "logs/a.log", "latest", "logs/../logs/a.log")])) == 1


def test_a_file_name_that_is_not_utf_8_is_accepted(tmp_path: Path) -> None:
    try:
        written(Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffnk.log")))
    except OSError:
        pytest.skip("this file system refuses such names")

    (source,) = find([str(tmp_path)])

    assert source.path.endswith("r\\xffnk.log")


@every_compression
def test_a_compressed_file_is_read_as_it_is_whatever_its_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (source,) = find([str(written(tmp_path / "rank0.log", pack(LOG * 1000)))])

    assert content(source) == LOG * 1000
    assert not source.seekable


@every_compression
def test_concatenated_compressed_members_are_all_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (source,) = find([str(written(tmp_path / "rank0", pack(LOG) + pack(b"second\n")))])

    assert content(source) == LOG + b"second\n"


@every_compression
def test_a_truncated_compressed_file_is_reported(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (source,) = find([str(written(tmp_path / "rank0", pack(LOG * 1000)[:-9]))])

    with pytest.raises(sources.DAMAGED_ARCHIVE):
        content(source)


def test_compression_is_detected_by_content_not_by_suffix(tmp_path: Path) -> None:
    (source,) = find([str(written(tmp_path / "rank0.log.gz", LOG))])

    assert content(source) == LOG


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(gzip.compress(LOG))))

    (source,) = find(["-"])

    assert source.path == "-"
    assert content(source) == content(source) == LOG


def test_a_pipe_in_a_folder_is_skipped_and_named(tmp_path: Path) -> None:
    written(tmp_path / "a.log")
    os.mkfifo(tmp_path / "pipe")

    assert [source.problem for source in find([str(tmp_path)])] == ["", "is neither a file nor a folder"]


def test_a_missing_path_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    found = find([str(tmp_path / "gone.log"), str(written(tmp_path / "a.log"))])

    assert [source.problem for source in found] == ["does not exist", ""]


def test_a_dangling_link_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    written(tmp_path / "a.log")
    (tmp_path / "b.log").symlink_to("gone")

    assert [source.problem for source in find([str(tmp_path)])] == ["", "cannot be read: No such file or directory"]


@pytest.mark.parametrize("name", ["secret.log", "secret"])
def test_an_unreadable_file_is_named_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    written(tmp_path / "a.log")
    locked = written(tmp_path / "secret.log") if name.endswith(".log") else written(tmp_path / "secret/b.log").parent
    locked.chmod(0)
    if os.access(locked, os.R_OK):
        pytest.skip("this user may read everything")

    found = find([str(tmp_path)])
    locked.chmod(0o700)

    assert [source.problem for source in found] == ["", "cannot be read: Permission denied"]


def test_nothing_readable_at_all_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match=r"gone\.log does not exist"):
        find([str(tmp_path / "gone.log")])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match="no file in"):
        find([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "rank"), [("rank3.log", 3), ("job_rank-12/out", 12), ("Frank.log", None), ("x.log", None)]
)
def test_a_name_is_a_hint_for_the_rank(tmp_path: Path, name: str, rank: int | None) -> None:
    (source,) = find([str(written(tmp_path / name))])

    assert source.rank_hint == rank


def test_rank_from_sets_how_a_file_name_gives_the_rank(tmp_path: Path) -> None:
    (source,) = find([str(written(tmp_path / "out.7.txt"))], rank_from=r"out\.(\d+)")

    assert source.rank_hint == 7


@pytest.mark.parametrize("pattern", ["(", "rank"])
def test_a_rank_pattern_without_a_group_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="--rank-from"):
        find([str(tmp_path)], rank_from=pattern)


def packed_tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def packed_zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


ARCHIVES: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": packed_tar,
    "tar.gz": lambda members: packed_tar(members, "w:gz"),
    "tar.zst": lambda members: zstandard.ZstdCompressor().compress(packed_tar(members)),
    "zip": packed_zip,
}
every_archive = pytest.mark.parametrize("pack_all", ARCHIVES.values(), ids=ARCHIVES)


@every_archive
def test_the_files_in_an_archive_are_sources(pack_all: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    members = {"job/rank0.log": LOG, "job/rank1.log.gz": gzip.compress(LOG * 2), "job/.hidden": LOG}
    path = written(tmp_path / "incident", pack_all(members))

    found = find([str(path), str(path)])

    assert names(found, tmp_path) == ["incident/job/rank0.log", "incident/job/rank1.log.gz"]
    assert [(content(source), source.rank_hint, source.archive) for source in found] == [
        (LOG, 0, path),
        (LOG * 2, 1, path),
    ]


@every_archive
def test_names_in_an_archive_are_no_paths(pack_all: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    outside = tmp_path / "outside.log"
    path = written(
        tmp_path / "in" / "incident", pack_all({"../outside.log": LOG, str(outside): LOG, "a\n\x1b[1m": LOG})
    )

    found = find([str(path)])

    assert [content(source) for source in found] == [LOG] * 3
    assert not outside.exists()


def test_links_and_devices_in_an_archive_are_left_out(tmp_path: Path) -> None:
    written(tmp_path / "secret.txt", b"secret")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("link.log")
            member.type, member.linkname = kind, str(tmp_path / "secret.txt")
            archive.addfile(member)

    with pytest.raises(NoInputError, match="an archive without files"):
        find([str(written(tmp_path / "links.tar", file.getvalue()))])


def test_what_a_cut_archive_holds_is_read(tmp_path: Path) -> None:
    data = packed_tar({"rank0.log": LOG, "rank1.log": LOG * 1000})
    path = written(tmp_path / "cut.tar", data[: len(data) // 2])

    first, *_, damage = find([str(path)])

    assert content(first) == LOG
    assert "damaged archive" in damage.problem


@every_archive
def test_an_archive_that_grows_too_large_is_read_in_part(
    pack_all: Callable[[dict[str, bytes]], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.inputs.archives.MOST_BYTES", 1 << 20)
    path = written(tmp_path / "bomb", pack_all({"rank0.log": LOG, "zeros.log": bytes(50 << 20), "rank2.log": LOG}))

    *found, rest = find([str(path)])

    assert sum(source.file.stat().st_size for source in found) <= 1 << 20
    assert "too large" in rest.problem


@pytest.mark.parametrize("compress", [bz2.compress, zstandard.compress], ids=["bz2", "zst"])
def test_a_compressed_file_that_grows_too_large_is_read_in_part(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.inputs.archives.ALWAYS_UNPACKED", 1 << 20)
    path = written(tmp_path / "bomb", compress(LOG + b"\n" * (4 << 20)))

    ((_, problem),) = analyze([str(path)], everything=True).input_problems()

    assert "it unpacks to more than 1,000 times its size; the rest is left out" in problem


@pytest.mark.parametrize("pack_all", [ARCHIVES["zip"], lambda members: gzip.compress(*members.values())])
def test_a_document_that_unpacks_to_much_more_is_read_in_part(
    pack_all: Callable[[dict[str, bytes]], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document is read as a whole: values take ten times the memory of their bytes."""
    monkeypatch.setattr("ncclforensics.inputs.archives.ALWAYS_OF_DOCUMENT", 1 << 20)
    document = b'{"version": "2.4", "pg_config": {}, "entries": [{"state": "completed"},' + b" " * (5 << 20) + b"{}]}"
    path = written(tmp_path / "bomb", pack_all({"nccl_trace_rank_0": document}))

    problems = [problem for _, problem in analyze([str(path)], everything=True).input_problems()]

    assert problems == [
        "is damaged: it unpacks to more than 1 MiB of one document; unpack it to read all",
        "is JSON that was cut off",
    ]


def test_a_document_of_several_dumps_that_unpacks_to_much_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.inputs.archives.ALWAYS_OF_DOCUMENT", 1 << 20)
    path = written(tmp_path / "dumps.gz", gzip.compress(b'[{"entries": [{}]},' + b" " * (5 << 20) + b"{}]"))

    with pytest.raises(NoInputError, match="more than 1 MiB of one document"):
        find([str(path)])


def test_a_dump_that_is_nested_too_deeply_costs_only_itself(tmp_path: Path) -> None:
    nested = b'{"entries": [' + b"[" * 400 + b"]" * 400 + b"]}"
    path = written(tmp_path / "dumps.json", b'[{"entries": [{}]}, ' + nested + b"]")

    found, rest = find([str(path)])

    assert content(found) == b'{"entries":[{}]}'
    assert "nested too deeply" in rest.problem


def test_an_export_of_empty_objects_is_named_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclforensics.inputs.tolerant_json.LARGE", 1 << 16)
    record = b'[{"message": "a:1:1 [0] NCCL INFO x", "timestamp": "2026-01-01T00:00:00Z"},'
    path = written(tmp_path / "export.json", record + b"{}," * (1 << 16))

    ((_, problem),) = analyze([str(path)], everything=True).input_problems()

    assert "empty objects" in problem


def test_a_name_in_a_tar_archive_is_bounded(tmp_path: Path) -> None:
    """Python's tarfile reads it into memory, however much its header announces."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    first = packed_tar({"rank0.log": LOG})[: 512 * (1 + -(-len(LOG) // 512))]

    found, damage = find([str(written(tmp_path / "a.tar", first + header.tobuf(tarfile.GNU_FORMAT) + b"a" * 4096))])

    assert content(found) == LOG
    assert "is a damaged archive: a name that is too long" in damage.problem
