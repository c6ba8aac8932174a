"""A saved run says what its files said, can be read without this program, and harms nobody."""

from __future__ import annotations

import io
import json
import lzma
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import chdir
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze, cli
from ncclforensics.archive import manifest as manifest_file
from ncclforensics.archive import parquet, small_frames
from ncclforensics.archive.write import save
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report import redacted_run, redaction
from ncclforensics.views import json_report
from tests.budget import IS_FULL
from tests.incidents import ALL, INCIDENTS, ROOT, Incident, answer, checked
from tests.test_redaction import diagnosis

LOGS = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")
SAMPLE = [incident for number, incident in enumerate(ALL) if number % (50 if IS_FULL else 90) == 4]
every_sample = pytest.mark.parametrize("incident", SAMPLE, ids=lambda incident: incident.name)
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job in which rank 11 stops, saved."""
    file = tmp_path_factory.mktemp("kept") / "run.ncclf"
    assert cli.main(["save", LOGS, "-o", str(file), "-q"]) == 0
    return file


def said(paths: list[str], *, everything: bool = True) -> dict[str, Any]:
    return json_report.as_object(analyze(paths, everything=everything, full=True))


@every_sample
def test_a_saved_run_gives_the_report_of_its_files(
    incident: Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = checked(incident)
    file = tmp_path / "kept.ncclf"

    with chdir(incident.folder):
        save(answer.report, file)

    assert said([str(file)]) == answer.json
    monkeypatch.setattr(manifest_file, "fingerprint", lambda: "another version")  # which works everything out again
    assert said([str(file)]) == answer.json


@every_sample
def test_a_redacted_saved_run_gives_the_same_verdict(
    incident: Incident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = checked(incident)
    leaving = redacted_run.redact(answer.report, redaction.assign_pseudonyms(answer.report.run))

    with chdir(incident.folder):
        save(leaving, tmp_path / "kept.ncclf")

    assert said([str(tmp_path / "kept.ncclf")]) == json_report.as_object(leaving)
    monkeypatch.setattr(manifest_file, "fingerprint", lambda: "another version")
    assert with_numbers(diagnosis(said([str(tmp_path / "kept.ncclf")]))) == with_numbers(diagnosis(answer.json))


def with_numbers(said_of: dict[str, Any]) -> str:
    """A diagnosis with communicators by number: hashes of RAS are names that a redacted run replaces."""
    ids = dict.fromkeys(finding["communicator"] for finding in said_of["findings"]) | {said_of["communicator"]: None}
    text = repr(said_of)
    for number, name in enumerate(filter(None, ids)):
        text = text.replace(repr(name), f"communicator {number}")
    return text


def test_a_redacted_saved_run_contains_no_original_name(tmp_path: Path) -> None:
    file = tmp_path / "kept.ncclf"
    assert cli.main(["save", LOGS, "-o", str(file), "-q", "--redact"]) == 0

    with zipfile.ZipFile(file) as archive:
        frames = {name: archive.read(name) for name in archive.namelist() if name.endswith(".parquet")}
        text = archive.read("manifest.json").decode()
    text += "".join(repr(pl.read_parquet(data).to_dicts()) for data in frames.values())

    assert "host-02" in text
    assert re.search("gpu-node|nccl_rank|fixtures", text) is None


def test_the_report_of_a_saved_run_quotes_the_lines_without_the_files(kept: Path, tmp_path: Path) -> None:
    assert cli.main(["report", str(kept), "-o", str(tmp_path / "a.json"), "-q"]) == 0

    reported = json.loads((tmp_path / "a.json").read_bytes())
    assert "count 1048576 datatype 9" in reported["findings"][0]["evidence"][-1]["text"]
    assert reported["inputs"][0]["path"].endswith("nccl_rank0.log")


def test_a_saved_run_names_the_traceback_to_read_without_a_command_on_the_file(tmp_path: Path) -> None:
    report = checked(Incident(INCIDENTS / "pytorch-compares-calls-and-they-differ")).report
    save(report, tmp_path / "run.ncclf")

    steps = json_report.as_object(analyze([str(tmp_path / "run.ncclf")]))["hang"]["collect_next"]

    (step,) = (step for step in steps if "traceback" in step)
    assert step == "read the traceback that ends at line 7 of job.log: it names the line of code"


def test_a_saved_run_joins_other_logs(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    shutil.copytree(INCIDENTS / "one-rank-stops-before-an-allreduce", folder, ignore=shutil.ignore_patterns("*.[!l]*"))
    logs = sorted(map(str, folder.glob("*.log")))
    file = tmp_path / "some.ncclf"
    assert cli.main(["save", *logs[3:9], "-o", str(file), "-q"]) == 0

    assert said([str(file), *logs[:3], *logs[9:]]) == said(logs)


def test_rows_of_a_shared_grammar_are_read_once_from_a_saved_run_beside_another_file(tmp_path: Path) -> None:
    dump = "$ perfquery -x 12 1\n# Port counters: Lid 12 port 1\nPortSelect:......................1\n"
    (tmp_path / "a.txt").write_text(dump)
    (tmp_path / "b.txt").write_text(dump.replace("Lid 12", "Lid 13"))
    assert cli.main(["save", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.ncclf"), "-q"]) in (0, 1)

    run = open_run(find([str(tmp_path / "a.ncclf"), str(tmp_path / "b.txt")]), ReadPolicy(full=True))

    assert run["dump_command"].height == 2


def test_a_saved_run_can_be_limited_to_a_time_range(tmp_path: Path) -> None:
    folder = INCIDENTS / "one-rank-comes-late-to-every-step"
    logs = sorted(map(str, folder.glob("*.log")))
    assert cli.main(["save", *logs, "-o", str(tmp_path / "a.ncclf"), "-q"]) == 0

    asked = {"everything": True, "since": "11:05:25"}
    assert json_report.as_object(analyze([str(tmp_path / "a.ncclf")], **asked)) == json_report.as_object(
        analyze(logs, **asked)
    )


def test_hang_reads_no_large_frame_of_a_saved_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    frame = parquet.frame

    def noted(one: manifest_file.Saved, name: str, *schema: Any) -> pl.DataFrame:
        read.append(name)
        return frame(one, name, *schema)

    monkeypatch.setattr(parquet, "frame", noted)
    shown = json_report.as_object(analyze([str(kept)]))

    assert shown["hang"]["culprits"] == [11]
    assert not {"operation", "call", "replay", "connection"} & set(read)


def test_a_large_computed_frame_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclforensics.archive.write.MOST_COMPUTED", 100)
    report = analyze([LOGS], everything=True)
    report.run["call"]
    save(report, tmp_path / "kept.ncclf")

    with zipfile.ZipFile(tmp_path / "kept.ncclf") as archive:
        assert "frames/call.parquet" not in archive.namelist()
    run = analyze([str(tmp_path / "kept.ncclf")]).run
    assert run["call"].equals(report.run["call"])


def test_a_small_log_is_saved_in_fewer_bytes_than_it_has(tmp_path: Path) -> None:
    log = Path(LOGS.replace("*", "nccl_rank0"))
    assert cli.main(["save", str(log), "-o", str(tmp_path / "a.ncclf"), "-q"]) == 0

    assert (tmp_path / "a.ncclf").stat().st_size < log.stat().st_size


def test_values_that_json_cannot_hold_are_not_packed() -> None:
    frames = {
        "fine": pl.DataFrame(
            {"a": [1.5, None], "b": [[1], []], "c": [2**64 - 1, 0]}, schema_overrides={"c": pl.UInt64}
        ),
        "infinite": pl.DataFrame({"a": [float("inf")]}),
        "moments": pl.DataFrame({"a": [datetime(2026, 1, 1)]}),
        "long": pl.DataFrame({"a": range(small_frames.FEW + 1)}),
    }

    packed = small_frames.pack(frames)

    assert packed["frame"].to_list() == ["fine", "fine"]
    assert small_frames.unpack(packed["row"].to_list(), frames["fine"].schema).equals(frames["fine"])


def test_a_saved_run_of_an_older_version_gives_the_diagnosis_of_its_files(tmp_path: Path) -> None:
    (incident,) = (incident for incident in ALL if incident.name == "a-rehearsed-hang")
    packed = ROOT / "fixtures" / "saved" / f"{incident.name}.schema-1.ncclf.xz"
    (tmp_path / "older.ncclf").write_bytes(lzma.decompress(packed.read_bytes()))

    of_files = answer(incident).json

    assert diagnosis(said([str(tmp_path / "older.ncclf")], everything=False)) == diagnosis(of_files)


def test_a_column_that_was_saved_as_words_is_read_as_numbers(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older.ncclf"
    with zipfile.ZipFile(kept) as archive, zipfile.ZipFile(older, "w", zipfile.ZIP_STORED) as rewritten:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "frames/operation.parquet":
                words = io.BytesIO()
                pl.read_parquet(io.BytesIO(data)).with_columns(pl.col("count").cast(pl.String)).write_parquet(words)
                data = words.getvalue()
            rewritten.writestr(zipfile.ZipInfo(name), data)
    monkeypatch.setattr(manifest_file, "fingerprint", lambda: "another version")

    assert analyze([str(older)]).run["operation"].equals(analyze([str(kept)]).run["operation"])


def test_a_saved_run_in_a_folder_of_logs_counts_nothing_twice(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(kept, tmp_path / "run.ncclf")
    shutil.copy(LOGS.replace("*", "nccl_rank0"), tmp_path)

    assert [one["lines"] for one in said([str(tmp_path)])["inputs"]] == [69, 0]
    (tmp_path / "nccl_rank0.log").unlink()
    assert cli.main(["hang", str(tmp_path)]) == 2
    assert "name it itself to read it" in capsys.readouterr().err


def test_a_failed_save_keeps_the_old_file(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.ncclf"
    shutil.copy(kept, file)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    assert cli.main(["save", LOGS, "-o", str(file), "-q"]) == 2

    assert file.read_bytes() == kept.read_bytes()
    assert list(tmp_path.iterdir()) == [file]


def test_the_same_logs_make_the_same_file(kept: Path, tmp_path: Path) -> None:
    assert cli.main(["save", LOGS, "-o", str(tmp_path / "again.ncclf"), "-q"]) == 0

    with zipfile.ZipFile(kept) as one, zipfile.ZipFile(tmp_path / "again.ncclf") as other:
        assert one.namelist() == other.namelist()
        manifests = [json.loads(archive.read("manifest.json")) for archive in (one, other)]
    times = [[entry.pop("observed") for entry in manifest["inputs"]] for manifest in manifests]
    assert manifests[0] == manifests[1]
    assert max(times[0]) < min(times[1])  # when each was read is all that differs


def changed(kept: Path, file: Path, change: Change, *, pack: int = zipfile.ZIP_STORED) -> None:
    """The same archive with members added, taken away or changed; checksums fit, as whoever means harm would see to."""
    with zipfile.ZipFile(kept) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, pack if name != "mimetype" else None)


def manifest(key: str, value: Any) -> Change:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | {key: value}).encode()

    return change


def of_first_input(key: str, value: int) -> Change:
    def change(members: dict[str, bytes]) -> None:
        contents = json.loads(members["manifest.json"])
        contents["inputs"][0][key] = value
        members["manifest.json"] = json.dumps(contents).encode()

    return change


BEYOND_BOUNDS = [("lines_read", 2**63), ("recognised", 2**63), ("damaged", -1), ("bytes", 2**63), ("rank_hint", 2**40)]


def member(name: str, data: bytes) -> Change:
    return lambda members: members.update({name: data})


def frame(name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Change:
    """Another content of a frame."""

    def rewrite(members: dict[str, bytes]) -> None:
        packed = pl.read_parquet(members["frames/small_frames.parquet"]).filter(frame=name)["row"]
        contents = json.loads(members["manifest.json"])
        contents["small_frames"] = [other for other in contents["small_frames"] if other != name]
        members["manifest.json"] = json.dumps(contents).encode()
        file, rows = f"frames/{name}.parquet", io.BytesIO()
        before = pl.read_parquet(members[file]) if file in members else pl.DataFrame(list(map(json.loads, packed)))
        change(before).write_parquet(rows)
        members[file] = rows.getvalue()

    return rewrite


def small_rows(name: str, rows: pl.Expr) -> Change:
    """Other rows of a frame among the small ones, as JSON."""

    def rewrite(members: dict[str, bytes]) -> None:
        packed = pl.read_parquet(members["frames/small_frames.parquet"])
        file = io.BytesIO()
        packed.with_columns(row=pl.when(frame=name).then(rows).otherwise("row")).write_parquet(file)
        members["frames/small_frames.parquet"] = file.getvalue()

    return rewrite


def rows_of_zeros(rows: pl.DataFrame) -> pl.DataFrame:
    """80 MB in 0.1 MB of a file."""
    return rows.head(1).select(pl.exclude(pl.String, pl.Categorical)).select(pl.all().repeat_by(6_000_000).explode())


def one_long_text(rows: pl.DataFrame) -> pl.DataFrame:
    """100 MB in 4 KB of a file."""
    return rows.head(1).with_columns(text=pl.lit("x" * 100_000_000))


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (frame("rank", rows_of_zeros), "is no saved run of this program: rank would take 6000000 rows"),
        (frame("cited", one_long_text), "is no saved run of this program: cited would take 1 rows and 100000"),
        (frame("verdict", lambda rows: rows.with_columns(verdict=pl.lit("fine").cast(rows.schema["verdict"]))),
         "verdict holds an unknown verdict: fine"),
        (frame("verdict", lambda rows: rows.with_columns(certainty=pl.lit(None).cast(rows.schema["certainty"]))),
         "verdict holds an unknown certainty: None"),
        (frame("rank", lambda rows: rows.with_columns(rank=pl.lit(1 << 40))), "is a damaged saved run: frame rank"),
        (frame("rank", lambda rows: rows.with_columns(source=99)), "names a file that is not there"),
        (small_rows("rank", pl.lit("[" * 100_000)), "is a damaged saved run: frame rank"),
        (small_rows("rank", pl.lit("[1]")), "is a damaged saved run: frame rank"),
        (small_rows("rank", pl.lit('{"rank": {"a": 1}}')), "is a damaged saved run: frame rank"),
        (small_rows("rank", pl.lit(f'{{"rank": {1 << 40}}}')), "is a damaged saved run: frame rank"),
        (small_rows("rank", pl.lit("{},{}")), "is a damaged saved run: frame rank"),
        (manifest("schema", 4), "was saved by ncclforensics 0.1.0 with schema 4; this version reads up to 3"),
        (manifest("inputs", [{"path": 7}]), "is a damaged saved run"),
        (manifest("inputs", "../../etc/passwd"), "is a damaged saved run"),
        (manifest("frames", {"rank": -1, "../x": "y"}), "is a damaged saved run"),
        (member("manifest.json", b"[" * 100_000), "is a damaged saved run"),
        *((of_first_input(key, value), "is a damaged saved run") for key, value in BEYOND_BOUNDS),
        (member("../../outside.parquet", b""), "it holds what does not belong there"),
        (member("frames/../outside.parquet", b""), "it holds what does not belong there"),
        (member("code.py", b""), "it holds what does not belong there"),
        (member("frames/small_frames.parquet", b"PAR1 of no use PAR1"), "is a damaged saved run"),
        (member("frames/rank.parquet", b""), "two frames of one name"),
    ],
)  # fmt: skip
def test_malicious_saved_runs_are_refused(
    change: Change, reported: str, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(kept, tmp_path / "bad.ncclf", change)

    assert cli.main(["hang", str(tmp_path / "bad.ncclf")]) == 2
    assert reported in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.ncclf"]


def test_packed_members_are_refused(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(kept, tmp_path / "bad.ncclf", lambda members: None, pack=zipfile.ZIP_DEFLATED)

    assert cli.main(["hang", str(tmp_path / "bad.ncclf")]) == 2
    assert "its files are packed" in capsys.readouterr().err


def test_a_frame_larger_than_any_run_is_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parquet, "MOST_CELLS", 10)

    assert cli.main(["hang", str(kept)]) == 2
    assert "is no saved run of this program" in capsys.readouterr().err


def test_one_damaged_saved_run_stops_no_other_input(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.ncclf").write_bytes(kept.read_bytes()[:20_000])

    reported = said([str(tmp_path / "cut.ncclf"), LOGS])

    assert reported["hang"]["culprits"] == [11]
    assert "is a damaged saved run" in "".join(problem for one in reported["inputs"] for problem in one["problems"])


def test_a_saved_run_that_lost_its_quotes_is_judged_without_them(kept: Path, tmp_path: Path) -> None:
    changed(kept, tmp_path / "bad.ncclf", member("frames/cited.parquet", b"PAR1 of no use PAR1"))

    reported = said([str(tmp_path / "bad.ncclf")])

    assert reported["hang"]["culprits"] == [11]
    assert "the texts of lines in its saved run are lost" in reported["inputs"][0]["problems"][0]


def test_problems_of_a_forged_saved_run_are_printed_without_controls(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(members: dict[str, bytes]) -> None:
        contents = json.loads(members["manifest.json"])
        contents["inputs"][0]["problems"] = ["is \x1b[31mred\u202e\nor two lines"]
        members["manifest.json"] = json.dumps(contents).encode()

    changed(kept, tmp_path / "bad.ncclf", change)

    cli.main(["check", str(tmp_path / "bad.ncclf"), "--format", "json"])

    output = capsys.readouterr()
    assert "is ?[31mred??or two lines" in output.err
    assert "\u202e" not in output.out


@pytest.mark.parametrize("at", range(100, 40_000, 9_749))
def test_a_flipped_bit_is_detected_or_harmless(at: int, kept: Path, tmp_path: Path) -> None:
    data = bytearray(kept.read_bytes())
    data[at % len(data)] ^= 4
    (tmp_path / "bad.ncclf").write_bytes(data)

    assert cli.main(["hang", str(tmp_path / "bad.ncclf"), "-q"]) in (1, 2)
