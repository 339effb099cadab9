"""ONNX graphs: exported (`from_torch`, `parity`), extended (`image_input`, `perturbed`, `gradient`) and run (`run`)."""
