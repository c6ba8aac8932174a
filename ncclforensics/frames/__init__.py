"""Records to frames: the run with its named, typed tables, computed on first use."""
