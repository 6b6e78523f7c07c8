"""The algorithm as pure functions: rewards → advantages → training batches → loss and metrics.

`advantage`, `batch`, `metrics` and `schedule` run in the controller and import no torch; `logprobs` and `loss` do.
This package re-exports nothing, so that importing one half never loads the other.
"""
