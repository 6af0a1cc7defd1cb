"""The one family of errors meant for the person who called.

Each message is a single line: what was wrong, which value, what is expected. The command prints
it and exits with code 2; from Python it is an ordinary exception. Anything else that is raised is
a bug in flatmin and keeps its traceback.
"""


class FlatminError(ValueError):
    """Input that flatmin cannot work with."""


class DataError(FlatminError):
    """A table or array that cannot be read as a regression."""


class NothingToLearn(DataError):
    """Data that no weights explain: w* = 0."""


class SettingError(FlatminError):
    """A setting (depth, width, rate, name of a method) outside its range."""
