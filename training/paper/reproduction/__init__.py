"""The paper's experiments from training to table: `confgate-train reproduce`."""
