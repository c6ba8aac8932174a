"""Exports of log stores: arrays, JSON over several lines, CSV."""

from __future__ import annotations

import json

import polars as pl
import pytest

from ncclforensics.inputs import exports

LINE = "gpu-a012:41887:42107 [3] NCCL INFO Connected all rings"
TEXTS = [f'{LINE}, "{number}"' for number in range(4)]
TIMES = [f"2026-11-21T03:14:1{number}.000Z" for number in range(4)]
EVENTS = [{"timestamp": time, "message": text} for time, text in zip(TIMES, TEXTS, strict=True)]
FIELDS = [
    [{"field": "@timestamp", "value": time}, {"field": "@message", "value": text}, {"field": "@ptr", "value": "Cl"}]
    for time, text in zip(TIMES, TEXTS, strict=True)
]
STREAM = {
    "stream": {"pod": "worker-3"},
    "values": [[str(1795230855 + n) + "0" * 9, text] for n, text in enumerate(TEXTS)],
}


def quoted(text: str) -> str:
    """A field of CSV."""
    return '"' + text.replace('"', '""') + '"'


EXPORTS = {
    "array": json.dumps(EVENTS, indent=1),
    "array, an object a line": "[\n" + ",\n".join(map(json.dumps, EVENTS)) + "\n]\n",
    "array, one line": json.dumps(EVENTS),
    "objects over several lines": "\n".join(json.dumps(event, indent=4) for event in EVENTS),
    "aws logs get-log-events": json.dumps({"events": EVENTS, "nextForwardToken": "f/1"}, indent=4),
    "cloudwatch insights": json.dumps({"results": FIELDS, "status": "Complete"}, indent=4),
    "loki query": json.dumps({"status": "success", "data": {"resultType": "streams", "result": [STREAM]}}, indent=2),
    "csv": "timestamp,message\n"
    + "".join(f'{e["timestamp"]},"{e["message"].replace(chr(34), 2 * chr(34))}"\n' for e in EVENTS),
}


def read(data: str) -> tuple[list[str], list[int]] | None:
    reader = exports.reader_of(data.encode())
    if reader is None:
        return None
    rows, in_file = exports.rows_of(data.encode(), reader, 7)
    assert rows["line"].to_list() == list(range(1, rows.height + 1))
    assert set(rows["source"]) <= {7}
    return rows["text"].to_list(), in_file.to_list()


@pytest.mark.parametrize("data", EXPORTS.values(), ids=EXPORTS)
def test_every_record_is_a_line_and_knows_where_its_text_stands(data: str) -> None:
    found = read(data)

    assert found is not None
    texts, in_file = found
    assert texts == TEXTS
    file = data.split("\n")
    for text, number in zip(texts, in_file, strict=True):
        assert json.dumps(text)[1:-1] in file[number - 1] or text.replace('"', '""') in file[number - 1]


@pytest.mark.parametrize("name", ["array", "array, an object a line", "csv"])
def test_the_newest_record_comes_last(name: str) -> None:
    newest_first = {
        "array": json.dumps(EVENTS[::-1], indent=1),
        "array, an object a line": "\n".join(map(json.dumps, EVENTS[::-1])),
        "csv": "\n".join([EXPORTS["csv"].split("\n")[0], *EXPORTS["csv"].split("\n")[-2:0:-1]]),
    }[name]

    found = read(newest_first)

    assert found is not None
    assert found[0] == TEXTS
    assert found[1] == sorted(found[1], reverse=True)


def test_records_of_equal_times_stay_in_their_order() -> None:
    events = [{"timestamp": TIMES[0], "message": text} for text in TEXTS]

    assert read(json.dumps(events)) == (TEXTS, [1] * 4)


def test_a_text_over_several_rows_of_csv_is_several_lines() -> None:
    assert read(f'Time,Line\n{TIMES[0]},"{LINE}\nsecond"\n{TIMES[1]},third\n') == ([LINE, "second", "third"], [2, 3, 4])


def test_an_export_that_is_cut_off_keeps_its_beginning() -> None:
    found = read(json.dumps({"events": EVENTS}, indent=4)[:-60])

    assert found is not None
    assert found[0][:3] == TEXTS[:3]
    assert len(found[0]) == 4  # what is left of the last record


@pytest.mark.parametrize("name", ["array", "array, one line", "objects over several lines", "aws logs get-log-events"])
def test_a_damaged_record_in_the_middle_is_counted_and_the_others_are_read(name: str) -> None:
    data = EXPORTS[name]
    begin = data.index('"1')  # in the text of the second record
    damaged = data[:begin] + "\x00" * 8 + data[begin + 5 :]

    reader = exports.reader_of(data.encode())
    assert reader is not None
    rows, _ = exports.rows_of(damaged.encode(), reader, 7)

    assert rows.filter("damaged").height == 1
    assert rows.filter(~pl.col("damaged"))["text"].to_list() == [TEXTS[0], *TEXTS[2:]]


def test_an_answer_of_loki_that_is_cut_off_keeps_its_beginning() -> None:
    found = read(EXPORTS["loki query"].replace("\n", "").split(TEXTS[3][-9:])[0])

    assert found is not None
    assert found[0][:3] == TEXTS[:3]


@pytest.mark.parametrize(
    "data",
    [
        f"{LINE}\n",
        f'[1,3]<stdout>:{{"message": "{LINE}", "time": "{TIMES[0]}"}}\n',
        f"[rank3]: {LINE}\n",
        "[2026-11-21 03:14:15] [INFO] step 3\n",
        '{\n "lr": 0.1,\n "steps": 4\n}\n' + f"{LINE}\n" + json.dumps(EVENTS[0]) + "\n",
        '{"step": 3}\n' + f"{LINE}\n" + json.dumps(EVENTS[0]) + "\n",
        '{"version": "2.13", "config": {"time": 3}}\n',
        "timestamp, name, pci.bus_id\n2026/11/21 03:14:15.100, NVIDIA H100, 00000000:1B:00.0\n",
        "\n".join(map(json.dumps, EVENTS)),
        "",
    ],
)
def test_what_is_no_export_is_not_taken_for_one(data: str) -> None:
    assert read(data) is None
