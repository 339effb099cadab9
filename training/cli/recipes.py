"""`confgate-train recipes`: what can be trained, one line each."""

from rich.console import Console

console = Console()


def recipes() -> None:
    """List the recipes that ship, with what each is for.

    Example: `confgate-train recipes`
    """
    from training.recipe import available, summary_of

    names = available()
    width = max(map(len, names))
    for name in names:
        console.print(f"{name:<{width}}  {summary_of(name)}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        "\nA file of the same form is a recipe too: `fit FILE.toml`. `fit RECIPE --set SECTION.FIELD=VALUE` changes a "
        "field, and the value none unsets it.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
