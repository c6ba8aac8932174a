"""The interactive screens, one module each. `content` builds what they show from a report."""
