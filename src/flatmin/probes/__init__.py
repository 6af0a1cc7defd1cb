"""Curvature of any model that can be differentiated: intervals, within a budget of products."""
