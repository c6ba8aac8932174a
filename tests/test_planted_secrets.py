"""Secrets planted in stacks and dumps: variables are never kept, and a redacted run names no user and no code path."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.archive import write
from ncclforensics.report import redacted_run, redaction
from ncclforensics.report.build import Report
from ncclforensics.views import json_report, text_report
from tests.test_flight_recorder import one_stops

CODE = "/home/maria/secretproj"
IN_VARIABLES = ("hunter2", "sk-9f3a")
OF_USER = ("maria", "secretproj")
PYSPY = f"""Process 4002: /home/maria/venv/bin/python {CODE}/train.py
Python v3.11.7 (/home/maria/venv/bin/python3.11)

Thread 4002 (idle): "MainThread"
    load_batch ({CODE}/loader.py:12)
        Arguments:
            path: "/data/hunter2"
        Locals:
            api_key: "sk-9f3a"
    <module> ({CODE}/train.py:99)
"""
FAULTHANDLER = f"""step 12 done
Timeout (0:00:05)!
Current thread 0x00007f3c2a1b2c01 (most recent call first):
  File "{CODE}/loader.py", line 12 in load_batch
  File "{CODE}/train.py", line 99 in <module>
"""
GDB = f"""Thread 1 (Thread 0x7f3c2a1b2c00 (LWP 4001) "pt_main_thread"):
#0  0x00007f3c2a1b2c3d in __futex_abstimed_wait_common () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f3c2a1b2c3e in connect_with (token=0x7ffd "hunter2", key="sk-9f3a") at {CODE}/native.cpp:33
#2  0x00007f3c2a1b2c3f in main (argc=2, argv=0x7ffd) at {CODE}/main.cpp:3
"""


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    folder = tmp_path / "incident"
    folder.mkdir()
    for recorder in one_stops():
        for entry in recorder.entries:
            entry["frames"][1]["filename"] = f"{CODE}/train.py"
        (folder / f"comm_lib_trace_rank_{recorder.rank}").write_bytes(pickle.dumps(recorder.document(), protocol=2))
    frame = {"name": "load", "filename": f"{CODE}/loader.py", "line": 3, "locals": [{"name": "k", "repr": "'hunter2'"}]}
    thread = {"pid": 4003, "thread_id": 1, "thread_name": "MainThread", "active": False, "owns_gil": False}
    (folder / "rank3.json").write_text(json.dumps([{**thread, "os_thread_id": 4003, "frames": [frame]}]))
    for name, text in (("rank2.pyspy.txt", PYSPY), ("rank0.log", FAULTHANDLER), ("rank1.gdb.txt", GDB)):
        (folder / name).write_text(text)
    return folder


def contents(report: Report, archive: Path) -> str:
    """All that is kept and shown of a run: the saved frames, the JSON and the text."""
    write.save(report, archive)
    with zipfile.ZipFile(archive) as saved:
        frames = [pl.read_parquet(saved.open(name)) for name in saved.namelist() if name.endswith(".parquet")]
    shown = [json.dumps(json_report.as_object(report)), text_report.text(report)]
    return "\n".join([*(str(frame.rows()) for frame in frames), *shown])


def test_variables_are_never_kept(incident: Path, tmp_path: Path) -> None:
    kept = contents(analyze([str(incident)], everything=True), tmp_path / "run.ncclf")

    assert not [secret for secret in IN_VARIABLES if secret in kept]
    assert "load_batch" in kept
    assert f"{CODE}/loader.py" in kept


def test_a_redacted_run_names_no_user_and_no_code_path(incident: Path, tmp_path: Path) -> None:
    report = analyze([str(incident)], everything=True)
    redacted = redacted_run.redact(report, redaction.assign_pseudonyms(report.run))

    kept = contents(redacted, tmp_path / "run.ncclf").replace(str(tmp_path), "")

    assert not [secret for secret in (*IN_VARIABLES, *OF_USER) if secret in kept]
    assert "load_batch" in kept
