"""`ooc demo`: a trained network on a picture in a file (`denoise.py`); larger, VGG16's first block on an image of several GB
(`run.py`), and its check (`check.py`)."""
