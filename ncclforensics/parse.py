"""Lines times shapes: typed rows, and every line counted exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar import FORM, Pattern, Shape
from ncclforensics.lines import Block

DEPTH = 4  # lines that one physical line may be torn together from


@dataclass(slots=True)
class Tally:
    """Lines counted; `lines` is always the sum of the other four."""

    recognised: int = 0
    application: int = 0
    unrecognised: int = 0
    damaged: int = 0

    @property
    def lines(self) -> int:
        """All lines counted."""
        return self.recognised + self.application + self.unrecognised + self.damaged

    def add(self, other: Tally) -> None:
        """Count the lines of another tally too."""
        self.recognised += other.recognised
        self.application += other.application
        self.unrecognised += other.unrecognised
        self.damaged += other.damaged


@dataclass(slots=True)
class Parsed:
    """What became of a run of lines: frame name -> rows, and the count of lines."""

    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class Language:
    """The shapes to look for, in the order of trial, and how a line of this kind begins."""

    shapes: tuple[Shape, ...]
    opening: str  # regex of a line's beginning, to find lines buried in others
    catch_all: str  # the frame whose rows count as unrecognised

    @property
    def trials(self) -> list[tuple[Shape, Pattern]]:
        """Every pattern, most important shape first."""
        ordered = sorted(self.shapes, key=lambda shape: -shape.priority)
        return [(shape, pattern) for shape in ordered for pattern in shape.patterns]


def parse(block: Block, language: Language) -> Parsed:
    """Apply the shapes to the lines of a block."""
    out = Parsed()
    last = block.rows["line"][-1] if block.cut and block.rows.height else None
    known, unknown = _apply(block.rows.select("line", "text"), language, out, last)
    for _ in range(DEPTH):
        pieces = _pieces(unknown, language.opening, known)
        if pieces.is_empty():
            break
        more, unknown = _apply(pieces, language, out, last)
        known = pl.concat([known, more])
    out.tally = _tally(block, known, language.opening, last)
    return out


_KNOWN = {"line": pl.Int64(), "caught": pl.Boolean(), "host": pl.String()}


def _apply(
    rows: pl.DataFrame, language: Language, out: Parsed, cut: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that some shape knows (`caught`: only by the catch-all), and the rows that none knows."""
    known = [pl.DataFrame(schema=_KNOWN)]
    for shape, pattern in language.trials:
        if rows.is_empty():
            break
        has_anchor = rows["text"].str.contains(pattern.anchor, literal=True)
        candidates = rows.filter(has_anchor)
        if candidates.is_empty():
            continue
        fields = candidates["text"].str.extract_groups(pattern.regex).struct.unnest()
        hit = fields.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
        if pattern.is_greedy:  # free text may have swallowed the line that was torn into this one
            hit &= candidates["text"].str.count_matches(language.opening) < 2
        if pattern.is_open and cut is not None:  # the value that ends the line may be cut itself
            hit &= candidates["line"] != cut
        rows = rows.filter(~has_anchor) if hit.all() else pl.concat([rows.filter(~has_anchor), candidates.filter(~hit)])
        if not hit.any():
            continue
        candidates, fields = candidates.filter(hit), fields.filter(hit)
        typed = _typed(candidates, fields, shape, pattern)
        out.frames.setdefault(shape.frame, []).append(typed)
        host = pl.col("host") if "host" in typed.columns else pl.lit(None)
        known.append(typed.select("line", caught=pl.lit(shape.frame == language.catch_all), host=host.cast(pl.String)))
    return pl.concat(known), rows


def _typed(rows: pl.DataFrame, fields: pl.DataFrame, shape: Shape, pattern: Pattern) -> pl.DataFrame:
    return fields.select(
        rows["line"],
        pl.lit(pattern.form).cast(pl.Categorical).alias(FORM),
        *(shape.columns[name].cast(pl.col(name)).alias(name) for name in pattern.columns),
    )


def _pieces(rows: pl.DataFrame, opening: str, known: pl.DataFrame) -> pl.DataFrame:
    """The lines that are buried in other lines: behind text of any kind, or behind a line that was cut.

    Where two lines were torn into one, the end of the first may have grown onto the host name of the second: such a
    piece is kept only with a host that stands at the beginning of some whole line.
    """
    buried = rows.filter(pl.col("text").str.contains(opening))
    if buried.is_empty():
        return buried
    at_start = pl.col("text").str.contains(f"^{opening}")
    behind_text = buried.filter(~at_start).select("line", text=pl.col("text").str.extract(f"({opening}.*)$"))
    halves = pl.col("text").str.extract_groups(f"^(?P<first>{opening}.*?)(?P<second>{opening}.*)$").struct
    torn = buried.filter(at_start).select("line", first=halves.field("first"), second=halves.field("second"))
    torn = torn.filter(pl.col("second").is_not_null())
    host = pl.col("second").str.split(":").list.first()
    end = pl.lit(None, dtype=pl.String)
    for name in sorted(known["host"].drop_nulls().unique(), key=len):
        whole = pl.col("second").str.slice(host.str.len_chars().cast(pl.Int64) - len(name))
        end = pl.when(host.str.ends_with(name)).then(whole).otherwise(end)
    second = torn.select("line", text=end).drop_nulls()
    return pl.concat([behind_text, torn.select("line", text="first"), second])


def _tally(block: Block, known: pl.DataFrame, opening: str, cut: int | None) -> Tally:
    lines = block.rows.height
    recognised = known.filter(~pl.col("caught"))["line"].n_unique()
    if recognised == lines:
        return Tally(recognised=lines)
    rest = block.rows.join(known.filter(~pl.col("caught")), on="line", how="anti")
    caught = pl.col("line").is_in(known.filter(pl.col("caught"))["line"].unique().implode())
    if cut is not None:
        caught &= pl.col("line") != cut
    shattered = pl.col("damaged") | pl.col("text").str.contains(opening)
    counts = rest.select(
        unrecognised=caught.sum(),
        damaged=(~caught & shattered).sum(),
        application=(~caught & ~shattered).sum(),
    )
    return Tally(recognised, *(int(counts[name][0]) for name in ("application", "unrecognised", "damaged")))
