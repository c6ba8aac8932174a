"""Rules and line shapes of a user's own: loading them, and testing them by their examples and incidents."""
