"""The calls of each rank in their order, and the lines that were lost, doubled or moved."""
