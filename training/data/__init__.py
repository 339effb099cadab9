"""Images to train on and OOD images: `catalogue` names the sets, `importers` bring them in, `splits` divides them."""
