"""Processes that crashed while a communicator was created."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.crashes import LIBNCCL
from ncclforensics.data.names import some_of
from ncclforensics.data.processes import signal_name
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import crashes_in_init, exit_finding

MOST_PLUGINS = 3  # named


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("process_exit",), hang=True)
def boot_crash_in_init(
    process_exit: pl.DataFrame,
    milestone: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    native_frame: pl.DataFrame,
    plugin: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A process crashed while NCCL created a communicator.

    Means: NCCL, one of its plugins, the CUDA driver or a library below them failed: the application's own code was not
    running. The other ranks wait in this init, or lose their connection.
    Not when: the process had completed a communicator before; it was killed or asked to end.
    Do: try without plugins (NCCL_NET_PLUGIN=none, NCCL_TUNER_PLUGIN=none), and with NCCL_CUMEM_HOST_ENABLE=0 or
    NCCL_MNNVL_ENABLE=0; keep the core file and print its stack (gdb -batch -ex bt PROGRAM CORE).
    Sources: nccl#2106, nccl#2186; nccl: src/init.cc.
    """
    rows = crashes_in_init(process_exit, milestone, communicator_progress, native_frame)
    if rows.height:
        in_stack = ["the stack shows the function"] if rows["frame_line"].count() else []
        loaded = text_of("form") == "loaded"
        plugins = plugin.filter(loaded).join(rows, on=OWNER, how="semi", nulls_equal=True)["plugin"].cast(pl.String)
        named = some_of(plugins.unique(maintain_order=True).to_list(), MOST_PLUGINS)
        detail = "; ".join([*in_stack, *([f"it had loaded {named}"] if named else [])])
        signals = rows["signal"].unique().to_list()
        by = f" with {signal_name(signals[0])}" if len(signals) == 1 else ""
        title = f"{{processes}} crashed{by} while NCCL created a communicator"
        finding = exit_finding(rows.drop("frame_line"), rank, title, detail, "likely")
        finding.role = Role.CONTEXT if rows["where"].str.contains(LIBNCCL, literal=True).any() else Role.CAUSE
        yield finding
