"""`python -m relbench`, for launchers such as torchrun."""

from relbench.cli import main

if __name__ == "__main__":
    main()
