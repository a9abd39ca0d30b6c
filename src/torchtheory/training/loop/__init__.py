"""The trainer: its loop, its batches, what it records, and where it stops."""
