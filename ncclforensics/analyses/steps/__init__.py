"""Step lines of training programs: how long steps took, since when they take longer, and what explains it."""
