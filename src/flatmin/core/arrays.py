"""What arrays hold, by name."""

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Whole = NDArray[np.int64]
Yes = NDArray[np.bool_]
