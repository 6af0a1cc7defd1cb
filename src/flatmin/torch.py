"""The door to PyTorch models."""

from flatmin.probes.torch_door import sharpness

__all__ = ["sharpness"]
