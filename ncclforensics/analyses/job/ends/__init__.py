"""How processes ended, what failed, and what NCCL warned of."""
