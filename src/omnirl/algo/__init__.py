"""The algorithm as pure functions: rewards → advantages → training batches → loss and metrics.

Without torch, for the controller: `reward`, `scores`, `advantage`, `batch`, `finish`, `dynamic`, `diagnosis`, `metrics`,
`schedule`, `classes`. With torch, for trainers: `logprobs`, `loss` and its terms `surrogate`, `correction`, `kl`, `agreement`.
This package re-exports nothing, so that importing one half never loads the other.
"""
