"""Tensors by name from a file: a state dict of torch.save, a checkpoint that holds one, or safetensors.

Nothing that holds code is loaded. Of a checkpoint that keeps an average of the weights, the average is taken.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.errors import RecipeError

FILE_ENDINGS = (".pth", ".pt", ".safetensors", ".ckpt", ".bin", ".tar")
# Where checkpoints keep weights, the average before what it is the average of: this project's runs, timm, Lightning,
# and the names that training scripts use most.
NESTED = (
    "served",
    *("averaged", "state_dict_ema", "model_ema", "ema_state_dict", "ema"),
    *("network", "state_dict", "model_state_dict", "model", "net", "weights"),
)
# https://github.com/huggingface/safetensors#format
SAFETENSORS_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
HEADER_BYTES = 100_000_000  # the largest header that the format allows


def read_state_file(path: Path, option: str) -> dict[str, Tensor]:
    """The tensors of a file; errors begin with the option that named it."""
    if path.is_dir():
        raise RecipeError(f"{option} {path} is a folder. Expected a file; of a run it is {path / 'checkpoint.pt'}.")
    if not path.is_file():
        raise RecipeError(
            f"{option} {path}: no such file. Expected a state dict written by torch.save, or safetensors."
        )
    if path.suffix == ".safetensors":
        return _read_safetensors(path, option)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise RecipeError(
            f"{option} {path} is not a plain state dict, and nothing else is loaded: files that hold code are refused "
            f"({reason}). Where you trust the file, save model.state_dict() alone."
        ) from problem
    return _tensors_in(content, path, option)


def _tensors_in(content: Any, path: Path, option: str) -> dict[str, Tensor]:
    """The dict of tensors that lies deepest under the names that checkpoints use."""
    while isinstance(content, dict):
        inner = next((content[key] for key in NESTED if isinstance(content.get(key), dict) and content[key]), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, dict):
        raise RecipeError(f"{option} {path}: expected a dict of tensors by name, found {type(content).__name__}.")
    # The number of averaged models is a tensor too, and no weight.
    found = {key: value for key, value in content.items() if isinstance(value, Tensor) and key != "n_averaged"}
    if not found:
        held = ", ".join(str(key) for key in list(content)[:6])
        raise RecipeError(f"{option} {path}: expected a dict of tensors by name, found these entries: {held}.")
    return found


def _read_safetensors(path: Path, option: str) -> dict[str, Tensor]:
    """Eight bytes with the length of the header, the header in JSON, then the bytes of all tensors."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        if len(content) < 8 or length > min(HEADER_BYTES, len(content) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        body = bytearray(content[8 + length :])  # a copy that tensors may write to
        return {name: _tensor(entry, body) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as problem:
        reason = str(problem).splitlines()[0]
        raise RecipeError(f"{option} {path} is not a whole safetensors file ({reason}). Fetch it again.") from problem


def _tensor(entry: dict[str, Any], body: bytearray) -> Tensor:
    kind, shape, (start, end) = SAFETENSORS_TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not 0 <= start <= end <= len(body):
        raise ValueError(f"a tensor lies at bytes {start} to {end} of {len(body)}")
    if start == end:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memoryview(body)[start:end], dtype=kind).reshape(shape).clone()
