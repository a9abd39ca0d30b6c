"""Many small trainings as one batched computation."""
