"""What a process tells about its cache: counters, a live description, a profile. Never content."""
