"""What every family on Megatron-core shares: `contract` names what is used beyond Megatron's documented interface, `cpu` lets
it run without CUDA, `parallel` makes the process groups. The models themselves are the families' own."""
