"""`optimiser.trains=head`: the body keeps its weights, and the head is fitted to features that are computed once."""
