"""Each tuning on a small saved model: what trains, what is quantised, what is refused and in which words."""

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
import transformers
from bitsandbytes.nn import Linear4bit
from tokenizers import Tokenizer, models, pre_tokenizers

import srt_peft
from srt_peft.errors import OptionError
from srt_peft.training import model as module
from srt_peft.training.model import describe, load_model, load_tokenizer, make_optimizer
from srt_peft.training.nll import token_nll
from tests.training.families import WORDS, examples, gradients, packed, padded, tiny

# What bitsandbytes says of torch's future and PEFT of transformers' past, nobody here can act on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:_check_is_size will be removed:FutureWarning"),
]


TEXT = (
    "the river rises in the hills and runs to the sea . in spring the snow melts and the river rises over its banks . "
    "in summer the hills are dry and the river runs low . the sea takes what the river brings , and the hills wait for "
    "the snow . "
) * 3


def text_batch():
    """Real words, numbered in the order in which they first come."""
    words = {w: i + 1 for i, w in enumerate(dict.fromkeys(TEXT.split()))}
    ids = torch.tensor([words[w] for w in TEXT.split()])
    return packed(list(ids[:120].split(30)), [[0, 1], [2, 3]])


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Where a small model of a family lies, saved once."""

    def folder(family):
        path = tmp_path_factory.getbasetemp() / f"base-{family}"
        if not path.exists():
            tiny(family).save_pretrained(path)
        return path

    return folder


@pytest.fixture
def llama(saved):
    return saved("llama")


def train(model, tuning, steps=8, dtype=None):
    """The losses of a few steps on the same text, under autocast to `dtype`."""
    optimizer = make_optimizer(model, learning_rate=1e-2, weight_decay=0.001, tuning=tuning, device="cpu")
    batch, losses = text_batch(), []
    model.train()
    for _ in range(steps):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            nll, _ = token_nll(model, batch)
        loss = nll.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


# --- each tuning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", ["qlora", "lora", "full"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_every_tuning_lowers_the_loss(saved, tuning, family):
    # bfloat16 is slow on a CPU: once is enough.
    dtype = "bfloat16" if family == "llama" else "float32"
    model = load_model(saved(family), tuning=tuning, dtype=dtype, device="cpu")
    losses = train(model, tuning, dtype=torch.bfloat16 if family == "llama" else None)
    assert losses[-1] < 0.9 * losses[0]
    names = trained(model)
    assert names
    assert all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    if tuning == "full":
        assert names == {name for name, _ in model.named_parameters()}
    else:
        assert all("lora_" in name for name in names)
        assert not any("lm_head" in name or "embed" in name for name in names)


def test_qlora_is_nf4_with_double_quantisation(llama):
    """All linear layers but the head; what is left is held in the recipe's type."""
    model = load_model(llama, dtype="bfloat16", device="cpu")
    quantised = [m for m in model.modules() if isinstance(m, Linear4bit)]
    assert len(quantised) == 2 * 7
    for m in quantised:
        assert (m.weight.quant_state.quant_type, m.weight.quant_state.nested, m.compute_dtype) == (
            "nf4",
            True,
            torch.bfloat16,
        )
    inner = model.get_base_model()
    assert type(inner.lm_head) is torch.nn.Linear
    assert inner.lm_head.weight.dtype == inner.model.embed_tokens.weight.dtype == torch.bfloat16
    assert inner.model.norm.weight.dtype == torch.bfloat16


def test_the_same_base_is_quantised_to_the_same_bytes(llama):
    """A resumed run quantises anew."""
    one, two = (
        {n: p.clone() for n, p in load_model(llama, device="cpu").named_parameters() if "lora" not in n}
        for _ in range(2)
    )
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_lora_keeps_the_base_in_the_recipes_type(llama):
    for dtype in ("bfloat16", "float16", "float32"):
        model = load_model(llama, tuning="lora", dtype=dtype, device="cpu")
        assert {p.dtype for n, p in model.named_parameters() if "lora" not in n} == {getattr(torch, dtype)}


def test_all_linear_layers_but_the_head_by_default(llama):
    model = load_model(llama, tuning="lora", device="cpu")
    config = model.peft_config["default"]
    assert {name.split(".")[-1] for name in config.target_modules} == {
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    }  # fmt: skip
    assert len(config.target_modules) == 2 * 7


def test_loras_options_are_passed_on(llama):
    lora = {"r": 3, "alpha": 7, "dropout": 0.25, "target_modules": ("q_proj", "v_proj"), "use_rslora": True}
    model = load_model(llama, tuning="lora", lora=lora, device="cpu")
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout, config.use_rslora) == (3, 7, 0.25, True)
    assert set(config.target_modules) == {"q_proj", "v_proj"}
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    assert layer.scaling["default"] == pytest.approx(7 / 3**0.5)


@pytest.mark.parametrize("tuning", ["qlora", "lora"])
def test_dora(llama, tuning):
    model = load_model(llama, tuning=tuning, lora={"r": 4, "use_dora": True}, dtype="float32", device="cpu")
    assert any("lora_magnitude_vector" in name for name in trained(model))
    losses = train(model, tuning, steps=6)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("tuning", ["qlora", "lora", "full"])
def test_gradient_checkpointing_gives_the_same_gradients(llama, tuning):
    found = []
    for on in (True, False):
        torch.manual_seed(0)
        model = load_model(llama, tuning=tuning, dtype="float32", gradient_checkpointing=on, device="cpu").train()
        assert model.is_activation_checkpointing == on
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad and tuning != "full":
                    p.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
        token_nll(model, padded(examples()))[0].sum().backward()
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys() != set()
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_a_base_without_sdpa_is_loaded_with_eager_and_that_is_told(saved, caplog):
    with caplog.at_level(logging.INFO, "srt_peft"):
        model = load_model(saved("gemma2"), tuning="lora", device="cpu")
    assert "Gemma2ForCausalLM has no sdpa attention in transformers; eager is used." in caplog.messages
    assert model.config._attn_implementation == "eager"


# --- saving and going on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", ["qlora", "lora"])
def test_what_is_saved_loads_with_peft_and_can_be_continued(llama, tmp_path, tuning):
    model = load_model(llama, tuning=tuning, lora={"r": 4}, dtype="float32", device="cpu")
    before = train(model, tuning)
    model.save_pretrained(tmp_path)
    mine, _ = token_nll(model, text_batch())

    base = load_model(llama, tuning=tuning, dtype="float32", device="cpu").unload()
    theirs, _ = token_nll(peft.PeftModel.from_pretrained(base, tmp_path), text_batch())
    assert torch.allclose(mine, theirs, atol=1e-5)

    again = load_model(llama, tuning=tuning, adapter=tmp_path, lora={"r": 4, "alpha": 8}, dtype="float32", device="cpu")
    assert torch.equal(token_nll(again, text_batch())[0], mine)
    assert trained(again) == trained(model)
    assert train(again, tuning)[-1] < before[-1]


def test_the_adapter_knows_its_base_and_revision(llama, tmp_path, monkeypatch):
    """The commit that the hub resolved, if there was one; else the revision that was asked for."""
    model = load_model(llama, tuning="lora", revision="v1.0", device="cpu")
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == (str(llama), "v1.0")


def test_the_adapters_configuration_is_the_same_in_every_process(llama, tmp_path):
    """Sets of names have an order of their own in each; ours are sorted."""
    for adapter in (None, tmp_path):
        model = load_model(llama, tuning="lora", adapter=adapter, device="cpu")
        model.save_pretrained(tmp_path)
        names = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
        assert names == sorted(names)


def test_a_full_model_is_saved_and_goes_on_in_float32(llama, tmp_path):
    model = load_model(llama, tuning="full", device="cpu")
    train(model, "full", steps=2)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path, tuning="full", device="cpu")
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name


# --- the optimiser ------------------------------------------------------------------------------------------------


def test_adamw_with_the_papers_settings(llama):
    """Matrices decay; norms and biases do not."""
    model = load_model(llama, tuning="full", device="cpu")
    optimizer = make_optimizer(model, learning_rate=1e-4, weight_decay=0.001, tuning="full", device="cpu")
    assert type(optimizer) is torch.optim.AdamW
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.001, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"], group["fused"]) == (1e-4, (0.9, 0.999), 1e-8, True)
    assert {p.ndim for p in optimizer.param_groups[0]["params"]} == {2}
    assert {p.ndim for p in optimizer.param_groups[1]["params"]} == {1}


def test_only_what_trains_is_in_the_optimizer(llama):
    model = load_model(llama, tuning="qlora", device="cpu")
    optimizer = make_optimizer(model, learning_rate=1e-4, weight_decay=0.0, tuning="qlora", device="cpu")
    assert type(optimizer) is torch.optim.AdamW  # paged states need a GPU
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(trained(model))


# --- what it takes ------------------------------------------------------------------------------------------------


def test_describe(llama):
    """Counted by hand: 2 layers, 7 linear maps in each."""
    linear = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 32 * 48 * 3)
    other = 2 * WORDS * 32 + 5 * 32
    full = describe(load_model(llama, tuning="full", device="cpu"), tuning="full")
    count = linear + other
    assert full == {"trainable": count, "total": count, "weights": 4 * count, "adapter": 0, "gradients": 4 * count,
                    "optimizer": 8 * count}  # fmt: skip
    lora = describe(load_model(llama, tuning="lora", lora={"r": 2}, device="cpu"), tuning="lora")
    r2 = 2 * 2 * ((32 + 32) * 2 + (32 + 16) * 2 + (32 + 48) * 3)
    assert lora == {"trainable": r2, "total": count + r2, "weights": 2 * count, "adapter": 4 * r2,
                    "gradients": 4 * r2, "optimizer": 8 * r2}  # fmt: skip
    qlora = describe(load_model(llama, tuning="qlora", lora={"r": 2}, device="cpu"), tuning="qlora")
    assert (qlora["trainable"], qlora["total"]) == (r2, count + r2)
    assert linear // 2 + 2 * other < qlora["weights"] < lora["weights"]


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(pattern, *args, **kwargs):
    with pytest.raises(OptionError, match=pattern) as caught:
        load_model(*args, **{"device": "cpu", "tuning": "lora", **kwargs})
    return caught.value


def test_all_faults_of_the_options_at_once(llama):
    error = refused(
        "4 faults in the model", llama, tuning="qlra", dtype="bfloat", attention="sdp", lora={"alhpa": 1, "r": 8}
    )
    assert error.faults == (
        "model.tuning = 'qlra': expected one of qlora, lora, full (did you mean 'qlora'?)",
        "model.dtype = 'bfloat': expected one of bfloat16, float16, float32 (did you mean 'bfloat16'?)",
        f"model.attention = 'sdp': expected one of {', '.join(module.ATTENTION)} (did you mean 'sdpa'?)",
        "model.lora.alhpa: PEFT's LoraConfig has no such option (did you mean 'alpha'?)",
    )


def test_a_base_that_does_not_exist(tmp_path):
    refused(
        r"model.base = '.*/nowhere' does not exist: expected a folder that save_pretrained has written, or a name on "
        "the hub",
        tmp_path / "nowhere",
    )
    with pytest.raises(OptionError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_hub_name_where_there_is_no_hub():
    """In a process of its own: the hub's client reads the environment when it is imported."""
    code = "from srt_peft.training.model import load_model; load_model('no-such/base-at-all', revision='abc')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(srt_peft.__file__).parents[1])},
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-1]
    assert (
        "model.base = 'no-such/base-at-all' is neither a folder here nor a model that the hub gives at revision" in last
    )
    assert last.endswith("fetch it beforehand: hf download no-such/base-at-all")


def test_a_folder_without_config(tmp_path):
    refused("is a folder without a config.json: expected one that save_pretrained has written", tmp_path)


def test_a_config_that_cannot_be_read(tmp_path):
    (tmp_path / "config.json").write_text("{")
    refused("has a config.json that transformers cannot read", tmp_path)


def test_a_base_with_code_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.M"}})
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused("needs code of its own from the hub, and srt-peft never runs such code", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_base_that_is_no_causal_language_model(tmp_path):
    transformers.T5Config().save_pretrained(tmp_path)
    refused("is a T5: expected a causal language model", tmp_path)


def test_a_base_without_safetensors(llama, tmp_path):
    """A .bin beside the configuration is not even opened."""
    shutil.copy(llama / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not to be read")
    refused("has no weights in safetensors: expected model.safetensors. Files like pytorch_model.bin can hold code and "
            "are never read", tmp_path)  # fmt: skip


def test_a_base_whose_weights_are_damaged(llama, tmp_path):
    shutil.copytree(llama, tmp_path / "base")
    whole = (tmp_path / "base" / "model.safetensors").read_bytes()
    (tmp_path / "base" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(r"model.base = .* is damaged \(.*\): fetch its weights again", tmp_path / "base")


def test_attention_that_is_not_installed(llama):
    refused("model.attention = 'flash_attention_2' cannot be had here .*: set it to 'sdpa' or 'eager'", llama,
            attention="flash_attention_2")  # fmt: skip


def test_target_modules_that_do_not_exist(llama):
    refused("model.lora: Target modules .*nonsense.* not found", llama, lora={"target_modules": ["nonsense"]})


def test_qlora_without_bitsandbytes(llama, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    refused("model.tuning = 'qlora' needs bitsandbytes: pip install bitsandbytes, or set tuning to 'lora'", llama,
            tuning="qlora")  # fmt: skip


def test_full_with_an_adapter(llama):
    refused("model.adapter = 'x': expected none with tuning = 'full'", llama, tuning="full", adapter="x")


def test_a_quantised_base_cannot_train_whole(llama, tmp_path):
    load_model(llama, tuning="qlora", device="cpu").unload().save_pretrained(tmp_path)
    refused("stored quantised by 'bitsandbytes', which tuning = 'full' cannot train", tmp_path, tuning="full")
    assert any(isinstance(m, Linear4bit) for m in load_model(tmp_path, tuning="qlora", device="cpu").modules())


@pytest.fixture
def adapter(llama, tmp_path):
    path = tmp_path / "adapter"
    targets = ["q_proj", "down_proj"]  # not all-linear, which PEFT spells out in full for a model as small as this
    load_model(llama, tuning="lora", lora={"r": 4, "target_modules": targets}, device="cpu").save_pretrained(path)
    return path


def test_an_adapter_that_does_not_exist(llama, tmp_path):
    refused("model.adapter = '.*/none' is neither a folder here nor an adapter that the hub gives", llama,
            adapter=tmp_path / "none")  # fmt: skip


def test_an_adapter_without_safetensors(llama, adapter):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused("has no adapter_model.safetensors: expected what PEFT's save_pretrained writes", llama, adapter=adapter)


def test_an_adapter_that_is_damaged(llama, adapter):
    whole = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(whole[:-100])
    refused("model.adapter = .* is damaged: .* Fetch it again", llama, adapter=adapter)


def test_an_adapter_for_another_base(saved, adapter):
    refused("was made for the base '.*base-llama', and model.base is '.*base-qwen3': expected the same base",
            saved("qwen3"), adapter=adapter)  # fmt: skip


@pytest.mark.parametrize("layers", [1, 3])
def test_an_adapter_for_a_base_of_another_depth(adapter, tmp_path, layers):
    """Same name, other shape: PEFT passes over what has no counterpart; we do not."""
    config = tiny("llama").config
    config.num_hidden_layers = layers
    config.layer_types = None
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base-llama")
    refused("does not fit model.base = .* tensors have no counterpart, the first is .*layers", tmp_path / "base-llama",
            adapter=adapter)  # fmt: skip


def test_an_adapter_for_a_base_of_another_width(adapter, tmp_path):
    config = tiny("llama").config
    config.intermediate_size = 64
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base-llama")
    refused("does not fit model.base = .*size mismatch", tmp_path / "base-llama", adapter=adapter)


def test_an_adapter_of_another_rank(llama, adapter):
    wording = (
        "has r = 4, and model.lora.r is 16: expected the same, since an adapter that is continued keeps its shape. "
        "Set model.lora.r to 4"
    )
    error = refused(wording, llama, adapter=adapter, lora={"r": 16, "alpha": 32})
    assert len(error.faults) == 2


def test_an_adapter_that_is_no_lora(llama, tmp_path):
    config = peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(llama)
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    refused("is of kind .*IA3: expected LoRA", llama, adapter=tmp_path)


# --- the tokenizer ------------------------------------------------------------------------------------------------


def tokenizer_in(folder, saved_base, **special):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "river": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special).save_pretrained(folder)
    shutil.copy(saved_base / "config.json", folder)
    return folder


def test_end_of_sequence_serves_for_padding(llama, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "srt_peft"):
        tokenizer = load_tokenizer(tokenizer_in(tmp_path, llama, eos_token="</s>"))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1
    assert caplog.messages == ["the tokenizer has no padding token; '</s>' serves for it."]


def test_a_padding_token_is_left_as_it_is(llama, tmp_path):
    assert load_tokenizer(tokenizer_in(tmp_path, llama, eos_token="</s>", pad_token="<unk>")).pad_token_id == 0


def test_a_tokenizer_with_neither_padding_nor_end(llama, tmp_path):
    with pytest.raises(OptionError, match="has neither a padding nor an end-of-sequence token"):
        load_tokenizer(tokenizer_in(tmp_path, llama))


def test_a_base_without_tokenizer(llama):
    with pytest.raises(OptionError, match="has no tokenizer that can be read"):
        load_tokenizer(llama)


# --- what stands in which file ------------------------------------------------------------------------------------


def test_nothing_else_imports_bitsandbytes():
    room = Path(module.__file__).parent
    imports = re.compile(r"^ *(import|from) bitsandbytes", re.MULTILINE)
    assert [p.name for p in room.glob("*.py") if imports.search(p.read_text())] == ["model.py"]
