"""Fresh, instrumented logs from the GPUs at hand: plan, launch, exercise, collect.

It stands beside the way of the data: it makes a folder that is handed to the front door, and only `cli` imports it.
`worker`, `exercise` and `journal` run on each rank and import the standard library and torch alone.
"""
