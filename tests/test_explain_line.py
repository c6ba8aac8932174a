"""`explain --line`: what a line is, or where the nearest shape stops."""

from __future__ import annotations

import pytest

from ncclforensics.cli import Exit, main
from ncclforensics.formats import nccl
from ncclforensics.parsing.explain_line import explain_line

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
@pytest.mark.parametrize("line", ["step 7: loss 0.25", "", "INFO: ready"])
def test_a_line_of_the_application_has_no_nearest_shape(line: str) -> None:
    found = explain_line(line, LANGUAGE)

    assert (found.shape, found.nearest) == (None, None)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("gpu-a012:41887:41887 [3] NCCL INFO Using network Socket", "  network = Socket"),
        ("gpu-a012:41887:41887 [3] NCCL INFO Using netwerk Socket", "^ expected here: "),
        ("step 7: loss 0.25", "it counts as a line of the application"),
    ],
)
def test_what_is_printed_of_a_line(line: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--line", line]) == Exit.OK
    assert printed in capsys.readouterr().out


def test_a_rule_and_a_line_are_not_explained_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "shm", "--line", CALL]) == Exit.USAGE
    assert "either the name of a rule or --line" in capsys.readouterr().err
