"""The lab: a server on this machine and a page that shows runs as they happen."""
