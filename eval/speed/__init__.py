"""Benchmarks, each a program: what scheduling costs, what a step costs, what the loss costs."""
