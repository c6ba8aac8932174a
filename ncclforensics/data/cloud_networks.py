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
# Google's plugins run on one family each: a3-megagpu; a3-ultragpu and a4. Over GPUDirectTCPX (a3-highgpu) all_gather is
# known to reach 0.71 of what the adapters carry: too near to what would be slow.
OF_PLUGIN = {"FasTrak": 200.0, "gIB": 400.0}
OF_PROVIDER = {"cxi": 25.0}  # of one adapter
