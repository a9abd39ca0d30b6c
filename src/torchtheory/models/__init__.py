"""A user's model as a pure function, with its data and loss."""
