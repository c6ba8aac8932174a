"""The job as it was run: variables, versions, processes, exceptions, memory, and how its logs were collected."""
