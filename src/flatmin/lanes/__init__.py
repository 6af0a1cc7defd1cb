"""Everything compiled: lane vectors, what is built on them, and the kernels."""
