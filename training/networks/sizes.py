"""Which image sizes a network can take."""

from training.errors import RecipeError


def require_size(network: str, size: int, smallest: int) -> None:
    """Refuses, by name, images that pooling would shrink to nothing."""
    if size < smallest:
        raise RecipeError(
            f"network '{network}' cannot take images of {size}×{size} pixels, expected at least {smallest}×{smallest}. "
            f"Resize the images or choose another network."
        )
