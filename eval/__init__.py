"""What is measured: the paper's tables, tasks for the harness, and speed."""
