"""Rules on the job: variables, versions, ended processes, exceptions, memory, PyTorch, and missing log lines."""
