"""Records of collectors and loggers become the lines that they carry."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics.inputs import lines, records
from ncclforensics.inputs.line_numbers import LineNumbers

LINE = "gpu-a012:41887:42107 [3] NCCL INFO Connected all rings"
TIME = "2026-11-21T03:14:15.1Z"

RECORDS: dict[str, dict[str, Any]] = {
    "docker": {"log": f"{LINE}\n", "stream": "stdout", "time": TIME},
    "fluent-bit": {"log": LINE, "stream": "stderr", "kubernetes": {"pod_name": "worker-3"}, "@timestamp": TIME},
    "journald": {"MESSAGE": LINE, "_HOSTNAME": "gpu-a012", "__REALTIME_TIMESTAMP": "1795230855100000", "_PID": "41"},
    "journald, bytes": {"MESSAGE": list(LINE.encode()), "__REALTIME_TIMESTAMP": "1795230855100000"},
    "logcli": {"labels": {"pod": "worker-3"}, "line": LINE, "timestamp": TIME},
    "google cloud, text": {"textPayload": LINE, "timestamp": TIME, "severity": "INFO", "insertId": "1"},
    "google cloud, json": {"jsonPayload": {"message": LINE}, "timestamp": TIME},
    "cloudwatch": {"@timestamp": "2026-11-21 03:14:15.100", "@message": LINE, "@logStream": "a"},
    "elastic": {"_index": "logs", "_source": {"@timestamp": TIME, "message": LINE, "host": {"name": "gpu-a012"}}},
    "elastic, original": {"@timestamp": TIME, "message": "parsed", "event": {"original": LINE}},
    "kibana": {"fields": {"message": [LINE], "@timestamp": [TIME]}},
    "splunk": {"preview": False, "result": {"_raw": LINE, "_time": TIME}},
    "opentelemetry": {"body": {"stringValue": LINE}, "timeUnixNano": "1795230855100000000"},
    "azure": {"LogMessage": LINE, "TimeGenerated": TIME, "PodName": "worker-3"},
    "python": {"asctime": "2026-11-21 03:14:15,100", "levelname": "INFO", "message": LINE},
    "pino": {"level": 30, "time": 1795230855100, "pid": 41, "hostname": "gpu-a012", "msg": LINE},
    "structlog": {"event": LINE, "level": "info", "timestamp": TIME},
    "loguru": {"text": f"{LINE}\n", "record": {"time": {"repr": TIME}}},
}


def unwrapped(*found: object) -> pl.DataFrame:
    text = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in found)
    return records.unwrap(lines.block(text.encode(), 1))


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_text_inside_of_a_record_is_the_line(record: dict[str, Any]) -> None:
    rows = unwrapped(record, record)

    assert rows.select("line", "text").rows() == [(1, LINE), (2, LINE)]
    assert rows["launcher_time"][0].replace(" ", "T").replace(",", ".").startswith("2026-11-21T03:14:15.1")


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_records_are_read_alike_whatever_stands_among_them(record: dict[str, Any]) -> None:
    among_others = unwrapped("plain text", record, '{"cut', {"step": 3})

    assert among_others["text"].to_list() == ["plain text", LINE, '{"cut', '{"step": 3}']
    assert among_others["launcher_time"].to_list() == [None, unwrapped(record)["launcher_time"][0], None, None]


def test_labels_say_host_and_rank() -> None:
    rows = unwrapped({"message": LINE, "time": TIME, "kubernetes": {"pod_name": "worker-3"}, "rank": 3})

    assert rows.select("launcher_node", "launcher_rank").rows() == [("worker-3", 3)]


def test_objects_that_are_no_records_stay_as_they_are() -> None:
    rows = unwrapped({"journal": 1, "time": TIME, "rank": 3}, {"text": "a sentence"}, {"step": 3, "loss": 0.5})

    assert rows.equals(lines.block(rows["text"].str.join("\n").item().encode() + b"\n", 1))


def test_lines_without_records_are_not_looked_at() -> None:
    rows = lines.block(f"{LINE}\n".encode() * 3, 1)

    assert records.unwrap(rows) is rows


def test_a_text_of_several_lines_becomes_these_lines() -> None:
    rows = unwrapped({"message": f"{LINE}\r\nsecond\n", "time": TIME}, {"message": "third", "time": TIME})

    assert rows.select("line", "text").rows() == [(1, LINE), (1, "second"), (2, "third")]


@pytest.mark.parametrize("key", ["exc_info", "stack_trace", "exception"])
def test_the_traceback_of_a_record_stands_below_its_message(key: str) -> None:
    """Of one record as of many, of which the others have none."""
    plain = {"message": "step 7", "time": TIME}
    failed = {"message": "cannot load", "time": TIME, key: "Traceback (most recent call last):\nKeyError: 'eos'"}

    alone, among = (unwrapped(*found)["text"].to_list() for found in ([failed], [plain, failed, plain]))

    assert alone == ["cannot load", "Traceback (most recent call last):", "KeyError: 'eos'"]
    assert among == ["step 7", *alone, "step 7"]


def test_pieces_of_a_long_line_are_put_together() -> None:
    pieces = [f"{LINE}\n", LINE[:20], LINE[20:30], f"{LINE[30:]}\n", f"{LINE}\n", f"{LINE}\n", f"{LINE}\n"]
    rows = unwrapped(*({"log": piece, "stream": "stdout", "time": TIME} for piece in pieces))

    assert rows.select("line", "text").rows() == [(1, LINE), (2, LINE), (5, LINE), (6, LINE), (7, LINE)]


def test_a_logger_that_leaves_out_line_feeds_writes_whole_lines() -> None:
    rows = unwrapped(*({"log": LINE, "time": TIME} for _ in range(3)))

    assert rows["text"].to_list() == [LINE] * 3


def test_records_in_records_are_unwrapped() -> None:
    inner = json.dumps({"message": LINE, "level": "info", "rank": 3})
    rows = unwrapped({"log": f"{inner}\n", "stream": "stdout", "time": TIME})

    assert rows.select("text", "launcher_time", "launcher_rank").rows() == [(LINE, TIME, 3)]


def test_a_line_that_holds_several_records_becomes_their_lines() -> None:
    batch = [{"body": {"stringValue": f"{LINE} {number}"}, "timeUnixNano": "1795230855100000000"} for number in (1, 2)]
    rows = unwrapped({"resourceLogs": [{"scopeLogs": [{"logRecords": batch}]}]})

    assert rows.select("line", "text").rows() == [(1, f"{LINE} 1"), (1, f"{LINE} 2")]


def test_a_record_without_its_line_feed_is_not_cut() -> None:
    whole = lines.block(json.dumps(RECORDS["docker"]).encode(), 1)
    cut = lines.block(json.dumps(RECORDS["docker"]).encode()[:-9], 1)

    assert records.unwrap(whole)["cut"].to_list() == [False]
    assert records.unwrap(cut)["cut"].to_list() == [True]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")), min_size=1))
def test_any_text_comes_out_as_it_went_in(texts: list[str]) -> None:
    rows = unwrapped(*({"log": f"{text}\n", "stream": "stdout", "time": TIME} for text in texts))

    expected = [text if not text.startswith("{") else None for text in texts]
    assert [one if two is not None else None for one, two in zip(rows["text"], expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1795230855, "2026-11-21T03:14:15.000000Z"),
        (1795230855100, "2026-11-21T03:14:15.100000Z"),
        ("1795230855100000", "2026-11-21T03:14:15.100000Z"),
        (1795230855100000000, "2026-11-21T03:14:15.100000Z"),
        (12.5, None),
    ],
)
def test_numbers_count_from_1970(number: object, text: str | None) -> None:
    assert records.as_time(number) == text


def numbered(*stretches: list[int]) -> tuple[LineNumbers, list[int]]:
    """Numbers of the file's lines that lines of text stand in, read one after the other."""
    numbers, found = LineNumbers(), []
    for in_file in stretches:
        rows = numbers.number(pl.DataFrame({"line": in_file}, schema={"line": pl.Int32()}), len(set(in_file)))
        found += rows["line"].to_list()
    return numbers, found


def test_lines_of_text_are_numbered_one_after_the_other() -> None:
    numbers, found = numbered([1, 1, 2], [3, 4])

    assert found == [1, 2, 3, 4, 5]
    assert numbers.in_file(found) == {1: 1, 2: 1, 3: 2, 4: 3, 5: 4}


def test_lines_of_text_are_numbered_from_the_end_too() -> None:
    numbers, found = numbered([1, 2, 2], [-2, -1, -1], [-4, -3])

    assert found == [1, 2, 3, -3, -2, -1, -5, -4]
    assert numbers.in_file(found) == {1: 1, 2: 2, 3: 2, -3: -2, -2: -1, -1: -1, -5: -4, -4: -3}
    assert numbers.in_file([8, 4]) == {8: -1, 4: -4}, "the same lines once all of them are known"
