"""Outputs of tools that were collected into one file: which host and which time each is of."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.host_counters import LOCAL_TOOLS
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import as_time

OUTPUT_KEY = ["source", "launcher_rank", "launcher_node"]  # who printed what may be one output
COLLECTED = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # from here on
    "heading_host": pl.String(),
    "taken": pl.Datetime("us"),
}
# A date as `date` prints it is in words: the zone, which is none of the clock's, stands before the year.
DATE, DATE_OF_TWELVE = "%a %b %d %H:%M:%S %Y", "%a %b %d %I:%M:%S %p %Y"
YEAR = 1970  # stands for one that a clock does not tell; such a time is not believed


@analysis(COLLECTED, of=("dump_host", "dump_time", "dump_command", "device_command", "map_head"))
def output_heading(
    dump_host: pl.DataFrame,
    dump_ruler: pl.DataFrame,
    dump_time: pl.DataFrame,
    dump_command: pl.DataFrame,
    device_command: pl.DataFrame,
    map_head: pl.DataFrame,
) -> pl.DataFrame:
    """Headings, prompts and dates: the host and the time of what follows, until the next one says otherwise."""
    at = ["source", "line"]
    # A word alone is a host where rulers stand around it.
    rulers = dump_ruler.select(at)
    above, below = rulers.with_columns(pl.col("line") + 1), rulers.with_columns(pl.col("line") - 1)
    alone = dump_host.filter(text_of("form") == "alone").join(above, on=at, how="semi").join(below, on=at, how="semi")
    headed = pl.concat([alone, dump_host.filter(text_of("form") != "alone")])
    hosts = headed.select(*at, heading_host=pl.coalesce(text_of("headed_host"), text_of("bare_host")))
    times = dump_time.select(
        *at,
        heading_host=text_of("headed_host"),
        taken=pl.coalesce(as_time(text_of("taken"), YEAR), _date(text_of("dated"))),
    )
    # A command that is told whom to ask asks another host.
    is_local = pl.col("arguments").is_null() | text_of("tool").is_in(LOCAL_TOOLS)
    own = pl.concat([dump_command.filter(is_local), device_command], how="diagonal_relaxed")
    is_named = text_of("prompt_host") != "localhost"
    prompts = own.filter(is_named).select(*at, heading_host=text_of("prompt_host"))
    maps = map_head.filter(pl.col("taken").is_not_null()).select(*at, taken=as_time(text_of("taken"), YEAR))
    return pl.concat([hosts, times, prompts, maps], how="diagonal").sort(at)


def _date(text: pl.Expr) -> pl.Expr:
    words = text.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))
    day, clock = words.list.head(3).list.join(" "), words.list.get(3, null_on_oob=True)
    half, year = words.list.get(4, null_on_oob=True), words.list.last()
    parse_integer = pl.concat_str([words.list.head(4).list.join(" "), year], separator=" ")
    of_twelve = pl.concat_str([day, clock, half, year], separator=" ")
    return pl.coalesce(
        of_twelve.str.strptime(pl.Datetime("us"), DATE_OF_TWELVE, strict=False),
        parse_integer.str.strptime(pl.Datetime("us"), DATE, strict=False),
    )


def add_origin(rows: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """The same rows with the host (`origin_host`) and the time (`moment`) that stand above or in front of them."""
    headings = pl.concat(
        [
            output_heading.with_columns(_is_row=False),
            rows.select("source", "line").with_row_index("_row").with_columns(_is_row=True),
        ],
        how="diagonal",
    ).sort("source", "line", "_is_row")
    told = (
        headings.with_columns(pl.col("heading_host", "taken").forward_fill().over("source"))
        .filter("_is_row")
        .sort("_row")
    )
    printed = as_time(text_of("launcher_time"), YEAR)
    printed = pl.when(printed.dt.year() > YEAR).then(printed)
    return rows.with_columns(told["heading_host"], told["taken"]).with_columns(
        origin_host=pl.coalesce(text_of("launcher_node"), "heading_host"), moment=pl.coalesce(printed, "taken")
    )


def add_heading_above(rows: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Every row with the columns of the last head above it, of the same owner: `head_line` and what else heads have."""
    numbered = heads.with_columns(head_line=pl.col("line")).with_row_index("_head")
    both = pl.concat(
        [
            numbered.select("_head", *OUTPUT_KEY, "line", _is_row=pl.lit(False)),
            rows.with_row_index("_row").with_columns(_is_row=True),
        ],
        how="diagonal_relaxed",
    ).sort("source", "line", "_is_row")
    filled = both.with_columns(pl.col("_head").forward_fill().over(OUTPUT_KEY)).filter("_is_row").drop("_is_row")
    return filled.join(numbered.drop(*OUTPUT_KEY, "line"), on="_head", how="left").sort("_row").drop("_head", "_row")
