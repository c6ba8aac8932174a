"""Slow jobs: own time, waits and transfers of each rank, and what makes a job slow."""
