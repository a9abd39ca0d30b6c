"""An audit of weights alone, without the code of the model and without data."""
