"""`python -m training …` is `confgate-train …`, for launchers such as torchrun that want a module."""

from training.cli.main import main

main()
