"""The walk through a run: one module for each screen. What they show is made in `facts`, of the CLI's frames."""
