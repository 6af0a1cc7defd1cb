"""Networks behind the interfaces of other libraries."""
