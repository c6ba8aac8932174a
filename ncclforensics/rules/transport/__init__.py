"""Rules on networks, plugins, GPUDirect RDMA, channels, InfiniBand and RoCE."""
