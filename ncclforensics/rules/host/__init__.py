"""GPUs, NICs, PCIe, NUMA nodes and placement."""
