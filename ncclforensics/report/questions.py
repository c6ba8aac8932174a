"""Questions that a log answers only if certain lines are in it, and how to have those lines printed."""

from __future__ import annotations

from typing import NamedTuple

from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.grammar_file import load


class Question(NamedTuple):
    """What a log answers only if certain lines are in it."""

    text: str  # a noun clause
    frames: tuple[str, ...]  # rows in any of them answer it
    grammars: tuple[str, ...]  # their `// needs:` lines say how to have such lines printed
    subject: str  # job, topology, machine, network, fabric, gpus, steps
    related: tuple[str, ...] = ()  # frames of lines that need the same, but are printed only when something happens
    more_needs: str = ""  # what is needed besides
    any_of: tuple[str, ...] = ()  # grammars of which any line answers it

    @property
    def needs(self) -> str:
        """What to set or to run so that the next logs answer it."""
        return "; ".join(filter(None, [*(load(name).needs for name in self.grammars), self.more_needs]))

    def is_answered(self, run: Frames) -> bool:
        """Whether some line of the run answers the question."""
        shapes = (shape for name in self.any_of for shape in load(name).shapes)
        return any(map(run.has, self.frames)) or any(run.has(shape.frame) for shape in shapes)


# What else is asked of whoever brought something on a subject. A map says nothing of calls, and nobody asked it to.
ASKED_WITH = {
    "job": ("job", "topology", "machine", "network"),
    "machine": ("machine",),
    "topology": ("machine",),
    "network": ("network",),
    "fabric": ("fabric", "network"),
    "gpus": ("gpus", "machine"),
    "steps": ("steps", "machine"),
}
QUESTIONS = (
    Question(
        "what NCCL warned about",
        (
            "communicator",
            "milestone",
            "connection",
            "operation",
            "setting",
            "failure",
            "warning",
            "plugin",
            "shared_library",
            "nccl_warning",
            "libfabric_error",
            "google_net",
        ),
        ("warning",),
        "job",
        (
            "usage",
            "unexpected_peer",
            "shared_memory",
            "google_net_note",
            "ib_incompatible",
            "p2p_failure",
            "diagnostics_fault",
            "repeated_line",
            "build_mismatch",
            "system_advice",
        ),
        any_of=("warning",),
    ),
    Question(
        "which rank called what, in which order",
        ("operation", "replay", "request", "work", "ras_state", "journal_call"),
        ("operation",),
        "job",
        ("announced_call", "analyzer_entry", "analyzer_row", "ras_rank", "dumped_call"),
    ),
    Question(
        "which ranks there are, and how they are connected",
        ("communicator", "connection"),
        ("init",),
        "job",
    ),
    Question(
        "why this network and this plugin were chosen",
        ("net_devices", "plugin", "libfabric", "google_net"),
        ("network",),
        "job",
        ("failover", "ib_unusable", "collnet", "sharp", "remote_rails", "libfabric_log", "ucx"),
    ),
    Question(
        "how far GPUs and NICs are from one another",
        ("topology_node", "topology_path", "device_pair"),
        ("topology", "devices"),
        "topology",
        (
            "affinity",
            "topology_detection",
            "topology_file",
            "machine_device",
            "gpu_link",
            "mnnvl",
            "unreadable_node",
            "numa_node",
            "pci_link",
        ),
    ),
    Question(
        "which algorithm and protocol each call used",
        ("algorithm_choice",),
        ("tuning",),
        "job",
        ("tuner_table", "tuner_fault"),
    ),
    Question(
        "which variables were set",
        ("setting", "exported"),
        ("environment",),
        "job",
        ("setting_status", "setting_refused"),
    ),
    Question(
        "which ranks arrive late, which communicators are slow",
        ("lag", "ended_operation", "ras_state"),
        ("operation",),
        "job",
        ("profiler_event",),
        more_needs="NCCL_DEBUG_TIMESTAMP_LEVELS=ALL (NCCL 2.26 or later)",
    ),
    Question(
        "how long each phase of init took",
        ("init_timing", "bootstrap_timing"),
        ("prefix",),
        "job",
        more_needs="NCCL 2.22 or later",
    ),
    Question(
        "which GPU, link and memory faults the kernel logged",
        ("hardware_event", "kernel_kill", "kernel_report", "storage_report"),
        ("job",),
        "machine",
        (
            "work_status",
            "watchdog",
            "watchdog_failure",
            "fingerprint",
            "job_end",
            "speaker",
            "engine_start",
            "xla_rendezvous",
            "torch_without_gpu",
            "query_gpu",
            "use_row",
            "work_timeout",
            "group_note",
            "store_connection",
            "jax_service",
            "ray_demand",
            "nvshmem_error",
            "deepep_timeout",
            "transfer_error",
            "ascend_error",
            "mpi_box",
            "engine_load",
            "engine_rate",
            "gradient_error",
            "exception",
            "earlier_launch",
            "file_system",
            "host_limit",
            "driver_state",
            "nic_driver",
            "host_limit_reached",
            "host_service",
            "process_listed",
            "process_waiting",
            "engine_shard",
            "skipped_step",
            "mpi_launch",
            "mpi_transport",
            "mpi_box_field",
            "disk_value",
            "disk_verdict",
            "disk_attribute",
            "bmc_event",
            "pool_state",
            "md_array",
            "cloud_event",
            "cloud_schedule",
        ),
    ),
    Question(
        "whether links lost or damaged packets",
        ("counter", "port_state"),
        ("portcounters", "ethernet"),
        "network",
        (
            "pfc",
            "pfc_row",
            "pfc_pause",
            "watchdog_queue",
            "interface_status",
            "interface_counter",
            "interface_speed",
            "device_firmware",
            "switch_error",
            "link_quality",
            "ibdiagnet_stage",
            "omni_path_port",
            "opa_degraded",
            "metric_value",
            "ip_interface",
            "module_flag",
            "lshca_row",
            "sonic_flag",
            "sonic_reading",
            "port_row",
        ),
    ),
    Question(
        "what bandwidth these machines reach",
        ("table_row", "link_row", "pair_row"),
        ("nccltests", "perftest", "gpubandwidth"),
        "network",
        (
            "test_failure",
            "test_refusal",
            "link_failure",
            "test_device",
            "test_setting",
            "pair_test",
            "pair_waived",
            "script_bandwidth",
            "pair_access",
            "tcp_test",
        ),
    ),
    Question(
        "how the switches of the fabric are cabled, and where they route",
        ("fabric_link",),
        ("fabricmap", "fabriclinks", "portstates", "routes"),
        "fabric",
    ),
    Question(
        "whether the services and self-tests of a host's GPUs failed",
        (
            "dcgm_link",
            "dcgm_result",
            "dcgm_health",
            "manager_service",
            "manager_error",
            "imex_state",
            "amd_errors",
            "amd_state",
            "amd_page",
            "monitor_error",
            "check_result",
            "firmware_state",
        ),
        ("dcgm", "fabricmanager", "health"),
        "gpus",
        ("gpu_test", "gpu_burn", "described_label", "described_title"),
    ),
    Question(
        "how long each step of training took",
        ("training_step", "progress_bar"),
        ("steps",),
        "steps",
        ("timer_head", "straggler_report", "nvrx_report", "script_wait"),
    ),
)
