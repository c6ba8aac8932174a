"""How ranks are connected: network, GPUDirect RDMA, transports, channels, placement."""
