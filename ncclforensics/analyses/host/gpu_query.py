"""The GPUs of a host as nvidia-smi -q describes them: PCIe links, and memory that is beyond correction."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

QUERIED_GPU = {
    "source": pl.Int32(),
    "dump": pl.Int32(),  # line of the head
    "launcher_node": pl.String(),
    "device": pl.String(),  # its place on the bus
    "model": pl.String(),
    "speed": pl.Float64(),  # GT/s of the PCIe link
    "width": pl.Int32(),  # lanes
    "speed_can": pl.Float64(),
    "width_can": pl.Int32(),
    "uncorrectable": pl.Int64(),  # errors of memory since the driver was loaded; null where ECC is off
    "is_unmapped": pl.Boolean(),  # no row was left to take the place of a broken one
    "line": pl.Int32(),
    "link_line": pl.Int32(),
    "error_line": pl.Int32(),  # the first field that shows an error
}
RATES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # GT/s of a lane, by generation of PCIe


@analysis(QUERIED_GPU, of=("query_gpu",))
def smi_gpu(query_head: pl.DataFrame, query_gpu: pl.DataFrame, query_field: pl.DataFrame) -> pl.DataFrame:
    """One row per GPU of a query."""
    place = ["source", "node"]
    node = text_of("launcher_node").fill_null("")  # what is unknown meets nothing
    query_head, query_gpu, query_field = (
        rows.sort("pos").with_columns(node=node) for rows in (query_head, query_gpu, query_field)
    )
    heads = query_head.select(*place, "pos", dump="line")
    gpus = query_gpu.select(
        *place, "launcher_node", "pos", "line", device=text_of("bus").str.to_lowercase().str.strip_prefix("00000000:")
    )
    gpus = gpus.join_asof(heads, on="pos", by=place, check_sortedness=False).filter(pl.col("dump").is_not_null())
    gpus = gpus.with_row_index("gpu")
    fields = query_field.with_columns(form=text_of("form"), on="line").drop("line")
    fields = fields.join_asof(gpus.select(*place, "pos", "gpu"), on="pos", by=place, check_sortedness=False)
    section = pl.when(pl.col("form").is_in(["volatile", "aggregate"])).then("form").forward_fill().over("gpu")
    fields = fields.with_columns(section=section)

    def of(form: str, column: str) -> pl.Expr:
        return pl.col(column).filter(pl.col("form") == form).first()

    is_error = (pl.col("form") == "uncorrectable") & (pl.col("section") == "volatile")
    is_unmapped = (pl.col("form") == "remapping") & (text_of("answer") == "Yes")
    told = fields.group_by("gpu").agg(
        model=text_of("model").filter(pl.col("form") == "name").first(),
        speed=of("generation", "generation"),
        speed_can=of("generation_can", "generation"),
        width=of("width", "lanes"),
        width_can=of("width_can", "lanes"),
        link_line=of("width", "on"),
        uncorrectable=pl.when(is_error.any()).then(pl.col("errors").filter(is_error).sum()),
        is_unmapped=is_unmapped.any(),
        error_line=pl.col("on").filter((is_error & (pl.col("errors") > 0)) | is_unmapped).first(),
    )
    rate = {
        name: pl.col(name).replace_strict(RATES, default=None, return_dtype=pl.Float64)
        for name in ("speed", "speed_can")
    }
    return gpus.join(told, on="gpu", how="left", maintain_order="left").with_columns(**rate)
