"""Frames to findings: judgements, each a function with its page, found by walking the package."""
