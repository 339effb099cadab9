"""`confgate-train export`: a finished training run becomes a bundle."""

from dataclasses import dataclass, replace
from pathlib import Path

from service.model.bundle import Bundle, Default, Manifest, Provenance
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.evidence import check_ood
from training.bundles.figure_text import ood_sets_of
from training.bundles.write import Graphs, assemble_bundle, check_new, git_revision
from training.calibration.calibrate import Calibrated, EpsilonBy, Evidence, calibrate_graphs
from training.calibration.open_graphs import OpenGraphs
from training.calibration.policies import Wanted
from training.data.ood import load_oods
from training.data.seen import hashes_of
from training.graphs.from_torch import export_network
from training.graphs.parity import check_parity, check_perturbed_parity
from training.graphs.perturbed import perturbed_graph
from training.learning.finished_run import TrainedRun, read_run, without_branch


@dataclass(frozen=True)
class ExportedRun:
    """A run whose graphs agree with torch, and the images to calibrate and evaluate it on."""

    run: TrainedRun
    graphs: Graphs
    opened: OpenGraphs
    evidence: Evidence
    parity: float
    notes: tuple[str, ...] = ()


def export_run(
    folder: Path, data_root: Path, ood: list[str], plain: bool = False, data: Path | None = None
) -> ExportedRun:
    """Exports both graphs and checks every output of both against torch; `plain` leaves the branch out.

    `data` is where the folder of photos that it was trained on is now.
    """
    run = read_run(folder, data_root, data)
    if plain:
        run = without_branch(run)
    ood_images = load_oods(ood, data_root, run.splits.input)
    sample = run.splits.calibration.images[:32]
    forward = export_network(run.network, run.mean, run.std, run.image_size)
    parity = check_parity(forward, run.network, run.mean, run.std, sample)
    shape, splits = run.splits.input, run.splits
    evidence = Evidence(run.recipe.data.dataset, splits.calibration, splits.test, ood_images, splits.train)
    check_ood(evidence, shape)
    banked = with_bank(forward, shape, evidence)
    perturbed = perturbed_graph(banked.forward)
    parity = max(parity, check_perturbed_parity(perturbed, run.network, run.mean, run.std, sample))
    graphs = Graphs(banked.forward, perturbed)
    notes = () if banked.note is None else (banked.note,)
    return ExportedRun(run, graphs, graphs.opened(shape), banked.evidence, parity, notes)


def make_bundle(
    folder: Path,
    target: Path,
    data_root: Path,
    ood: list[str],
    wanted: Wanted,
    epsilon_by: EpsilonBy = "auto",
    plain: bool = False,
    data: Path | None = None,
) -> tuple[Bundle, Calibrated]:
    """Exports, calibrates, evaluates and writes `target`."""
    check_new(target)
    exported = export_run(folder, data_root, ood, plain, data)
    calibrated = calibrate_graphs(exported.opened, exported.evidence, wanted, epsilon_by)
    calibrated = replace(calibrated, notes=exported.notes + calibrated.notes)
    return write_run(exported, calibrated, target), calibrated


def write_run(exported: ExportedRun, calibrated: Calibrated, target: Path, default: Default | None = None) -> Bundle:
    """Evaluates an exported and calibrated run, and writes it to `target`."""
    run = exported.run
    provenance = Provenance(
        git_sha=git_revision(),
        recipe=run.recipe.name,
        seed=run.seed,
        data=f"{run.recipe.data.dataset}, splits {run.splits.sizes}, fingerprint {run.splits.fingerprint}",
    )
    return assemble_bundle(
        target,
        exported.graphs,
        exported.opened,
        run.splits.label_names,
        exported.evidence,
        calibrated,
        provenance,
        card=lambda manifest, made: _card(manifest, run, exported.parity, made.epsilon_how),
        default=default,
        trained_on=hashes_of(run.splits.train.images, run.splits.input),
    )


def _card(manifest: Manifest, run: TrainedRun, parity: float, epsilon_how: str) -> str:
    """The card of a network trained here: what it is and how it was made."""
    recipe, sizes = run.recipe, run.splits.sizes
    branch = recipe.confidence
    confidence = (
        f"a confidence branch on its {branch.branch_reads} (hidden layers "
        f"{list(branch.branch_hidden)}, budget β = {branch.budget:g}, hints for "
        f"{branch.hint_probability:.0%} of samples)"
        if run.network.branch is not None
        else "no confidence branch"
    )
    if run.branch_left_out:
        confidence += " (it was trained beside one that did not change it, and is exported alone)"
    what = (
        f"A `{recipe.network.name}` network with {confidence}, trained on {recipe.data.dataset}: "
        f"{sizes['train']:,} training, {sizes['validation']:,} validation, {sizes['calibration']:,} calibration "
        f"and {sizes['test']:,} test images, all disjoint."
    )
    options = "".join(f" --ood {data}" for data in ood_sets_of(manifest, recipe.data.dataset))
    if run.branch_left_out:
        options += " --without-branch"
    how = (
        f"{', '.join(f'`{command}`' for command in run.made_by)}, then `confgate-train export RUN{len(run.made_by)} "
        f"--out models/{manifest.name}/{manifest.version}{options}`.\n"
        f"Code {manifest.provenance.git_sha}; data {manifest.provenance.data}; largest difference between torch and "
        f"ONNX Runtime over all outputs {parity:.1e}."
    )
    return write_card(manifest, recipe.data.dataset, what, how, epsilon_how)
