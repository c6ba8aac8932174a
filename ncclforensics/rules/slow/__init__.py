"""Rules on slow jobs: steps, waits and rates."""
