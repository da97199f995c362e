"""The measured work. Each module has a `run`, which checks which families were requested."""
