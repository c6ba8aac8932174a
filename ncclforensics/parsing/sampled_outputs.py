"""Bound what is kept of outputs collected again and again: counters of ports, the use of GPUs, reports of RAS.

A loop that prints counters fills any disk. An output begins at a line that names what is sampled (`// sampled:` in its
grammar): a port, an interface, a GPU. Where a grammar has more rows than the policy says, the first and the last
outputs of each are kept, and of those between every second, fourth, eighth: a counter that rises is still seen to
rise, and between which two times. What was sampled once is kept, whatever there is of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.grammar_file import load
from ncclforensics.grammar.patterns import FORM, OutputHead
from ncclforensics.parsing.alike_rows import PROCESS
from ncclforensics.parsing.next_lines import PLACE

MOST_ENDS, FEWEST_ENDS = 64, 2
LABELS = {"launcher_node": pl.String(), "launcher_rank": pl.Int32()}  # outputs of several may be merged in one file
HEAD = {
    "source": pl.Int32(),
    **LABELS,
    "line": pl.Int32(),
    "sampled": pl.UInt64(),  # equal where the same is sampled
    "stretch": pl.UInt32(),  # outputs in a row that are kept or dropped together
}
COUNT = {"sampled": pl.UInt64(), "count": pl.UInt32()}

Frames = Mapping[str, list[pl.DataFrame]]


class Samples:
    """Bounds the outputs of all grammars. `most`: rows of a grammar of which all are kept."""

    def __init__(self, dialect: Dialect, most: int) -> None:
        self._dialect = dialect
        self._most = most
        self._rows: Counter[str] = Counter()  # frame -> rows that were added
        self._outputs: dict[str, SampledOutputs | None] = {}  # frame -> what bounds its grammar, if anything does

    @property
    def dropped(self) -> Counter[int]:
        """How many outputs were dropped of each input."""
        return sum((outputs.dropped for outputs in self._distinct()), Counter())

    def add(self, rows: Mapping[str, int], frames: dict[str, list[pl.DataFrame]]) -> None:
        """Note that so many rows were added to frames, and drop some of a grammar if it is time."""
        for name, added in rows.items():
            self._rows[name] += added
            if name not in self._outputs and self._rows[name] > self._most // 8:
                self._begin(name)
            elif (outputs := self._outputs.get(name)) and outputs.count(added):
                outputs.bound(frames)

    def bound(self, frames: dict[str, list[pl.DataFrame]]) -> None:
        """Drop what is too much of the outputs that were added last."""
        for outputs in self._distinct():
            if outputs.is_flooded:
                outputs.bound(frames)

    def _distinct(self) -> list[SampledOutputs]:
        return list({id(outputs): outputs for outputs in self._outputs.values() if outputs}.values())

    def _begin(self, name: str) -> None:
        """Bound the grammar of a frame from now on."""
        dialect = self._dialect.with_all_formats  # slow to build
        grammar = next((shape.grammar for shape in dialect.shapes if shape.frame == name), None)
        above = dialect.above_outputs
        # Lines of NCCL are no part of an output, and what stands above outputs is needed for those that are kept.
        names = [
            shape.frame
            for shape in dialect.shapes
            if shape.grammar == grammar
            and not set(PROCESS) <= set(shape.columns)
            and shape.frame not in {head.frame for head in above}
        ]
        heads = load(grammar).sampled if grammar and name in names else ()
        outputs = SampledOutputs(heads, above, names, self._most) if heads else None
        self._outputs |= dict.fromkeys(names if heads else [name], outputs)
        if outputs:
            outputs.count(sum(self._rows[frame] for frame in names))


@dataclass(slots=True)
class SampledOutputs:
    """Bounds the rows of one grammar, added in the order of their lines. `most`: of more, some are dropped.

    `above`: lines above an output that tell the host or the interface it is of; all of these are kept.
    """

    heads: Sequence[OutputHead]
    above: Sequence[OutputHead]
    names: Sequence[str]  # the frames of the grammar that hold outputs
    most: int
    dropped: Counter[int] = field(default_factory=Counter)  # number of an input -> outputs
    _rows: int = 0  # that were added, dropped ones included
    _waiting: int = 0  # rows that were added since the last time some were dropped
    _wait: int = 0  # rows to wait for before it is worth looking for some to drop
    _ends: int = MOST_ENDS  # outputs that are kept at each end of what is sampled
    _step: int = 1  # which only doubles: every which output between is kept
    _known: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={**HEAD, "nth": pl.UInt32()}))
    _counts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNT))  # outputs, dropped ones included

    def count(self, rows: int) -> bool:
        """Note that so many rows were added, and return whether it is time to drop some."""
        self._rows += rows
        self._waiting += rows
        return self._waiting > max(self.most, self._wait)

    @property
    def is_flooded(self) -> bool:
        """Whether rows were added since some were dropped, and there are more of them than are all kept."""
        return self._rows > self.most and self._waiting > 0

    def bound(self, frames: dict[str, list[pl.DataFrame]]) -> None:
        """Drop outputs between others."""
        self._waiting = 0
        heads = self._numbered(frames)
        if heads.is_empty():
            return
        self._shorten()
        count = heads.join(self._counts, on="sampled", how="left", maintain_order="left")["count"]
        nth = heads["nth"]
        is_kept = (nth < self._ends) | (nth + self._ends >= count) | (nth // heads["stretch"] % self._step == 0)
        # Where all outputs differ, it is worth looking again when there are twice as many.
        self._wait = self._rows if is_kept.all() else 0
        self._known = heads.filter(is_kept)
        self.dropped.update(heads["source"].filter(~is_kept).to_list())
        if not is_kept.all():
            for name in self.names:
                frames[name] = [_kept(piece, heads, is_kept) for piece in frames.get(name, ())]

    def _numbered(self, frames: Frames) -> pl.DataFrame:
        """The beginnings of outputs, each with the number of its output among those of what it samples, from 0."""
        rows = pl.concat([_beginnings(frames, head) for head in self.heads]).sort(PLACE)
        named = [rows["source"], rows["sampled"], *(rows[label] for label in LABELS)]
        for number, head in enumerate(self.above):
            above = _beginnings(frames, head, is_named=True)
            named.append(above["sampled"].gather(_row_above(rows, above)).alias(f"above {number}"))
        rows = rows.with_columns(sampled=pl.DataFrame(named).hash_rows())
        new = rows.join(self._known, on=PLACE, how="anti", maintain_order="left")
        before = new.join(self._counts, on="sampled", how="left", maintain_order="left")["count"].fill_null(0)
        nth = new.select(pl.int_range(pl.len(), dtype=pl.UInt32).over("sampled")).to_series() + before
        added = new.group_by("sampled").agg(count=pl.len())
        self._counts = pl.concat([self._counts, added]).group_by("sampled").agg(pl.col("count").sum())
        return pl.concat([self._known, new.with_columns(nth=nth)]).sort(PLACE)

    def _shorten(self) -> None:
        """Keep fewer outputs at both ends and between, until few enough of average length remain."""
        outputs = int(self._counts["count"].sum())
        most = self.most // 2 * outputs // self._rows
        while self._ends > FEWEST_ENDS and 4 * self._ends * self._counts.height > most:
            self._ends //= 2
        while self._step < outputs and self._kept_outputs() > most:
            self._step *= 2

    def _kept_outputs(self) -> int:
        count = self._counts["count"].cast(pl.Int64)
        between = (count - 2 * self._ends).clip(lower_bound=0) // self._step
        return int((count.clip(upper_bound=2 * self._ends) + between).sum())


def row_above(output: pl.Series, line: pl.Series, head_output: pl.Series, head_line: pl.Series) -> pl.Series:
    """For every line the row of the last head at or above it in the same output; null where there is none."""
    if head_line.is_empty():  # as in most runs
        return pl.Series("head", [None], dtype=pl.UInt32).new_from_index(0, line.len())
    lines = pl.DataFrame({"output": output, "line": line}).with_row_index("row").sort("line")
    heads = pl.DataFrame({"output": head_output, "line": head_line}).with_row_index("head")
    heads = heads.sort("line", maintain_order=True)
    found = lines.join_asof(heads, on="line", by="output", strategy="backward", check_sortedness=False)
    return found.sort("row")["head"]


def _kept(piece: pl.DataFrame, heads: pl.DataFrame, is_kept: pl.Series) -> pl.DataFrame:
    """The rows of a piece of a frame that belong to outputs that are kept, or to none."""
    is_wanted = is_kept.gather(_row_above(piece, heads)).fill_null(value=True)
    return piece if is_wanted.all() else piece.filter(is_wanted)


def _row_above(rows: pl.DataFrame, heads: pl.DataFrame) -> pl.Series:
    """For every row the number of the last head at or above it with the same label; null where there is none."""
    return row_above(_label(rows), rows["line"], _label(heads), heads["line"])


def _label(rows: pl.DataFrame) -> pl.Series:
    """Equal for lines of one input with the same label of a launcher."""
    return rows.select("source", *_labels(rows)).hash_rows()


def _labels(rows: pl.DataFrame) -> list[pl.Expr]:
    """The columns LABELS, which a piece of a frame may lack."""
    return [
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in LABELS.items()
    ]


def _beginnings(frames: Frames, head: OutputHead, *, is_named: bool = False) -> pl.DataFrame:
    """The rows of a frame where outputs begin; `sampled` tells apart what the columns of the head do.

    `is_named`: leave out rows in which all of these columns are empty.
    """
    pieces = [pl.DataFrame(schema=HEAD)]
    for piece in frames.get(head.frame, ()):
        rows = piece if head.form is None else piece.filter(pl.col(FORM).cast(pl.String) == head.form)
        names = [
            (pl.col(name) if name in rows.columns else pl.lit(None)).cast(pl.String).alias(name)
            for name in head.columns
        ]
        sampled = rows.select(pl.repeat(head.frame, pl.len()), *names).hash_rows()
        # Where nothing tells the GPUs of a table apart, as many rows in a row hold all of them.
        stretch = pl.lit(1 if head.columns else MOST_ENDS, pl.UInt32)
        found = rows.select(*PLACE, *_labels(rows)).with_columns(sampled=sampled, stretch=stretch).select(list(HEAD))
        if is_named and head.columns:
            found = found.filter(rows.select(pl.any_horizontal(name.is_not_null() for name in names)).to_series())
        pieces.append(found)
    return pl.concat(pieces)
