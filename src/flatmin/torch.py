"""The door to PyTorch models: curvature as intervals (`probes/torch_door.py`)."""

from flatmin.probes.torch_door import along, density, per_layer, sharpness, spectrum, trace

__all__ = ["along", "density", "per_layer", "sharpness", "spectrum", "trace"]
