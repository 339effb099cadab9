"""`confgate-train export`: a finished training run becomes a bundle."""

from pathlib import Path

from service.bundle import Bundle, Provenance
from training.assemble import Evidence, Graphs, assemble_bundle, git_revision
from training.card import trained_card
from training.data_outside import load_outside
from training.export import check_parity, export_network
from training.preprocessing import check_perturbed_parity, perturbed_graph
from training.trained_run import read_run


def make_bundle(folder: Path, target: Path, data_root: Path, ood: list[str]) -> Bundle:
    """Exports both graphs, checks every output of both against torch, calibrates, evaluates and writes `target`."""
    run = read_run(folder, data_root)
    outside = {name: load_outside(name, data_root, run.splits.input.width).test for name in ood}
    sample = run.splits.calibration.images[:32]
    forward = export_network(run.network, run.mean, run.std, run.image_size)
    parity = check_parity(forward, run.network, run.mean, run.std, sample)
    perturbed = perturbed_graph(forward)
    parity = max(parity, check_perturbed_parity(perturbed, run.network, run.mean, run.std, sample))
    dataset = run.recipe.data.dataset
    provenance = Provenance(
        git_sha=git_revision(),
        recipe=run.recipe.name,
        seed=run.seed,
        data=f"{dataset}, splits {run.splits.sizes}, fingerprint {run.splits.fingerprint}",
    )
    return assemble_bundle(
        target,
        Graphs(forward, perturbed),
        run.splits.input,
        run.splits.label_names,
        Evidence(dataset, run.splits.calibration, run.splits.test, outside),
        provenance,
        card=lambda manifest: trained_card(manifest, run, parity),
    )
