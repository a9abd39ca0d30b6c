"""The engine of the labs."""
