"""Name the processes of lines whose prefix was cut away or torn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from ncclforensics.frames.columns import MADE_UP, OWNER, text_of
from ncclforensics.parsing.matching import NO_HOST

# A torn host name is so many times rarer than the true one: a name that ends like it, and any other name.
RARE, VERY_RARE = 3, 30
# So many lines with a name stand beside each without one in the log of one process. Of an output that many share, an
# excerpt may hold one line with a name by chance.
OWN = 3


class ProcessNames(NamedTuple):
    """Replacements of hosts as they were printed."""

    true_hosts: Mapping[tuple[str, int], str] = {}  # (torn host, pid) -> host
    # Input -> host and pid of its lines without a process: of its only process (then the pid is given), or a made-up
    # host whose processes are told apart by device. None: there are several processes, and any may have printed them.
    without_process: Mapping[int, tuple[str, int | None] | None] = {}

    def replace_in(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with their true `host` and `pid`; both are null where the process is unknown."""
        if self.true_hosts:
            schema = {"host": pl.Categorical(), "pid": pl.Int32(), "true": pl.Categorical()}
            named = [(host, pid, true) for (host, pid), true in self.true_hosts.items()]
            names = pl.DataFrame(named, schema=schema, orient="row")
            joined = rows.join(names, on=OWNER, how="left", maintain_order="left")
            rows = joined.with_columns(host=pl.coalesce("true", "host")).drop("true")
        return self._replace_missing(rows) if self.without_process else rows

    def _replace_missing(self, rows: pl.DataFrame) -> pl.DataFrame:
        is_missing = pl.col("host") == NO_HOST
        if not rows.select(is_missing.any()).item():
            return rows
        schema = {"source": pl.Int32(), "_host": pl.Categorical(), "_pid": pl.Int32(), "_known": pl.Boolean()}
        owners = [(source, *(owner or (None, None)), bool(owner)) for source, owner in self.without_process.items()]
        known = pl.DataFrame(owners, schema=schema, orient="row")
        joined = rows.join(known, on="source", how="left", maintain_order="left")
        pid = pl.when("_known").then(pl.coalesce("_pid", "pid"))
        replaced = joined.with_columns(
            host=pl.when(is_missing).then("_host").otherwise("host"), pid=pl.when(is_missing).then(pid).otherwise("pid")
        )
        return replaced.drop("_host", "_pid", "_known")

    def without_ambiguous(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows but for those of calls and communicators that any of several processes may have printed."""
        sources = [source for source, owner in self.without_process.items() if owner is None]
        if not sources or "host" not in rows.columns:
            return rows
        is_ambiguous = (pl.col("host") == NO_HOST) & pl.col("source").is_in(sources)
        if "comm" in rows.columns:
            is_ambiguous &= pl.col("comm").is_not_null()
        return rows.filter(~is_ambiguous.fill_null(False))


def process_names(speakers: pl.DataFrame) -> ProcessNames:
    """Find the names by the stretches of lines of every process (columns of `parser.SPEAKER`)."""
    is_missing = pl.col("host") == NO_HOST
    named = speakers.filter(~is_missing)
    unnamed = speakers.filter(is_missing)
    missing = unnamed["source"].unique().sort().to_list()
    owners = named.filter(pl.col("source").is_in(missing)).select("source", text_of("host"), "pid").unique()
    without_process: dict[int, tuple[str, int | None] | None] = {}
    for source in missing:
        own = owners.filter(source=source).select("host", "pid").rows()
        lines = [rows.filter(source=source)["lines"].sum() for rows in (named, unnamed)]
        is_own = len(own) == 1 and lines[0] >= OWN * lines[1]
        without_process[source] = own[0] if is_own else None if own else (f"{MADE_UP}{source + 1}", None)
    return ProcessNames(_true_hosts(named), without_process)


def _true_hosts(speakers: pl.DataFrame) -> dict[tuple[str, int], str]:
    """(host, pid) -> host, for host names torn by interleaved writes: a part of the name, or with text before it.

    In one line of a process the middle of the name may be lost as well, and the beginning where a copy begins in it.

    The same process prints its true name too, and far more often, in every source that has a torn one: processes of
    several containers may have the same pid.
    """
    counted = speakers.group_by("source", "host", "pid").agg(pl.col("lines").sum(), pl.col("line").min())
    # The only line of this name, and the first of its file.
    counted = counted.with_columns(is_first=(pl.col("line") == 1) & (pl.col("lines") == 1)).drop("line")
    # Thousands of containers may have the same pid: only names that may be rare, and true, are paired.
    fewest, most = (pl.col("lines").min(), pl.col("lines").max())
    is_rare = pl.col("is_first") | (pl.col("lines") * RARE < most.over("source", "pid"))
    rare = counted.filter(is_rare & (pl.len().over("source", "pid") > 1)).with_columns(text_of("host"))
    if rare.is_empty():
        return {}
    is_usual = (fewest.over("source", "pid") * RARE < pl.col("lines")) | pl.col("is_first").any().over("source", "pid")
    usual = counted.filter(is_usual).with_columns(text_of("host"))
    pairs = rare.join(usual, on=["source", "pid"], suffix="_true").filter(pl.col("host") != pl.col("host_true"))
    ends_alike = pl.col("host").str.ends_with(pl.col("host_true")) | pl.col("host_true").str.ends_with(pl.col("host"))
    of_one_line = pl.when(pl.col("lines") == 1).then(pl.struct("host", "host_true"))  # only these are compared
    is_cut = of_one_line.map_elements(lambda names: _lacks_middle(**names), return_dtype=pl.Boolean)
    is_like = ends_alike | is_cut.fill_null(value=False)
    is_begun_within = pl.col("is_first") & pl.col("host_true").str.ends_with(pl.col("host"))
    is_rarer = is_begun_within | (
        pl.col("lines") * pl.when(is_like).then(RARE).otherwise(VERY_RARE) < pl.col("lines_true")
    )
    sources = counted.group_by(text_of("host"), "pid").agg(sources=pl.len())
    torn = (
        pairs.filter(is_rarer)
        .group_by("host", "pid", "host_true")
        .agg(pl.col("lines_true").sum(), rarer_in=pl.len())
        .join(sources, on=["host", "pid"])
        .filter(pl.col("rarer_in") == pl.col("sources"))
        .sort("lines_true", "host_true")
    )
    return {(host, pid): true for host, pid, true in torn.select("host", "pid", "host_true").iter_rows()}


def _lacks_middle(host: str, host_true: str) -> bool:
    """Whether a name is another one without several letters in its middle.

    >>> _lacks_middle("x3006c0sn0", "x3006c0s25b0n0"), _lacks_middle("node-1", "node-11")
    (True, False)
    """
    is_shorter = len(host) + 1 < len(host_true)
    places = range(1, len(host))
    return is_shorter and any(host_true.startswith(host[:at]) and host_true.endswith(host[at:]) for at in places)
