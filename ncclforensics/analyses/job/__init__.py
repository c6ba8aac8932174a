"""Who is who, what each rank called, which processes ended, and which lines report a failure."""
