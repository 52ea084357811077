"""Which of vLLM's models gramary serves. This file imports nothing."""

MODULE = "gramary.integrations.vllm.model"
ARCHITECTURES = {
    "Qwen4ExpForCausalLM": f"{MODULE}:Qwen4ExpForCausalLMWithRows",
    "Qwen4ExpForConditionalGeneration": f"{MODULE}:Qwen4ExpForConditionalGenerationWithRows",
}
# Its draft model is checked as the model is, and has no table.
DRAFT_ARCHITECTURES = ("Qwen4ExpMTP",)

__all__ = ["ARCHITECTURES", "DRAFT_ARCHITECTURES", "MODULE"]
