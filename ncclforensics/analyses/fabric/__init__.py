"""Ports and their counters, in the fabric and on hosts."""
