"""`explain --line`: what a line is, or where the nearest shape stops."""

from __future__ import annotations

import pytest

from ncclforensics.formats import nccl
from ncclforensics.parsing.explain_line import anatomy

LANGUAGE = nccl.dialect()
CALL = (
    "gpu-a012:41887:41887 [3] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 "
    "root 0 comm 0x55d1 [nranks=16] stream 0x55"
)


def test_a_line_that_a_shape_knows_is_taken_apart() -> None:
    found = anatomy(CALL, LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.fields["called"], found.fields["opcount"]) == ("operation", "AllReduce", 26)


def test_what_a_launcher_put_in_front_is_told_apart() -> None:
    found = anatomy("[1,3]<stdout>:" + CALL, LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.labels["launcher_rank"], found.text) == ("operation", 3, CALL)


def test_a_line_from_which_its_process_was_cut_away_is_known_by_what_it_says() -> None:
    found = anatomy("NCCL INFO Using network Socket", LANGUAGE)

    assert found.shape is not None
    assert (found.shape.frame, found.fields) == ("milestone", {"network": "Socket"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoiled", "known", "expected"),
    [("recvbuff 0x7f", 'recvbuff "', "_BUFFER"), ("count 8", "count x", "COUNT"), ("op 0", "OP 0", '" op "')],
)
def test_the_nearest_shape_says_where_it_stops(spoiled: str, known: str, expected: str) -> None:
    line = CALL.replace(spoiled, known, 1)

    found = anatomy(line, LANGUAGE)

    assert found.shape is None
    assert found.nearest is not None
    assert (found.nearest.frame, found.expected) == ("operation", expected)
    assert CALL.startswith(line[: found.at])


@pytest.mark.slow
@pytest.mark.parametrize("line", ["step 7: loss 0.25", "", "INFO: ready"])
def test_a_line_of_the_application_is_near_to_nothing(line: str) -> None:
    found = anatomy(line, LANGUAGE)

    assert (found.shape, found.nearest) == (None, None)
