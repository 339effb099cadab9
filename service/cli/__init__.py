"""The `confgate` command, one file for each of its commands."""
