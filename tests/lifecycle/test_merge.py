"""The merged model says what the adapter on its base says: each family and tuning, and a run as a person has it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from srt_peft import OptionError, cli
from srt_peft.errors import DamagedError
from srt_peft.lifecycle import merge as merging
from srt_peft.lifecycle.which import Checkpoint, checkpoint_of
from srt_peft.training.loop import train
from srt_peft.training.model import load_base, load_model, with_adapter
from srt_peft.training.recipe import load_recipe
from tests.training.families import examples, padded, tiny
from tests.training.test_loop import recipe, world  # noqa: F401 - a fixture

# What bitsandbytes says of torch's future and PEFT of transformers' past, nobody here can act on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:_check_is_size will be removed:FutureWarning"),
    # What PEFT says when an adapter on embeddings or head is made and saved: it is meant.
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers. to .True.:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True.:UserWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to:UserWarning"),
]

HEADS = {"gpt2": ["c_attn", "lm_head"]}
EMBEDDINGS = {"gpt2": ["c_attn", "wte"]}


def of(folder, base, tuning, lora, dtype="float32"):
    """A checkpoint of one random adapter whose update is large, so that a mistake shows."""
    model = load_model(str(base), tuning=tuning, lora=lora, dtype=dtype, gradient_checkpointing=False)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.5 if "lora_B" in name else 0.1))
    model.save_pretrained(folder)
    asked = {"model": {"base": str(base), "tuning": tuning, "dtype": dtype}, "data": {"old": "a.txt", "new": "b.txt"}}
    return Checkpoint(folder, None, 1, load_recipe(asked), {})


def says(model, batch):
    with torch.no_grad():
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        return model(**given).logits.float()[batch.attention_mask.bool()]


def both(chosen, out, *, untied=None):
    """The logits of the base, of the adapter on it, and of the merged model as anyone loads it."""
    asked, batch = chosen.recipe.model, padded(examples())
    untied = merging._touches_ties(chosen) if untied is None else untied
    base = load_base(asked.base, tuning=asked.tuning, dtype=asked.dtype)
    plain = says(base, batch)
    tuned = with_adapter(base, asked.base, None, chosen.folder)
    adapter = says(tuned, batch)
    whole = merging.dequantised(tuned.unload(), merging._outline(chosen))
    merging.merged_into(whole, chosen, torch.float32, untied=untied).save_pretrained(out)
    merged = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    return plain, adapter, says(merged, batch), merged


@pytest.mark.parametrize("tuning", ["qlora", "lora"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3", "gpt2", "cohere", "phi"])
@pytest.mark.parametrize("target", ["all-linear", "head", "embeddings"])
def test_merged_it_says_what_the_adapter_says(tmp_path, family, tuning, target):
    """Conv1D, tied and untied heads, biases; with LoRA on the head, too, and on the embeddings."""
    tiny(family).save_pretrained(tmp_path / "base")
    targets = {
        "all-linear": "all-linear",
        "head": HEADS.get(family, ["q_proj", "lm_head"]),
        "embeddings": EMBEDDINGS.get(family, ["q_proj", "embed_tokens"]),
    }[target]
    chosen = of(tmp_path / "step-00000001", tmp_path / "base", tuning, {"r": 4, "target_modules": targets})
    plain, adapter, merged, model = both(chosen, tmp_path / "merged")
    scale = adapter.abs().max()
    assert (adapter - plain).abs().max() > 0.05 * scale, "the adapter does something, else this shows nothing"
    assert (merged - adapter).abs().max() < 1e-4 * scale
    assert not hasattr(model.config, "quantization_config")
    tied = transformers.AutoConfig.from_pretrained(tmp_path / "base").tie_word_embeddings
    assert model.config.tie_word_embeddings == (tied and target == "all-linear")


LORAS = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "a head that is trained whole": {"modules_to_save": ["lm_head"]},
    "one kind of layer": {"target_modules": ".*c_attn|.*q_proj"},
}


@pytest.mark.parametrize("tuning", ["qlora", "lora"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", LORAS)
def test_whatever_lora_can_be_is_merged(tmp_path, family, tuning, kind):
    tiny(family).save_pretrained(tmp_path / "base")
    chosen = of(tmp_path / "step-00000001", tmp_path / "base", tuning, {"r": 4, **LORAS[kind]})
    plain, adapter, merged, _ = both(chosen, tmp_path / "merged")
    scale = adapter.abs().max()
    assert (adapter - plain).abs().max() > 0.02 * scale
    assert (merged - adapter).abs().max() < 1e-4 * scale


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_base_that_is_stored_in_4_bits_comes_out_whole(tmp_path, family):
    tiny(family).save_pretrained(tmp_path / "plain")
    load_base(tmp_path / "plain", tuning="qlora", dtype="float32").save_pretrained(tmp_path / "base")
    chosen = of(tmp_path / "step-00000001", tmp_path / "base", "qlora", {"r": 4})
    _, adapter, merged, model = both(chosen, tmp_path / "merged")
    assert (merged - adapter).abs().max() < 1e-4 * adapter.abs().max()
    assert model.num_parameters() == tiny(family).num_parameters()


def test_a_sum_is_rounded_once(tmp_path):
    """In bfloat16 each weight is the nearest to W + BA, not to the sum of the two, each rounded."""
    tiny("llama").save_pretrained(tmp_path / "base")
    chosen = of(tmp_path / "step-00000001", tmp_path / "base", "lora", {"r": 4})
    exact, rounded = (
        merging.merged_into(load_base(tmp_path / "base", tuning="lora", dtype="float32"), chosen, dtype, untied=False)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for name, weight in exact.state_dict().items():
        assert torch.equal(weight.to(torch.bfloat16), rounded.state_dict()[name]), name


# --- a run's, as a person merges it ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(world):  # noqa: F811
    """A QLoRA run of a real loop, NF4 on the CPU, with held-out text."""
    assert train(recipe(world, world / "nf4", "model.tuning=qlora", "training.learning_rate=0.02")) == 0
    return world / "nf4"


def perplexity(model, pool):
    """Each example alone, with the model's own loss."""
    nll, count = 0.0, 0
    with torch.no_grad():
        for tokens in pool:
            ids = torch.tensor(tokens.tolist())[None]
            if ids.shape[1] > 1:
                n = ids.shape[1] - 1
                nll, count = nll + model(input_ids=ids, labels=ids).loss.item() * n, count + n
    return float(torch.tensor(nll / count).exp())


def test_a_run_is_merged_and_measured(run, tmp_path, capsys):
    """Beside the adapter on the same held-out text; and what is told is what the folder's model says."""
    assert cli.main(["merge", str(run)]) == 0
    told = capsys.readouterr().out
    out = run / "merged/step-00000012"
    about = json.loads((out / "merge.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    transformers.AutoTokenizer.from_pretrained(out)
    pools, held_out = merging.unseen(run, merging.MOST)
    assert held_out
    assert about["held_out"]
    for name, pool in pools.items():
        one = about["perplexity"][name]
        assert one["merged"] == pytest.approx(perplexity(model, pool), rel=1e-4)
        assert one["adapter"] == pytest.approx(one["merged"], rel=1e-4)
        assert one["examples"] == sum(len(tokens) > 1 for tokens in pool)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line["held_out_new_nll"] for line in lines if "held_out_new_nll" in line][-1]
    assert torch.tensor(about["perplexity"]["new"]["adapter"]).log() == pytest.approx(last, rel=1e-4)
    assert "no more than rounding explains" in told
    assert about["base"]["as"] == "NF4, de-quantised in float32"
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


def test_a_merged_model_is_the_base_of_another_run(run, world, tmp_path):  # noqa: F811
    assert cli.main(["merge", str(run), "--out", str(tmp_path / "base"), "--dtype", "bfloat16"]) == 0
    weights = load_file(tmp_path / "base/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert train(recipe(world, tmp_path / "run", f"model.base={tmp_path / 'base'}", "training.steps=2")) == 0


def test_where_nothing_is_held_out_a_sample_is_asked(world, tmp_path, capsys):  # noqa: F811
    train(recipe(world, tmp_path / "run", "data.holdout=0", "training.steps=1"))
    assert cli.main(["merge", str(tmp_path / "run/checkpoints/step-00000001")]) == 0
    about = json.loads((tmp_path / "run/merged/step-00000001/merge.json").read_text())
    assert not about["held_out"]
    assert about["perplexity"].keys() == {"old", "new"}
    assert "a sample of what was trained on" in capsys.readouterr().out


def test_without_texts_it_is_said_that_nothing_was_measured(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("pools", "merged"))
    assert cli.main(["merge", str(tmp_path / "run")]) == 0
    assert "was not measured" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "code"), [([], 1), (["--yes"], 0)])
def test_a_change_beyond_rounding_is_told_and_kept_only_if_meant(run, tmp_path, capsys, monkeypatch, more, code):
    """Nobody is there to be asked; --yes is the answer. Here nothing at all counts as rounding."""
    monkeypatch.setattr(merging, "rounding", lambda *_: -1.0)
    assert cli.main(["merge", str(run), "--out", str(tmp_path / "out"), *more]) == code
    told = capsys.readouterr()
    assert "Warning: on old and new that is more than rounding explains" in told.out
    assert ("Nothing was kept" in told.err) == (code == 1)
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if more else [])


def test_what_a_killed_merge_left_goes_with_the_next(run, tmp_path):
    left = tmp_path / ".out.part/old"
    left.mkdir(parents=True)
    (left.parent / "model.safetensors").write_text("half")
    assert cli.main(["merge", str(run), "--out", str(tmp_path / "out")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out/old").exists()
    assert not (tmp_path / "out/lock").exists()


# --- what is refused ------------------------------------------------------------------------------------------------


def refusal(capsys, *words, code=2):
    assert cli.main(["merge", *map(str, words)]) == code
    return " ".join(capsys.readouterr().err.split())


def test_a_base_of_other_weights_is_refused(run, world, tmp_path, capsys):  # noqa: F811
    """Whatever it is called; nothing is written."""
    base = world / "base/model.safetensors"
    before = base.read_bytes()
    weights = load_file(base)
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    try:
        save_file(weights, base, metadata={"format": "pt"})
        told = refusal(capsys, run, "--out", tmp_path / "out")
    finally:
        base.write_bytes(before)
    assert "is not what the run was trained on: its weights are" in told
    assert not any(tmp_path.iterdir())


def test_what_is_there_already_is_left_alone(run, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert "exists already, and nothing is written over" in refusal(capsys, run, "--out", tmp_path / "mine")
    assert not any((tmp_path / "mine").iterdir())


def test_no_room_is_told_beforehand(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(merging.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    assert "the disk there lacks 0.00 GB" in refusal(capsys, run, "--out", tmp_path / "out")


def test_a_whole_model_has_no_adapter(world, tmp_path, capsys):  # noqa: F811
    train(recipe(world, tmp_path / "run", "model.tuning=full", "training.steps=1"))
    assert "it is a whole model, and has no adapter to merge" in refusal(capsys, tmp_path / "run")


def test_a_damaged_checkpoint_is_refused_by_name(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        with (checkpoint / "adapter_model.safetensors").open("r+b") as file:
            file.seek(200)
            file.write(b"\x01\x02\x03")
    assert "adapter_model.safetensors is not as it was written" in refusal(capsys, tmp_path / "run")
    with pytest.raises(DamagedError):
        checkpoint_of(tmp_path / "run/checkpoints/step-00000012", "the merge")


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_what_is_no_run_is_refused(tmp_path, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="expected the folder of a run, or of one of its checkpoints"):
        checkpoint_of(Path(tmp_path / what), "the merge")
