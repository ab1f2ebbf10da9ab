"""Language models: GPT-2 and Llama-type decoders, their generation, and small trainable adapters.

```
language = load("folder")                                  # or a GGUF file
prompts, mask = padded([language.tokenizer.encode("The film")])
adapter = lora(language.decoder.architecture, key, rank=4, alpha=8, targets=["q_proj", "v_proj"])
completions = generate(language.decoder, prompts, mask, 16, keys, adapter=adapter)
log_probabilities(language.decoder, prompts, mask, completions, adapter)
```

The package needs the extra `language`. It imports nothing else of sotto's learning or privacy.
"""

from sotto.rl.language.adapters import Adapter, LowRank, lora, steering
from sotto.rl.language.features import block_features
from sotto.rl.language.generation import (
    Completions,
    generate,
    log_probabilities,
    token_divergences,
)
from sotto.rl.language.loading import LanguageModel, load
from sotto.rl.language.model import Decoder
from sotto.rl.language.peft import save_adapter
from sotto.rl.language.tokenizer import Tokenizer, padded

__all__ = [
    "Adapter",
    "Completions",
    "Decoder",
    "LanguageModel",
    "LowRank",
    "Tokenizer",
    "block_features",
    "generate",
    "load",
    "log_probabilities",
    "lora",
    "padded",
    "save_adapter",
    "steering",
    "token_divergences",
]
