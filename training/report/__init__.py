"""A bundle in pictures and plain words: `confgate-train report`."""
