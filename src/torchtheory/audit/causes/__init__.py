"""Why new data is answered worse than training data: rivals, each with its test."""
