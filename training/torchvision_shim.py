"""Makes `import torchvision` work beside a torch build that its compiled operators do not match.

torchvision registers fake kernels for its detection operators while it is imported, and fails with "operator
torchvision::nms does not exist" where its binary could not be loaded (a CPU-only torch with the CUDA build of
torchvision, for example). Classification needs none of these operators, so declaring their schemas is enough.
Import this module before torchvision; it does nothing where the operators exist.
"""

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _binary_loads() -> bool:
    """Whether torchvision's own binary provides the operators (it registers them when it is loaded)."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # nothing installed, nothing to repair: the import error will say so
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        except (OSError, RuntimeError):
            continue
        if _known("nms"):
            return True
    return False


def _known(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"torchvision::{name}"))


def declare_missing_operators() -> None:
    """Declares the schemas torchvision's import asks for, only where no binary provides them."""
    if _known("nms") or _binary_loads():
        return
    for name in ("nms", "qnms"):
        if not _known(name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


declare_missing_operators()
