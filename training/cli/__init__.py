"""The `confgate-train` command, one file for each of its commands."""
