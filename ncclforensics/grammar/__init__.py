"""Grammars to patterns: `.lark` files compiled into patterns, schemas and dialects."""
