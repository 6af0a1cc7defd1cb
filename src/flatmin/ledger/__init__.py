"""The ledger: every statement of the theory, checked on runs, with what it leaves to spare."""
