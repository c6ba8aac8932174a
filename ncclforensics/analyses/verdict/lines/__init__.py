"""NCCL's lines as a source: what they suggest, and what happened to them on their way."""
