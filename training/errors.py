"""Errors that a user of the command line can correct.

TrainingError            shown as one message, exit code 2
├── DataError            a data set is missing, malformed or too small
├── RecipeError          a recipe or one of its fields cannot be used
├── RunError             a run cannot go on: its folder cannot be written, or a process of it is lost
└── ExportError          the network and its ONNX graph disagree, or cannot be written
"""


class TrainingError(Exception):
    """Says what was wrong, what was expected, and what to do."""


class DataError(TrainingError):
    pass


class RecipeError(TrainingError):
    pass


class RunError(TrainingError):
    pass


class ExportError(TrainingError):
    pass
