"""Trainers behind the `Trainer` protocol: `torch` (the reference)."""
