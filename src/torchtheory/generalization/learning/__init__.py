"""Statistical learning: laws, tasks, learners, and where an error comes from."""
