"""`python -m flatmin` is the command."""

from flatmin.cli import main

if __name__ == "__main__":
    main()
