"""A bundle in pictures and plain words: `confgate-train report`. `gather` measures, `page` puts it together."""
