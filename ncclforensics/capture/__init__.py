"""Live captures: run instrumented collectives on the GPUs of this machine and write fresh logs into a folder.

This package is separate from the analysis, which reads the folder afterwards; only `cli` imports it. `worker`,
`collectives` and `journal` run on each rank and import only the standard library and torch.
"""
