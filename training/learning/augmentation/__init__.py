"""How training images are varied: whole batches in memory, photos of a folder, and hard images for the branch."""
