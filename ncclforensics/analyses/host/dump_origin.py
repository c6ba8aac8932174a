"""The origin of machine dumps: columns that name a dump, and the host that it is of.

A dump is the output of one tool: a topology matrix, NCCL's XML, lspci, nvidia-smi. It is named by its source and its
first line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import polars as pl

Row = dict[str, Any]
PromptHosts = dict[int, list[tuple[int, str]]]  # source -> line and host of its prompts, in order of lines

# `host` is null unless a launcher or a prompt names it: the name of a file proves nothing.
DUMP_ORIGIN = {"source": pl.Int32(), "dump": pl.Int32(), "host": pl.String(), "tool": pl.String()}

MATRIX_FRAMES = ("device_row", "rocm_row")
DUMP_FRAMES = (*MATRIX_FRAMES, "xml_line", "pci_device", "pci_branch", "pci_link", "smi_gpu")


def rows_frame(rows: Iterable[Row], schema: dict[str, Any]) -> pl.DataFrame:
    """Build a frame from rows; a column that a row lacks is null."""
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def prompt_hosts(*commands: pl.DataFrame) -> PromptHosts:
    """Collect the shell prompts that name a host."""
    hosts: PromptHosts = {}
    for rows in commands:
        named = rows.filter(pl.col("prompt_host").is_not_null()).select("source", "line", "prompt_host")
        for source, line, host in named.iter_rows():
            hosts.setdefault(source, []).append((line, str(host)))
    return {source: sorted(prompts) for source, prompts in hosts.items()}


def host_at(prompts: PromptHosts, source: int, line: int, launcher_node: str | None) -> str | None:
    """Find the host of a line: the node that the launcher prefix names, or the last prompt above."""
    if launcher_node:
        return str(launcher_node)
    of_source = prompts.get(source, [])
    above = bisect_left(of_source, line, key=itemgetter(0))
    return of_source[above - 1][1] if above else None


def assembled_table(dump_assembly: pl.DataFrame, name: str, schema: dict[str, Any]) -> pl.DataFrame:
    """One table of the frame `dump_assembly` as a frame of its own."""
    if dump_assembly.is_empty():
        return pl.DataFrame(schema=schema)
    return dump_assembly.select(name).explode(name).drop_nulls().unnest(name)
