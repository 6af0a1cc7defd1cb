"""Weights over time: gradient descent and gradient flow of whole ensembles."""
