"""Formats of lines that need no code: grammars, the frames that show them, what their inputs are called and count.

The names are those that a module of `formats` defines: see `Format` and `OptionalNames` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclforensics.data.nouns import (
    BENCHMARK,
    LINK_TEST,
    MACHINE_DUMP,
    PAIR_MATRIX,
    PORT,
    PROFILE,
    STACK,
    STEP_LINE,
    TABLE,
    Noun,
)


class LineFormat:
    """A format of lines; several names stand in one text."""

    def __init__(
        self, grammars: str, signatures: str, kinds: str | Mapping[str, str], noun: Noun | None = None, **names: Any
    ) -> None:
        self.GRAMMARS = tuple(grammars.split())
        self.SIGNATURES = tuple(signatures.split())
        frames = [signature.partition(".")[0] for signature in self.SIGNATURES]
        self.KINDS = dict.fromkeys(frames, kinds) if isinstance(kinds, str) else kinds
        vars(self).update(names if noun is None else {"NOUN": noun, **names})


LINE_FORMATS = {
    # PCI devices of a host, as lspci lists them.
    "bus": LineFormat("bus", "pci_lost pci_device pci_link pci_acs pci_error pci_branch", "topology", MACHINE_DUMP),
    # The text log of torchcomms: operations of a rank, enqueued, started and ended.
    "clog": LineFormat("clog", "clog_header clog_comm clog_signature", "torchcomms-log"),
    # NUMA nodes of a host, as numactl, lscpu and /sys list them.
    "cpus": LineFormat("cpus", "numa_node", "topology", MACHINE_DUMP),
    # Output of NVIDIA's Data Center GPU Manager: links, and the results of its diagnostics.
    "dcgm": LineFormat(
        "dcgm collected",
        "dcgm_link_head dcgm_head dcgm_section dcgm_result.on dcgm_health.overall dcgm_health.system dcgm_log.sysmon "
        "dcgm_log.module dcgm_log.error dcgm_log.line",
        "topology",
        MACHINE_DUMP,
    ),
    # Paths between GPUs and NICs of a host: nvidia-smi topo and nvlink, rocm-smi --showtopo.
    "devices": LineFormat(
        "devices collected",
        "device_row rocm_table gpu_numa nvlink_port.active nvlink_port.inactive nvlink_port.errors "
        "nvlink_port.abridged nvlink_port.none",
        "topology",
        MACHINE_DUMP,
    ),
    # What clouds say of the hosts below virtual machines.
    "cloud": LineFormat("cloud", "cloud_event cloud_schedule.azure cloud_schedule.none cloud_schedule.ec2", "topology"),
    # What disks say of their health: smartctl, nvme smart-log.
    "disks": LineFormat(
        "disks collected",
        "disk_head.of_nvme disk_head.information disk_head.section disk_verdict.failing disk_verdict.well "
        "disk_attribute.head pool_name pool_row.head md_array",
        "topology",
        MACHINE_DUMP,
        ID_COLUMNS=(("disk_head", "serial"),),
    ),
    # Counters, queues and settings of Ethernet ports: ethtool -S, tc, mlnx_qos.
    "ethernet": LineFormat(
        "ethernet collected",
        "nic_statistics nic_counter.picked qos qdisc.root qdisc.child module_kind",
        {"qos": "ib-state", "module_kind": "ib-state", "nic_counter": "ib-counters", "qdisc": "ib-counters"},
        PORT,
    ),
    # The log of NVIDIA's Fabric Manager.
    "fabric_manager": LineFormat(
        "fabricmanager collected", "switch_error manager_line manager_multicast manager_service", "fabric-manager"
    ),
    # Stacks of all threads of a process, as Python's faulthandler prints them.
    "faulthandler": LineFormat(
        "stackdumps faulthandler collected",
        "faulthandler_thread",
        "stacks",
        STACK,
        CODE_COLUMNS=(("faulthandler_frame", "file"),),
    ),
    # Stacks of all threads of a process, as debuggers print them.
    "gdb": LineFormat(
        "stackdumps gdb collected",
        "debugger_thread debugger_listed debugger_first",
        "stacks",
        STACK,
        CODE_COLUMNS=(("debugger_first", "file"), ("debugger_frame", "file")),
    ),
    # Versions of firmware: flint, mlxfwmanager, vendstat.
    "firmware": LineFormat(
        "firmware collected",
        "firmware_version",
        "ib-state",
        PORT,
        ID_COLUMNS=(("firmware_guid", "base_guid"),),
    ),
    # Output of nvbandwidth and of CUDA's samples p2pBandwidthLatencyTest and bandwidthTest.
    "gpu_bandwidth": LineFormat(
        "gpubandwidth",
        "pair_matrix pair_access pair_waived pair_failure pair_setting.nvbandwidth copy_line copy_head capture_table",
        dict.fromkeys(("pair_matrix", "pair_waived", "pair_failure", "copy_line", "copy_head"), "gpu-bandwidth"),
        PAIR_MATRIX,
        HOST_COLUMNS={"gpubandwidth": ("node",)},
    ),
    # What gpu-burn counts while GPUs compute.
    "gpu_burn": LineFormat("gpuburn", "burn_progress burn_tested", "gpu-bandwidth", BENCHMARK),
    # GPUs of a host, as nvidia-smi -q describes them.
    "gpu_query": LineFormat(
        "gpuquery",
        "query_head query_field.remapped query_field.retired query_field.reasons query_field.ecc query_field.fabric "
        "query_field.recovery",
        "topology",
        MACHINE_DUMP,
    ),
    # What GPUs do at one moment: nvidia-smi's default table, dmon, pmon and CSV; dcgmi dmon, rocm-smi, rdci dmon.
    "gpu_use": LineFormat(
        "gpuuse collected",
        "use_gpu use_lost use_process use_columns use_names use_query use_readings use_inforom use_amd use_amd_head",
        "topology",
        MACHINE_DUMP,
    ),
    # What monitors and health checks of machines say is wrong: of GPUs, of IMEX, of the firmware of a NIC.
    "health": LineFormat(
        "health collected",
        "monitor_error health_event check_result imex_state imex_fault firmware_fault firmware_state amd_errors.total "
        "amd_errors.of_named "
        "amd_errors.head amd_state amd_page.address amd_page.none ras_record edac_count ras_count.head "
        "bmc_event",
        "topology",
        MACHINE_DUMP,
    ),
    # Files that ibdiagnet writes.
    "ibdiagnet": LineFormat(
        "ibdiagnet collected",
        "diagnosed_port diagnosed_excess table_edge ibdiagnet_message refused_request ibdiagnet_firmware "
        "ibdiagnet_stage",
        "ib-counters",
        PORT,
        ID_COLUMNS=(("diagnosed_port", "guid"),),
    ),
    # Network interfaces of a host: ip addr, ip link, ifconfig.
    "interfaces": LineFormat("interfaces collected", "ip_interface", "topology", MACHINE_DUMP),
    # Pods and nodes of Kubernetes, as kubectl describe shows them.
    "kube_describe": LineFormat(
        "kubedescribe",
        "described_section",
        "topology",
        HOST_COLUMNS={"kubedescribe": ("described_name",)},
    ),
    # NCCL's topology and graphs as XML.
    "markup": LineFormat("markup", "xml_line", "topology", MACHINE_DUMP),
    # Prometheus metrics of ports, interfaces and GPUs: node_exporter, DCGM.
    "metrics": LineFormat("metrics collected", "metric", "ib-counters", PORT),
    # Rates of TCP and UDP between two hosts: iperf3, iperf.
    "iperf": LineFormat("iperf collected", "tcp_head tcp_interval", {"tcp_interval": "perftest"}, LINK_TEST),
    # The state of a link as its firmware reports it: mlxlink, mstlink.
    "mlxlink": LineFormat("mlxlink collected", "mlxlink_section mlxlink_field", {"mlxlink_field": "ib-counters"}, PORT),
    # Space and limits of a host, by df and ulimit.
    "host_limits": LineFormat("hostlimits", "file_systems file_system host_limit", "topology", MACHINE_DUMP),
    # Kernel modules of a host, as lsmod lists them.
    "modules": LineFormat("modules", "kernel_module", "topology", MACHINE_DUMP),
    # Output of micro-benchmarks of MPI and UCX: OSU's tests, Intel's, and ucx_perftest.
    "mpi_tests": LineFormat(
        "mpitests",
        "mpi_test mpi_test_head ucx_test.units ucx_test.columns",
        {"mpi_test_head": "perftest", "mpi_test_row": "perftest", "imb_row": "perftest", "ucx_test": "perftest"},
        LINK_TEST,
    ),
    # Output of nccl-tests and rccl-tests, of any version.
    "nccl_tests": LineFormat(
        "nccltests",
        "test_setting test_device table_head table_row.both test_end",
        {
            "test_setting": "nccl-tests",
            "test_device": "nccl-tests",
            "table_head": "nccl-tests",
            "table_row": "nccl-tests",
            "test_end": "nccl-tests",
        },
        BENCHMARK,
    ),
    # Ports and fabrics of Omni-Path.
    "opa": LineFormat(
        "opa collected",
        "opa_port opa_counted.mask opa_degraded",
        {"opa_counter": "ib-counters", "opa_port": "ib-state", "opa_degraded": "ib-fabric"},
        PORT,
        ID_COLUMNS=(("opa_port", "opa_guid"),),
    ),
    # Output of perftest: ib_write_bw and the other tests of the package.
    "perftest": LineFormat(
        "perftest",
        "link_title link_head link_failure.status link_failure.registration link_failure.port link_failure.refused "
        "link_failure.unsupported link_failure.unconnected link_failure.resources link_failure.cm_event "
        "link_failure.other_end link_failure.listen ping_pong.local ping_pong.remote",
        {"link_head": "perftest", "link_row": "perftest", "link_failure": "perftest", "ping_pong": "perftest"},
        LINK_TEST,
    ),
    # Processes of a host: ps with columns of choice.
    "processes": LineFormat("processes collected", "process_table", "topology"),
    # Traces of NCCL's example profiler: what each call did on every channel, until the communicators ended.
    "profiler": LineFormat(
        "profiler",
        "profiler_event profiler_end",
        {"profiler_event": "inspector", "profiler_end": "inspector", "profiler_other": "inspector"},
        PROFILE,
    ),
    # Stacks of Python processes, as py-spy dump prints them.
    "pyspy": LineFormat(
        "stackdumps pyspy collected",
        "pyspy_thread",
        "stacks",
        STACK,
        CODE_COLUMNS=(("pyspy_frame", "file"),),
        FILLS={"file_heading": "stack_heading"},
    ),
    # RDMA devices of a host, as OFED's tools list them: ibv_devinfo, show_gids, ibdev2netdev; lshca.
    "rdma_devices": LineFormat(
        "rdmadevices collected",
        "verbs_device verbs_gid gid_row gid_table.none port_netdev lshca_head",
        "ib-state",
        PORT,
    ),
    # Links and statistics of iproute2's rdma tool.
    "rdma_tool": LineFormat(
        "rdmatool collected",
        "rdma_link rdma_statistic rdma_other",
        {"rdma_other": "ib-state", "rdma_link": "ib-state", "rdma_statistic": "ib-counters"},
        PORT,
    ),
    # Forwarding tables of the switches of a fabric: ibroute, dump_lfts, OpenSM's dump, ibdiagnet's fdbs.
    "routes": LineFormat(
        "routes collected", "route_switch", "ib-fabric", TABLE, ID_COLUMNS=(("route_switch", "guid"),)
    ),
    # Benchmarks and diagnoses that books and guides hand out as scripts.
    "scripts": LineFormat(
        "scripts", "script_head script_bandwidth gpu_test script_wait", "script-output", IS_SIDE_OUTPUT=True
    ),
    # Hosts of a cluster as Slurm lists them.
    "slurm": LineFormat("slurm", "slurm_node sinfo_head sacct_head job_record", "topology"),
    # Interfaces of a switch by SNMP.
    "snmp": LineFormat("snmp collected", "snmp_counter", "ib-counters", PORT, HOST_COLUMNS={"snmp": ("system_name",)}),
    # Counters of switches with SONiC.
    "sonic": LineFormat(
        "sonic collected",
        "pfc_head pfc_pause.head interface_head interface_status platform_part.head watchdog_queue sonic_module "
        "sonic_flag.lane sonic_limit switch_syslog",
        dict.fromkeys(("pfc_head", "pfc_pause", "interface_head", "watchdog_queue", "switch_syslog"), "ib-counters")
        | dict.fromkeys(("interface_status", "platform_part", "sonic_module", "sonic_flag", "sonic_limit"), "ib-state"),
        PORT,
    ),
    # Timers of training programs beside their steps, and reports of straggler detectors.
    "step_timers": LineFormat(
        "steptimers", "timer_head timer_list straggler_report comms_logged nvrx_report", "step-log", IS_SIDE_OUTPUT=True
    ),
    # Step lines of training programs: how long each step took.
    "steps": LineFormat(
        "steps",
        "training_step progress_bar trainer_progress training_progress",
        "step-log",
        STEP_LINE,
        IS_SIDE_OUTPUT=True,
        FILLS={"training_progress": "training_step"},
    ),
    # Ports of RDMA devices: the files below /sys/class/infiniband, as grep prints them.
    "sysfs": LineFormat(
        "sysfs collected",
        "port_counter_file port_file port_gid_file port_counter.efa port_counter.named counter_folder",
        {
            "port_counter": "ib-counters",
            "device_file": "ib-state",
            "port_file": "ib-state",
            "port_gid_file": "ib-state",
            "port_counter_file": "ib-counters",
        },
        PORT,
    ),
    # Tables of the counters of switch interfaces: Cisco, Arista.
    "switch_tables": LineFormat(
        "switchtables collected",
        "port_table disabled_port",
        {"port_table": "ib-counters", "disabled_port": "ib-state"},
        PORT,
    ),
    # The table by which NCCL's example of a tuner plugin chooses, as CSV.
    "tuner": LineFormat("tunertable", "tuner_head tuner_row", "topology"),
    # What PyTorch's own analyser of Flight Recorder dumps prints.
    "torchfrtrace": LineFormat("torchfrtrace", "analyzer_entry analyzer_note analyzer_row", "flight-recorder"),
}
