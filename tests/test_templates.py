"""What is kept once is what stood there every time."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics.parsing.templates import EncodedRows, concat, encode

SHARED = st.tuples(st.integers(0, 1), st.sampled_from(["AllReduce", "Send", None]), st.integers(0, 2))


@st.composite
def lines(draw: st.DrawFn) -> pl.DataFrame:
    said = draw(st.lists(st.tuples(SHARED, st.integers(0, 3)), max_size=12))
    rows = [(*shared, number, counter) for number, (shared, counter) in enumerate(said, 1)]
    schema = {"source": pl.Int32, "called": pl.String, "count": pl.Int64, "line": pl.Int32, "opcount": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _decoded(encoded: EncodedRows, like: pl.DataFrame) -> pl.DataFrame:
    return encoded.decode().select(like.columns)


@given(lines())
def test_encoded_rows_decode_to_the_same_rows(rows: pl.DataFrame) -> None:
    encoded = encode(rows, ["line", "opcount"])

    assert _decoded(encoded, rows).equals(rows)
    templates = encoded.templates.drop("line")
    assert templates.height == rows.select(templates.columns).n_unique()


@given(st.lists(lines(), min_size=1, max_size=4))
def test_concatenated_pieces_decode_one_after_another(pieces: list[pl.DataFrame]) -> None:
    whole = concat([encode(rows, ["line", "opcount"]) for rows in pieces])

    assert _decoded(whole, pieces[0]).equals(pl.concat(pieces))
