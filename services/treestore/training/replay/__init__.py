"""Training again on trees of earlier batches: the stored groups, the draw, and the record in a
batch.
"""
