"""The verdict: who waits for whom, who differs, who did not start, who died."""
