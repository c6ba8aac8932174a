"""Links, ports and their counters."""
