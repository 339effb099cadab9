"""Small classifiers written node by node, each with a peculiarity that exporters leave in a graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, CLASSES = 12, 3
LABELS = ("blue", "green", "red")


class Net:
    """Nodes and weights of a graph in the making; its weights are the same every time."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(7)

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], f"n{name}", domain=domain, **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int, dtype: Any = np.float32) -> str:
        return self.constant(self._random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape), dtype)

    def shape(self, *sizes: int) -> str:
        return self.constant(sizes, np.int64)

    def features(self, pixels: str, dtype: Any = np.float32) -> str:
        """[N,4,1,1]"""
        hidden = self.op("Conv", pixels, self.weight(4, 3, 3, 3, dtype=dtype), pads=[1, 1, 1, 1])
        return self.op("GlobalAveragePool", self.op("Relu", hidden))

    def head(self, rows: str, dtype: Any = np.float32) -> str:
        """[N,4] → [N,3], spread over a few units."""
        return self.op("MatMul", rows, self.constant(4 * self._random.normal(0, 1, (4, CLASSES)), dtype))

    def logits(self, pixels: str) -> str:
        return self.head(self.op("Flatten", self.features(pixels)))

    def save(
        self,
        path: Path,
        *outputs: tuple[str, list[int | str] | None],
        image: tuple[Any, ...] = ("N", 3, SIDE, SIDE),
        opset: int = 18,
        ir: int = 8,
        image_type: int = TensorProto.FLOAT,
        output_type: int = TensorProto.FLOAT,
        domains: tuple[str, ...] = (),
        more_inputs: tuple[onnx.ValueInfoProto, ...] = (),
    ) -> Path:
        """Writes the graph; before IR 4 every weight is an input as well."""
        value = helper.make_tensor_value_info
        inputs = [value("pixels_in", image_type, list(image)), *more_inputs]
        if ir < 4:
            inputs += [value(w.name, w.data_type, list(w.dims)) for w in self.weights]
        shown = [value(name, output_type, shape) for name, shape in outputs]
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        graph = helper.make_graph(self.nodes, "small", inputs, shown, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), path)
        return path


def plain(path: Path, **options: Any) -> Path:
    """Logits [N,3], a dynamic batch size, nothing peculiar."""
    net = Net()
    return net.save(path, (net.logits("pixels_in"), ["N", CLASSES]), **options)


def old_caffe(path: Path) -> Path:
    """IR 3, opset 9, a batch of one written into a Reshape, batch norm, dropout, and a softmax at the end."""
    net = Net()
    hidden = net.features("pixels_in")
    statistics = [net.constant(v) for v in ([1.0, 2, 1, 1], [0.1, 0, 0, 0.2], [0.0, 0.1, 0, 0], [1.0, 1, 2, 1])]
    hidden = net.op("Dropout", net.op("BatchNormalization", hidden, *statistics), ratio=0.5)
    end = net.op("Softmax", net.head(net.op("Reshape", hidden, net.shape(1, 4))), axis=1)
    return net.save(path, (end, [1, CLASSES]), image=(1, 3, SIDE, SIDE), opset=9, ir=3)


def transformer(path: Path) -> Path:
    """Patches, a class token, one layer of attention with two heads; a batch of one is in every shape."""
    net = Net()
    patches = net.op("Conv", "pixels_in", net.weight(4, 3, 4, 4), strides=[4, 4])  # [1,4,3,3]
    rows = net.op("Transpose", net.op("Reshape", patches, net.shape(1, 4, 9)), perm=[0, 2, 1])
    rows = net.op("Concat", net.weight(1, 1, 4), rows, axis=1)
    rows = net.op("Add", rows, net.weight(1, 10, 4))
    q, k, v = (
        net.op("Transpose", net.op("Reshape", net.op("MatMul", rows, net.weight(4, 4)), net.shape(1, 10, 2, 2)), perm=p)
        for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    mixed = net.op("MatMul", net.op("Softmax", net.op("MatMul", q, k), axis=-1), v)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.shape(1, 10, 4))
    token = net.op("Gather", net.op("Add", rows, joined), net.constant(0, np.int64), axis=1)
    return net.save(path, (net.head(token), [1, CLASSES]), image=(1, 3, SIDE, SIDE))


def one_at_a_time(path: Path) -> Path:
    """The batch axis is lost on the way: a graph for one image alone."""
    net = Net()
    row = net.op("Reshape", net.features("pixels_in"), net.shape(4))
    end = net.op("Unsqueeze", net.head(row), net.shape(0))
    return net.save(path, (end, [1, CLASSES]), image=(1, 3, SIDE, SIDE))


def resized_and_squeezed(path: Path) -> Path:
    """A batch of one in the sizes of a Resize, and a Squeeze that names no axes."""
    net = Net()
    larger = net.op("Resize", "pixels_in", "", "", net.shape(1, 3, 18, 18), mode="nearest")
    squeezed = net.op("Squeeze", net.features(larger))  # [4]
    return net.save(
        path, (net.head(net.op("Reshape", squeezed, net.shape(1, 4))), [1, CLASSES]), image=(1, 3, SIDE, SIDE)
    )


def keras(path: Path) -> Path:
    """NHWC with a Transpose in front, as tf2onnx writes, and a softmax."""
    net = Net()
    channels_first = net.op("Transpose", "pixels_in", perm=[0, 3, 1, 2])
    return net.save(
        path, (net.op("Softmax", net.logits(channels_first), axis=1), ["N", CLASSES]), image=("N", SIDE, SIDE, 3)
    )


def quantised(path: Path) -> Path:
    """QDQ: weights and activations in eight bits, between QuantizeLinear and DequantizeLinear."""
    net = Net()

    def rounded(name: str, scale: float) -> str:
        by, zero = net.constant(scale), net.constant(0, np.int8)
        return net.op("DequantizeLinear", net.op("QuantizeLinear", name, by, zero), by, zero)

    hidden = net.op("Relu", net.op("Conv", rounded("pixels_in", 0.03), rounded(net.weight(4, 3, 3, 3), 0.01)))
    rows = net.op("Flatten", net.op("GlobalAveragePool", rounded(hidden, 0.02)))
    return net.save(path, (net.head(rows), ["N", CLASSES]))


def integer_convolution(path: Path) -> Path:
    """The older form of quantisation: QLinearConv."""
    net = Net()
    scales = [net.constant(s) for s in (0.03, 0.01, 0.05)]
    zero, zero_weight = net.constant(128, np.uint8), net.constant(0, np.int8)
    kernel = net.constant(np.random.default_rng(3).integers(-60, 60, (4, 3, 3, 3)), np.int8)
    quantised_image = net.op("QuantizeLinear", "pixels_in", scales[0], zero)
    hidden = net.op("QLinearConv", quantised_image, scales[0], zero, kernel, scales[1], zero_weight, scales[2], zero)
    hidden = net.op("Relu", net.op("DequantizeLinear", hidden, scales[2], zero))
    rows = net.op("Flatten", net.op("GlobalAveragePool", hidden))
    return net.save(path, (net.head(rows), ["N", CLASSES]), opset=10, ir=5)


def half(path: Path) -> Path:
    """float16 from the input to the output."""
    net = Net()
    rows = net.op("Flatten", net.features("pixels_in", np.float16))
    return net.save(
        path,
        (net.head(rows, np.float16), ["N", CLASSES]),
        image_type=TensorProto.FLOAT16,
        output_type=TensorProto.FLOAT16,
    )


def from_bytes(path: Path) -> Path:
    """The graph takes uint8 and normalises by itself."""
    net = Net()
    pixels = net.op("Div", net.op("Cast", "pixels_in", to=TensorProto.FLOAT), net.constant(127.5))
    return net.save(path, (net.logits(pixels), ["N", CLASSES]), image_type=TensorProto.UINT8)


def contributed_operator(path: Path) -> Path:
    """An operator of ONNX Runtime's own domain."""
    net = Net()
    rows = net.op("Gelu", net.op("Flatten", net.features("pixels_in")), domain="com.microsoft")
    return net.save(path, (net.head(rows), ["N", CLASSES]), domains=("com.microsoft",))


def names_of_a_bundle(path: Path) -> Path:
    """Its tensors have the names that a bundle's graphs give to their own."""
    plain(path)
    model = onnx.load(path)
    own = {"pixels_in": "image", "t0": "normalised", "t2": "features", "t4": "logits"}
    for node in model.graph.node:
        node.input[:] = [own.get(name, name) for name in node.input]
        node.output[:] = [own.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = own.get(value.name, value.name)
    onnx.save(model, path)
    return path


def weights_beside(path: Path) -> Path:
    """Its weights are in a file beside it."""
    plain(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    return path


def constant(path: Path) -> Path:
    """The same answer for every image, as the emptied models of the onnx package give."""
    net = Net()
    hidden = net.op("Mul", net.op("Flatten", net.features("pixels_in")), net.constant(0.0))
    return net.save(path, (net.op("Softmax", net.head(hidden), axis=1), ["N", CLASSES]))


def ending(path: Path, kind: str) -> Path:
    """Logits that reach the output in one of many ways."""
    net = Net()
    if kind in ("N,K,1,1", "softmax, N,K,1,1"):
        end = net.op("Conv", net.features("pixels_in"), net.weight(CLASSES, 4, 1, 1))
        end = net.op("Softmax", end, axis=1) if kind.startswith("softmax") else end
        return net.save(path, (end, ["N", CLASSES, 1, 1]))
    logits, shape = net.logits("pixels_in"), ["N", CLASSES]
    if kind == "N,1,1,K":
        end, shape = net.op("Reshape", logits, net.shape(-1, 1, 1, CLASSES)), ["N", 1, 1, CLASSES]
    elif kind == "softmax, then Reshape and Identity":
        wide = net.op("Reshape", logits, net.shape(-1, CLASSES, 1))
        end = net.op("Identity", net.op("Squeeze", net.op("Softmax", wide, axis=1), net.shape(2)))
    elif kind == "log-softmax":
        end = net.op("LogSoftmax", logits, axis=-1)
    else:
        powers = net.op("Exp", logits)
        end = net.op("Div", powers, net.op("ReduceSum", powers, net.shape(1), keepdims=1))
    return net.save(path, (end, shape))
