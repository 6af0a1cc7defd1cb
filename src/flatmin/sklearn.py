"""The door for users of scikit-learn: `from flatmin.sklearn import DeepLinearRegressor`."""

from flatmin.estimators.deep_linear import DeepLinearRegressor

__all__ = ["DeepLinearRegressor"]
