"""What the file itself answers when ONNX Runtime runs it as it is: the reference for everything that is rewritten."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from service.model.images import Pixels
from service.model.session import RUN_OPTIONS, RUNTIME_ERRORS
from training.errors import ExportError
from training.graphs.foreign.front import put_image_in_front
from training.graphs.foreign.image import ImageTensor
from training.graphs.foreign.preprocessing import Preprocessing
from training.graphs.foreign.trial import first_line, open_trial

Answers = dict[str, NDArray[Any]]  # by output: a row for each image


def probe_images(image: ImageTensor, count: int) -> Pixels:
    """Images that differ in brightness, colour and detail, so that their answers differ too."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0 : image.height, 0 : image.width]
    images = np.empty((count, image.height, image.width, 3), np.uint8)
    for place, level in enumerate(np.linspace(60, 190, count)):
        for channel in range(3):
            down, across = random.uniform(-0.2, 0.2, 2)
            wave = 50 * np.sin(rows * down + columns * across + random.uniform(0, 6))
            images[place, :, :, channel] = (level + wave + random.normal(0, 15, wave.shape)).clip(0, 255)
    return images


def original_answers(
    path: Path, inner: str | None, image: ImageTensor, preprocessing: Preprocessing, images: Pixels
) -> Answers:
    """Every output of the file for each image, and that of the tensor `inner`; the images are asked one by one."""
    batch = image.batch or 1
    try:
        session = open_trial(_source(path, inner))
    except RUNTIME_ERRORS as problem:
        raise ExportError(
            f"{path} cannot be opened by ONNX Runtime {onnxruntime.__version__} ({first_line(problem)}). Export it "
            "with operators that ONNX Runtime has, or at another opset."
        ) from problem
    names = [output.name for output in session.get_outputs()]
    rows: list[list[NDArray[Any]]] = []
    try:
        for tensor in graph_input(image, preprocessing, images):
            fed = np.repeat(tensor[np.newaxis], batch, axis=0)
            rows.append(session.run(names, {image.name: fed}, RUN_OPTIONS))
    except RUNTIME_ERRORS as problem:
        raise ExportError(
            f"{path} cannot be run by ONNX Runtime on an image of {image.width}×{image.height} "
            f"({first_line(problem)}). If the graph needs another size, say --size; if its axes are in another order, "
            "say --layout."
        ) from problem
    return {
        name: np.concatenate([np.asarray(row[k])[:1] for row in rows])
        for k, name in enumerate(names)
        if all(isinstance(row[k], np.ndarray) and row[k].ndim and len(row[k]) == batch for row in rows)
    }


def graph_input(image: ImageTensor, preprocessing: Preprocessing, images: Pixels) -> NDArray[Any]:
    """The images as the graph's own input takes them, made by the nodes that a bundle puts in front."""
    shown = helper.make_tensor_value_info("shown", image.elem_type, image.shape("N"))
    own = helper.make_tensor_value_info(image.name, image.elem_type, image.shape("N"))
    graph = helper.make_graph([helper.make_node("Identity", [image.name], ["shown"])], "front", [own], [shown])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    put_image_in_front(model, image, preprocessing, "N")
    session = open_trial(model)
    return np.asarray(session.run(["shown"], {"image": images})[0])


def _source(path: Path, inner: str | None) -> str | onnx.ModelProto:
    """The file as it is, or with one more output."""
    if inner is None:
        return str(path)
    model = onnx.load(path)
    if inner not in [value.name for value in model.graph.output]:
        model.graph.output.append(onnx.ValueInfoProto(name=inner))
    return model
