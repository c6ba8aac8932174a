"""Lines to records: launcher prefixes, patterns, templates, torn lines, and the count of every line."""
