"""The commands of docs/operations.md, typed as they stand there."""

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import OPERATOR, OPERATOR_LINE, Service, make_bundle
from tests.deploy.shipped import ROOT, need
from tests.pair_bundles import make_pair_bundle

SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_gate_example_works_on_the_default_version(models: Path) -> None:
    """Every command of the example succeeds, and changes the version that answers by default, not a fixed one."""
    for program in ("bash", "curl", "jq"):
        need(program)
    make_bundle(models, "cifar10", 1)
    make_pair_bundle(models, "cifar10", 7)
    running = Service(models, "--api-keys", OPERATOR_LINE).wait_until_serving()
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (example,) = (block for block in SHELL_BLOCK.findall(text) if "/gate" in block)
    assert example.count("-X PUT") == 6
    script = "set -eu\ncurl() { command curl --silent --show-error --fail --noproxy '*' \"$@\"; echo; }\n" + example
    script = script.replace("localhost:8000", running.url.removeprefix("http://"))
    env = {**os.environ, "KEY": OPERATOR}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"version":7') >= 6
    assert '"version":1' not in done.stdout
    assert running.stop() == 0
