"""Options that take one value, or one for each of three channels: `0.485,0.456,0.406`, or three values in a row."""

from typing import Any

import typer
from typer.core import TyperCommand

CHANNEL_OPTIONS = ("--mean", "--std")


class ChannelValuesCommand(TyperCommand):
    """Joins the values that follow `--mean` and `--std`, so that spaces do as well as commas."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined: list[str] = []
        free = 0  # how many values the option before can still take
        for argument in args:
            if free in (1, 2) and _is_number(argument):
                joined[-1] += f",{argument}"
                free -= 1
                continue
            free = 3 if argument in CHANNEL_OPTIONS else 2 if free == 3 and _is_number(argument) else 0
            joined.append(argument)
        return super().parse_args(ctx, joined)


def channel_values(text: str, option: str) -> tuple[float, float, float]:
    """Three values from `a,b,c`, `a b c`, or one value for all three."""
    parts = text.replace(",", " ").split()
    if not all(_is_number(part) for part in parts) or len(parts) not in (1, 3):
        raise typer.BadParameter(
            f"{option} is {text!r}, expected one number, or three with commas or spaces between them: {option} "
            "0.485,0.456,0.406."
        )
    first, second, third = (float(part) for part in (parts if len(parts) == 3 else parts * 3))
    return first, second, third


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
