"""Kernel modules for GPUs and networks, as lsmod lists them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.dump_origin import host_at, prompt_hosts, rows_frame
from ncclforensics.frames.registry import analysis

LOADED_MODULE = {
    "source": pl.Int32(),
    "host": pl.String(),
    "module": pl.String(),
    "is_listing": pl.Boolean(),  # its list is complete: a module that is not in it is not loaded
    "line": pl.Int32(),
}


@analysis(LOADED_MODULE, of=("kernel_module",))
def loaded_module(
    kernel_module: pl.DataFrame,
    other_module: pl.DataFrame,
    module_head: pl.DataFrame,
    module_command: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
) -> pl.DataFrame:
    """One row per kernel module that matters to GPUs and networks."""
    prompts = prompt_hosts(module_command, device_command, pci_command)
    with_heading = set(module_head["source"])  # a list filtered by grep has no heading
    with_others = set(other_module["source"])
    rows = (
        {
            "source": row["source"],
            "host": host_at(prompts, row["source"], row["line"], row["launcher_node"]),
            "module": row["module"],
            "is_listing": row["source"] in with_heading and row["source"] in with_others,
            "line": row["line"],
        }
        for row in kernel_module.sort("pos").to_dicts()
    )
    return rows_frame(rows, LOADED_MODULE)
