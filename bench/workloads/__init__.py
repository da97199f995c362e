"""What is measured. Each module has a `run`, which asks the bench what is wanted."""
