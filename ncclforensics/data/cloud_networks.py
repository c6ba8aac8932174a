"""What the network adapters of a cloud's GPU machine carry together, by what network plugins print: GB/s, one way.

Sources: the clouds' pages on their machines; aws/aws-ofi-nccl, platform-aws; HPE Slingshot 11 (200 Gbit/s an adapter).
"""

from __future__ import annotations

GPUS = 8  # of each of these machines
# aws-ofi-nccl prints the name of the machine (`Running on p5.48xlarge platform`); its older versions another spelling.
OF_PLATFORM = {
    **dict.fromkeys(("p4d", "p4d.24xlarge", "p4de.24xlarge"), 50.0),
    **dict.fromkeys(("p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge"), 400.0),
    "p6-b300.48xlarge": 800.0,
}
# Google's plugins run on one family each: a3-megagpu; a3-ultragpu and a4; a3-highgpu.
OF_PLUGIN = {"FasTrak": 200.0, "gIB": 400.0, "GPUDirectTCPX": 100.0}
# Plugins over which healthy hosts reach a smaller share of that: GB/s of all_gather (Google, cluster-toolkit) and of
# all_reduce (a public run), both on two hosts with 16 H100; over sockets 24.
OVER_TCP, OVER_TCP_REACH = ("GPUDirectTCPX",), (71, 83)
OF_PROVIDER = {"cxi": 25.0}  # of one adapter
