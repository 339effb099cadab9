"""What stops the start, and what it says: always the file or the key, and the reason."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import onnxruntime

from tests.conftest import ROOT, BundleFolder, Service


def test_a_tampered_graph_stops_the_start(models: Path, bundle_folder: BundleFolder) -> None:
    """One flipped bit in model.onnx is found by its hash, and the message names the file."""
    graph = bundle_folder.folder / "model.onnx"
    content = bytearray(graph.read_bytes())
    content[-1] ^= 1
    graph.write_bytes(content)
    message = Service(models).wait_until_refused()
    assert str(graph) in message
    assert "sha256" in message
    assert "Traceback" not in message


def test_a_bundle_that_breaks_the_schema_stops_the_start(models: Path, bundle_folder: BundleFolder) -> None:
    """A field that is not in the contract stops the start, and the message names file and field."""
    bundle_folder.rewrite(lambda raw: raw["input"].update(colour="RGB"))
    message = Service(models).wait_until_refused()
    assert str(bundle_folder.folder / "bundle.json") in message
    assert "input.colour" in message


def test_a_wrong_setting_stops_the_start(models: Path) -> None:
    """A wrong value is named with its key as it was written, and what is allowed."""
    message = Service(models, env={"CONFGATE_MAX_BATCH": "none"}).wait_until_refused()
    assert "CONFGATE_MAX_BATCH: 'none' is not allowed: Input should be a valid integer" in message


def test_a_service_without_cuda_says_so_and_logs_in_json(models: Path, bundle_folder: BundleFolder) -> None:
    """With device auto and no CUDA it serves on the CPU with a warning; every line of its log is JSON."""
    assert bundle_folder.folder.is_dir()
    service = Service(models, env={"CONFGATE_DEVICE": "auto", "CONFGATE_MAXBATCH": "3"}).wait_until_serving()
    assert service.stop(signal.SIGINT) == 0
    lines = service.log()
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert any("CONFGATE_MAXBATCH" in warning for warning in warnings)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        assert any("serving on the CPU" in warning for warning in warnings)


def test_the_service_needs_no_torch() -> None:
    """Importing every module of the service pulls in neither torch, torchvision, onnx nor training."""
    program = (
        "import json, pkgutil, sys, importlib, service\n"
        "for module in pkgutil.walk_packages(service.__path__, 'service.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(result.stdout))
    assert "service" in loaded
    assert not loaded & {"torch", "torchvision", "onnx", "training"}
