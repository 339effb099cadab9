"""The image input of a foreign graph: which tensor it is, the order of its axes, its size and type."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import onnx
from onnx import TensorProto, helper

from training.errors import ExportError

Layout = Literal["nchw", "nhwc"]
DEFAULT_SIZE = 224
LARGEST_SIDE = 4096  # the contract's own limit
LARGEST_BATCH = 1024  # of a fixed one: the file must be run at it to know what it answers
PIXEL_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8)
# What may lie between the input and the node that shows the order of axes.
_ELEMENTWISE = {"Cast", "Add", "Sub", "Mul", "Div", "Identity", "Pad", "BatchNormalization"}
_ELEMENTWISE |= {"QuantizeLinear", "DequantizeLinear", "Clip"}


@dataclass(frozen=True)
class ImageTensor:
    """The graph's own image input."""

    name: str
    elem_type: int
    layout: Layout
    height: int
    width: int
    batch: int | None  # None: any

    def shape(self, batch: int | str) -> list[int | str]:
        height, width = self.height, self.width
        return [batch, 3, height, width] if self.layout == "nchw" else [batch, height, width, 3]


def find_image(
    model: onnx.ModelProto, layout: Layout | None, size: tuple[int, int] | None, notes: list[str]
) -> ImageTensor:
    """The only input, which must be an image of three channels; `layout` and `size` are what the user said."""
    if len(model.graph.input) != 1:
        raise ExportError(
            f"the graph has the inputs {_all_shown(model.graph.input)}, expected one image. Export it so that every "
            "other input is a constant."
        )
    value = model.graph.input[0]
    tensor = value.type.tensor_type
    shape = _shape(value)
    if len(shape) != 4:
        raise ExportError(
            f"the graph's input is {_shown(value)}, expected an image: [N,3,H,W] or [N,H,W,3]. It classifies no images."
        )
    if tensor.elem_type not in PIXEL_TYPES:
        raise ExportError(f"the graph's input is {_shown(value)}, expected pixels of type float, float16 or uint8.")
    order = layout or _layout(model, value, notes)
    channels, rows, columns = (1, 2, 3) if order == "nchw" else (3, 1, 2)
    if shape[channels] not in (3, None):
        raise ExportError(
            f"the graph's input is {_shown(value)}, expected three channels (RGB) on axis {channels} for --layout "
            f"{order}. An image of one channel, or of four, is not served."
        )
    height, width = _size(value, (shape[rows], shape[columns]), size, notes)
    if not 0 < (shape[0] or 1) <= LARGEST_BATCH:
        raise ExportError(
            f"the graph's input is {_shown(value)}, a batch of {shape[0]:,} images, expected 1 to {LARGEST_BATCH:,}. "
            "Export it with a dynamic batch size."
        )
    return ImageTensor(value.name, tensor.elem_type, order, height, width, shape[0])


def _size(
    value: onnx.ValueInfoProto,
    fixed: tuple[int | None, int | None],
    wanted: tuple[int, int] | None,
    notes: list[str],
) -> tuple[int, int]:
    if wanted is None and None in fixed:
        notes.append(f"the graph takes images of any size: {DEFAULT_SIZE}×{DEFAULT_SIZE} is used; --size changes it")
    chosen = wanted or (DEFAULT_SIZE, DEFAULT_SIZE)
    height, width = (have or want for have, want in zip(fixed, chosen, strict=True))
    if wanted is not None and (height, width) != wanted:
        raise ExportError(
            f"--size is {wanted[1]}x{wanted[0]} (width x height), but the graph's input is {_shown(value)}, fixed. "
            "Leave --size out, or export the graph at that size."
        )
    if not (0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE):
        raise ExportError(
            f"the graph's images are {width}x{height} (width x height), expected 1 to {LARGEST_SIDE} pixels a side. "
            f"Export the graph at another size{'' if wanted is None else ', or give another --size'}."
        )
    return height, width


def _layout(model: onnx.ModelProto, value: onnx.ValueInfoProto, notes: list[str]) -> Layout:
    """From the place of the three channels; where both places fit, from the first node that tells."""
    shape = _shape(value)
    if (shape[1] == 3) != (shape[3] == 3):
        return "nchw" if shape[1] == 3 else "nhwc"
    if None not in (shape[1], shape[3]) and 3 not in (shape[1], shape[3]):
        raise ExportError(
            f"the graph's input is {_shown(value)}, expected an image of three channels (RGB): [N,3,H,W] or [N,H,W,3]."
        )
    found = _layout_by_nodes(model.graph.node, value.name)
    if found is None:
        raise ExportError(
            f"the graph's input is {_shown(value)}, which may be [N,3,H,W] or [N,H,W,3]. Say which: --layout nchw or "
            "--layout nhwc."
        )
    notes.append(f"the first layers read the image as {found}; --layout changes it")
    return found


def _layout_by_nodes(nodes: Iterable[onnx.NodeProto], name: str) -> Layout | None:
    names = {name}
    for node in nodes:
        if not names.intersection(node.input[:1]):
            continue
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"):
            return "nchw"  # ONNX knows no other order for them
        if node.op_type == "Transpose":
            perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
            return "nhwc" if perm == [0, 3, 1, 2] else "nchw" if perm == [0, 2, 3, 1] else None
        if node.op_type in _ELEMENTWISE:
            names.update(node.output)
    return None


def _shape(value: onnx.ValueInfoProto) -> list[int | None]:
    return [d.dim_value or None for d in value.type.tensor_type.shape.dim]


def _shown(value: onnx.ValueInfoProto) -> str:
    sizes = ",".join(d.dim_param or str(d.dim_value or "?") for d in value.type.tensor_type.shape.dim)
    kind = (
        helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) if value.type.tensor_type.elem_type else "?"
    )
    return f"{value.name!r} {kind} [{sizes}]"


def _all_shown(values: Iterable[onnx.ValueInfoProto]) -> str:
    return ", ".join(_shown(value) for value in values) or "none"
