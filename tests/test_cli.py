"""The command line: exit codes, the contract's JSON, where output goes, and that no input ends in a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import __version__
from ncclforensics.cli import main
from ncclforensics.data.installation import install_command
from tests import incidents
from tests.incidents import INCIDENTS, ROOT

pytestmark = pytest.mark.usefixtures("shared_analyses")

LAGGING = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")
HEALTHY = str(INCIDENTS / "a-healthy-run" / "*.log")
UNDECIDABLE = str(INCIDENTS / "init-only" / "*.log")
SAME_CALL = str(INCIDENTS / "a-straggler-that-always-arrives" / "*.log")
INFO = "n1:12:12 [0] NCCL INFO "

Said = tuple[int, str, str]


@pytest.fixture
def say(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Said]:
    """`say("hang", path)`: exit code, stdout and stderr of a command, run in this process."""

    def run(*argv: str) -> Said:
        code = main(list(argv))
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


@pytest.mark.parametrize(
    ("paths", "code"),
    [(HEALTHY, 0), (LAGGING, 1), (UNDECIDABLE, 3), (SAME_CALL, 3)],
    ids=["healthy", "lagging", "undecidable", "in the same call"],
)
def test_the_exit_code_depends_on_the_verdict(say: Callable[..., Said], paths: str, code: int) -> None:
    assert say("hang", paths)[0] == code


def test_the_help_cuts_no_sentence(say: Callable[..., Said]) -> None:
    code, printed, _ = say("--help")

    assert code == 0
    assert "..." not in printed.partition("Commands:")[2]


@pytest.mark.parametrize(("threshold", "code"), [("error", 1), ("warning", 1), ("never", 0)])
def test_fail_on_sets_the_exit_code(say: Callable[..., Said], threshold: str, code: int) -> None:
    assert say("hang", LAGGING, "--fail-on", threshold)[0] == code


@pytest.mark.parametrize(
    "argv",
    [
        ["hang"],
        ["hang", "--bogus", HEALTHY],
        ["hang", "--fail-on", "nonsense", HEALTHY],
        ["hang", "--format", "yaml", HEALTHY],
        ["bogus"],
    ],
)
def test_wrong_usage_is_2(say: Callable[..., Said], argv: list[str]) -> None:
    code, out, err = say(*argv)

    assert (code, out) == (2, "")
    assert "Error" in err


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("rank(", "unterminated subpattern"), ("rank[0-9]+", "needs a group")],
    ids=["dump_damage", "groupless"],
)
def test_a_bad_rank_pattern_is_2_and_one_sentence(say: Callable[..., Said], pattern: str, message: str) -> None:
    code, out, err = say("hang", HEALTHY, "--rank-from", pattern)

    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_path_that_is_not_there_is_2_and_one_sentence(say: Callable[..., Said]) -> None:
    assert say("hang", "nowhere/at-all.log") == (2, "", "ncclforensics: nowhere/at-all.log does not exist\n")


def test_an_empty_folder_is_2(say: Callable[..., Said], tmp_path: Path) -> None:
    assert say("hang", str(tmp_path)) == (2, "", f"ncclforensics: no file in {tmp_path}\n")


def test_a_document_of_an_office_program_is_no_archive_of_logs(say: Callable[..., Said], tmp_path: Path) -> None:
    document = tmp_path / "incident.docx"
    with zipfile.ZipFile(document, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", "<w:t>NCCL WARN</w:t>")

    code, out, err = say("hang", str(document))

    assert (code, out) == (2, "")
    assert err.endswith("incident.docx is a document of Word or another office program: save its text as a .txt file\n")


@pytest.mark.parametrize(
    ("file", "content", "command"),
    [
        ("pipx_metadata.json", "{}", "pipx inject ncclforensics 'ncclforensics[tui]'"),
        ("uv-receipt.toml", "", "uv tool install 'ncclforensics[tui]'"),
        ("pyvenv.cfg", "home = /usr/bin\nuv = 0.8.0\n", "uv pip install --python {} 'ncclforensics[tui]'"),
        ("pyvenv.cfg", "home = /usr/bin\n", "pip install 'ncclforensics[tui]'"),
    ],
)
def test_an_extra_is_added_as_the_program_was_installed(tmp_path: Path, file: str, content: str, command: str) -> None:
    (tmp_path / file).write_text(content)

    assert install_command("tui", tmp_path) == command.format(tmp_path)


def test_one_missing_path_does_not_stop_the_others(say: Callable[..., Said]) -> None:
    code, out, err = say("hang", HEALTHY, "nowhere.log", "--format", "json")

    assert code == 0
    assert err == "nowhere.log does not exist\n"
    assert json.loads(out)["inputs"][-1]["problems"] == ["does not exist"]


def test_a_binary_file_is_named_and_skipped(say: Callable[..., Said], tmp_path: Path) -> None:
    picture = tmp_path / "plot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + zlib.compress(os.urandom(4096)))

    code, out, err = say("hang", str(picture))

    assert code == 3
    assert err == f"{picture} is not a log: binary data, skipped\n"
    assert "Traceback" not in out


def test_equal_problems_of_many_files_are_reported_once(say: Callable[..., Said], tmp_path: Path) -> None:
    for rank in range(12):
        (tmp_path / f"flight.rank{rank}").write_bytes(b"\x80\x02" + os.urandom(300))

    _, out, err = say("hang", str(tmp_path))

    problem = "is not a log: a pickle other than a Flight Recorder dump, skipped"
    assert err == f"{tmp_path}/flight.rank0 {problem} (and 11 more files)\n"
    assert out.count("flight.rank") == 1


def test_a_log_without_nccl_lines_is_3_and_says_what_to_set(say: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("loading the data\n" * 50)

    code, out, err = say("hang", str(tmp_path))

    assert (code, err) == (3, "")
    assert "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL" in out


def test_standard_input_is_a_source(say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    with open(INCIDENTS / "one-process-drives-all-gpus" / "nccl_rank0.log", "rb") as log:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": log}))

        code, out, _ = say("hang", "-", "--format", "json")

    assert code == 1
    assert json.loads(out)["hang"]["culprits"] == [6]


def test_the_report_goes_into_a_file(say: Callable[..., Said], tmp_path: Path) -> None:
    on_screen = say("hang", LAGGING)[1]

    code, out, err = say("hang", LAGGING, "-o", str(tmp_path / "report.txt"))

    assert (code, out, err) == (1, "", "")
    assert (tmp_path / "report.txt").read_text() == on_screen


def test_a_file_that_cannot_be_written_is_2_and_one_sentence(say: Callable[..., Said], tmp_path: Path) -> None:
    code, out, err = say("hang", HEALTHY, "-o", str(tmp_path / "no" / "report.txt"))

    assert (code, out) == (2, "")
    assert err == f"ncclforensics: {tmp_path}/no/report.txt cannot be written: No such file or directory\n"


def test_quiet_prints_nothing_on_stderr(say: Callable[..., Said]) -> None:
    assert say("hang", HEALTHY, "nowhere.log", "--quiet")[2] == ""


def test_verbose_adds_the_last_call_of_every_rank(say: Callable[..., Said]) -> None:
    heading = "LAST CALL OF EVERY RANK"

    assert heading not in say("hang", LAGGING)[1]
    shown = say("hang", LAGGING, "-v")[1].partition(heading)[2].partition("RUN NOW")[0]
    assert len(shown.strip().splitlines()) >= 1 + 16


def test_there_is_no_colour_off_a_terminal_nor_where_it_is_refused(
    say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")

    assert "\x1b" not in say("hang", LAGGING)[1]
    assert "\x1b" not in say("hang", LAGGING, "--no-color")[1]


@pytest.mark.parametrize("value", ["1", "0", "yes, please"])
def test_any_value_of_no_color_is_taken(say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    code, out, _ = say("hang", LAGGING, "-q")

    assert code == 1
    assert "LAGGING-RANKS  (likely)" in out


@pytest.mark.parametrize("columns", ["40", "100"])
def test_a_pipe_and_a_file_get_everything_whatever_the_height_of_the_terminal(
    say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "10")
    output = tmp_path / "report.txt"

    printed = say("hang", LAGGING, "--format", "text")[1]
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((int(columns), 10)))
    say("hang", LAGGING, "-o", str(output))

    assert output.read_text() == printed
    assert all(f"nccl_rank{rank}.log" in printed.partition("waiting:")[2] for rank in (8, 9, 11))
    assert "ALSO CONSIDERED" in printed


def test_the_rank_is_taken_from_the_path_where_the_log_has_none(say: Callable[..., Said], tmp_path: Path) -> None:
    for name in ("worker-4.log", "worker-7.log"):
        (tmp_path / name).write_text(INFO.replace("12", name[7] * 3) + "Bootstrap : Using eth0:10.0.0.1<0>\n")

    _, out, _ = say("hang", str(tmp_path), "--rank-from", r"worker-(\d+)", "--format", "json")

    assert json.loads(out)["run"]["ranks_seen"] == [4, 7]


def test_the_demo_shows_a_verdict(say: Callable[..., Said]) -> None:
    code, out, err = say("demo")

    assert (code, err) == (1, "")
    assert "LAGGING-RANKS" in out
    assert "rank 11" in out


def test_version_prints_the_version(say: Callable[..., Said]) -> None:
    code, out, err = say("--version")

    assert (code, out.splitlines()[0], err) == (0, f"ncclforensics {__version__}", "")


def test_version_says_which_extras_are_installed(say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "polars<3,>=2.1",
        "pytest>=8; extra == 'dev'",
        'mcp[ws]<3,>=2; extra == "mcp"',
        "no-such>=1; extra == 'x'",
    ]
    monkeypatch.setattr("ncclforensics.cli.extras.requires", lambda name: [*wanted, "orjson; extra == 'x'"])
    monkeypatch.setattr("ncclforensics.cli.extras.version", {"mcp": "2", "orjson": "3"}.__getitem__)
    monkeypatch.setattr("ncclforensics.cli.extras.PackageNotFoundError", KeyError)

    said = say("--version")[1].splitlines()[1:]

    assert said == ["extras installed: mcp", "extras not installed: x (no-such)"]


def test_control_characters_of_logs_and_file_names_are_not_printed(say: Callable[..., Said], tmp_path: Path) -> None:
    evil = b"\x1b]0;pwned\x07\x1b[2J\x9b31m\xc2\x9b31m\x7f\r\x08"
    log = b"".join(
        INFO.encode() + line + evil + b"\n"
        for line in (b"Bootstrap : Using eth0:10.0.0.1<0>", b"Using network " + evil, b"NCCL version 2.27.7+cuda12.9")
    )
    log += b"n1:12:12 [0] init.cc:3 NCCL WARN " + evil + b" bad\n" + evil + INFO.encode() + b"cudaDriverVersion 12040\n"
    (tmp_path / os.fsdecode(b"rank0-\x1b]0;x\x07\xc2\x9b31m\xff.log")).write_bytes(log)
    (tmp_path / os.fsdecode(b"\x1b[31mempty.gz")).write_bytes(b"\x1f\x8b\x08\x00cut")

    for form in ("text", "json", "markdown"):
        code, out, err = say("hang", str(tmp_path), "--format", form, "--verbose")

        assert code in (0, 1, 3)
        assert [c for c in out + err if c != "\n" and not c.isprintable()] == []


HOSTILE = {
    "empty": b"",
    "newlines": b"\n" * 1000,
    "zeros": b"\0" * 5000,
    "random": bytes(range(256)) * 64,
    "long line": b"n1:12:12 [0] NCCL INFO " + b"x" * 3_000_000,
    "no end": INFO.encode() + b"Bootstrap : Using eth0:10.0.0.1<0>",
    "huge numbers": INFO.encode()
    + b"comm 0x1 rank 99999999999999999999 nranks 88888888888888888888 cudaDev 7 busId ffffffff - Init COMPLETE\n",
    "negative": INFO.encode() + b"comm 0x1 rank -3 nranks -1 cudaDev -1 busId 0 - Init COMPLETE\n",
    "half a call": INFO.encode()
    + b"AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 1 datatype 77 op 99 root 5 comm 0x1 [nranks=3] stream 0x5"
    + b"\n",
    "not gzip": b"\x1f\x8b" + b"\0" * 200,
    "not zstandard": b"\x28\xb5\x2f\xfd" + b"\0" * 200,
    "utf-16": "n1:12:12 [0] NCCL INFO Using network IB\n".encode("utf-16"),
}


MANY = INFO.encode() + b"comm 0x1 rank 0 nranks 2000000000 cudaDev 0 busId 1b000 - Init COMPLETE\n"


@pytest.mark.parametrize(
    "content",
    [*HOSTILE.values(), MANY],
    ids=[*HOSTILE, "two milliard ranks"],
)
def test_no_input_ends_in_a_traceback(say: Callable[..., Said], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank0.log").write_bytes(content)

    code, out, _ = say("hang", str(tmp_path), "--format", "json")

    assert code in (0, 1, 2, 3)
    if code != 2:
        (given,) = json.loads(out)["inputs"]
        assert given["lines"] == sum(given[k] for k in ("recognised", "application", "unrecognised", "damaged"))


# The contract's JSON. A type after `|` may stand in the place of the first.
TYPES: dict[str, dict[str, Any]] = {
    "": {
        "schema_version": int,
        "tool": dict,
        "inputs": list,
        "run": dict,
        "findings": list,
        "hang": dict,
        "benchmarks": list,
        "counters": list,
        "links": list,
        "topology": list,
    },
    "tool": {"name": str, "version": str},
    "inputs": {
        "path": str,
        "kind": str,
        "bytes": int,
        "lines": int,
        "recognised": int,
        "application": int,
        "unrecognised": int,
        "damaged": int,
        "problems": list,
    },
    "run": {
        "nccl_versions": list,
        "world_size": int | None,
        "ranks_seen": list,
        "ranks_missing": list,
        "hosts": list,
        "nodes": int | None,
        "networks": list,
        "gdr": str,
        "transports": dict | None,
        "channels": dict,
        "communicators": list,
        "debug": dict,
    },
    "run.channels": {"coll": int | None, "nvls": int | None, "p2p": int | None},
    "run.debug": {"level": str | None, "subsystems_seen": list},
    "run.communicators": {
        "id": str,
        "kind": str,
        "nranks": int,
        "ranks_seen": int,
        "channels": int | None,
        "operations": dict,
    },
    "findings": {
        "rule": str,
        "category": str,
        "severity": str,
        "certainty": str,
        "title": str,
        "detail": str,
        "remedy": str,
        "ranks": list,
        "hosts": list,
        "communicator": str | None,
        "role": str,
        "evidence": list,
    },
    "findings.evidence": {"path": str, "line": int, "text": str},
    "hang": {
        "verdict": str,
        "culprits": list,
        "suspects": list,
        "victims": list,
        "communicator": str | None,
        "operation": dict | None,
        "last_operations": list,
        "waits_for": list,
        "collect_next": list,
    },
    "hang.operation": {
        "name": str,
        "ordinal": int | None,
        "count": int | None,
        "datatype": str | None,
        "op": str | None,
        "root": int | None,
    },
    "hang.last_operations": {
        "rank": int | None,
        "communicator": str,
        "name": str,
        "ordinal": int | None,
        "path": str,
        "line": int | None,
    },
    "hang.waits_for": {"rank": int | None, "communicator": str, "ordinal": int | None, "for_ranks": list},
}


def _objects(report: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """The objects that stand at a place, lists and nulls resolved."""
    found: list[Any] = [report]
    for name in filter(None, place.split(".")):
        values = [one[name] for one in found]
        found = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("name", ["one-rank-stops-before-an-allreduce", "init-only", "two-jobs-in-one-folder"])
def test_json_has_the_keys_and_types_of_the_contract(say: Callable[..., Said], name: str) -> None:
    report = json.loads(say("hang", str(INCIDENTS / name / "**" / "*.log"), "--format", "json")[1])

    for place, fields in TYPES.items():
        for one in _objects(report, place):
            assert [key for key in one if key in fields] == list(fields), place
            for field, allowed in fields.items():
                assert isinstance(one[field], allowed), f"{place}.{field}: {one[field]!r}"


def test_json_has_the_keys_of_the_contract_without_any_log(say: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("hello\n")

    report = json.loads(say("hang", str(tmp_path), "--format", "json")[1])

    for place in ("", "tool", "inputs", "run", "run.channels", "run.debug", "hang"):
        for one in _objects(report, place):
            assert [key for key in one if key in TYPES[place]] == list(TYPES[place]), place
    assert report["hang"]["verdict"] == "undecidable"
    assert report["hang"]["collect_next"]


def test_json_is_deterministic(say: Callable[..., Said]) -> None:
    first = say("hang", LAGGING, "--format", "json")
    incidents.judged_once.cache_clear()

    assert say("hang", LAGGING, "--format", "json") == first


def _python(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)


def test_help_starts_quickly() -> None:
    """Nothing heavy is imported: these modules take longer than all the rest together."""
    code = """
import sys
from ncclforensics.cli import main
for argv in ["--help"], ["hang", "--help"], ["demo", "--help"]:
    assert main(argv) == 0
print([name for name in ("polars", "lark", "rich", "textual") if name in sys.modules])
"""
    out, err = _python(code).communicate(timeout=60)

    assert (out.splitlines()[-1:], err) == ([b"[]"], b"")


def test_an_interrupt_is_130_without_a_traceback() -> None:
    process = _python(
        "from ncclforensics.cli import run; import sys; sys.argv[1:] = ['hang', '-']; print('up', flush=True); run()"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.stdin.write(b"a line\n")
    process.stdin.flush()
    time.sleep(0.5)  # until it waits for more

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_report_that_was_written_is_a_success_and_is_named(say: Callable[..., Said], tmp_path: Path) -> None:
    page, kept = tmp_path / "incident.html", tmp_path / "run.ncclf"

    code, _, said = say("report", LAGGING, "-o", str(page))
    assert code == 0
    assert f"wrote {page} (" in said
    assert say("report", LAGGING, "-o", str(page), "-q", "--fail-on", "warning") == (1, "", "")
    code, _, said = say("save", LAGGING, "-o", str(kept))
    assert code == 0
    assert f"wrote {kept} (" in said


@pytest.mark.parametrize("command", ["report", "save"])
def test_a_path_that_cannot_be_written_is_named_before_anything_is_read(
    say: Callable[..., Said], command: str, tmp_path: Path
) -> None:
    output = tmp_path / "absent" / "incident.html"

    code, _, said = say(command, str(tmp_path / "no.log"), "-o", str(output))

    assert (code, said) == (2, f"ncclforensics: {output} cannot be written: No such file or directory\n")


def test_help_has_a_short_option_and_tells_that_several_paths_are_taken(say: Callable[..., Said]) -> None:
    code, printed, _ = say("hang", "-h")

    assert code == 0
    assert "hang [OPTIONS] [PATH]…\n" in printed


def test_empty_files_are_told_from_files_without_nccl(say: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "other.log").write_text("step 1\n")

    code, printed, _ = say("hang", str(tmp_path / "empty.log"))
    assert code == 3
    assert "UNDECIDABLE  these files are empty" in printed
    code, printed, _ = say("hang", str(tmp_path / "other.log"))
    assert code == 3
    assert "format not known: 1 file without a known line" in printed
    assert "other.log:1  step 1" in printed
