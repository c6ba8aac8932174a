"""What several rules share: grouping of equal rows, the wording of verdicts and benchmarks."""
