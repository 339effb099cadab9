"""`confgate-train export`: a finished training run becomes a bundle."""

from dataclasses import dataclass, replace
from pathlib import Path

from service.model.bundle import Bundle, Default, Manifest, Provenance
from service.model.command_line import CommandLine
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.evidence import check_ood
from training.bundles.made_by import chain, how_it_was_made, resolved
from training.bundles.write import Graphs, assemble_bundle, check_new, git_revision
from training.calibration.calibrate import Calibrated, EpsilonBy, Evidence, calibrate_graphs
from training.calibration.open_graphs import OpenGraphs
from training.calibration.policies import Wanted
from training.data.ood import load_oods
from training.data.seen import hashes_of
from training.graphs.from_torch import export_network
from training.graphs.parity import check_parity, check_perturbed_parity
from training.graphs.perturbed import perturbed_or_note
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

    A graph without a gradient has no perturbed graph: the bundle comes without it, with a note. `data` is where the
    folder of photos that it was trained on is now.
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
    perturbed = perturbed_or_note(banked.forward)
    if perturbed.graph is not None:
        parity = max(parity, check_perturbed_parity(perturbed.graph, run.network, run.mean, run.std, sample))
    graphs = Graphs(banked.forward, perturbed.graph)
    notes = tuple(note for note in (banked.note, perturbed.note) if note is not None)
    return ExportedRun(run, graphs, graphs.opened(shape), banked.evidence, parity, notes)


def make_bundle(
    folder: Path,
    target: Path,
    data_root: Path,
    ood: list[str],
    wanted: Wanted,
    command: CommandLine,
    epsilon_by: EpsilonBy = "auto",
    plain: bool = False,
    data: Path | None = None,
) -> tuple[Bundle, Calibrated]:
    """Exports, calibrates, evaluates and writes `target`."""
    check_new(target)
    exported = export_run(folder, data_root, ood, plain, data)
    calibrated = calibrate_graphs(exported.opened, exported.evidence, wanted, epsilon_by)
    calibrated = replace(calibrated, notes=exported.notes + calibrated.notes)
    return write_run(exported, calibrated, target, command), calibrated


def write_run(
    exported: ExportedRun, calibrated: Calibrated, target: Path, command: CommandLine, default: Default | None = None
) -> Bundle:
    """Evaluates an exported and calibrated run, and writes it to `target`."""
    run = exported.run
    provenance = Provenance(
        git_sha=git_revision(),
        recipe=run.recipe.name,
        seed=run.seed,
        data=f"{run.recipe.data.dataset}, splits {run.splits.sizes}, fingerprint {run.splits.fingerprint}",
        commands=chain(run.made_by, command),
        resolved_recipe=resolved(run.recipe),
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
        f"Network `{recipe.network.name}` with {confidence}, trained on {recipe.data.dataset}: "
        f"{sizes['train']:,} training, {sizes['validation']:,} validation, {sizes['calibration']:,} calibration "
        f"and {sizes['test']:,} test images, all disjoint."
    )
    made = manifest.provenance
    how = how_it_was_made(
        made.commands,
        f"Code {made.git_sha}; data {made.data}; largest difference between torch and ONNX Runtime over all outputs "
        f"{parity:.1e}.",
    )
    return write_card(manifest, recipe.data.dataset, what, how, epsilon_how)
