"""What theorems promise of a descent, beside the recorded run."""
