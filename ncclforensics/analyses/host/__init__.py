"""The machines: GPUs, NICs, PCIe, NUMA nodes, and what the tools that describe them print."""
