"""The command line as it was typed, for bundles, cards and tables: the one place where it is put together."""

import os
from collections.abc import Iterator
from typing import Any

import typer

from service.model.command_line import CommandLine, command_line


def typed(context: typer.Context) -> CommandLine:
    """Every argument and option that was given, under the option's long name; defaults are left out."""
    words: list[object] = [*_program(), *_command(context)]
    given = [parameter for parameter in context.command.params if _is_given(context, parameter.name or "")]
    for parameter in sorted(given, key=lambda one: one.param_type_name != "argument"):
        words += _words(parameter, context.params[parameter.name or ""])
    return command_line(words)


def _program() -> list[str]:
    """How the program was started: the weights of a run depend on the number of processes."""
    processes, here = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if processes == 1:
        return ["confgate-train"]
    machines = [] if processes == here else ["--nnodes", str(processes // here)]
    return ["torchrun", *machines, "--nproc-per-node", str(here), "-m", "training"]


def _command(context: Any) -> list[str]:
    """`data import` of `confgate-train data import`."""
    names = []
    while context.parent is not None:
        names.append(str(context.info_name))
        context = context.parent
    return names[::-1]


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(parameter: Any, value: Any) -> Iterator[object]:
    several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    values = value if several else (value,)
    if parameter.param_type_name == "argument":
        yield from values
        return
    flag = max(parameter.opts, key=len)
    if parameter.is_flag:
        yield flag if value else max(parameter.secondary_opts, key=len)
    elif parameter.multiple:
        for one in values:
            yield from (flag, one)
    else:
        yield from (flag, *values)
