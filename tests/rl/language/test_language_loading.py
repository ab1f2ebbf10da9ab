"""Files that are incomplete, of another kind, or do not belong together get one sentence."""

import json
import shutil

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import FIXTURES, path

from sotto import extras
from sotto.rl.language import load


@pytest.fixture(params=["gpt2", "llama"])
def folder(request, tmp_path):
    return shutil.copytree(FIXTURES / request.param, tmp_path / "model")


def edit(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def refused(where, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load(where, "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("tokenizer.json", "has no tokenizer.json; save the model's fast tokenizer"),
        ("config.json", "config.json cannot be read; the folder is not a whole model"),
        ("model.safetensors", "has no model.safetensors; save the model in that format"),
    ],
)
def test_a_missing_file(folder, file, sentence):
    (folder / file).unlink()
    refused(folder, sentence)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("tokenizer.json", "is not a tokenizer"),
        ("config.json", "is not JSON"),
        ("model.safetensors", "cannot be read .*; download it again"),
    ],
)
def test_a_broken_file(folder, file, sentence):
    (folder / file).write_text("broken")
    refused(folder, sentence)


@pytest.mark.parametrize("files", [None, 3, ["part.safetensors"], {"x": 3}, {"x": "../part"}])
def test_an_index_that_names_no_files(folder, files):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    refused(folder, r"model\.safetensors\.index\.json names no files of its folder")


@pytest.mark.parametrize(
    ("model", "field", "value", "sentence"),
    [
        ("gpt2", "n_layer", 1.5, "config.json needs a whole number for 'n_layer', got 1.5"),
        ("llama", "num_hidden_layers", 2.0, "needs a whole number for 'num_hidden_layers'"),
        ("llama", "head_dim", [8], "config.json needs a number for 'head_dim'"),
        ("llama", "rope_scaling", [1], "config.json needs an object for 'rope_scaling'"),
        ("llama", "rope_parameters", {"rope_theta": "x"}, "needs a number for 'rope_theta'"),
    ],
)
def test_sizes_of_another_type(tmp_path, model, field, value, sentence):
    folder = shutil.copytree(FIXTURES / model, tmp_path / "model")
    edit(folder, **{field: value})
    refused(folder, sentence)


def test_an_index_that_names_a_missing_file(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"x": "part.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, r"part\.safetensors cannot be read")


def test_no_model_at_all(tmp_path):
    refused(tmp_path / "nothing", "there is no model at .*nothing; name a model's folder")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model_type": "mamba"}, "of a 'mamba' model; sotto reads 'gpt2' and 'llama'"),
        ({"vocab_size": 200}, "largest token is 299 and the model has 200 embeddings"),
        (
            {"vocab_size": 301},
            r"has shape \[300, 32\], and the model's description says \[301, 32\]",
        ),
        ({"vocab_size": None}, "needs a number for 'vocab_size', got None"),
        ({"eos_token_id": [0, 300]}, r"end tokens \[0, 300\] are not all among the model's 300"),
    ],
)
def test_a_config_that_does_not_fit(folder, fields, sentence):
    (folder / "generation_config.json").unlink()
    edit(folder, **fields)
    refused(folder, sentence)


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        (
            "gpt2",
            {"activation_function": "relu"},
            "activation_function='relu', which sotto does not",
        ),
        ("gpt2", {"n_head": 5}, "a width of 32 cannot be divided into 5 heads"),
        ("gpt2", {"n_layer": 3}, r"has no tensor 'transformer\.h\.2\."),
        ("gpt2", {"n_layer": 1}, r"holds 'transformer\.h\.1.*', which a gpt2 model does not have"),
        ("llama", {"attention_bias": True}, "attention_bias=True"),
        ("llama", {"rope_scaling": {"rope_type": "llama3"}, "rope_parameters": None}, "'llama3'"),
        ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3 key-value heads"),
        ("llama", {"num_key_value_heads": 4}, r"k_proj.weight' has shape \[16, 32\]"),
        ("llama", {"num_hidden_layers": 0}, "blocks is 0; it must be at least 1"),
        ("llama", {"num_attention_heads": 0}, "heads is 0; it must be at least 1"),
        ("llama", {"num_attention_heads": 0, "head_dim": None}, "cannot be divided into 0 heads"),
        ("llama", {"num_key_value_heads": 0}, "kv_heads is 0; it must be at least 1"),
        ("llama", {"hidden_size": 0}, "width is 0; it must be at least 1"),
        ("gpt2", {"n_head": 0}, "cannot be divided into 0 heads"),
        ("gpt2", {"n_embd": 0}, "width is 0; it must be at least 1"),
    ],
)
def test_a_config_of_another_model(name, fields, sentence, tmp_path):
    copy = shutil.copytree(FIXTURES / name, tmp_path / "model")
    edit(copy, **fields)
    refused(copy, sentence)


def test_tensors_that_are_missing_misshapen_unknown_or_integers(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = max(tensors)
    for changed, sentence in [
        ({name: None}, "has no tensor"),
        ({name: tensors[name][:-1]}, "has shape .* do not belong together"),
        ({"extra.weight": np.ones(3, np.float32)}, r"holds '.*extra\.weight', which a"),
        ({name: tensors[name].astype(np.int32)}, "is of type int32; save the model as float32"),
    ]:
        kept = {k: v for k, v in (tensors | changed).items() if v is not None}
        save_file(kept, file)
        refused(folder, sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON .*; download it again"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no JSON object"),
        ('{"eos_token_id": [null]}', r"needs a token or a list of tokens as .*, got \[None\]"),
        ('{"eos_token_id": "</s>"}', "needs a token or a list of tokens as .*, got '</s>'"),
        ('{"eos_token_id": {"a": 1}}', "needs a token or a list of tokens as eos_token_id"),
        ('{"eos_token_id": true}', "needs a token or a list of tokens as .*, got True"),
    ],
)
def test_a_broken_generation_config(folder, content, sentence):
    (folder / "generation_config.json").write_text(content)
    refused(folder, rf"generation_config\.json {sentence}")


def test_end_tokens_of_the_config_are_named_by_it(folder):
    (folder / "generation_config.json").unlink()
    edit(folder, eos_token_id=[0, None])
    refused(folder, r"/config\.json needs a token or a list of tokens as eos_token_id")
    edit(folder, eos_token_id=None)
    assert load(folder, "float32").end == ()
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 0]}')
    assert load(folder, "float32").end == (3, 0)


def test_rope_settings_of_older_configs(tmp_path):
    copy = shutil.copytree(FIXTURES / "llama", tmp_path / "model")
    edit(copy, rope_parameters=None, rope_theta=500.0, rope_scaling=None)
    assert load(copy).decoder.architecture.rotary_base == 500.0


def rewritten(target, **fields):
    """The tiny GGUF file with other fields; None leaves one out."""
    reader = gguf.GGUFReader(path("gguf"))
    fields = {name.replace("__", "."): value for name, value in fields.items()}
    writer = gguf.GGUFWriter(target, fields.pop("general.architecture", "llama"))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = fields.get(name, field.contents())
        if value is None:
            continue
        kinds = field.types
        if isinstance(value, list):
            writer.add_array(name, value)
        elif type(value) is not type(field.contents()):
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
        else:
            writer.add_key_value(name, value, kinds[0])
    for name in fields.keys() - reader.fields.keys():
        kind = gguf.GGUFValueType.get_type(fields[name])
        writer.add_key_value(name, fields[name], kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"general__architecture": "qwen2"}, "of a 'qwen2' model; sotto reads 'llama'"),
        ({"tokenizer__ggml__pre": "llama-bpe"}, "of kind 'gpt2', 'llama-bpe'; sotto reads"),
        ({"tokenizer__ggml__model": "llama"}, "of kind 'llama', 'smollm'"),
        ({"tokenizer__ggml__merges": None}, r"lacks the field 'tokenizer\.ggml\.merges'"),
        ({"tokenizer__ggml__add_bos_token": True}, "asks for a token before each text"),
        ({"llama__block_count": None}, r"lacks the field 'llama\.block_count'"),
        ({"llama__block_count": 3}, r"has no tensor 'model\.layers\.2"),
        ({"llama__block_count": 0}, "blocks is 0; it must be at least 1"),
        ({"llama__embedding_length": 0}, "width is 0; it must be at least 1"),
        ({"llama__attention__head_count": 0}, "a width of 32 cannot be divided into 0 heads"),
        (
            {"llama__attention__head_count": 0, "llama__attention__key_length": 8},
            "heads is 0; it must be at least 1",
        ),
        ({"llama__attention__head_count": 5}, "a width of 32 cannot be divided into 5 heads"),
        ({"llama__attention__head_count_kv": 0}, "kv_heads is 0; it must be at least 1"),
        ({"llama__attention__head_count": [4, 4]}, "has other numbers in each block"),
        ({"llama__feed_forward_length": [64, 64]}, "has other numbers in each block"),
        ({"llama__embedding_length": 64}, "has shape .*do not belong together"),
        ({"llama__rope__scaling__type": "yarn"}, "asks for rotary scaling 'yarn'"),
        ({"tokenizer__ggml__eos_token_id": 300}, r"end tokens \[300\] are not all among"),
    ],
)
def test_gguf_files_of_other_models(fields, sentence, tmp_path):
    refused(rewritten(tmp_path / "x.gguf", **fields), sentence)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("llama__block_count", "two", "a field of another type"),
        ("llama__embedding_length", 32.5, "a field of another type"),
        ("llama__context_length", True, "a field of another type"),
        ("llama__attention__layer_norm_rms_epsilon", "x", "a field of another type"),
        ("llama__attention__layer_norm_rms_epsilon", float("nan"), "a field of another type"),
        ("tokenizer__ggml__eos_token_id", [1], "has end tokens .* that are no numbers"),
        ("tokenizer__ggml__eos_token_id", "end", "has end tokens .* that are no numbers"),
        ("tokenizer__ggml__merges", [1], "tokens, merges and types of tokens that do not fit"),
        ("tokenizer__ggml__merges", 3, "tokens, merges and types of tokens that do not fit"),
        ("tokenizer__ggml__token_type", 3, "tokens, merges and types of tokens that do not fit"),
        ("tokenizer__ggml__tokens", [1], "tokens, merges and types of tokens that do not fit"),
    ],
)
def test_gguf_fields_of_another_type(name, value, sentence, tmp_path):
    refused(rewritten(tmp_path / "x.gguf", **{name: value}), sentence)


def test_a_file_that_is_not_gguf(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"no model at all, but long enough to be read")
    refused(tmp_path / "x.gguf", "is not a GGUF file")
    (tmp_path / "y.gguf").write_bytes(path("gguf").read_bytes()[:20_000])
    refused(tmp_path / "y.gguf", "is not a GGUF file")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "tokenizers" else name)
    refused(FIXTURES / "gpt2", r"this needs tokenizers: pip install 'sotto\[language\]'")
    refused(path("gguf"), r"this needs tokenizers: pip install 'sotto\[language\]'")
