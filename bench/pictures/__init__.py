"""Pictures of docs that show recorded figures: `python -m bench.pictures`."""
