"""GPUs in the output of nvidia-smi -q: PCIe links, uncorrectable memory errors, and what they do."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

SMI_GPU = {
    "source": pl.Int32(),
    "dump": pl.Int32(),  # first line of the query
    "launcher_node": pl.String(),
    "device": pl.String(),  # PCI address
    "model": pl.String(),
    "speed": pl.Float64(),  # GT/s of the PCIe link
    "width": pl.Int32(),  # lanes
    "speed_can": pl.Float64(),
    "width_can": pl.Int32(),
    "uncorrectable": pl.Int64(),  # memory errors since the driver was loaded; null where ECC is off
    "is_unmapped": pl.Boolean(),  # row remapping failed: no spare row was left
    "retired": pl.Int64(),  # pages of memory that were taken out of use; null where the GPU has no such list
    "utilization": pl.Float64(),  # percent of the last second in which a kernel ran
    "power": pl.Float64(),  # watts
    "power_limit": pl.Float64(),
    "memory": pl.Float64(),  # MiB in use
    "slowdown": pl.String(),  # why the hardware lowers the clocks now
    "is_pending": pl.Boolean(),  # rows are to be remapped, or pages retired, at the next reset
    "unread": pl.String(),  # readings that ended with an error, the first few
    "recovery": pl.String(),  # what the driver asks for, so that the GPU can be used again
    "fabric_state": pl.String(),  # of the registration with the fabric of NVLink
    "fabric_status": pl.String(),
    "fabric_faults": pl.String(),  # what is not well of its connection to that fabric
    "line": pl.Int32(),
    "fabric_line": pl.Int32(),
    "fabric_fault_line": pl.Int32(),
    "slowdown_line": pl.Int32(),
    "recovery_line": pl.Int32(),
    "unread_line": pl.Int32(),
    "link_line": pl.Int32(),
    "error_line": pl.Int32(),  # the first field that shows an error
}
PARTS = ("remapped", "retired", "reasons", "ecc", "fabric", "recovery")  # headings that are pasted alone
UNREAD_SHOWN = 6
GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # PCIe generation -> GT/s of a lane


@analysis(SMI_GPU, of=("query_gpu", "query_field"))
def smi_gpu(query_head: pl.DataFrame, query_gpu: pl.DataFrame, query_field: pl.DataFrame) -> pl.DataFrame:
    """One row per GPU of a query."""
    owner = ["source", "node"]
    node = text_of("launcher_node").fill_null("")  # joins do not match nulls
    query_head, query_gpu, query_field = (
        rows.sort("pos").with_columns(node=node) for rows in (query_head, query_gpu, query_field)
    )
    heads = query_head.select(*owner, "pos", dump="line")
    gpus = query_gpu.select(
        *owner, "launcher_node", "pos", "line", device=text_of("bus").str.to_lowercase().str.strip_prefix("00000000:")
    )
    gpus = gpus.join_asof(heads, on="pos", by=owner, check_sortedness=False)
    # A part of a query: without its head, or from below the line that names the GPU.
    gpus = gpus.with_columns(dump=pl.coalesce("dump", pl.col("line").min().over(owner)))
    parts = query_field.join(gpus.select("source"), on="source", how="anti").filter(text_of("form").is_in(PARTS))
    first_part = text_of("form") == text_of("form").first().over(owner)
    parts = parts.filter(first_part).select(*owner, "launcher_node", "pos", "line", dump="line")
    gpus = pl.concat([gpus, parts], how="diagonal_relaxed")
    gpus = gpus.sort("pos")
    gpus = gpus.with_row_index("gpu")
    fields = query_field.with_columns(form=text_of("form"), field_line="line").drop("line")
    fields = fields.join_asof(gpus.select(*owner, "pos", "gpu"), on="pos", by=owner, check_sortedness=False)
    section = pl.when(pl.col("form").is_in(["volatile", "aggregate"])).then("form").forward_fill().over("gpu")
    bit = pl.when(pl.col("form").is_in(["single_bit", "double_bit"])).then("form").forward_fill().over("gpu")
    memory = pl.when(pl.col("form") == "memory").then(text_of("memory_kind")).forward_fill().over("gpu")
    fields = fields.with_columns(section=section, memory=memory, bit=bit)

    def first_of(form: str, column: str) -> pl.Expr:
        return pl.col(column).filter(pl.col("form") == form).first()

    is_of_two_bits = (pl.col("form") == "total") & (pl.col("bit") == "double_bit")  # before the A100
    is_error = ((pl.col("form") == "uncorrectable") | is_of_two_bits) & (pl.col("section") == "volatile")
    is_unmapped = (pl.col("form") == "remapping") & (text_of("answer") == "Yes")
    is_slow = (pl.col("form") == "slowdown") & (text_of("activity") == "Active")
    is_faulty = pl.col("form") == "fabric_fault"
    condition = pl.coalesce(text_of("fabric_condition"), text_of("fabric_setting")).str.replace_all(
        "_", " ", literal=True
    )
    fault = pl.coalesce(text_of("fabric_fault"), text_of("wrong_setting"))
    fabric_fault = pl.format("{}: {}", condition.str.to_lowercase(), fault)
    by_gpu = fields.group_by("gpu").agg(
        utilization=first_of("utilization", "utilization").cast(pl.Float64),
        power=first_of("power", "power"),
        power_limit=first_of("power_limit", "power"),
        memory=pl.col("mebibytes")
        .filter((pl.col("form") == "used") & (pl.col("memory") == "FB"))
        .first()
        .cast(pl.Float64),
        fabric_state=text_of("fabric_state").filter(pl.col("form") == "fabric_state").first(),
        fabric_status=text_of("fabric_status").filter(pl.col("form") == "fabric_status").first(),
        fabric_line=first_of("fabric_state", "field_line"),
        fabric_faults=fabric_fault.filter(is_faulty).str.join(", "),
        fabric_fault_line=pl.col("field_line").filter(is_faulty).first(),
        slowdown=text_of("slowdown").filter(is_slow).last(),
        slowdown_line=pl.col("field_line").filter(is_slow).last(),
        recovery=text_of("recovery").filter(pl.col("form") == "recovery").last(),
        recovery_line=first_of("recovery", "field_line"),
        unread=text_of("unread")
        .drop_nulls()
        .str.to_lowercase()
        .str.replace_all("_", " ", literal=True)
        .head(UNREAD_SHOWN)
        .str.join(", "),
        unread_line=first_of("unread", "field_line"),
        is_pending=((pl.col("form") == "pending") & (text_of("answer") == "Yes")).any(),
        model=text_of("model").filter(pl.col("form") == "name").first(),
        speed=first_of("generation", "generation"),
        speed_can=first_of("generation_can", "generation"),
        width=first_of("width", "lanes"),
        width_can=first_of("width_can", "lanes"),
        link_line=first_of("width", "field_line"),
        uncorrectable=pl.when(is_error.any()).then(pl.col("errors").filter(is_error).sum()),
        is_unmapped=is_unmapped.any(),
        retired=pl.when((pl.col("form") == "pages").any()).then(pl.col("pages").sum()),
        error_line=pl.col("field_line").filter((is_error & (pl.col("errors") > 0)) | is_unmapped).first(),
    )
    rate = {
        name: pl.col(name).replace_strict(GIGATRANSFERS, default=None, return_dtype=pl.Float64)
        for name in ("speed", "speed_can")
    }
    return gpus.join(by_gpu, on="gpu", how="left", maintain_order="left").with_columns(**rate)
