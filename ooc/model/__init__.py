"""What a machine is expected to take: `cost.py` for a step, `simulate.py` for a schedule, `calibration.py` for their files."""
