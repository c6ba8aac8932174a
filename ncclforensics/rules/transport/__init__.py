"""Networks, plugins, GPUDirect RDMA, channels, InfiniBand and RoCE as NCCL reports them."""
