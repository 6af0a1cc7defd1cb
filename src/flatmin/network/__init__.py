"""Networks: all but the weights, the weights of many, and how they begin."""
