"""`export --without-branch`: a training whose branch only reads holds its own baseline."""

import json

from service.model.bundle import load_bundle
from tests.training.command_line import confgate_train


def test_it_is_the_baseline_bit_for_bit(reproduced, tmp_path):
    """The graphs of its classifier alone have the hashes of those that the baseline's own training gave."""
    out = tmp_path / "plain" / "1"
    run = reproduced.run("compact-cifar10")
    confgate_train("export", run, "--out", out, "--without-branch", "--data-root", reproduced.data)
    plain = load_bundle(out).manifest
    baseline = load_bundle(reproduced.bundle("compact-cifar10-baseline")).manifest
    assert plain.graphs == baseline.graphs
    assert plain.external_data == baseline.external_data
    assert plain.scores == baseline.scores
    card = (out / "CARD.md").read_text()
    assert "no confidence branch (it was trained beside one" in card
    assert f"\nconfgate-train export {run} --out {out} --without-branch --data-root {reproduced.data}\n" in card


def test_what_is_not_its_baseline_is_refused(reproduced, tmp_path):
    """A run that has no branch, and one whose branch shaped the features, are told what to do instead."""
    shaped = _that_shaped(reproduced.run("compact-cifar10"), tmp_path / "shaped")
    plain = reproduced.run("compact-cifar10-baseline")
    for run, message in ((plain, "has no confidence branch"), (shaped, "would not be the baseline")):
        options = ("--out", tmp_path / "m" / "1", "--without-branch", "--data-root", reproduced.data)
        done = confgate_train("export", run, *options, check=False)
        assert done.returncode == 2
        assert message in done.stderr
        assert not (tmp_path / "m").exists()


def _that_shaped(run, copy):
    """The same run, as if its branch had shaped the features."""
    copy.mkdir()
    record = json.loads((run / "run.json").read_text())
    record["recipe"]["confidence"]["shapes_features"] = True
    (copy / "run.json").write_text(json.dumps(record))
    (copy / "checkpoint.pt").symlink_to((run / "checkpoint.pt").resolve())
    return copy
