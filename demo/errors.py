"""The error that ends the demonstration."""


class DemoError(Exception):
    """Its message says what is wrong, what was expected and what to do."""
