"""Writes the fixtures of these tests: small random models with what `transformers` says of them.

Run it by hand, in an environment of its own (PyTorch is too large for the tests'):

    python -m venv oracles
    oracles/bin/pip install torch transformers peft gguf
    oracles/bin/python tests/rl/language/make_oracles.py

It writes four folders beside this file, below `fixtures`: `gpt2` (tied embeddings), `gpt2_untied`,
`llama` (query heads that share key-value heads, untied) and `gguf` (a tied Llama model in one GGUF
file). `oracle.npz` in each holds prompts, logits and greedy generations. The adapters below `gpt2`
and `llama` were saved by PEFT; `oracle.npz` has their logits, too.
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

HERE = Path(__file__).parent / "fixtures"
WIDTH, BLOCKS, HEADS, KV_HEADS, POSITIONS = 32, 2, 4, 2, 64
NEW = 12
TEXTS = [
    "the film was good, and the 12 actors were better than the story",
    "a story of two people in a city by the sea; nobody laughed",
    "in 1984 the worst film of the year won 3 prizes",
]
PROMPTS = ["the film", "in 1984 the story of", "a"]


def tokenizer() -> Tokenizer:
    """A small byte-level BPE that splits digits singly, as SmolLM2's does."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """The model with weights large enough for logits to differ, biases and norms included."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            centre = 1.0 if tensor.ndim == 1 and name.endswith("weight") else 0.0
            tensor.copy_(centre + 0.3 * torch.randn_like(tensor))
    return model.eval()


def logits(model: PreTrainedModel, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Logits at every token of each prompt."""
    with torch.no_grad():
        return {
            str(i): model(torch.tensor([ids])).logits[0].numpy() for i, ids in enumerate(prompts)
        }


def oracle(model: PreTrainedModel, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Prompts, logits and greedy generations of NEW tokens."""
    found = {}
    for i, ids in enumerate(prompts):
        made = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            eos_token_id=None,
            pad_token_id=0,
        )
        found[f"greedy{i}"] = made[0, len(ids) :].numpy()
        found[f"prompt{i}"] = np.array(ids)
    return found | {f"logits{i}": value for i, value in logits(model, prompts).items()}


def adapted(
    model: PreTrainedModel, prompts: list[list[int]], folder: Path, **settings: object
) -> dict[str, np.ndarray]:
    """Logits under a random adapter, which PEFT saves into `folder`."""
    config = LoraConfig(r=3, lora_alpha=6, task_type="CAUSAL_LM", **settings)
    wrapped = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, tensor in wrapped.named_parameters():
            if "lora_" in name:
                tensor.normal_(0.0, 0.2)
            if name.endswith("lora_B.default.bias") and not settings.get("layers_to_transform"):
                tensor.zero_()
    wrapped.save_pretrained(folder)
    found = logits(wrapped, prompts)
    wrapped.unload()
    (folder / "README.md").unlink()
    return {f"{folder.name}{i}": value for i, value in found.items()}


def write_gguf(model: LlamaForCausalLM, made: Tokenizer, path: Path) -> None:
    """A GGUF file as llama.cpp's converter lays it out: rows of q and k are interleaved."""
    config, state = model.config, model.state_dict()
    vocabulary = sorted(made.get_vocab().items(), key=lambda pair: pair[1])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token, _ in vocabulary])
    writer.add_token_merges(
        [" ".join(pair) for pair in json.loads(made.to_str())["model"]["merges"]]
    )
    writer.add_eos_token_id(0)
    names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    for block in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            tensors[f"blk.{block}.{theirs}"] = f"model.layers.{block}.{ours}"
    for theirs, ours in tensors.items():
        value = state[f"{ours}.weight"].numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if count := heads.get(theirs.rsplit(".", 1)[-1]):  # llama.cpp, convert_hf_to_gguf.permute
            value = value.reshape(count, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        name = f"{theirs}.weight"
        if value.ndim == 2:
            kind = (
                gguf.GGMLQuantizationType.Q4_1 if "ffn" in name else gguf.GGMLQuantizationType.Q8_0
            )
            writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Writes every fixture."""
    torch.manual_seed(0)
    shutil.rmtree(HERE, ignore_errors=True)
    made = tokenizer()
    size = made.get_vocab_size()
    prompts = [made.encode(text).ids for text in PROMPTS]
    end = {"eos_token_id": 0, "bos_token_id": 0}
    gpt2 = {"n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": POSITIONS}
    llama = {
        "hidden_size": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": 64,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
    }
    untied = {"tie_word_embeddings": False}
    all_models = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=size, **gpt2, **end)),
        "gpt2_untied": GPT2LMHeadModel(GPT2Config(vocab_size=size, **gpt2, **end, **untied)),
        "llama": LlamaForCausalLM(LlamaConfig(vocab_size=size, **llama, **end, **untied)),
    }
    adapters = {
        "gpt2": {"lora": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}},
        "llama": {
            "lora": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
            "steering": {
                "target_modules": ["down_proj"],
                "layers_to_transform": [1],
                "lora_bias": True,
            },
        },
    }
    for name, model in all_models.items():
        folder = HERE / name
        randomised(model).save_pretrained(folder)
        made.save(str(folder / "tokenizer.json"))
        found = oracle(model, prompts)
        for kind, settings in adapters.get(name, {}).items():
            found |= adapted(model, prompts, folder / kind, **settings)
        np.savez_compressed(folder / "oracle.npz", **found)

    folder = HERE / "gguf"
    folder.mkdir()
    tied = randomised(
        LlamaForCausalLM(LlamaConfig(vocab_size=size, **llama, tie_word_embeddings=True))
    )
    write_gguf(tied, made, folder / "model.gguf")
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    np.savez_compressed(folder / "oracle.npz", **oracle(read.eval(), prompts))


if __name__ == "__main__":
    main()
