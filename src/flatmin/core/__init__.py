"""What every room may use: errors, checks, seeds, files, memory, threads, statistics, arrays."""
