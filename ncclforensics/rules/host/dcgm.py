"""What DCGM reports of a host: NVLinks that are down, and diagnostics that failed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

DOWN, UP = "D", "U"
PADDING = 2  # blanks behind a text in its cell
LONGEST = 300  # characters of a text in a detail


@rule(Category.LINK_ERROR, Severity.WARNING, of=("dcgm_link",))
def dcgm_nvlinks_down(dcgm_link: pl.DataFrame) -> Iterator[Finding]:
    """DCGM shows NVLinks of GPUs that are down.

    Means: GPUs reach one another over PCIe, or not at all directly. One link or GPU among others that are up: the
    link, its GPU or its NVSwitch failed. All of them: Fabric Manager does not run, or there is nothing they are
    connected to.
    Not when: links are disabled (X) or not supported; GPUs on PCIe cards without a bridge, whose links are always
    down.
    Do: nvidia-smi nvlink -s, nvidia-smi topo -m; systemctl status nvidia-fabricmanager; dmesg -T | grep -i -e xid -e
    nvlink.
    Sources: DCGM user guide, topology and NVLink; NVIDIA Fabric Manager user guide.
    """
    rows = dcgm_link.sort("source", "line").with_columns(
        gpu=pl.when(text_of("form") == "gpu").then("gpu").when(text_of("form") == "links").then(None).otherwise(-1)
    )
    rows = rows.with_columns(pl.col("gpu").forward_fill().over("source"))
    letters = text_of("links").str
    links = rows.filter((text_of("form") == "links") & (pl.col("gpu") >= 0)).with_columns(
        down=letters.count_matches(DOWN, literal=True), up=letters.count_matches(UP, literal=True)
    )
    for _, gpus in links.group_by("source", maintain_order=True):
        down = gpus.filter(pl.col("down") > 0)
        if down.is_empty():
            continue
        names = ranks_text(down["gpu"].to_list()).removeprefix("ranks ").removeprefix("rank ")
        number, is_all = int(down["down"].sum()), not gpus["up"].sum()
        all_of = f"all {count_of(number, 'NVLink')}" if is_all else count_of(number, "NVLink")
        yield Finding(
            title=f"{all_of} of {count_of(down.height, 'GPU')} ({names}) {'are' if number > 1 else 'is'} down",
            detail="no link of any GPU is up: Fabric Manager does not run, or nothing is connected to them"
            if is_all
            else f"{int(gpus['up'].sum())} links of these GPUs are up",
            certainty="possible" if is_all else "likely",
            role=Role.CAUSE,
            evidence=evidence_lines(down),
        )


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("dcgm_result",))
def dcgm_diagnostic_failed(dcgm_result: pl.DataFrame) -> Iterator[Finding]:
    """A test of dcgmi diag failed.

    Means: what the test says in its own words below the result. Old versions report NVLinks as down that a GPU on a
    PCIe card without a bridge does not have.
    Not when: the test passed or was skipped.
    Do: run the test alone (dcgmi diag -r NAME -v) with the newest DCGM; drain the host if it fails again; dmesg -T.
    Sources: DCGM user guide, diagnostics; DCGM#33.
    """
    rows = dcgm_result.sort("source", "line").with_columns(is_result=text_of("result").is_not_null())
    rows = rows.with_columns(nth=pl.col("is_result").cum_sum().over("source"))
    for _, of_test in rows.group_by("source", "nth", maintain_order=True):
        first = of_test.row(0, named=True)
        if first["result"] != "Fail":
            continue
        words = "".join(text[:-PADDING] for text in of_test["words"].cast(pl.String).drop_nulls())
        on = str(first["on"] or "")
        where = "all GPUs" if on == "All" else on
        yield Finding(
            title=f"dcgmi diag: the test {first['test']} failed" + f" on {where}" * bool(where),
            detail=f"it says: {words[:LONGEST]}" + "…" * (len(words) > LONGEST) if words else "it says no reason",
            certainty="certain",
            role=Role.CONTEXT,
            evidence=evidence_lines(of_test),
        )
