"""`make demo`: shows the gate and its alert at work on a terminal, in a few minutes. Starts in __main__.py."""
