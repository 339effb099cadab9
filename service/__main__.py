"""`python -m service …` is `confgate …`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
