"""What a person is told when the demonstration cannot go on."""


class DemoError(Exception):
    """One message that says what was wrong, what was expected and what to do."""
