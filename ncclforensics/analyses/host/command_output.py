"""Host and time of the tool outputs in a file: from headings, prompts and dates above them."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.host_counters import LOCAL_TOOLS
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import of_this_era, time_of
from ncclforensics.parsing.sampled_outputs import row_above
from ncclforensics.parsing.templates import distinct_rows

OUTPUT_KEY = ["source", "launcher_rank", "launcher_node"]  # lines with equal values may be one output
OUTPUT_HEADING = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # valid from here on
    "heading_host": pl.String(),
    "taken": pl.Datetime("us"),
}
# Output of `date`, without the time zone in front of the year; with a clock of 24 or of 12 hours.
DATE, DATE_12_HOURS = "%a %b %d %H:%M:%S %Y", "%a %b %d %I:%M:%S %p %Y"
NO_YEAR = 1970  # the year of times that are printed without one; they are not used


@analysis(OUTPUT_HEADING, of=("dump_host", "dump_time", "dump_command", "dump_prompt", "device_command", "map_head"))
def output_heading(
    dump_host: pl.DataFrame,
    dump_ruler: pl.DataFrame,
    dump_time: pl.DataFrame,
    dump_command: pl.DataFrame,
    dump_prompt: pl.DataFrame,
    device_command: pl.DataFrame,
    map_head: pl.DataFrame,
) -> pl.DataFrame:
    """One row per heading, prompt or date: the host or the time of the lines below it, until the next one."""
    place = ["source", "line"]
    # A single word is a host name if rulers stand above and below it.
    rulers = dump_ruler.select(place)
    above, below = rulers.with_columns(pl.col("line") + 1), rulers.with_columns(pl.col("line") - 1)
    ruled = (
        dump_host.filter(text_of("form") == "separate")
        .join(above, on=place, how="semi")
        .join(below, on=place, how="semi")
    )
    headed = pl.concat([ruled, dump_host.filter(text_of("form") != "separate")])
    hosts = headed.select(*place, heading_host=pl.coalesce(text_of("headed_host"), text_of("bare_host")))
    times = dump_time.select(
        *place,
        heading_host=text_of("headed_host"),
        taken=pl.coalesce(time_of("taken", NO_YEAR), _date(text_of("dated"))),
    )
    # A command with arguments may query another host.
    is_local = pl.col("arguments").is_null() | text_of("tool").is_in(LOCAL_TOOLS)
    local = pl.concat([dump_command.filter(is_local), dump_prompt, device_command], how="diagonal_relaxed")
    is_named = text_of("prompt_host") != "localhost"
    prompts = local.filter(is_named).select(*place, heading_host=text_of("prompt_host"))
    maps = map_head.filter(pl.col("taken").is_not_null()).select(*place, taken=time_of("taken", NO_YEAR))
    headings = pl.concat([hosts, times, prompts, maps], how="diagonal").sort(place)
    # Output pasted without its command ends with the prompt of the same shell.
    first = headings.drop_nulls("heading_host").unique("source", keep="first", maintain_order=True)
    ending = first.join(dump_prompt.select(place), on=place, how="semi").with_columns(pl.lit(0, pl.Int32).alias("line"))
    return pl.concat([ending, headings], how="diagonal").sort(place)


def _date(text: pl.Expr) -> pl.Expr:
    """Parse the output of `date`."""
    words = text.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))
    day, clock = words.list.head(3).list.join(" "), words.list.get(3, null_on_oob=True)
    half, year = words.list.get(4, null_on_oob=True), words.list.last()
    of_24_hours = pl.concat_str([words.list.head(4).list.join(" "), year], separator=" ")
    of_12_hours = pl.concat_str([day, clock, half, year], separator=" ")
    return of_this_era(
        pl.coalesce(
            of_12_hours.str.strptime(pl.Datetime("us"), DATE_12_HOURS, strict=False),
            of_24_hours.str.strptime(pl.Datetime("us"), DATE, strict=False),
        )
    )


def add_origin(rows: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """Add to each row its host (`origin_host`) and time (`moment`): from its launcher prefix, or the heading above."""
    for column in ("heading_host", "taken"):
        stated = output_heading.drop_nulls(column)
        above = row_above(rows["source"], rows["line"], stated["source"], stated["line"])
        rows = rows.with_columns(stated[column].gather(above))
    launched = time_of("launcher_time", NO_YEAR)
    launched = pl.when(launched.dt.year() > NO_YEAR).then(launched)
    return rows.with_columns(
        origin_host=pl.coalesce(text_of("launcher_node"), "heading_host"), moment=pl.coalesce(launched, "taken")
    )


def add_heading_above(rows: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Add to each row the columns of the last head above it in the same output, and its line as `head_line`."""
    places = pl.concat([rows.select(OUTPUT_KEY), heads.select(OUTPUT_KEY)], how="vertical_relaxed")
    _, output = distinct_rows(places, OUTPUT_KEY)
    above = row_above(output.head(rows.height), rows["line"], output.tail(heads.height), heads["line"])
    added = heads.with_columns(head_line="line").drop(*OUTPUT_KEY, "line")
    return rows.hstack(added.select(pl.all().gather(above)))
