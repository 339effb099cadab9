"""Which tensor of a file belongs to which of a network: files call the same weights by many names.

A plain network's `conv1.weight` is our `body.conv1.weight`, its `fc.weight` our `head.weight`; trainers put `module.`,
`model.` or `student.backbone.` before all of them.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from training.networks.branch import Classifier

# What libraries call the last layer, where the file is of another library than the network.
HEADS = ("fc", "classifier", "head", "heads.head", "head.fc", "classifier.1", "classifier.3", "classifier.6", "_fc")


def match_names(network: Classifier, content: dict[str, Tensor]) -> dict[str, str]:
    """Our names → the file's names, for all that are found; shapes may differ."""
    found = max(
        (_with_prefix(network, content, prefix) for prefix in sorted(_prefixes(network, content))),
        key=lambda match: (_that_fit(network, content, match), any("ema" in name for name in match.values())),
        default={},
    )
    return found if any(name.startswith("body.") for name in found) else found | _by_order(network, content)


def _that_fit(network: Classifier, content: dict[str, Tensor], match: dict[str, str]) -> int:
    ours = network.state_dict()
    return sum(ours[own].shape == content[theirs].shape for own, theirs in match.items())


def _prefixes(network: Classifier, content: dict[str, Tensor]) -> set[str]:
    """Everything that stands before a name of the network in the file, "" first of all."""
    plain = {own.removeprefix("body.") for own in network.state_dict()}
    found = {""}
    for name in content:
        parts = name.split(".")
        found |= {".".join(parts[:cut]) + "." for cut in range(1, len(parts)) if ".".join(parts[cut:]) in plain}
    return found


def _with_prefix(network: Classifier, content: dict[str, Tensor], prefix: str) -> dict[str, str]:
    match = {}
    for own in network.state_dict():
        candidates = (own, own.removeprefix("body."))
        if (theirs := next((prefix + one for one in candidates if prefix + one in content), None)) is not None:
            match[own] = theirs
    if isinstance(network.head, nn.Linear) and "head.weight" not in match:
        match |= _head(network, content, prefix)
    return match


def _head(network: Classifier, content: dict[str, Tensor], prefix: str) -> dict[str, str]:
    """The last layer under another name: a matrix that reads as many features as ours, and its offsets."""
    for name in _head_names(network):
        weight = content.get(f"{prefix}{name}.weight")
        if weight is not None and weight.ndim == 2 and weight.shape[1] == network.feature_width:
            parts = (part for part in ("weight", "bias") if f"{prefix}{name}.{part}" in content)
            return {f"head.{part}": f"{prefix}{name}.{part}" for part in parts}
    return {}


def _head_names(network: Classifier) -> Iterator[str]:
    of_body = network.body.state_dict()
    yield network.head_name
    yield from (name for name in HEADS if f"{name}.weight" not in of_body)


def _by_order(network: Classifier, content: dict[str, Tensor]) -> dict[str, str]:
    """The same network under names of its own: as many tensors, of the same shapes, in the same order."""
    ours = {own: value for own, value in network.state_dict().items() if not own.startswith("branch.")}
    pairs = list(zip(ours, content, strict=False))
    bodies = [(own, theirs) for own, theirs in pairs if own.startswith("body.")]
    same = len(ours) == len(content) and all(ours[own].shape == content[theirs].shape for own, theirs in bodies)
    return dict(pairs) if same and bodies else {}
