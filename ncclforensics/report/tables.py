"""The frames of a run as people read them: rank numbers, paths and NCCL's names in place of internal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from ncclforensics.analyses.job.calls.calls import describe_calls
from ncclforensics.data.names import DATATYPES, datatype, reduction
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.registry import analyses

INTERNAL = (
    "rank_id", "waiter", "pos", "created_pos", "end_pos", "member", "call_line", "in_tail", "signature", "place",
    "stated",
)  # fmt: skip
RANK_IDS = ("culprits", "victims", "waits_for")  # columns with lists of rank ids


class Tables(Mapping[str, pl.DataFrame]):
    """The tables of a run by the names of its frames; each is computed when it is asked for.

    A row's `rank` is the number in the world and `host` its host, `path` the file that holds `line`; `datatype` and
    `op` are NCCL's names; `communicator` is the id that reports use. Raises KeyError for a name without a frame.
    """

    def __init__(self, run: Frames) -> None:
        self._run = run

    def __getitem__(self, name: str) -> pl.DataFrame:
        run = self._run
        frame = describe_calls(run["call"], run["call_line"], run["member"]) if name == "call" else run[name]
        return _with_names(_with_arguments(_with_places(frame, run)), run)

    def __iter__(self) -> Iterator[str]:
        yield from (shape.frame for shape in self._run.dialect.with_all_formats.shapes)
        yield from analyses()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _with_places(frame: pl.DataFrame, run: Frames) -> pl.DataFrame:
    """Add `rank` and `host` of a rank id. A rank that is already there is the one within a communicator."""
    owner = next((column for column in ("rank_id", "waiter") if column in frame.columns), None)
    if owner is None:
        return frame
    known = run["rank"].select("rank_id", "rank", "host")
    if frame.columns == run["rank"].columns:
        return frame
    frame = frame.drop("host", strict=False).rename({"rank": "rank_in_communicator"}, strict=False)
    joined = frame.join(known, left_on=owner, right_on="rank_id", how="left", maintain_order="left")
    return joined.select("rank", "host", pl.exclude("rank", "host"))


def _with_arguments(frame: pl.DataFrame) -> pl.DataFrame:
    """Replace the numbers of datatypes and reductions by NCCL's names."""
    call = next((column for column in ("name", "called") if column in frame.columns), None)
    numbers = {column for column in ("datatype", "op") if frame.schema.get(column) == pl.Int32}
    if "datatype" in numbers:
        names = {code: datatype(code) for code in range(len(DATATYPES))}
        text = pl.col("datatype").cast(pl.String)
        frame = frame.with_columns(pl.col("datatype").replace_strict(names, default=text, return_dtype=pl.String))
    if "op" in numbers and call is not None:
        kinds = frame.select(pl.col(call), pl.col("op")).unique()
        meaning = [reduction(name, op) for name, op in kinds.with_columns(pl.col(call).cast(pl.String)).iter_rows()]
        kinds = kinds.with_columns(pl.Series("meaning", meaning, pl.String))
        frame = frame.join(kinds, on=[call, "op"], how="left", nulls_equal=True, maintain_order="left")
        frame = frame.with_columns(op="meaning").drop("meaning")
    return frame


def _with_names(frame: pl.DataFrame, run: Frames) -> pl.DataFrame:
    """Give files their paths and lists of ranks their numbers, and drop what has no meaning outside the program."""
    rank_of = dict(run["rank"].select("rank_id", "rank").iter_rows())
    lists = [name for name in RANK_IDS if frame.schema.get(name) == pl.List(pl.Int32)]
    frame = frame.with_columns(
        pl.col(name).list.eval(pl.element().replace_strict(rank_of, default=None, return_dtype=pl.Int32))
        for name in lists
    )
    for name in [name for name in frame.columns if name.endswith("_rank_id")]:
        number = pl.col(name).replace_strict(rank_of, default=None, return_dtype=pl.Int32)
        frame = frame.with_columns(number).rename({name: name.removesuffix("_id")})
    if "source" in frame.columns and "path" not in frame.columns:
        paths = dict(enumerate(reading.source.path for reading in run.inputs))
        path = pl.col("source").replace_strict(paths, default=None, return_dtype=pl.String)
        frame = frame.with_columns(path).rename({"source": "path"})
    if "communicator" not in frame.columns:
        frame = frame.rename({"key": "communicator"}, strict=False)
    return frame.drop(INTERNAL, "source", strict=False)
