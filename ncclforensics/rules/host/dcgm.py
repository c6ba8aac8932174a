"""NVLinks of a host that are down, by DCGM and nvidia-smi, and diagnostics of DCGM that failed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, number_ranges, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines
from ncclforensics.rules.shared.machine_faults import MOST_NAMED, has_nvlinks

DOWN, UP = "D", "U"
PADDING = 2  # blanks behind a text in its cell
OUTCOMES = {"Fail": ("failed", Severity.WARNING), "Warn": ("warned", Severity.INFO)}
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
        names = number_ranges(down["gpu"].to_list())
        number, is_all = int(down["down"].sum()), not gpus["up"].sum()
        all_of = f"all {count_of(number, 'NVLink')}" if is_all else count_of(number, "NVLink")
        yield Finding(
            title=f"{all_of} of {count_of(down.height, 'GPU')} ({names}) {'are' if number > 1 else 'is'} down",
            detail="no link of any GPU is up: Fabric Manager does not run, or nothing is connected to them"
            if is_all
            else f"{int(gpus['up'].sum())} links of these GPUs are up",
            certainty="possible" if is_all else "likely",
            evidence=evidence_lines(down),
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("gpu_link",))
def nvlinks_inactive(gpu_link: pl.DataFrame) -> Iterator[Finding]:
    """A GPU of a board with NVLink has no NVLink that is active, or fewer than it has where no other GPU is listed.

    Means: it reaches the other GPUs over PCIe, or not at all directly. One GPU: it, or its NVSwitch, failed. All GPUs
    of the host: Fabric Manager does not run, the driver was loaded without NVLink, or a virtual machine has none. Some
    links of one GPU: they failed, or the board does not use them.
    Not when: the GPU is on a PCIe card, whose links are inactive without a bridge; other GPUs of the same list have
    links that are active, which is a finding of its own.
    Do: dmesg -T | grep -i -e xid -e nvlink; systemctl status nvidia-fabricmanager; reset the GPUs, or reboot the host.
    Sources: nvidia-smi(1), nvlink; NVIDIA Fabric Manager user guide; azurehpc-health-checks, check_nvlink_status.
    """
    counted = gpu_link.filter((pl.col("tool") == "nvidia-smi nvlink") & pl.col("links").is_not_null())
    counted = counted.filter(pl.col("model").map_elements(has_nvlinks, return_dtype=pl.Boolean))
    for (_, _, host), rows in counted.group_by("source", "dump", "host", maintain_order=True):
        up, down = int(rows["links"].sum()), int(rows["down"].sum() or 0)
        if up and (rows.height > 1 or not down):
            continue
        names = some_of([str(device).replace("GPU", "GPU ") for device in rows["device"]], MOST_NAMED)
        yield Finding(
            title=f"{names}{f' on {host}' if host else ''}: "
            + (f"{down} of {up + down} NVLinks are not active" if up else "no NVLink is active"),
            detail=f"{rows['model'][0]} has NVLinks; the list shows "
            + ("no other GPU to compare with" if up else "none that is up"),
            certainty="possible" if up else "likely",
            hosts=[str(host)] if host else [],
            evidence=[
                Line(source, line)
                for source, line in rows.select("source", pl.coalesce("down_line", "line")).head(SHOWN).iter_rows()
            ],
        )


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("dcgm_result",))
def dcgm_diagnostic_failed(dcgm_result: pl.DataFrame) -> Iterator[Finding]:
    """A test of dcgmi diag failed, or warned.

    Means: what the test says in its own words below the result. Old versions report NVLinks as down that a GPU on a
    PCIe card without a bridge does not have. A warning is a note: mostly a setting, such as persistence mode.
    Not when: the test passed or was skipped.
    Do: run the test alone (dcgmi diag -r NAME -v) with the newest DCGM; drain the host if it fails again; dmesg -T.
    Sources: DCGM user guide, diagnostics; DCGM#33.
    """
    rows = dcgm_result.sort("source", "line").with_columns(is_result=text_of("result").is_not_null())
    rows = rows.with_columns(nth=pl.col("is_result").cum_sum().over("source"))
    for _, of_test in rows.group_by("source", "nth", maintain_order=True):
        first = of_test.row(0, named=True)
        results = {*of_test["result"].cast(pl.String), *of_test["entity_result"].cast(pl.String)}
        result = next((result for result in OUTCOMES if result in results), None)
        texts = of_test.select(pl.coalesce(text_of("words"), text_of("more_words"))).to_series().drop_nulls()
        words = "".join(text[:-PADDING] for text in texts)
        words = words[:LONGEST] + "…" * (len(words) > LONGEST)
        evidence = evidence_lines(of_test)
        if first["note_kind"] in ("Error", "Warning"):  # notes above the first result are of no test
            title = f"dcgmi diag reports {'an error' if first['note_kind'] == 'Error' else 'a warning'}: {words}"
            yield Finding(title, "", "certain", role=Role.CONTEXT, evidence=evidence)
        if result is None:
            continue
        places = of_test.filter((text_of("result") == result) | (text_of("entity_result") == result))
        named = pl.concat([places["on"].cast(pl.String), places["entity"].cast(pl.String)]).drop_nulls()
        on = ", ".join(named.unique(maintain_order=True))
        where = "all GPUs" if on == "All" else on
        outcome, severity = OUTCOMES[result]
        yield Finding(
            title=f"dcgmi diag: the test {first['test']} {outcome}" + f" on {where}" * bool(where),
            detail=f"it says: {words}" if words else "",
            certainty="certain",
            severity=severity,
            role=Role.CONTEXT,
            evidence=evidence,
        )


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("dcgm_health",))
def dcgm_health_watch(dcgm_health: pl.DataFrame, dcgm_result: pl.DataFrame) -> Iterator[Finding]:
    """A health watch of DCGM is not healthy (dcgmi health).

    Means: what the watch says in its own words: since it was last looked at, the GPU or NVSwitch counted such errors,
    or wants a reset. *Failure* means that no job should run there, *Warning* that something is worth a look.
    Not when: the overall health is healthy.
    Do: follow the sentence; drain the host for a failure, and run dcgmi diag -r 2; dmesg -T | grep -e Xid.
    Sources: DCGM, dcgmi/Health.cpp, dcgmlib/dcgm_errors.h; DCGM user guide, health monitor.
    """
    text = dcgm_result.filter(text_of("form") == "more").select("source", "line", words="more_words")
    rows = pl.concat([dcgm_health, text], how="diagonal_relaxed").sort("source", "line")
    is_named, form = pl.col("watched").is_not_null() | pl.col("watched_kind").is_not_null(), text_of("form")
    rows = rows.with_columns(
        name=pl.when(is_named).then(pl.concat_str(text_of("watched_kind").forward_fill(), pl.lit(" "), "watched")),
        nth=form.is_not_null().cum_sum().over("source"),
        end=pl.col("line").diff().over("source").fill_null(1),
    ).with_columns(name=pl.col("name").forward_fill().over("source"))
    found = False
    for _, part in rows.group_by("source", "nth", maintain_order=True):
        first = part.row(0, named=True)
        if first["form"] != "system" or first["health"] not in HEALTH:
            continue
        found = True
        words = " ".join(filter(None, [first["reason"], *(text.strip() for text in part["words"].drop_nulls())]))
        yield _watched(f"{first['name'] or 'a GPU'}: {first['system']}", words, first["health"], evidence_lines(part))
    overall = dcgm_health.filter((text_of("form") == "overall") & text_of("health").is_in(list(HEALTH)))
    if overall.height and not found:
        yield _watched("overall", "the lines below it name the watch", overall["health"][0], evidence_lines(overall))


HEALTH = {"Failure": ("failed", Severity.WARNING), "Warning": ("warns", Severity.WARNING)}


def _watched(watch: str, words: str, health: str, evidence: list[Line]) -> Finding:
    outcome, severity = HEALTH[health]
    sentence = words[:LONGEST] + "…" * (len(words) > LONGEST)
    title = f"DCGM's health watch {outcome}: {watch}" + f": {sentence}" * bool(sentence)
    detail = "it tells of what was counted since the watch was set"
    return Finding(title, detail, "certain", severity=severity, role=Role.CONTEXT, evidence=evidence)
