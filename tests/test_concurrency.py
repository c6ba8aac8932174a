"""Work on one thread: the same results, the same errors, also side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from ncclforensics.errors import UsageError
from ncclforensics.parsing.concurrency import single_threaded
from ncclforensics.parsing.templates import distinct_rows


def _squares(count: int) -> list[int]:
    return pl.DataFrame({"n": range(count)}).select(pl.col("n") ** 2).to_series().to_list()


def test_single_threaded_work_runs_once_and_returns_its_result() -> None:
    calls: list[int] = []

    def work() -> list[int]:
        calls.append(1)
        return _squares(5)

    assert single_threaded(work) == [0, 1, 4, 9, 16]
    assert calls == [1]


@pytest.mark.parametrize("error", [UsageError("no such rule"), KeyError("rank"), KeyboardInterrupt()])
def test_single_threaded_work_raises_its_own_error(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        single_threaded(work)
    assert raised.value is error


def test_single_threaded_work_may_run_in_several_threads_and_nested() -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = [
            pool.submit(single_threaded, lambda count=count: single_threaded(lambda: _squares(count)))
            for count in (3, 4)
        ]
        assert [answer.result() for answer in answers] == [[0, 1, 4], [0, 1, 4, 9]]


def test_distinct_rows_keeps_the_first_of_equal_rows_and_numbers_the_others() -> None:
    rows = pl.DataFrame({"left": ["a", "b", "a", "a", None, None], "right": ["x", "x", "x", "y", "y", "y"]})
    first, number = distinct_rows(rows, rows.columns)
    assert first.rows() == [("a", "x"), ("b", "x"), ("a", "y"), (None, "y")]
    assert first[number].rows() == rows.rows()
