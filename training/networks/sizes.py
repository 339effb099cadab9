"""The image sizes that a network takes."""

from training.errors import RecipeError


def require_size(network: str, size: int, smallest: int) -> None:
    """Fails for images that pooling would shrink to nothing, and names the network."""
    if size < smallest:
        raise RecipeError(
            f"network '{network}' cannot take images of {size}×{size} pixels, expected at least {smallest}×{smallest}. "
            f"Resize the images or choose another network."
        )
