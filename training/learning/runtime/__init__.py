"""Where a training runs (device, memory, ranks), and who listens to it (terminal, TensorBoard)."""
