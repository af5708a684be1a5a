"""What an operation is made of: regions, axis maps, folds, stages fused on one tile. Start with `op.py`."""
