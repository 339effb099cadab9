"""From files on disk to NAME.npz: `named_sets` is the entry, one module for each form of files."""
