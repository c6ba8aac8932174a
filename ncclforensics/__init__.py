"""ncclforensics: who is stuck, on what, and who is to blame, from the logs of a stuck NCCL job."""

__version__ = "0.1.0"
