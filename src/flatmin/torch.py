"""The door to PyTorch models: curvature as intervals, and a monitor of training."""

from flatmin.probes.torch_callbacks import HuggingFaceMonitor, LightningMonitor
from flatmin.probes.torch_door import along, density, per_layer, sharpness, spectrum, trace
from flatmin.probes.torch_monitor import Monitor

__all__ = [
    "HuggingFaceMonitor",
    "LightningMonitor",
    "Monitor",
    "along",
    "density",
    "per_layer",
    "sharpness",
    "spectrum",
    "trace",
]
