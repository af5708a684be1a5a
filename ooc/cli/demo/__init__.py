"""`ooc demo`: VGG16's first block on an image that does not fit the budget (`run.py`), and its check (`check.py`)."""
