"""Seeds are addresses: a run's random stream depends on what the run is, never on when it runs.

>>> float(generator(0, "scale", 0.3, 7).standard_normal()) == float(
...     generator(0, "scale", 0.3, 7).standard_normal()
... )
True
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from flatmin.core.checks import check_seed

Coordinate = str | int | float


def generator(seed: int, *address: Coordinate) -> np.random.Generator:
    """The random stream at an address under a seed.

    The address is hashed into the spawn key of NumPy's SeedSequence, so streams of different
    addresses are independent and the same on every machine.
    """
    digest = hashlib.blake2b(json.dumps(address).encode(), digest_size=16).digest()
    key = tuple(np.frombuffer(digest, dtype="<u4").tolist())
    sequence = np.random.SeedSequence(check_seed(seed), spawn_key=key)
    return np.random.Generator(np.random.PCG64(sequence))
