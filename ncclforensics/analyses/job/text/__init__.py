"""PyTorch's text, Flight Recorder dumps and stacks, by process and rank."""
