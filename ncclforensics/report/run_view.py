"""A run as views show it: frames divided by job, numbers of ranks, names of communicators, and quoted lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import Row
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.selection import Selection
from ncclforensics.rules.finding import Line, places_of

LONGEST = 40  # characters of a list of ranks
SHOWN = 4  # ranks of a longer list


class Groups:
    """Names of the communicators of a run."""

    def __init__(self, run: Frames) -> None:
        numbers = dict(run["rank"].select("rank_id", "rank").iter_rows())
        ranks: dict[tuple[int, str], set[int]] = {}
        sizes: dict[tuple[int, str], int] = {}
        columns = run["member"].select("job", pl.col("key").cast(pl.String), "rank_id", "nranks")
        for job, key, rank_id, nranks in columns.iter_rows():
            sizes[job, key] = max(sizes.get((job, key), 0), nranks or 0)
            if numbers.get(rank_id) is not None:
                ranks.setdefault((job, key), set()).add(numbers[rank_id])
        world: dict[int, int] = {}
        for (job, _), size in sizes.items():
            world[job] = max(world.get(job, 0), size)
        texts = {
            (job, key): f"all {size} ranks" if size == world[job] else _text(sorted(ranks.get((job, key), ())), size)
            for (job, key), size in sizes.items()
        }
        described = run["recorded_position"].select("group", "group_desc").drop_nulls("group").unique("group")
        self._recorded = {
            f"process group {name}": f"process group {name}" + (f" ({role})" if role else "")
            for name, role in described.iter_rows()
        }
        # Several communicators may hold the same ranks: then the id tells them apart.
        alike = Counter((job, text) for (job, _), text in texts.items())
        self._texts = {key: f"{text} ({key})" if alike[job, text] > 1 else text for (job, key), text in texts.items()}

    def text(self, key: str | None) -> str:
        """Return "all 16 ranks" or "ranks 8-11" for a communicator; its id where its ranks are not known."""
        return self._texts.get(str(key)) or self._recorded.get(str(key)) or f"communicator {key}"


def _text(ranks: list[int], size: int) -> str:
    text = ranks_text(ranks)
    if ranks and len(ranks) == size and len(text) <= LONGEST:
        return text
    if len(ranks) == size > SHOWN:
        return f"{size} ranks ({', '.join(map(str, ranks[: SHOWN - 1]))}, …, {ranks[-1]})"
    return f"{size} ranks" + (f" with {ranks_text(ranks[:1])}" if ranks else "")


@dataclass
class RunView:
    """A run and what is shown of it. `quotes`: the text of cited lines: (source, line) -> (true line, text)."""

    run: Frames
    quotes: dict[tuple[int, int], tuple[int, str]]
    selection: Selection

    def of_job(self, name: str, job: int) -> pl.DataFrame:
        """Return the rows of a frame that concern one job. A frame is divided once: there may be thousands of jobs."""
        if name not in self._divided:
            self._divided[name] = self.run[name].partition_by("job", as_dict=True)
        rows = self._divided[name].get((job,))
        return self.run[name].clear() if rows is None else rows

    @cached_property
    def _divided(self) -> dict[str, dict[tuple[object, ...], pl.DataFrame]]:
        return {}

    def cited(self, source: int, line: int) -> Row:
        """Return path, line and text of one line; the text is empty unless the line was cited."""
        reader = self.run.inputs[source]
        known = line if line > 0 else line + reader.lines_read + 1 if reader.is_read_through else None
        true_line, text = self.quotes.get((source, line), (known, ""))
        return {"path": self.run.inputs[source].source.path, "line": true_line, "text": text}

    def cite(self, lines: Iterable[Line]) -> None:
        """Read the text of further lines."""
        self.quotes |= self.run.quote(places_of(lines) - set(self.quotes))

    def numbers(self, rank_ids: Iterable[int]) -> list[int]:
        """Return the sorted rank numbers of these rank_ids, without unknown ones."""
        found = map(self.number_of_rank.get, rank_ids)
        return sorted({number for number in found if number is not None})

    @cached_property
    def number_of_rank(self) -> dict[int, int | None]:
        """Rank id -> the rank's number."""
        return dict(self.run["rank"].select("rank_id", "rank").iter_rows())

    @cached_property
    def groups(self) -> Groups:
        """Names of the communicators by their ranks."""
        return Groups(self.run)
