"""First screens on machines, counters and measurements: what is shown, and what of it is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_first_screens import SIZES, read, shown

TYPES = """\
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XXXX
GPU1   XGMI         0            XGMI
GPU2   XXXX         XGMI         0
ERROR: GPU[2]   : Cannot read Link Type: Not supported on this machine
================================== End of ROCm SMI Log ===================================
"""
PATHS = "\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\t X \tNV18\t{0}\tPIX\nGPU1\tNV18\t X \tNV18\tPIX\nGPU2\t{0}\tNV18\t X \tPIX\n"
COUNTER = "/sys/class/infiniband/mlx5_{}/ports/1/counters/{}:{}\n"


def test_types_of_links_of_amd_gpus_are_shown_and_those_that_were_not_read_are_explained(tmp_path: Path) -> None:
    text = shown(read(tmp_path, TYPES))

    assert "(XXXX: rocm-smi could not read this link)" in text
    assert "GPU0 XGMI to GPU1; XXXX to GPU2" in text
    assert text.index("problem") < text.index("MACHINE")
    assert "rocm-smi of GPU 2: Cannot read Link Type" in text


@pytest.mark.parametrize(("path", "is_marked"), [("NV18", False), ("NV12", True)])
def test_the_mark_of_an_unusual_path_is_explained_where_it_stands(path: str, is_marked: bool, tmp_path: Path) -> None:
    text = shown(read(tmp_path, PATHS.format(path).expandtabs(8)))

    assert ("! differs from the others" in text) == is_marked
    assert "XXXX" not in text


def test_counters_of_unknown_age_are_named_with_the_worst_of_them(tmp_path: Path) -> None:
    ports = "".join(COUNTER.format(port, name, 3) for port in range(8) for name in ("symbol_error", "port_rcv_errors"))
    text = shown(read(tmp_path, ports + COUNTER.format(1, "link_downed", 255)))

    assert "mlx5_1 port 1: link_downed 255 (the counter's maximum) and others" in text
    assert "mlx5_0 port 1, mlx5_2 port 1 and 5 port_rcv_errors 3, symbol_error 3 more" in text


def test_each_of_several_measurements_names_its_file(tmp_path: Path) -> None:
    text = shown(read(tmp_path, *(SIZES.format(1 << 30, 1 << 28, rate) for rate in (100, 50))))

    assert "log0.txt: all_reduce on 2 ranks reaches" in text
    assert "? log1.txt" in text
