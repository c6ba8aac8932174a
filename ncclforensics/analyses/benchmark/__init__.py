"""Measurements: nccl-tests, perftest, nvbandwidth."""
