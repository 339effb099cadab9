"""A finished run becomes a bundle: export → score the calibration split → thresholds → evaluate → write."""

import json
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from service.bundle import (
    Bundle,
    Default,
    HashedFile,
    Histogram,
    Input,
    Manifest,
    Provenance,
    Score,
    write_bundle,
)
from service.gate import Outputs, ScoreName, histogram, score_images
from service.session import open_session
from training.calibrate import CalibrationScores, policies, temperature_of
from training.card import write_card
from training.data import Splits, load_splits, load_unlabelled
from training.errors import ExportError, RecipeError
from training.evaluate import as_served, in_distribution_figures, out_of_distribution_figures
from training.export import check_parity, export_network, open_graph, run_graph
from training.fit import average_of
from training.networks import Classifier, add_confidence_branch, build_network
from training.recipe import Recipe, parse_recipe

RESIZE = {"resize": "stretch", "interpolation": "bicubic"}


def make_bundle(run: Path, target: Path, data_root: Path, ood: list[str]) -> Bundle:
    """Writes `target` (…/NAME/VERSION) from a finished run folder; a failure leaves nothing behind."""
    if not target.name.isdecimal() or int(target.name) < 1:
        raise ExportError(f"--out is {target}, expected models/NAME/VERSION with a whole number from 1 as VERSION.")
    identity = _read_identity(run)
    recipe = parse_recipe(identity["recipe"])
    network = load_trained(run, identity, recipe)
    splits = _same_splits(recipe, identity, data_root)
    size, mean, std = identity["image_size"], identity["mean"], identity["std"]
    outside = {name: load_unlabelled(name, data_root) for name in ood}

    forward = export_network(network, mean, std, size)
    parity = check_parity(forward, network, mean, std, splits.calibration.images)
    session = open_graph(forward)
    calibration = run_graph(session, splits.calibration.images)
    scores = calibrated_scores(calibration, splits.calibration.labels)
    test = run_graph(session, splits.test.images)
    dataset = recipe.data.dataset
    figures = in_distribution_figures(f"{dataset} test", test, splits.test.labels, scores)
    shape = Input(width=size, height=size, **RESIZE)
    for name, images in outside.items():
        figures += out_of_distribution_figures(name, test, run_graph(session, as_served(images, shape)), scores)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(forward, path)
        manifest = Manifest(
            name=target.parent.name,
            version=int(target.name),
            created=datetime.now(UTC).replace(microsecond=0),
            provenance=Provenance(
                git_sha=git_revision(),
                recipe=recipe.name,
                seed=identity["seed"],
                data=f"{dataset}, splits {splits.sizes}, fingerprint {splits.fingerprint}",
            ),
            graphs={"forward": HashedFile.of(path)},
            input=shape,
            labels=splits.label_names,
            temperature=temperature_of(calibration["logits"], splits.calibration.labels),
            scores=scores,
            default=Default(
                score="confidence" if network.branch is not None else "max_softmax", policy="misclassified"
            ),
            evaluation=tuple(figures),
        )
        card = write_card(manifest, identity, parity)
        image = splits.calibration.images[0]
        return write_bundle(
            target.parent.parent,
            manifest,
            {"model.onnx": path, "CARD.md": card.encode()},
            check=lambda bundle: _answers_alike(bundle, image, calibration),
        )


def calibrated_scores(outputs: Outputs, labels: NDArray[np.int64]) -> dict[ScoreName, Score]:
    """Every score the graph offers, with its reference histogram and policies from the calibration split."""
    right = outputs["logits"].argmax(axis=1) == labels
    names: list[ScoreName] = ["max_softmax"]
    if "confidence_logit" in outputs:
        names.insert(0, "confidence")
    scores: dict[ScoreName, Score] = {}
    for name in names:
        values = score_images(name, outputs)
        scores[name] = Score(
            reference=Histogram(counts=histogram(values)), policies=policies(CalibrationScores(values, right))
        )
    return scores


def load_trained(run: Path, identity: dict[str, Any], recipe: Recipe) -> Classifier:
    """The network a finished run would serve: the moving average of its weights where one was kept."""
    checkpoint = run / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    network = build_network(
        recipe.network.name, len(identity["label_names"]), identity["image_size"], recipe.network.widths
    )
    if recipe.confidence.enabled:
        add_confidence_branch(network, recipe.confidence.branch_hidden)
    total_steps = identity["splits"]["sizes"]["train"] // recipe.optimiser.batch_size * recipe.optimiser.epochs
    if state["step"] < total_steps:
        raise RecipeError(
            f"{run} is not finished: step {state['step']} of {total_steps}. Run the same 'fit' command again."
        )
    averaged = average_of(network, recipe.optimiser.average_decay)
    if averaged is None:
        network.load_state_dict(state["network"])
        return network.eval()
    averaged.load_state_dict(state["averaged"])
    return averaged.module.eval()


def git_revision() -> str:
    """The commit the code stands at, marked where files differ from it."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _read_identity(run: Path) -> dict[str, Any]:
    record = run / "run.json"
    if not record.is_file() or not (run / "checkpoint.pt").is_file():
        raise RecipeError(f"{run} holds no training run. Expected a folder written by 'confgate-train fit … --out'.")
    identity: dict[str, Any] = json.loads(record.read_text())
    return identity


def _same_splits(recipe: Recipe, identity: dict[str, Any], data_root: Path) -> Splits:
    part = recipe.data
    splits = load_splits(part.dataset, data_root, part.validation, part.calibration, part.split_seed, part.limit)
    trained_on = identity["splits"]["fingerprint"]
    if splits.fingerprint != trained_on:
        raise RecipeError(
            f"the data under {data_root} has fingerprint {splits.fingerprint}, the run was trained on {trained_on}: "
            f"calibration images might have been trained on. Restore the data, or train again."
        )
    return splits


def _answers_alike(bundle: Bundle, image: NDArray[np.uint8], calibration: Outputs) -> None:
    """Opens the bundle through the service and compares its answer with the one it was calibrated on."""
    answer = open_session(bundle, "forward", device="cpu", max_batch=1).run(image[None])
    for name, values in answer.items():
        difference = float(np.abs(values[0] - calibration[name][0]).max())
        if not difference <= 1e-3:
            raise ExportError(
                f"the written bundle's {name} differs by {difference:.2e} from what it was calibrated on."
            )
