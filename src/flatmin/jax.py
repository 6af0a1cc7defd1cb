"""The door to functions of pytrees: curvature as intervals (`probes/jax_door.py`)."""

from flatmin.probes.jax_door import along, density, per_layer, sharpness, spectrum, trace

__all__ = ["along", "density", "per_layer", "sharpness", "spectrum", "trace"]
