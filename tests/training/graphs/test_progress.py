"""The line that shows how far a calibration is."""

import io

from rich.console import Console

from training.graphs.progress import counting_images, images_done


def shown(force_terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=force_terminal, width=100)
    with counting_images(console, "calibrating"):
        for _ in range(3):
            images_done(500)
    images_done(500)  # the block has ended
    return console.file.getvalue()


def test_a_terminal_shows_the_count_and_a_pipe_stays_clean() -> None:
    """Images are counted while the block runs; a pipe gets nothing."""
    assert "calibrating" in shown(force_terminal=True)
    assert shown(force_terminal=False) == ""
