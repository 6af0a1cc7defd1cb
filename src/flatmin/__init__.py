"""flatmin: the sharpness of deep linear networks."""

__version__ = "0.1.0"
