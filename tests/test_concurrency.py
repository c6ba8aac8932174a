"""Work on one thread: the same results, the same errors, also side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from ncclforensics.errors import UsageError
from ncclforensics.parsing.concurrency import alone
from ncclforensics.parsing.matching import distinct


def _squares(count: int) -> list[int]:
    return pl.DataFrame({"n": range(count)}).select(pl.col("n") ** 2).to_series().to_list()


def test_what_is_done_alone_is_done_once_and_gives_what_it_gives() -> None:
    asked: list[int] = []

    def work() -> list[int]:
        asked.append(1)
        return _squares(5)

    assert alone(work) == [0, 1, 4, 9, 16]
    assert asked == [1]


@pytest.mark.parametrize("error", [UsageError("no such rule"), KeyError("rank"), KeyboardInterrupt()])
def test_what_is_done_alone_raises_what_it_raises(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        alone(work)
    assert raised.value is error


def test_several_work_alone_side_by_side_and_one_inside_of_another() -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(alone, lambda count=count: alone(lambda: _squares(count))) for count in (3, 4)]
        assert [answer.result() for answer in answers] == [[0, 1, 4], [0, 1, 4, 9]]


def test_rows_that_are_alike_have_one_model_and_others_have_none_in_common() -> None:
    rows = pl.DataFrame({"left": ["a", "b", "a", "a", None, None], "right": ["x", "x", "x", "y", "y", "y"]})
    models, model = distinct(rows, rows.columns)
    assert models.rows() == [("a", "x"), ("b", "x"), ("a", "y"), (None, "y")]
    assert models[model].rows() == rows.rows()
