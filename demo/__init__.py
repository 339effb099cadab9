"""`make demo`: the gate and its alert at work, on a terminal, in a few minutes. See __main__.py."""
