"""Files of our own: what they say is not believed, and they are there as a whole or not at all."""
