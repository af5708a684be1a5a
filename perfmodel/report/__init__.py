"""What calibrations say and predict: `show.py`, `predict.py`, and `check.py`, which holds predictions against measurements."""
