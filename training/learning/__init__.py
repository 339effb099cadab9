"""Training a network: `fit` starts a `Run`, `loop` runs it, `learner` takes its steps, `finished_run` reads it back."""
