"""`confgate-train export`: a finished training run becomes a bundle."""

from dataclasses import dataclass
from pathlib import Path

from service.model.bundle import Bundle, Default, Provenance
from training.bundles.card import trained_card
from training.bundles.write import Graphs, assemble_bundle, check_new, git_revision
from training.calibration.calibrate import Calibrated, EpsilonBy, Evidence, OpenGraphs, calibrate_graphs
from training.calibration.policies import Wanted
from training.data.ood import load_ood
from training.graphs.from_torch import check_parity, export_network
from training.graphs.perturbed import check_perturbed_parity, perturbed_graph
from training.learning.finished_run import TrainedRun, read_run, without_branch


@dataclass(frozen=True)
class ExportedRun:
    """A run whose graphs agree with torch, and what it is calibrated and evaluated on."""

    run: TrainedRun
    graphs: Graphs
    opened: OpenGraphs
    evidence: Evidence
    parity: float


def export_run(folder: Path, data_root: Path, ood: list[str], plain: bool = False) -> ExportedRun:
    """Exports both graphs and checks every output of both against torch; `plain` leaves the branch out."""
    run = read_run(folder, data_root)
    if plain:
        run = without_branch(run)
    outside = {name: load_ood(name, data_root, run.splits.input.width) for name in ood}
    sample = run.splits.calibration.images[:32]
    forward = export_network(run.network, run.mean, run.std, run.image_size)
    parity = check_parity(forward, run.network, run.mean, run.std, sample)
    perturbed = perturbed_graph(forward)
    parity = max(parity, check_perturbed_parity(perturbed, run.network, run.mean, run.std, sample))
    graphs = Graphs(forward, perturbed)
    evidence = Evidence(run.recipe.data.dataset, run.splits.calibration, run.splits.test, outside)
    return ExportedRun(run, graphs, graphs.opened(run.splits.input), evidence, parity)


def make_bundle(
    folder: Path,
    target: Path,
    data_root: Path,
    ood: list[str],
    wanted: Wanted,
    epsilon_by: EpsilonBy = "auto",
    plain: bool = False,
) -> tuple[Bundle, Calibrated]:
    """Exports, calibrates, evaluates and writes `target`."""
    check_new(target)
    exported = export_run(folder, data_root, ood, plain)
    calibrated = calibrate_graphs(exported.opened, exported.evidence, wanted, epsilon_by)
    return write_run(exported, calibrated, target), calibrated


def write_run(exported: ExportedRun, calibrated: Calibrated, target: Path, default: Default | None = None) -> Bundle:
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
        card=lambda manifest, made: trained_card(manifest, run, exported.parity, made.epsilon_how),
        default=default,
    )
