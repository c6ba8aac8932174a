"""Who is who: processes, communicators, ranks, runs."""
