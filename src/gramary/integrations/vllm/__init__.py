"""gramary inside vLLM: the rows of n-gram tables for an engine that is asked to, by one option.

    vllm serve MODEL --additional-config '{"gramary": {"placement": "device=8GiB,host=auto,disk"}}'

vLLM finds `register` by its entry point (`vllm.general_plugins`) and calls it once in each of its
processes. Where the option is not given nothing of vLLM differs: no class registry and no map of
configurations is changed. All that `register` does then is to look at the arguments of each engine
that is made in this process, because vLLM calls it before it knows them.

Whatever is imported here must not import torch.
"""

from __future__ import annotations

from gramary.integrations.vllm.registering import register

__all__ = ["register"]
