"""Nemotron Omni: RADIO vision tower, projector, hybrid Mamba-2 + attention + MoE language model.

`build` makes a miniature checkpoint directory, `spec` reads one without torch, `weights` maps names between the
checkpoint and the module, `policy` is the model that merges media itself.
"""
