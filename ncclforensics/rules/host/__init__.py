"""Rules on GPUs, NICs, PCIe, NUMA nodes and placement."""
