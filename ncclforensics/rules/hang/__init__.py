"""Rules on hangs: failed init, diverging calls, waiting ranks, RAS reports, stragglers."""
