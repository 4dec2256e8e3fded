"""What a reader sees: figures of the accounting, and later the report of a run."""
