"""Bound the calls that are kept of any length of logs: those at both ends of each process; the others are counted.

A hang is decided by what each process called last, and by how many calls it made before. Windows show the ends of a
file; but where a file holds the logs of many processes, one behind the other, or cannot be read from its end, its lines
are read in order, and of each process the first calls and the latest ones are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from ncclforensics.parsing.calls_between import CountedStretches
from ncclforensics.parsing.templates import CALL_TEMPLATE, EncodedRows, distinct_rows

FEWEST = 256  # calls that are kept at each end of a process, however many there are
PROCESS = ["source", "host", "pid"]
_FROM_END = 1 << 32  # added to lines that are numbered from the end of a file: they stand behind all others


def keep_ends(
    pieces: Sequence[EncodedRows], read_whole: Collection[int], most: int, counted: CountedStretches
) -> list[EncodedRows]:
    """The calls at both ends of each process, about half of `most` in all; `counted` counts those between.

    `read_whole`: numbers of these inputs; calls of windows of others are all kept.
    """
    in_order = sorted((piece for piece in pieces if piece.height), key=lambda piece: _place(piece)[0])
    whole_sources = pl.Series(sorted(read_whole), dtype=pl.Int32).implode()
    processes, process = distinct_rows(pl.concat([piece.templates.select(PROCESS) for piece in in_order]), PROCESS)
    kept = max(most // (4 * processes.height), FEWEST)
    of_pieces, start = [], 0
    for piece in in_order:
        own = process.slice(start, piece.templates.height)
        start += piece.templates.height
        of_pieces.append(own.gather(piece.occurrences[CALL_TEMPLATE]))
    counts = [number.value_counts() for number in of_pieces]
    total = _added(counts, processes.height)
    before = pl.zeros(processes.height, dtype=pl.Int64, eager=True)
    ends: list[EncodedRows] = []
    for piece, number, count in zip(in_order, of_pieces, counts, strict=True):
        within = pl.DataFrame({"process": number, "place": _place(piece)})
        within = within.select("process", nth=pl.int_range(pl.len()).over("process", order_by="place"))
        nth = within["nth"] + before.gather(number)
        is_end = (nth < kept) | (nth >= total.gather(number) - kept)
        is_window = ~piece.templates["source"].is_in(whole_sources)
        is_end |= is_window.gather(piece.occurrences[CALL_TEMPLATE])
        before = before + _added([count], processes.height)
        if is_end.all():
            ends.append(piece)
            continue
        counted.add(EncodedRows(piece.templates, piece.occurrences.filter(~is_end)))
        if is_end.any():
            ends.append(EncodedRows(piece.templates, piece.occurrences.filter(is_end)))
    return ends


def _place(piece: EncodedRows) -> pl.Series:
    """Numbers that grow with the place of a call in its file."""
    line = piece.occurrences["line"].cast(pl.Int64)
    return line + (line < 0).cast(pl.Int64) * _FROM_END


def _added(counts: Sequence[pl.DataFrame], processes: int) -> pl.Series:
    """The sums of counts by process (columns: number of the process, `count`), by the number of the process."""
    number = counts[0].columns[0]
    summed = pl.concat(counts).group_by(number).agg(pl.col("count").cast(pl.Int64).sum())
    return pl.zeros(processes, dtype=pl.Int64, eager=True).scatter(summed[number], summed["count"])
