"""Ends and errors that launchers, engines and frameworks pass on: what they name, and where they must be silent.

All texts are synthetic.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report

ENTRY = "[{0}]: time : 2026-03-02_11:04:57 host : gpu-a rank : {0} (local_rank: {0}) exitcode : -6 (pid: 4188{0}) error"
TABLE = """{heading}
[{number}]:
  time      : 2026-03-02_11:04:{second}
  host      : gpu-a
  rank      : {number} (local_rank: {number})
  exitcode  : -6 (pid: 4188{number})
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 4188{number}
"""
ABORTED = TABLE.format(heading="Failures:", number=1, second=57) + TABLE.format(
    heading="Root Cause (first observed failure):", number=0, second=55
)
DEEPSPEED = "[2026-03-02 11:04:57,123] [INFO] [launch.py:319:sigkill_handler]"
CALL = 'Traceback (most recent call last):\n  File "/mnt/job/train.py", line 7, in get\n'
THROWN = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
RAY_TASK = "ray::Actor.fit() (pid=41887, ip=train-worker-0.cluster.local, actor_id=9c72)"
INTERRUPTED = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.10/subprocess.py", line 1209, in wait
    return self._wait(timeout=timeout)
KeyboardInterrupt

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.10/site-packages/deepspeed/launcher/runner.py", line 560, in sigkill_handler
    result_kill = subprocess.Popen(kill_cmd, env=env)
NameError: free variable 'kill_cmd' referenced before assignment in enclosing scope
"""
CLIENT = "[W socket.cpp:601] [c10d] The client socket has timed out after 60s while trying to connect to"
HIDDEN = "gpu-a012:XXXXXX:XXXXXX [3] "
XLA_CALL = (
    "NCCL operation ncclAllReduce( send.opaque(), ToNcclCount(dtype, count), stream(a)) failed: invalid argument."
)


def reported(text: str, folder: Path) -> Report:
    (folder / "paste.txt").write_text(text + "\n", encoding="utf-8")
    return analyze([folder])


def titles(report: Report) -> str:
    return "\n".join(f"{finding.title}: {finding.detail}" for finding in report.findings)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  (0) INTERNAL:  NCCL: unhandled cuda error. Set NCCL_DEBUG=WARN for detail.", "unhandled cuda error"),
        ("HorovodInternalError: ncclAllReduce failed: unhandled cuda error", "ncclAllReduce returned to a process"),
        (f"E0912 23:44:51.552719 41887 client.cc:3008] INTERNAL: {XLA_CALL}", "ncclAllReduce returned to a process"),
        ("  what():  NCCL failure: unhandled cuda error in a.cu at line: 86 rank: 0", "returned to a process"),
        (("UnknownError:  ncclCommInitRank failed: unhandled system error\n"
          "srun: error: gpu-b: task 1: Exited with exit code 1"), "processes ended on gpu-b"),
        ("RuntimeError: Runtime check failed at /src/custom_all_reduce.cuh:37: CUDA error: invalid argument",
         "CUDA error"),
        ("ncclGetUniqueId failed: Unable to load NCCL library", "did not find libnccl.so.2"),
        ("[2026-03-02 11:04:58] Rank 3 scheduler is dead. Please check.\n[2026-03-02 11:04:58] Exit code: -9",
         "task 3 of SGLang was killed by SIGKILL"),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'Core_0': -9}",
         "Core_0 was killed by SIGKILL"),
        ("ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.", "did not come in time"),
        ("ValueError: Cannot provide a placement group of placement_group_specs=[] within 1800 seconds.",
         "Cannot provide a placement group"),
        ("Container rank 2 status failed cmd ['python3'] code 1 log log/workerlog.2", "output is in log/workerlog.2"),
        (("Abort(3712399) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"
          "MPID_Init(597)..............: \nMPIR_pmi_kvs_get(227).......: PMI_KVS_Get returned -1"),
         "Other MPI error; PMI_KVS_Get returned -1"),
        (f'  File "a.py", line 1, in get\nray.exceptions.RayTaskError(ActorDiedError): {RAY_TASK}\n  File "/a',
         "process 41887 on train-worker-0.cluster.local (Actor.fit) raised ActorDiedError, of which no more is shown"),
        ("[pod/train-worker-3/main] KeyError: 'a'\n" * 2, "a process on train-worker-3 raised KeyError"),
        (f"{HIDDEN}misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.4.13<41887> failed : Refused",
         "gpu-a012 could not connect to 10.0.4.13<41887>"),
        ("\n".join(map(ENTRY.format, (2, 3))), "ranks 2, 3 on gpu-a ended by SIGABRT"),
        (f"{DEEPSPEED} Killing subprocess 41887\n{DEEPSPEED} Main process received SIGINT, exiting",
         "a signal from outside told the launcher of DeepSpeed to end"),
        (f"{CLIENT} (172.17.0.2, 29500).",
         "Docker's own bridge"),
    ],
)  # fmt: skip
def test_a_line_that_passes_an_end_on_is_answered(text: str, title: str, tmp_path: Path) -> None:
    assert title in titles(reported(text, tmp_path))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (INTERRUPTED, "NameError"),
        ("(autoscaler +25s) Error: No available node types can fulfill resource request {'GPU': 8.0}.", "driver"),
        ("ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.", "a worker ended"),
        (
            f"{CLIENT} (10.0.4.13, 29500).",
            "Docker",
        ),
        (f"{CALL}monarch._src.actor.actor_mesh.ActorError: Actor call a failed.\n{CALL}ValueError: no mesh", "Actor"),
        ("Exception: Server process terminated unexpectedly.\nValueError: bad prompt", "raised Exception: Server"),
    ],
)
def test_what_follows_or_is_of_another_kind_is_not_blamed(text: str, refused: str, tmp_path: Path) -> None:
    strong = [finding.title for finding in reported(text, tmp_path).findings if str(finding.severity) != "info"]
    assert not [title for title in strong if refused in title]


@pytest.mark.parametrize(("before", "words"), [("", "victims end so, too; torchrun"), (THROWN, "Torchrun")])
def test_torchrun_names_the_first_of_ranks_that_all_aborted(before: str, words: str, tmp_path: Path) -> None:
    (verdict,) = reported(before + ABORTED, tmp_path).verdicts
    assert verdict.verdict == "undecidable"
    assert words.lower() in verdict.reason.lower()
    assert "saw rank 0 on gpu-a end first, by SIGABRT" in verdict.reason


@pytest.mark.parametrize(("step", "is_reported"), [("4712.0", True), ("4711.0", False)])
def test_a_task_of_another_step_did_not_end_with_the_first(step: str, is_reported: bool, tmp_path: Path) -> None:
    text = (
        "slurmstepd: error: *** STEP 4711.0 ON gpu-a CANCELLED AT 2026-03-02T11:04:57 DUE TO TIME LIMIT ***\n"
        "srun: error: gpu-b: task 3: Exited with exit code 1\n"
        f"srun: launch/slurm: _step_signal: Terminating StepId={step}\n"
    )
    assert ("task 3 of srun, gpu-b ended with exit code 1" in titles(reported(text, tmp_path))) == is_reported


def test_a_number_that_is_hidden_is_not_shown(tmp_path: Path) -> None:
    init = "NCCL INFO comm 0x7f rank {} nranks 2 cudaDev {} nvmlDev {} busId {}a000 commId 0x12 - Init START"
    lines = [f"gpu-a012:XXXX:XXXX [{rank}] {init.format(rank, rank, rank, rank + 1)}" for rank in (0, 1)]
    report = reported("\n".join(lines), tmp_path)
    assert sorted(report.run["rank"]["rank"]) == [0, 1]
    assert set(report.run["rank"]["host"].to_list()) == {"gpu-a012"}


def test_a_list_of_nodes_is_no_name_of_a_host(tmp_path: Path) -> None:
    line = "[W socket.cpp:6] [c10d] The IPv6 network addresses of ({}, 29500) cannot be retrieved (gai error: -2 - No)"

    listed, single = (reported(line.format(name), tmp_path).findings for name in ("gpu-a[01,05-07]", "gpu-a01"))

    assert [(str(finding.severity), finding.certainty) for finding in listed] == [("error", "likely")]
    assert [(str(finding.severity), finding.certainty) for finding in single] == [("warning", "possible")]


def test_processes_that_were_told_to_end_are_told_by_the_return_code_of_their_launcher(tmp_path: Path) -> None:
    code = "[2026-03-02 11:04:59,123] [ERROR] [launch.py:325:sigkill_handler] ['train.py'] exits with return code = -15"
    (found,) = reported(f"{DEEPSPEED} Killing subprocess 41887\n{code}", tmp_path).findings
    assert (found.rule, found.title) == ("app-told-to-end", "told to end by SIGTERM: a process")


def test_what_a_spawned_process_could_not_read_of_its_parent_follows_from_the_end_of_that(tmp_path: Path) -> None:
    text = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/opt/python3.10/multiprocessing/spawn.py", line 126, in _main
    self = reduction.pickle.load(from_parent)
_pickle.UnpicklingError: pickle data was truncated"""
    cut, whole = (reported(lines, tmp_path).findings[0] for lines in (text, text.replace("_main", "load_tokens")))
    assert (str(cut.severity), str(whole.severity)) == ("warning", "error")


@pytest.mark.parametrize(
    ("word", "rule"), [("Killed", "app-process-died"), ("Terminated", "app-told-to-end")], ids=str.lower
)
def test_what_a_shell_says_alone_of_its_command_is_its_end(tmp_path: Path, word: str, rule: str) -> None:
    assert [found.rule for found in reported(f"step 1 loss 2.5\n{word}", tmp_path).findings][:1] == [rule]


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        (f"{CALL}ImportError: no libx.so", True),
        (
            "\n".join(f"WARNING 03-02 11:04:57 [a.py:4] {line}" for line in [*CALL.splitlines(), "ImportError: no"]),
            False,
        ),
        (f"{CALL}SystemExit: 1", True),
        (f"{CALL}SystemExit: 0", False),
    ],
    ids=["error", "logged as a warning", "exit code", "exit code of success"],
)
def test_an_exception_that_the_program_caught_or_that_ends_it_well_is_no_failure(
    tmp_path: Path, text: str, is_reported: bool
) -> None:
    assert ("app-exception" in {found.rule for found in reported(text, tmp_path).findings}) is is_reported
