"""`timm:NAME`: any classifier of timm (https://github.com/huggingface/pytorch-image-models), cut before its last linear
layer, and the weights that timm offers for it. NAME may carry the tag of weights: `timm:resnet18.a1_in1k`.

timm is optional, and is not in the extra `training`: what it depends on would bring another build of torch with it.
"""

import difflib
from typing import Any

from torch import Tensor

import training.torchvision_shim  # noqa: F401  (timm imports torchvision)
from training.errors import RecipeError
from training.networks.branch import Classifier
from training.networks.cut import cut_before_head
from training.networks.expected import Expected

PREFIX = "timm:"
INSTALL = "pip install --no-deps timm"
INSTALL_DOWNLOADS = "pip install huggingface_hub safetensors"


def _timm() -> Any:
    try:
        import timm
    except ImportError as problem:
        raise RecipeError(
            f"networks of '{PREFIX}' need the package timm, which cannot be imported ({problem}). Install it without "
            f"what it depends on, so that it brings no other torch: {INSTALL}"
        ) from problem
    return timm


def check_timm_name(name: str) -> None:
    """Fails if timm has no classifier of this name, or no weights of its tag."""
    timm = _timm()
    model, _, tag = name.partition(".")
    if model not in (names := timm.list_models()):
        near = difflib.get_close_matches(model, names, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"For example {PREFIX}resnet18."
        raise RecipeError(f"network.name is '{PREFIX}{name}', but timm has no classifier '{model}'. {hint}")
    if tag:
        _configuration(model, tag)


def timm_classifier(name: str, classes: int, size: int) -> Classifier:
    """The model timm calls `name`, with fresh weights as timm initialises them."""
    check_timm_name(name)
    model = name.partition(".")[0]
    # The number of position embeddings or the windows of some networks depend on the size of the image.
    fixed = _timm().get_pretrained_cfg(model)
    options = {"img_size": size} if fixed is not None and fixed.fixed_input_size else {}
    try:
        built = _timm().create_model(model, pretrained=False, num_classes=classes, **options)
        return cut_before_head(built, f"{PREFIX}{name}", classes, size)
    except (RuntimeError, AssertionError, ValueError, TypeError) as problem:
        raise RecipeError(
            f"network '{PREFIX}{name}' cannot take images of {size}×{size} pixels: {problem}"
        ) from problem


def timm_expected(name: str, tag: str | None) -> Expected:
    """What the weights of this tag were trained with; without a tag those that timm recommends."""
    found = _configuration(*_model_and_tag(name, tag))
    return Expected(
        mean=tuple(found.mean),
        std=tuple(found.std),
        size=found.input_size[-1],
        crop_fraction=found.crop_pct,
        interpolation=found.interpolation if found.interpolation in ("nearest", "bilinear") else "bicubic",
    )


def timm_state(name: str, tag: str | None) -> dict[str, Tensor]:
    """The weights, from the Hugging Face Hub or from what an earlier call has kept."""
    model, chosen = _model_and_tag(name, tag)
    chosen = _configuration(model, chosen).tag
    full = f"{model}.{chosen}" if chosen else model
    try:
        state: dict[str, Tensor] = _timm().create_model(full, pretrained=True).state_dict()
    except Exception as problem:  # the hub's client has errors of its own, and may not be installed
        reason = (str(problem) or type(problem).__name__).splitlines()[0]
        raise RecipeError(
            f"the weights of '{PREFIX}{full}' could not be downloaded ({reason}). timm needs internet and two packages "
            f"for it: {INSTALL_DOWNLOADS}. Where there is no internet, fetch model.safetensors from "
            f"https://huggingface.co/timm/{full} elsewhere and give the file: --weights model.safetensors."
        ) from problem
    return state


def _model_and_tag(name: str, tag: str | None) -> tuple[str, str]:
    model, _, own = name.partition(".")
    return model, tag or own


def _configuration(model: str, tag: str) -> Any:
    timm = _timm()
    check_timm_name(model)
    full = f"{model}.{tag}" if tag else model
    offered = list(dict.fromkeys(timm.list_pretrained(f"{model}.*") + timm.list_pretrained(model)))
    if not offered or (tag and full not in offered):
        tags = [one.partition(".")[2] for one in offered]
        said = f"timm has for '{PREFIX}{model}': {', '.join(tags)}" if tags else f"timm has none for '{PREFIX}{model}'"
        raise RecipeError(
            f"the weights are '{tag or 'pretrained'}', but {said}. Expected 'pretrained', one of these, or a .pth, .pt "
            f"or .safetensors file."
        )
    return timm.get_pretrained_cfg(full)
