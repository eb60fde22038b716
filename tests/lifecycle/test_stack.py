"""A new adapter on top of one that stays as it is."""

import shutil

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from srt_peft import OptionError
from srt_peft.lifecycle.following import follow
from srt_peft.training import checkpoint, stack
from srt_peft.training.loop import train
from srt_peft.training.model import load_model
from tests.lifecycle.test_next import SETTINGS, last, lines, week
from tests.training.families import tiny
from tests.training.test_loop import recipe, world  # noqa: F401 - a fixture


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.arange(1, 20)[None]).logits.float()


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def below(request, tmp_path_factory):
    """A base with an adapter that does something, of another scale than the recipe's."""
    folder = tmp_path_factory.mktemp("below")
    torch.manual_seed(1)
    model = tiny(request.param)
    model.save_pretrained(folder / "base")
    conv = request.param == "gpt2"
    config = LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=5, target_modules="all-linear", fan_in_fan_out=conv)
    tuned = get_peft_model(model, config)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.3)
    tuned.save_pretrained(folder / "adapter")
    return folder


SHAPE = {"r": 4, "alpha": 8.0, "use_rslora": False}


def load(folder, adapter, how, **shape):
    options = {"tuning": "lora", "dtype": "float32", "gradient_checkpointing": False, "device": "cpu"}
    torch.manual_seed(7)
    return load_model(folder / "base", adapter=folder / adapter, stack=how, lora={**SHAPE, **shape}, **options)


@pytest.mark.parametrize("rslora", [False, True])
def test_a_fresh_one_changes_nothing_and_the_sum_is_one_adapter(below, tmp_path, rslora):
    """It begins as the adapter below is; trained, saved and loaded by PEFT it says the same; so it does taken apart."""
    base = transformers.AutoModelForCausalLM.from_pretrained(below / "base")
    before = logits(PeftModel.from_pretrained(base, below / "adapter"))
    model = load(below, "adapter", "new", use_rslora=rslora)
    assert torch.allclose(logits(model), before, atol=1e-5)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".default." in name for name in trained)
    for name, parameter in model.named_parameters():
        if name in trained:
            parameter.data.normal_(std=0.2)
    after = logits(model)
    assert not torch.allclose(after, before, atol=1e-2)
    (tmp_path / "sum").mkdir()
    stack.save(model, tmp_path / "sum")
    plain = transformers.AutoModelForCausalLM.from_pretrained(below / "base")
    assert torch.allclose(logits(PeftModel.from_pretrained(plain, tmp_path / "sum")), after, atol=1e-5)
    shutil.copytree(below / "base", tmp_path / "base")
    again = load(tmp_path, "sum", "saved", use_rslora=rslora)
    assert torch.equal(logits(again), after)
    (tmp_path / "again").mkdir()
    stack.save(again, tmp_path / "again")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "sum" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("tuning", ["lora", "qlora"])
def test_two_updates_stacked_leave_the_first_as_it_was(world, tmp_path, tuning):  # noqa: F811
    """The first one's ranks are the same bytes after the second and the third; stopped and resumed, so is all."""
    old, new = lines(tmp_path / "old.jsonl", week(0, 30)), lines(tmp_path / "w1.jsonl", week(1))
    run = tmp_path / "run-1"
    settings = (*SETTINGS, f"model.tuning={tuning}", "model.lora.r=4", "next.adapter=stack")
    assert train(recipe(world, run, *settings, f"data.old={old}", f"data.new={new}")) == 0
    kept = load_file(last(run) / stack.WEIGHTS)
    for number in (2, 3):
        asked, _ = follow(run, [lines(tmp_path / f"w{number}.jsonl", week(number))])
        assert train(asked) == 0
        run = tmp_path / f"run-{number}"
        whole = {name: (last(run) / name).read_bytes() for name in (stack.WEIGHTS, "adapter_config.json")}
        shutil.rmtree(last(run))
        assert checkpoint.step_of(last(run)) == 4 * number - 2
        assert train(asked, resume=True) == 0
        assert {name: (last(run) / name).read_bytes() for name in whole} == whole
        now = load_file(last(run) / stack.WEIGHTS)
        assert now.keys() == kept.keys()
        for name, tensor in kept.items():
            rank = 4 * (number - 1)
            assert torch.equal(now[name][:rank] if "_A" in name else now[name][:, :rank], tensor)
            assert now[name].shape["_A" not in name] == rank + 4
        kept = now
    base = transformers.AutoModelForCausalLM.from_pretrained(world / "base")
    PeftModel.from_pretrained(base, last(run))


def test_what_has_no_sum_is_refused(below):
    with pytest.raises(OptionError, match=r"use_dora = true: expected plain LoRA. Set next.adapter to 'merge'"):
        load(below, "adapter", "new", use_dora=True)
    with pytest.raises(
        OptionError, match=r"model.lora.r = 4 of an adapter of rank 3: expected what this run was begun"
    ):
        load(below, "adapter", "saved")
