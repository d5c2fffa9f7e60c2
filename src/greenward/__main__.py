"""`python -m greenward`: the same as the command `greenward`."""

from greenward.cli.main import main

if __name__ == "__main__":
    main()
