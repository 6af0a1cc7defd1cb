"""Studies: one file says which networks to train on which data; a table of results comes back."""
