"""The graph of an ONNX classifier that was exported elsewhere, rewritten to the contract of a bundle.

    classifier = read_classifier(path, 1000, Reading(), weights_folder, notes)

`file` reads it, `image` finds its input, `original` asks it what it answers, `output` finds its logits, `opset`,
`batch` and `front` rewrite it, and `classifier` tells the whole story: what comes out is compared with the original.
"""
