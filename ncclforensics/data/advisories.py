"""Known defects of NCCL releases: first affected version, fixed version, and symptom in a log.

A version alone is no finding: an advisory needs its symptom. `symptom` is a key of the symptoms in
rules/job/known_defects.py. The source is NCCL's release notes unless another one is named.
"""

from __future__ import annotations

from typing import NamedTuple

from ncclforensics.data.versions import Version


class Advisory(NamedTuple):
    """A defect of the versions from `first` up to, not including, `fixed`."""

    slug: str
    first: Version
    fixed: Version
    symptom: str
    what: str
    source: str = "release notes"

    def affects(self, version: Version) -> bool:
        """Whether this release has the defect."""
        return self.first <= version < self.fixed


ADVISORIES = (
    Advisory("ver-2.18.1-alltoallv", (2, 0), (2, 18, 1), "pairwise", "all-to-all with unequal sizes can hang"),
    Advisory(
        "ver-2.18-ib-async", (2, 18), (2, 19), "silent time-out",
        "InfiniBand errors are not reported, and only time-outs of the framework are seen", "facebookresearch/nccl#53",
    ),
    Advisory("ver-2.20-a2a-connect", (2, 0), (2, 20, 3), "pairwise", "connecting for all-to-all can hang"),
    Advisory(
        "ver-2.20.5-truncated", (2, 20, 5), (2, 21), "truncated", "sub-groups can fail with truncated messages",
        "nccl#1273",
    ),
    Advisory(
        "ver-2.24-cumem-host", (2, 24), (2, 26, 5), "shm over CUDA",
        "host memory by cuMem needs NUMA support, which containers may lack", "NCCL user guide, cuMem host allocations",
    ),
    Advisory("ver-2.24-mixed-cpu", (2, 0), (2, 26, 2), "mixed CPUs", "hosts with different CPUs can hang"),
    Advisory(
        "ver-2.26-roce-container", (2, 0), (2, 26), "RoCE version", "a GID's RoCE version cannot be read in containers",
        "nccl#1573",
    ),
    Advisory(
        "ver-2.26.2-multi-comm", (2, 0), (2, 26, 2), "several communicators",
        "several communicators that connect at once can hang",
    ),
    Advisory("ver-2.26.5-alltoall", (2, 19), (2, 26, 5), "pairwise", "patterns like all-to-all can hang"),
    Advisory("ver-2.27.3-alltoall", (2, 27), (2, 27, 3), "pairwise", "patterns like all-to-all can hang"),
    Advisory(
        "ver-2.28-ordering", (2, 0), (2, 28, 9), "large scale",
        "main thread and proxy thread can get out of order at large scale",
    ),
)  # fmt: skip

LARGE_SCALE = 512  # ranks; the release notes give no number
