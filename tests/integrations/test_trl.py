"""SRTSFTTrainer: what SFTTrainer prepares is what is drawn from, and the signal is over what its loss is over."""

from importlib.metadata import version

import numpy as np
import pytest
import torch
from packaging.version import Version

from srt_peft import OptionError
from tests.integrations.worlds import (
    CHECKPOINTING,
    N_NEW,
    N_OLD,
    NEW,
    OLD,
    B,
    arguments,
    bystanders,
    losses,
    made,
    masked,
    needs_trl,
    tokenizer,
)
from tests.training.families import tiny

pytestmark = [needs_trl, *bystanders]


def text(row):
    return " ".join(f"w{i}" for i in row["input_ids"])


def trainer(folder, accumulation=2, old=OLD, new=NEW, *, own=None, **more):
    from trl import SFTConfig

    from srt_peft.integrations.trl import SRTSFTTrainer

    args = arguments(folder, accumulation, SFTConfig, **{"max_length": None, "bf16": False, "loss_type": "nll"} | more)
    return made(
        folder, kind=SRTSFTTrainer, args=args, old_dataset=old, new_dataset=new, data_collator=None,
        processing_class=tokenizer(), **own or {},
    )  # fmt: skip


def halved(rows):
    """Prompts of two tokens, and completions."""
    parts = [({"input_ids": row["input_ids"][:2]}, {"input_ids": row["input_ids"][2:]}) for row in rows]
    return [{"prompt": text(prompt), "completion": " " + text(rest)} for prompt, rest in parts]


def talked(rows):
    """The same as messages."""
    return [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"].strip()}],
        }
        for row in halved(rows)
    ]


def completion_nll(ids, first):
    """The mean NLL of the tokens from `first` on, by the untouched model alone."""
    logits = tiny("llama")(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    target = torch.tensor(ids[1:])
    return -logits.gather(1, target[:, None])[first - 1 :].mean().item()


@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize(("form", "mark"), [(halved, []), (talked, [0])], ids=["text", "chat"])
def test_the_signal_is_over_the_completion(tmp_path, watched, form, mark, padding_free):
    trainer(tmp_path, 2, form(OLD), form(NEW), padding_free=padding_free, max_steps=1).train()
    everyone = OLD + NEW
    for i, signal in zip(watched.ids[0], watched.signals[0], strict=True):
        ids = everyone[i]["input_ids"]
        prompt = ids[:2] + mark
        assert signal == pytest.approx(completion_nll([*prompt, *ids[2:], 0], len(prompt)), rel=1e-5)


def test_over_the_whole_text_where_the_loss_is(tmp_path, watched):
    trainer(tmp_path, 2, halved(OLD), halved(NEW), completion_only_loss=False, max_steps=1).train()
    ids = (OLD + NEW)[watched.ids[0][0]]["input_ids"]
    assert watched.signals[0][0] == pytest.approx(completion_nll([*ids, 0], 1), rel=1e-5)


def test_padding_free_changes_nothing(tmp_path, watched):
    own = {"completion_only_loss": True, "pad_to_multiple_of": 16}
    one, other = (trainer(tmp_path, 2, masked(OLD), masked(NEW), padding_free=free, **own) for free in (False, True))
    one.train()
    other.train()
    assert watched.ids[6:] == watched.ids[:6]
    for mine, theirs in zip(watched.signals[6:], watched.signals[:6], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    assert losses(other) == pytest.approx(losses(one), rel=1e-5)


def test_what_trl_drops_is_in_neither_pool(tmp_path, watched, caplog):
    """Prompts alone fill max_length in four examples of old and one of new: nothing of them would be learned."""
    if Version(version("trl")) < Version("1.16"):
        pytest.skip("TRL dropped nobody before")
    old, new = halved(OLD), halved(NEW)
    for row in (*old[:4], new[7]):
        row["prompt"] = " ".join(["w5"] * 30)
    found = trainer(tmp_path, 2, old, new, max_length=30)
    assert (found.srt.state.n_old, found.srt.state.n_new) == (N_OLD - 4, N_NEW - 1)
    assert "SFTTrainer dropped 4 of 24 old and 1 of 40 new examples" in caplog.text
    found.train()
    prompts = [found.train_dataset[int(found._srt_rows[i])]["prompt"] for i in (0, N_OLD - 4, N_OLD - 4 + 7)]
    assert prompts == [old[4]["prompt"], new[0]["prompt"], new[8]["prompt"]]


def test_a_shuffled_dataset_has_the_same_ids(tmp_path, watched):
    """TRL shuffles what it has prepared; who is drawn does not depend on it."""
    from trl import SFTConfig

    if "shuffle_dataset" not in SFTConfig.__dataclass_fields__:
        pytest.skip("this version of TRL cannot")
    trainer(tmp_path).train()
    shuffled = trainer(tmp_path, shuffle_dataset=True)
    assert (np.diff(shuffled._srt_rows) != 1).any()
    shuffled.train()
    assert watched.ids[6:] == watched.ids[:6]
    assert watched.signals[11] == pytest.approx(watched.signals[5], rel=1e-5)


def test_kill_and_resume_draw_as_if_nothing_had_happened(tmp_path, watched):
    from tests.integrations.test_trainer import Killed

    settings = {"max_steps": 7, "save_strategy": "steps", "save_steps": 3}
    trainer(tmp_path / "whole", **settings).train()
    draws = list(watched.ids)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "killed", own={"callbacks": [Killed(5)]}, **settings).train()
    watched.clear()
    resumed = trainer(tmp_path / "killed", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert watched.ids == draws[3:]
    assert [len(ids) for ids in draws] == [B] * 7


def test_lora_by_peft_config_with_evaluation(tmp_path, watched):
    import datasets
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2)
    own = {"peft_config": config, "eval_dataset": datasets.Dataset.from_list(OLD)}
    steps = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 6}
    found = trainer(tmp_path, own=own, **steps)
    found.train()
    assert sum("eval_loss" in line for line in found.state.log_history) == 2
    assert {"adapter_model.safetensors", "srt_state"} <= {p.name for p in (tmp_path / "checkpoint-6").iterdir()}


# --- refused, by name -----------------------------------------------------------------------------------------------


def test_packing_is_refused_by_name(tmp_path):
    with pytest.raises(OptionError, match=r"args\.packing = True glues examples together .* padding_free=True"):
        trainer(tmp_path, packing=True, max_length=40)


@pytest.mark.filterwarnings("ignore:`loss_type='chunked_nll'` is deprecated:FutureWarning")
def test_a_loss_that_is_told_for_whole_batches_only_is_refused_by_name(tmp_path):
    """The default of TRL 1.9; 1.16 takes it for 'nll', and so it trains."""
    from trl import SFTConfig

    if SFTConfig(str(tmp_path), loss_type="chunked_nll", bf16=False, **{CHECKPOINTING: False}).loss_type == "nll":
        trainer(tmp_path, loss_type="chunked_nll").train()
        return
    with pytest.raises(OptionError, match=r"args\.loss_type = 'chunked_nll' gives one loss .* expected 'nll'"):
        trainer(tmp_path, loss_type="chunked_nll")


def test_columns_that_differ_are_refused(tmp_path):
    with pytest.raises(
        OptionError, match="old_dataset has the columns input_ids, and new_dataset has the columns text"
    ):
        trainer(tmp_path, old=OLD, new=[{"text": text(row)} for row in NEW])


def test_preferences_have_no_signal(tmp_path):
    from trl import DPOTrainer

    from srt_peft.integrations.trainer import SRTMixin

    class Mine(SRTMixin, DPOTrainer):
        pass

    with pytest.raises(
        OptionError, match="DPOTrainer learns from preferences or rewards, not from a text's likelihood"
    ):
        Mine(model=tiny("llama"), new_dataset=NEW)
