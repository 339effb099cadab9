"""The paper's tables, measured on exported bundles: `confgate-train evaluate`."""
