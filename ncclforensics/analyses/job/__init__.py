"""The job: its processes, communicators and ranks, their calls, ended processes, and failures."""
