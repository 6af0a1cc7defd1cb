"""Data: tables, their preparation, and the regression problem behind a network."""
