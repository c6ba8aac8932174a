"""A small document of every JSON format that no incident holds, with all the keys that its reader looks at."""

from __future__ import annotations

from typing import Any

_THREAD = {
    "pid": 4100,
    "thread_id": 140000000000000,
    "os_thread_id": 4100,
    "thread_name": "MainThread",
    "active": True,
    "owns_gil": True,
    "process_info": {
        "pid": 4100,
        "command_line": "python train.py",
        "parent": {"pid": 4000, "command_line": "torchrun"},
    },
    "frames": [
        {"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "module": None, "line": 2501},
        {"name": "ncclAllReduce", "filename": "", "module": "libnccl.so.2", "line": 0},
        {"name": "main", "filename": "/srv/app/train.py", "module": None, "line": 31},
    ],
}
_PLACE = {"alg_bw": 12.1, "bus_bw": 22.6, "time": 86.5, "nwrong": 0}

DOCUMENTS: dict[str, Any] = {
    "nccl-tests.json": {
        "version": 1,
        "start_time": "2026-11-02T10:00:00",
        "args": ["./build/all_reduce_perf", "-b", "8"],
        "nccl_version": 22707,
        "config": {
            "nthreads": 1, "ngpus": 1, "minimum_bytes": 8, "maximum_bytes": 1048576, "step_factor": 2, "iterations": 20,
            "aggregated_iterations": 1, "validation": 1, "graph": 0,
            "devices": [
                {"rank": rank, "group": 0, "pid": 4100 + rank, "hostname": "a", "device": rank, "device_info": "H100"}
                for rank in range(4)
            ],
        },
        "results": [
            {"size": 8 << n, "count": 2 << n, "type": "float", "redop": "sum", "root": -1, "out_of_place": _PLACE,
             "in_place": _PLACE}
            for n in range(10)
        ],
        "out_of_bounds": {"okay": "true", "count": 0},
        "average_bus_bandwidth": {"okay": "true", "bandwidth": 22.6},
    },
    "perftest.json": {
        "test_info": {"test": "RDMA_Write_BW_Test", "Device": "mlx5_0", "Link_type": "IB", "Mtu": 4096,
                      "cuda_device": 0},
        "results": {"MsgSize": 65536, "n_iterations": 5000, "BW_peak": 390.1, "BW_average": 389.9, "MsgRate": 0.7437},
    },
    "latency.json": {
        "test_info": {"test": "Send_Latency_Test", "Device": "mlx5_0", "Use_ROCm_memory": "ON"},
        "results": {"MsgSize": 2, "n_iterations": 1000, "t_min": 1.0, "t_max": 4.0, "t_typical": 1.1, "t_avg": 1.2},
    },
    "nvbandwidth.json": {
        "nvbandwidth": {
            "git_version": "v0.8", "CUDA Runtime Version": 12080, "Driver Version": "570.86.15",
            "GPU Device list": ["0: NVIDIA H100 80GB HBM3 (00000000:0f:00.0)"],
            "testcases": [
                {"name": "device_to_device_memcpy_read_ce", "status": "Passed",
                 "bandwidth_description": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
                 "bandwidth_matrix": [["N/A", "390.1"], ["389.7", "N/A"]]},
            ],
        }
    },
    "rdma-link.json": [
        {"ifindex": 0, "ifname": "mlx5_0", "port": 1, "lid": 12, "state": "ACTIVE", "physical_state": "LINK_UP",
         "netdev": "ib0"},
    ],
    "rdma-statistic.json": [{"ifname": "mlx5_0", "port": 1, "rx_write_requests": 12, "packet_seq_err": 3}],
    "mlxlink.json": {
        "status": {"code": 0},
        "result": {"output": {
            "Operational Info": {"State": "Active", "Speed": "IB-NDR", "Width": "4x"},
            "Physical Counters and BER Info": {"Effective Physical BER": "15E-255", "Link Down Counter": "2"},
        }},
    },
    "sysfs.json": {
        f"/sys/class/infiniband/mlx5_0/ports/1/{name}": value
        for name, value in (
            ("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)"), ("lid", "0xc"), ("link_layer", "InfiniBand"),
            ("counters/symbol_error", "7"), ("hw_counters/out_of_sequence", "4"),
        )
    },
    "inspector.json": {
        "header": {"id": "0x99", "rank": 0, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.1", "dump_timestamp_us": 1757000000000000,
                     "hostname": "gpu-a", "pid": 4100},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 12, "coll_msg_size_bytes": 17179869184,
                      "coll_exec_time_us": 61974, "coll_timing_source": "kernel_gpu",
                      "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1},
    },
    "py-spy.json": [_THREAD, {**_THREAD, "thread_id": 1, "thread_name": "worker", "active": False, "owns_gil": False}],
}  # fmt: skip
