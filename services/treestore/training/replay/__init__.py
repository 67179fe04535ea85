"""Training again on trees of earlier batches: what is stored, who draws from it, and what a batch says that it replayed."""
