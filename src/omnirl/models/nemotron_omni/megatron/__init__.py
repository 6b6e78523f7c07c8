"""Nemotron Omni on Megatron-core, for the engine and the trainer alike.

`model` holds transformers' vision tower and projector beside Megatron's hybrid language model, built from the local modules of
`modules` and `mamba` (no Transformer Engine, no Mamba kernels: any device). `weights` maps checkpoint names to its storage,
`parallel` makes the process groups, `cpu` lets Megatron run without CUDA, `contract` names what is used beyond Megatron's
documented interface.
"""
