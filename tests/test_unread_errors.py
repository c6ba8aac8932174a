"""Errors of engines, launchers, kernels and programs as people paste them: read by their kind, or quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Category
from ncclforensics.views.text_screen import screen
from tests.incidents import INCIDENTS, Incident

RAY_WORKER = (
    "(EngineCore pid=1879) (raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "To troubleshoot the problem, check the logs for the dead worker. Lease ID: 0300 Worker ID: 389f Node ID: 824d "
    "Worker IP address: 10.0.4.13 Worker port: 10002 Worker PID: 41887 Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
    "(EngineCore pid=1879) ERROR 03-29 12:59:53 [core.py:1099] EngineCore failed to start.\n"
)
ABORTED = """\
[1,25]<stderr>:terminate called after throwing an instance of 'std::logic_error'
[1,25]<stderr>:  what():  cudaEventQuery failed: an illegal memory access was encountered
[1,25]<stderr>:[gpu-a012:41887] *** Process received signal ***
[1,25]<stderr>:[gpu-a012:41887] Signal: Aborted (6)
"""
PEER = """\
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: gpu-a011
  Local PID:  41887
  Peer host:  gpu-a012
"""
STACK = (
    "(EnvWorker pid=41887, ip=10.0.4.13) frame #11: gloo::transport::tcp::Context::createAndConnectAllPairs"
    "(std::shared_ptr<gloo::IStore>) + 0xa18 (0x7fe2 in /opt/torch/lib/libtorch_cpu.so)\n"
)
# Text -> rule, severity and a part of the title of the first finding.
ANSWERED = {
    "warning that no rule on hangs explains": (
        (
            "gpu-a012:41887:42107 [3] ib_plugin.c:271 NCCL WARN NET/IB: open failed in ncclIbRoceGetVersionNum: "
            "Permission denied\ngpu-a012:41887:42107 [3] NCCL INFO ib_plugin.c:345 -> 2\n"
        ),
        "roce-gid-read-fails-in-container",
        "warning",
        "gpu-a012 cannot read the types",
    ),
    "message of PyTorch with its rank": (
        (
            "[rank1]:[E302 11:04:57.034512345 NCCLBootstrap.cpp:310] [TC][rank=1][name=0] Failed to initialize NCCL "
            "communicator: remote process exited or there was a network error\n"
        ),
        "stated-by-program",
        "warning",
        "rank 1: a call of NCCL failed or did not end: Failed to initialize NCCL communicator",
    ),
    "difference between ranks": (
        (
            '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/mnt/job/ckpt.py", line 7, in save\n'
            "[rank0]: AssertionError: Rank 3 has different values for lr: 0.1. Other ranks: 0.01\n"
        ),
        "app-exception",
        "warning",
        "rank 0 raised AssertionError: Rank 3 has different values",
    ),
    "nccl-error-inside-an-assertion": (
        "[E] rank 0: Assertion failed: Failed, NCCL error ../comm.cpp:90 'invalid usage (run with NCCL_DEBUG=WARN)'\n",
        "error-returned-to-application",
        "error",
        "invalid usage",
    ),
    "nccl-error-before-its-launcher": (
        (
            "Failed, NCCL error plugin.cpp:295 'internal error'\n"
            "Primary job  terminated normally, but 1 process returned\n"
        ),
        "read-nothing-of-nccl",
        "warning",
        "internal error",
    ),
    "ended-process-above-a-cut-traceback": (
        (
            "ERROR 01-29 08:37:48 [core_client.py:564] Engine core proc EngineCore_DP1 died unexpectedly, shutting down"
            ' client.\nTraceback (most recent call last):\n  File "/opt/vllm/llm_engine.py", line 240, in add_request\n'
        ),
        "stated-failure",
        "warning",
        "EngineCore_DP1: the engine core of vLLM ended",
    ),
    "argument-behind-an-abort": (
        (
            "node1:77:77 [0] argcheck.cc:39 NCCL WARN AllGather : invalid root 0 (root should be in the 0..-1 range)\n"
            "node1:77:77 [0] NCCL INFO enqueue.cc:1342 -> 4\n"
        ),
        "call-argument-refused",
        "error",
        "NCCL refused an argument of AllGather",
    ),
    "cause-behind-two-tags": (RAY_WORKER, "app-process-died", "warning", "process 41887 on 10.0.4.13: a worker died"),
    "fields-of-an-actor-behind-tabs": (
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "\tactor_id: 8f3b\n\tpid: 41887\n\tip: 10.0.4.13\n"
        ),
        "app-process-died",
        "warning",
        "process 41887 on 10.0.4.13",
    ),
    "exception-before-the-abort": (
        ABORTED,
        "cuda-sticky-error",
        "error",
        "in process 41887 (task 25 of the launcher) on gpu-a012: an illegal",
    ),
    "kill-before-what-it-made-a-program-raise": (
        (
            "srun: error: gpu-a012: task 0: Out Of Memory\nExiting because a job execution failed.\n"
            "WorkflowError:\nAt least one job did not complete successfully.\n"
        ),
        "oom-host",
        "error",
        "task 0 of Slurm",
    ),
    "reason-of-a-reset": (
        (
            "[  912.2] NVRM: kgspHealthCheck_TU102: GSP RM heartbeat timed out on GPU 0000:41:00.0\n"
            "[  912.3] NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)\n"
        ),
        "stated-failure",
        "warning",
        "the system processor (GSP) of a GPU",
    ),
    "mpi-peer": (PEER, "open-mpi-lost-a-peer", "warning", "a process of MPI on gpu-a012 ended"),
    "engine-that-shuts-down": (
        (
            "CRITICAL 04-16 11:53:49 [core_client.py:359] Got fatal signal from worker processes, shutting down. "
            "See stack trace above for root cause issue.\n"
        ),
        "stated-failure",
        "warning",
        "vLLM shuts down because a worker",
    ),
    "engine-with-its-rank": (
        (
            "(VllmWorker rank=7 pid=410) ERROR 07-23 19:34:51 [multiproc_executor.py:487] RuntimeError: NCCL error: "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
        ),
        "error-returned-to-application",
        "error",
        "NCCL returned to rank 7",
    ),
    "error-before-a-line-of-nccl": (
        (
            "ERROR 11-04 18:02:56 [x.py:597] RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO "
            "for details) 02fdc141b80d:213:213 [1] NCCL INFO cudaDriverVersion 12080\n"
        ),
        "error-returned-to-application",
        "error",
        "unhandled cuda error",
    ),
    "name-of-the-store": (
        (
            'Traceback (most recent call last):\n  File "rendezvous.py", line 143, in _env_rendezvous_handler\n'
            "ValueError: host not found: Name or service not known\n"
        ),
        "torch-store-failed",
        "error",
        "(MASTER_ADDR) could not be looked up: Name or service not known",
    ),
    "gloo-time-out": (
        "RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:611] Connect timeout [172.17.27.13]:27023\n",
        "torch-mesh-not-connected",
        "error",
        "172.17.27.13",
    ),
    "rendezvous-at-its-end": (
        (
            "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'gpu-a012_4711_0' has failed to "
            "shutdown the rendezvous '4711' due to an error of type RendezvousConnectionError.\n"
            'Traceback (most recent call last):\n  File "x.py", line 113, in _call_store\nRuntimeError: Broken pipe\n'
        ),
        "torch-rendezvous-lost",
        "info",
        "1 agent of torchrun lost the store of the rendezvous as it ended",
    ),
    "file-of-a-search": (
        "messages:Jun 17 20:18:08 gpu-a012 kernel: INFO: task nvc:[driver]:41887 blocked for more than 120 seconds.\n",
        "kernel-driver-reports",
        "warning",
        "on gpu-a012 was blocked in the kernel for more than 120 s: nvc:[driver] (pid 41887)",
    ),
    "blocked-tasks": (
        (
            "[26825.8] INFO: task kworker/2:1:5747 blocked for more than 120 seconds.\n"
            "[26825.8] INFO: task python3:41887 blocked for more than 120 seconds.\n"
        ),
        "kernel-driver-reports",
        "warning",
        "kworker/2 (pid 5747), python3 (pid 41887)",
    ),
    "quoted": (
        '"Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system"\n',
        "cuda-gpu-unreachable",
        "error",
        "nvidia-smi cannot reach GPU 0000:02:00.0",
    ),
    "address-left-out": (
        "[12345.6] NVRM: Xid (PCI:0000:xx:00): 79, pid=41887, name=python3, GPU has fallen off the bus.\n",
        "cuda-gpu-fault",
        "error",
        "fault of a GPU that the line does not name: Xid 79",
    ),
    "bus-error-under-slurm": (
        "srun: error: gpu-a012: task 3: Bus error (core dumped)\n",
        "shm-too-small",
        "error",
        "task 3 of srun, gpu-a012 crashed with SIGBUS",
    ),
    "service": (
        "Job for openibd.service failed because the control process exited with error code.\n",
        "stated-failure",
        "warning",
        "a service of this host did not start",
    ),
    "hosts-out-of-use": (
        (
            "REASON               USER      TIMESTAMP           NODELIST\n"
            "Not responding       slurm     2026-03-02T11:04:57 gpu-a[012-013]\n"
        ),
        "stated-failure",
        "warning",
        "gpu-a[012-013]: Slurm took a host out of use: Not responding",
    ),
    "host-with-the-name-of-a-user": (
        "=   PID 41887 RUNNING AT me@gpu-a012\n=   EXIT CODE: 134\n",
        "app-process-died",
        "error",
        "process 41887 on gpu-a012 ended by SIGABRT",
    ),
    "container-of-paddle": (
        (
            "LAUNCH ERROR 2026-03-02 11:04:57,124 Container failed !!!\n"
            "Container rank 3 status failed cmd ['python', '-u', 'train.py'] code 1 log log/workerlog.3\n"
        ),
        "app-process-died",
        "warning",
        "task 3 of Paddle's launcher: exit code 1; its output is in log/workerlog.3",
    ),
    "limit-of-a-millisecond": (
        (
            "[rank3]:[E902 11:04:57.123456789 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1) ran for 90 "
            "milliseconds before timing out.\n"
        ),
        "torch-watchdog-timeout",
        "error",
        "rank 3 timed out at work 1",
    ),
}
# Text -> severity, and parts of the title, the detail and the remedy of the only finding.
STATED = {
    "kernel": (
        "HPL ERROR: CUDART Error: cudaMemcpyAsync(d, h, n) = 700 (an illegal memory access was encountered) on gpu46\n",
        "warning",
        "a kernel of a GPU failed: HPL ERROR",
        "",
        "compute-sanitizer",
    ),
    "library": (
        "/opt/mpi/bin/mpirun: error while loading shared libraries: libpmix.so.2: cannot open shared object file\n",
        "warning",
        "a library or module could not be loaded: /opt/mpi/bin/mpirun: error while loading shared libraries: libpmix",
        "",
        "LD_LIBRARY_PATH",
    ),
    "logfmt, repeated": (
        (
            'time="2026-03-02T11:04:57Z" level=error msg="connect to the store: dial tcp :2379: connection refused"\n'
            'time="2026-03-02T11:05:07Z" level=error msg="connect to the store: dial tcp :2379: connection refused"\n'
        ),
        "warning",
        "nothing listened at its address: connect to the store: dial tcp :2379: connection refused",
        "printed 2 times from 2026-03-02T11:04:57 to 2026-03-02T11:05:07",
        "ss -ltnp",
    ),
    "json": (
        '{"level":"error","ts":"2026-03-02T11:04:57Z","msg":"open /data/x: permission denied","n":7}\n',
        "warning",
        "access was refused: open /data/x: permission denied",
        "",
        "ls -l",
    ),
    "json, with the error in a field": (
        (
            '{"level":"error","timestamp":"2026-03-02T11:04:57Z","message":"cannot read the samples",'
            '"error":"open /data/x: permission denied"}\n'
        ),
        "warning",
        "access was refused: cannot read the samples: open /data/x: permission denied",
        "",
        "ls -l",
    ),
    "glog, cause before its consequence": (
        (
            "E0302 11:04:57.588061       1 factory.go:68] Failed to initialize NVML: Unknown Error.\n"
            "E0302 11:04:57.588076       1 main.go:12] cannot serve the devices\n"
        ),
        "warning",
        "an error that names CUDA, a GPU or its driver: Failed to initialize NVML: Unknown Error.",
        "after it stands: cannot serve the devices",
        "nvidia-smi",
    ),
    "a GPU of Intel": (
        "ERROR: xpu-smi: Failed to initialize GPU device 3: ZE_RESULT_ERROR_DEVICE_LOST\n",
        "warning",
        "an error that names a GPU of Intel or what drives it: xpu-smi: Failed to initialize GPU device 3",
        "",
        "xpu-smi health",
    ),
    "end behind its cause": (
        (
            "[INFO] serving\n[ERROR] shutting down the scheduler\n"
            "thread 'main' panicked at src/server.rs:41:7:\n[ERROR] exiting\n"
        ),
        "warning",
        "a process crashed or was killed: thread 'main' panicked at src/server.rs:41:7:",
        "",
        "core file",
    ),
    "tag of a launcher": (
        "(Actor pid=41887, ip=10.0.4.13) ERROR: the volume holds no such configuration\n",
        "warning",
        "process 41887 on 10.0.4.13: a program reports an error: the volume holds no such configuration",
        "",
        "read the cited lines",
    ),
    "warning before the failure": (
        (
            "2026-03-02 11:04:57 WARNING ibv_post_send: Cannot allocate memory\n"
            "2026-03-02 11:04:58 FATAL the pull of request 7 failed\n"
        ),
        "warning",
        "a program reports an error: the pull of request 7 failed",
        "a warning before it: WARNING ibv_post_send: Cannot allocate memory",
        "",
    ),
    "tried again": (
        "ERROR: connection refused, retrying in 5 s\n",
        "info",
        "a connection was refused",
        "tried again",
        "",
    ),
    "peer that is not found": (
        "RDMA: Failed to modify QP to RTR: Connection timed out\n",
        "warning",
        "an RDMA device did not find its peer",
        "",
        "show_gids",
    ),
    "words alone": (
        "Parser function exited with Error\n",
        "info",
        "the text says: Parser function exited with Error",
        "",
        "",
    ),
    "program that went on": ("ERROR: the cache is gone\n" + "step\n" * 150, "info", "the cache is gone", "went on", ""),
    "stack": (STACK, "warning", "process 41887 on 10.0.4.13: the stack of a C++ exception stands here", "", ""),
}
SILENT = {
    "count of none": "Successful requests:      64\nFailed requests:          0\n",
    "list of names": "# Crash faults\nSIGKILL:1:5:2     SIGKILL:0:5:2\nSEGFAULT:1:5:2    OS_ABORT:1:5:2\n",
    "table": "| fault | ranks | found | notes |\n| SIGKILL | 2 | false | it describes a timeout, not the signal |\n",
    "command": "srun -N 40 sh -c 'ps aux | grep python | xargs -I {} py-spy dump --pid {}' || echo \"failed\"\n",
    "variables of levels": "NCCL_IB_HCA=mlx5_3:1 NCCL_DEBUG=WARN python -m app\nUCX_LOG_LEVEL=ERROR ucx_info -d\n",
    "log of X": "[    21.123] (--) NVIDIA(GPU-0): CRT-0: disconnected\n",
    "counts": "found 0 errors\nerrors: 0\nthis is not an error, but may impair performance\n",
    "warning": "2026-03-02 11:04:57 WARNING could not read the cache, which failed to load\n",
    "note of a library": "gpu-a012:41887:41990 [0] FLAGCX INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB\n",
    "warning of vLLM": "WARNING 03-02 11:56:24 config.py:380] enable CUDA graph, or the async output cannot be used\n",
    "program": 'raise RuntimeError("failed")\nif error:\n',
    "causes that may be": "potential root causes: (1) the process is killed by the OOM killer due to memory usage\n",
    "ignored": "[2026-03-02 11:04:57] Ignore import error when loading srt.audio: No module named 'torchaudio'\n",
    "a version in git": "ERROR:2026-03-02 11:04:57,332:git root error: Cmd('git') failed due to: exit code(128)\n"
    "  stderr: 'fatal: detected dubious ownership in repository at '/data/run'\n",
    "pip": "ERROR: pip's dependency resolver does not currently take into account all the packages .\n",
    "measures": "***bus error@trans, scale, orient, vel, attr | AP@0.5, 1.0, 2.0, 4.0\n=== TOP ERROR TYPES ===\n",
    "a tracker": "2026-03-02 11:04:57,034 ERROR   StreamThr :41887 [internal.py:wandb_internal():152] Internal process "
    "shutdown.\n",
    "counters": "    53 connections aborted due to timeout\n    0 input ICMP message failed.\nFailed Devices : 0\n",
    "settings": "BootCurrent: 0002\nTimeout: 0 seconds\n",
    "tools that end well": "==PROF== Disconnected from process 41887\n     0 tests completed and failed checks,\n"
    "Cannot get wake-on-lan settings: Operation not permitted\n",
    "patterns and tables": "Rules:[{Pattern:Killed process \\d+ (.+)\n| CRITICAL (2) | Fatal PCIe errors |\n",
    "documents": "* XID 48: An uncorrectable error has been detected on the GPU\nValidates that uncorrected ECC "
    "error counts remain within range. Uncorrected errors indicate unrecoverable memory corruption.\n"
    "What NVML does expose is **clean**: failures of GPU memory\n",
    "levels": "--log-level {DEBUG,INFO,WARNING,ERROR}\nSet it to ERROR, WARN, or DEBUG\nClient disconnected.\n",
    "nothing late": " kernel:[Hardware Error]: Northbridge: mem-tx: RD, part-proc: RES (no timeout)\n",
    "harmless": "E0000 00:00:17.41 46 cuda_dnn.cc:8310] Unable to register: it has already been registered\n",
}
SETTINGS = (
    "[I ProcessGroupNCCL.cpp:881] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL environments: NCCL version: 2.21.5, "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING: 3, TORCH_NCCL_DUMP_ON_TIMEOUT: 1\nNCCL_ASYNC_ERROR_HANDLING: 1\n"
)


def read(tmp_path: Path, text: str) -> Report:
    (tmp_path / "paste.txt").write_text(text)
    return analyze([str(tmp_path / "paste.txt")])


@pytest.mark.parametrize(("text", "rule", "severity", "words"), ANSWERED.values(), ids=ANSWERED)
def test_the_first_finding_answers_the_cause(text: str, rule: str, severity: str, words: str, tmp_path: Path) -> None:
    first = read(tmp_path, text).findings[0]

    assert (first.rule, str(first.severity)) == (rule, severity)
    assert words in first.title
    assert first.evidence


@pytest.mark.parametrize(("text", "severity", "title", "detail", "remedy"), STATED.values(), ids=STATED)
def test_a_failure_that_an_unknown_program_states_is_answered(
    text: str, severity: str, title: str, detail: str, remedy: str, tmp_path: Path
) -> None:
    report = read(tmp_path, text)

    (found,) = (finding for finding in report.findings if finding.category is not Category.INCOMPLETE_EVIDENCE)
    assert (found.rule, str(found.severity)) == ("stated-by-program", severity)
    assert title in found.title
    assert detail in found.detail
    assert remedy in found.remedy
    assert found.title[:40] in screen(report, width=400)


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_words_of_errors_that_state_none_are_not_quoted(text: str, tmp_path: Path) -> None:
    assert {finding.rule for finding in read(tmp_path, text).findings} <= {"read-unknown-formats"}


def test_what_was_stated_before_an_engine_is_ready_is_a_note(tmp_path: Path) -> None:
    text = "[2026-03-02 11:04:57] the plugin failed to load: libkernels.so: cannot open shared object file\n"
    ready = "[2026-03-02 11:05:57] The server is fired up and ready to roll!\n"

    severities = [
        [str(finding.severity) for finding in read(tmp_path, lines).findings if finding.rule == "stated-by-program"]
        for lines in (text, text + ready, ready + text)
    ]

    assert severities == [["warning"], ["info"], ["warning"]]


def test_names_of_settings_in_known_lines_are_not_quoted(tmp_path: Path) -> None:
    assert read(tmp_path, SETTINGS).findings == []


def test_a_failure_of_an_unknown_program_is_left_out_behind_what_explains_it(tmp_path: Path) -> None:
    behind = read(tmp_path, PEER + "[ERROR] the scheduler is gone\n")
    before = read(tmp_path, "[ERROR] the scheduler is gone\n" + PEER)

    assert [finding.rule for finding in behind.findings[:1]] == ["open-mpi-lost-a-peer"]
    assert "stated-by-program" not in [finding.rule for finding in behind.findings]
    assert [finding.rule for finding in before.findings[:2]] == ["stated-by-program", "open-mpi-lost-a-peer"]


def test_an_exit_code_is_explained_by_what_was_printed_before_it(tmp_path: Path) -> None:
    denied = "gpu-a012: me@gpu-a012: Permission denied (publickey,password).\n"
    report = read(tmp_path, f"{denied}pdsh@gpu-a011: gpu-a012: ssh exited with exit code 255\n")

    (found,) = (finding for finding in report.findings if finding.rule == "app-process-died")
    assert "printed before it: gpu-a012: me@gpu-a012: Permission denied" in found.detail
    assert "ssh -v" in found.remedy


@pytest.mark.parametrize(
    "line", ["me@gpu-a012: Permission denied (publickey,password).", "bash: line 1: orted: command not found"]
)
def test_what_stands_before_it_says_why_a_daemon_of_mpirun_did_not_start(line: str, tmp_path: Path) -> None:
    failed = "ORTE was unable to reliably start one or more daemons.\n"
    (found,) = read(tmp_path, f"{line}\n{failed}").findings[:1]
    assert (found.rule, found.detail) == ("mpirun-daemon-missing", f"printed before it: {line}")

    (found,) = read(tmp_path, failed).findings[:1]
    assert found.detail == ""


def test_a_stated_failure_names_the_device_of_its_line(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "[ 1632.420957] infiniband efa_0: Failed to allocate pd[-12]\n").findings[:1]

    assert found.title == "an RDMA device refused a command of its driver: efa_0"


def test_a_short_time_out_is_said(tmp_path: Path) -> None:
    (timeout,) = read(tmp_path, ANSWERED["limit-of-a-millisecond"][0]).findings[:1]

    assert "its time-out is only 1 ms" in timeout.detail


def test_check_does_not_say_that_its_user_knows_of_a_standstill() -> None:
    logs = "fixtures/incidents/one-rank-stops-before-an-allreduce/*.log"
    hang, check = (analyze(logs, everything=everything) for everything in (False, True))

    assert "since you ask about a hang: the job stands still" in screen(hang, width=120)
    assert "Only if the job stands still" in screen(check, width=120)


def test_a_bus_error_alone_does_not_accuse_the_shared_memory_of_a_host(tmp_path: Path) -> None:
    (finding,) = read(tmp_path, ANSWERED["bus-error-under-slurm"][0]).findings[:1]

    assert "/dev/shm" not in finding.title
    assert "damaged" in finding.detail


def test_a_file_of_no_known_format_is_named_as_such_with_its_first_line(tmp_path: Path) -> None:
    report = read(tmp_path, "the volume of the tank\nis 42 litres\n")

    (finding,) = report.findings
    assert finding.title == "format not known: 1 file without a known line, and without a word of a failure"
    assert [report.cited(line.source, line.line)["text"] for line in finding.evidence] == ["the volume of the tank"]


def test_a_warning_that_only_follows_is_no_reason_of_a_failed_init(tmp_path: Path) -> None:
    echo = (
        "gpu-a:31965:31971 [0] src/proxy.cc:1190 NCCL WARN Socket recv failed while polling for opId=0x7d9e780c40c0\n"
        "gpu-a:31965:31971 [0] NCCL INFO src/transport.cc:45 -> 3\n"
        "gpu-a:31965:31971 [0] NCCL INFO src/init.cc:1585 -> 3\n"
    )
    cause = echo.replace(
        "Socket recv failed while polling for opId=0x7d9e780c40c0", "Cuda failure 1 'invalid argument'"
    )

    assert read(tmp_path, echo).findings[0].detail.startswith("the cited warning follows from a failure")
    assert "follows from" not in read(tmp_path, cause).findings[0].detail


def test_a_program_that_says_that_it_makes_no_progress_hangs_likely(tmp_path: Path) -> None:
    nccl = "gpu-a012:5:5 [0] NCCL INFO Bootstrap : Using bond0:10.0.4.13<0>\n"
    stalled = "STALL rank 3 on node0: no progress past step 324 for 120s\n"
    shown = [screen(read(tmp_path, nccl + stalled + behind * "goes on\n"), width=120) for behind in (0, 200)]

    assert "Hung: likely; a program says that it makes no progress." in shown[0]
    assert "Hung: likely" not in shown[1]


def test_words_of_a_text_about_something_else_accuse_no_process(tmp_path: Path) -> None:
    text = (
        "a larger sum than most have; they are rarely killed\nOn older releases, our tests crashed after an hour\n"
        "Suppose that the set were disconnected.\nWait, it is disconnected. Let me look at this again.\n"
        "The option closes the program if some GPU failed, so that a script can start it again\n"
    )

    assert {str(finding.severity) for finding in read(tmp_path, text).findings} == {"info"}


@pytest.mark.parametrize(
    ("text", "severity", "certainty", "title"),
    [
        ("the worker on gpu-a012 was killed\n", "warning", "likely", "a process crashed"),
        ("dispatcher: Permission denied\n", "warning", "likely", "access was refused"),
        ("E0302 11:04:57.162000 4711 agent.py:17] Permission denied\n", "warning", "certain", "access was refused"),
        ("I think that rank 3 was killed, because we ran /opt/run.sh\n", "info", "possible", "the text says"),
        ("Permission denied\n", "info", "possible", "the text says"),
    ],
)
def test_words_accuse_where_something_shows_that_a_program_printed_them(
    text: str, severity: str, certainty: str, title: str, tmp_path: Path
) -> None:
    (finding,) = (found for found in read(tmp_path, text).findings if found.rule == "stated-by-program")

    assert (str(finding.severity), finding.certainty) == (severity, certainty)
    assert title in finding.title


def test_what_a_person_says_in_words_alone_and_values_of_records_are_not_quoted(tmp_path: Path) -> None:
    text = 'We see that the second pod is killed, and its log is empty\n  "verdict": "rank 3 died",\n'

    assert "stated-by-program" not in {finding.rule for finding in read(tmp_path, text).findings}
    quoted = read(tmp_path, '  "error": "rank 3 of gpu-a012 was killed",\n').findings
    assert "stated-by-program" in {finding.rule for finding in quoted}


@pytest.mark.parametrize("name", ["one-gpu-rests-while-the-others-spin", "one-slow-host-in-pairs-of-a-capture"])
def test_tables_and_plots_of_tools_are_no_documents(name: str) -> None:
    incident = Incident(INCIDENTS / name)

    assert {finding.rule for finding in incident.answer(everything=True).report.findings} == incident.rules


def test_a_source_of_a_program_states_nothing(tmp_path: Path) -> None:
    function = "def load_{0}(path):\n    if path is {0}:\n        return {0}\n    text = path[{0}]\n"
    source = "".join(function.format(number) for number in range(8))
    documented = (
        '    """Load.\n\n    NetworkError\n        where the volume is away\n    """\n    cannot open the device\n'
    )

    assert "error" not in {str(finding.severity) for finding in read(tmp_path, source + documented).findings}


def test_what_a_document_tells_of_failures_is_none_and_what_it_quotes_is_read(tmp_path: Path) -> None:
    prose = "".join(f"- step {step} of the guide: if a worker on the node fails, read its log\n" for step in range(20))
    told = (
        f"# Faults\n{prose}If a worker has died with a non-zero exit code, log it, and start it again\n"
        "| `RuntimeError: Timed out` | of the store | look at the first rank |\n"
    )
    code = "```python\nif failed:\n    log.error('cannot open the device')\n```\n"
    quoted = "```\ndevmon: error: cannot open the device of gpu-a012\n```\n"

    assert not {str(finding.severity) for finding in read(tmp_path, told + code).findings} - {"info"}
    assert "cannot open the device of gpu-a012" in read(tmp_path, told + quoted).findings[0].title
    assert "RuntimeError" in read(tmp_path, "RuntimeError: Timed out\n" + prose).findings[0].title


def test_the_stack_of_a_lost_store_is_none_where_the_program_came_to_its_end(tmp_path: Path) -> None:
    ended = "[2026-03-02 11:04:57,034] [INFO] [launch.py:364:main] Process 41887 exits successfully.\n"

    assert read(tmp_path, STACK).findings
    assert not read(tmp_path, ended + STACK).findings


def test_the_end_of_a_job_is_read_behind_a_bar_without_a_total(tmp_path: Path) -> None:
    text = (
        "Generating train split: 0 examples [00:00, ? examples/s]slurmstepd-gpu-a012: error: *** JOB 4711 ON gpu-a012 "
        "CANCELLED AT 2026-03-02T11:04:57 ***\n"
        "slurmstepd-gpu-a012: error: container_p_join: open failed for /var/tmp/4711/.ns: No such file or directory\n"
    )

    assert read(tmp_path, text).findings[0].title.startswith("gpu-a012: Slurm ended the job")


def test_a_program_that_did_not_begin_long_before_the_end_of_the_text_is_a_warning(tmp_path: Path) -> None:
    usage = "main.py: error: unrecognized arguments: --optimizer adam\n"
    severities = [str(read(tmp_path, usage + "graph written\n" * lines).findings[0].severity) for lines in (9, 2000)]

    assert severities == ["error", "warning"]
