"""``python -m askew.cli`` is ``askew``."""

from askew.cli import main

if __name__ == "__main__":
    main()
