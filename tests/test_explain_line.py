"""`explain --line`: what a line is, or where the nearest shape stops."""

from __future__ import annotations

from io import StringIO

import pytest

from ncclforensics.cli import Exit, main
from ncclforensics.formats import nccl
from ncclforensics.grammar import grammar_file
from ncclforensics.inputs import lines
from ncclforensics.parsing.explain_line import explain_line
from ncclforensics.parsing.matching import match
from tests.budget import drawn

LANGUAGE = nccl.dialect()
CALL = (
    "gpu-a012:41887:41887 [3] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 "
    "root 0 comm 0x55d1 [nranks=16] stream 0x55"
)


def test_a_known_line_is_explained_by_its_fields() -> None:
    found = explain_line(CALL, LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.fields["called"], found.fields["opcount"]) == ("operation", "AllReduce", 26)


def test_a_launcher_prefix_is_explained_separately() -> None:
    found = explain_line("[1,3]<stdout>:" + CALL, LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.labels["launcher_rank"], found.text) == ("operation", 3, CALL)


def test_a_line_without_its_prefix_is_explained_by_its_message() -> None:
    found = explain_line("NCCL INFO Using network Socket", LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.fields) == ("milestone", {"network": "Socket"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoiled", "known", "expected"),
    [("recvbuff 0x7f", 'recvbuff "', "_BUFFER"), ("count 8", "count x", "COUNT"), ("op 0", "OP 0", '" op "')],
)
def test_the_nearest_shape_shows_where_it_stops_matching(spoiled: str, known: str, expected: str) -> None:
    line = CALL.replace(spoiled, known, 1)

    found = explain_line(line, LANGUAGE)

    assert found.shape is None
    assert found.nearest is not None
    assert (found.nearest.frame, found.expected) == ("operation", expected)
    assert CALL.startswith(line[: found.at])


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("line", ["the model is ready", "", "INFO: ready"])
def test_a_line_of_the_application_has_no_nearest_shape(line: str) -> None:
    found = explain_line(line, LANGUAGE)

    assert (found.shape, found.nearest) == (None, None)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("gpu-a012:41887:41887 [3] NCCL INFO Using network Socket", "  network = Socket"),
        ("gpu-a012:41887:41887 [3] NCCL INFO Using netwerk Socket", "^ expected here: "),
        ("the model is ready", "it counts as a line of the application"),
        ("Using network Socket", "  network = Socket"),  # as short as a name
        ("OSError: [Errno 28] No space left on device", "by its words: a file system took no more data\nRun df -h"),
        ("ERROR: the sky is green", "Judged, with the lines around it, by stated-by-program:"),
        ("via P2P/Disabled", "no release of NCCL prints it\nlook for channels `via SHM` or `via NET`"),
    ],
)
def test_what_is_printed_of_a_line(line: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", line]) == Exit.OK
    assert printed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "frame", "fields"),
    [
        ("NET/IB : Got completion from peer 10.0.0.2<4> with status=10 opcode=0", "failure", {"status": 10}),
        ("NET/IB : Got completion from peer X with error 12, ... vendor err 129", "failure", {"status": 12}),
        ("a:1:2 [0] x.cc:9 NCCL WARN something new", "warning", {"message": "something new"}),
        ("the disk failed: No space left on device", "unread_error", {}),
    ],
)
def test_a_message_is_known_without_its_prefix(text: str, frame: str, fields: dict[str, object]) -> None:
    found = explain_line(text, LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.is_inside) == (frame, frame == "failure")
    assert fields.items() <= found.fields.items()


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        (CALL, "NCCL since 2.3.7: src/enqueue.cc:"),
        ("a:1:2 [0] NCCL INFO Connected all rings", "NCCL 2.8.3 to 2.23.4: src/transport/generic.cc:12 (2.23.4)"),
        ("a:1:2 [0] NCCL INFO Loaded an own plugin of ours", ""),
        ("RuntimeError: Using network Socket", ""),  # of another program
    ],
)
def test_releases_and_source_of_a_message_are_known(line: str, origin: str) -> None:
    message = explain_line(line, LANGUAGE).message

    assert (message.origin[: len(origin)] if message else "") == origin


def test_a_rule_and_a_line_are_not_explained_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "shm", "--line", CALL]) == Exit.USAGE
    assert "either a name or --line" in capsys.readouterr().err


def test_a_line_is_followed_by_what_it_means_alone(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "gpu-a:1:2 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=10 "
        "opcode=0 len=0 vendor err 136"
    )

    assert main(["explain", line]) == Exit.OK

    printed = capsys.readouterr().out
    assert "  peer = 10.0.0.2<4>" in printed
    assert "status 10 (IBV_WC_REM_ACCESS_ERR): remote access error" in printed
    assert "The fault is at the peer, not on the host that prints it." in printed
    assert "Judged, with the lines around it, by ib-remote-access:" in printed
    assert "This host logs the error, but the fault is on the peer." in printed
    assert "Search for the sentence" not in printed  # what fits a warning of any text


@pytest.mark.parametrize(
    ("line", "printed", "absent"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.",
            ["Xid 79: it fell off the bus", "by cuda-gpu-fault or kernel-xid:", "The hardware reports"],
            [],
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=python, Graphics Exception",
            ["Xid 13: ", "by kernel-xid:"],
            ["cuda-gpu-fault"],
        ),
        (
            "a:1:2 [0] enqueue.cc:80 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
            ["CUDA error 700 (cudaErrorIllegalAddress)", "by cuda-sticky-error:"],
            ["cuda-call-failed"],
        ),
        (
            "a:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer X with error 12, ... vendor err 129",
            ["form ib_completion", "status 12 (IBV_WC_RETRY_EXC_ERR)", "by ib-timeout-at-start or ib-timeout-mid-run:"],
            [],
        ),
        (
            "a:1:2 [0] enqueue.cc:80 NCCL WARN Cuda failure 'out of memory'",
            ["CUDA error 2 (cudaErrorMemoryAllocation)", "by cuda-oom-in-nccl:"],
            ["cuda-call-failed"],
        ),
        (CALL, ["opcount = 26", "fact: by itself it shows no failure", "among: Calls that a rank"], ["Judged"]),
        (
            "a:1:2 [0] NCCL INFO group.cc:581 -> 3",
            ["consequence: ", "NCCL's result 3 (ncclInternalError)", "by error-returned-to-application:"],
            ["boot-init-refused"],
        ),
        ("        GPU memory   : 2566 MiB", ["it counts as a line of the application"], ["pyspy"]),
        ("[INFO] Net device mlx5_0 is used", ["unknown line; nearest pattern: diagnostics_fault"], ["RDMA"]),
        ("a - INFO :: Added key: x", ["it counts as a line of the application"], ["noise"]),
    ],
)
def test_the_codes_of_a_line_decide_which_rule_judges_it(
    line: str, printed: list[str], absent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", line]) == Exit.OK

    page = capsys.readouterr().out
    assert [text for text in printed if text.lower() not in page.lower()] == []
    assert [text for text in absent if text in page] == []


def test_python_and_polars_match_lines_alike() -> None:
    shapes = (shape for name in grammar_file.names() for shape in grammar_file.load(name).shapes)
    texts = drawn([text for shape in shapes for text in shape.examples], 100)
    rows = lines.block("\n".join([*texts, ""]).encode(), 1)
    tables = [(name, table) for name, found in match(rows, LANGUAGE).frames.items() for table in found]
    by_polars = {line: name for name, table in tables for line in table["line"]}
    found = {number: explain_line(text, LANGUAGE) for number, text in enumerate(texts, 1)}
    by_python = {
        number: line.shape.frame
        for number, line in found.items()
        if line.shape and line.text == texts[number - 1] and not line.is_inside and "message" not in line.fields
        if line.shape not in LANGUAGE.last_shapes  # which are tried elsewhere, on what is left over
    }

    assert len(by_python) > len(texts) // 2
    assert {number: by_polars.get(number) for number in by_python} == by_python


def test_pasted_lines_are_explained_one_by_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(f"{CALL}\n\nready to train\n"))

    assert main(["explain", "-"]) == Exit.OK

    first, second = capsys.readouterr().out.strip().split("\n\n")
    assert first.startswith(f"> {CALL[:60]}")
    assert (
        second
        == "> ready to train\nunknown line: no pattern matches its beginning; it counts as a line of the application"
    )
