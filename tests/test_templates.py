"""What is kept once is what stood there every time."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics.parsing.templates import Repetition, folded, together

SHARED = st.tuples(st.integers(0, 1), st.sampled_from(["AllReduce", "Send", None]), st.integers(0, 2))


@st.composite
def lines(draw: st.DrawFn) -> pl.DataFrame:
    said = draw(st.lists(st.tuples(SHARED, st.integers(0, 3)), max_size=12))
    rows = [(*shared, number, counter) for number, (shared, counter) in enumerate(said, 1)]
    schema = {"source": pl.Int32, "called": pl.String, "count": pl.Int64, "line": pl.Int32, "opcount": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _unfolded(call_occurrence: Repetition, like: pl.DataFrame) -> pl.DataFrame:
    return call_occurrence.unfolded().select(like.columns)


@given(lines())
def test_what_is_folded_unfolds_to_the_same_rows(rows: pl.DataFrame) -> None:
    call_occurrence = folded(rows, ["line", "opcount"])

    assert _unfolded(call_occurrence, rows).equals(rows)
    shared = call_occurrence.said.drop("line")
    assert shared.height == rows.select(shared.columns).n_unique()


@given(st.lists(lines(), min_size=1, max_size=4))
def test_pieces_put_together_unfold_one_after_another(pieces: list[pl.DataFrame]) -> None:
    whole = together([folded(rows, ["line", "opcount"]) for rows in pieces])

    assert _unfolded(whole, pieces[0]).equals(pl.concat(pieces))
