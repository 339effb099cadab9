"""The paper behind the confidence branch: its published values, its experiments and their results."""
