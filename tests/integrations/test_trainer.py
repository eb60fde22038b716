"""SRTTrainer: Trainer stays what it is, and each step is one draw, reviewed once, from the forward pass of its loss."""

import json

import numpy as np
import pytest
import torch
import transformers

from srt_peft import OptionError, ProtocolError, StateError, load_scheduler, make_scheduler
from srt_peft.integrations.trainer import SRTMixin, SRTTrainer
from tests.integrations.worlds import (
    CHECKPOINTING,
    N_NEW,
    N_OLD,
    NEW,
    OLD,
    REVIEW,
    THRESHOLDS,
    B,
    arguments,
    bystanders,
    losses,
    made,
    padded,
    rows,
    weights,
)  # fmt: skip
from tests.training.families import tiny

pytestmark = bystanders


def test_a_step_is_a_draw_and_is_reviewed_once(tmp_path, watched):
    trainer = made(tmp_path, 2)
    trainer.train()
    assert watched.steps == list(range(6))
    assert [len(ids) for ids in watched.ids] == [B] * 6
    assert trainer.srt.state.step == trainer.state.global_step == 6
    expected = make_scheduler("srt", old=N_OLD, new=N_NEW, batch_size=B, old_fraction=0.3, stagger=2,
                              underfull="ahead", thresholds=THRESHOLDS, seed=3)  # fmt: skip
    for ids, signals in zip(watched.ids[:6], list(watched.signals[:6]), strict=True):
        draw = expected.draw()
        assert draw.ids.tolist() == ids
        expected.review(draw.ids, signals)


def test_signals_are_the_mean_nll_of_each_example_before_the_update(tmp_path, watched):
    """As a forward pass of the untouched model on each example alone gives it."""
    trainer = made(tmp_path, 4, args=arguments(tmp_path, 4, max_steps=1))
    trainer.train()
    model, everyone = tiny("llama"), OLD + NEW
    for i, signal in zip(watched.ids[0], watched.signals[0], strict=True):
        ids = torch.tensor([everyone[i]["input_ids"]])
        assert signal == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), rel=1e-5)


def test_there_is_no_second_forward_pass(tmp_path):
    trainer, calls = made(tmp_path, 2), []
    trainer.model.register_forward_hook(lambda *_: calls.append(1))
    trainer.train()
    assert len(calls) == 6 * 2


def test_an_epoch_is_one_pass_over_new_text(tmp_path):
    """⌈40 / (0.7 · 8)⌉ = 8 steps; two epochs are 16, and a checkpoint an epoch falls where it should."""
    args = arguments(tmp_path, 2, max_steps=-1, num_train_epochs=2, save_strategy="epoch")
    trainer = made(tmp_path, args=args)
    trainer.train()
    assert trainer.state.global_step == 16
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-16", "checkpoint-8"]
    assert trainer.state.epoch == 2.0


# --- save and resume ------------------------------------------------------------------------------------------------


class Killed(transformers.TrainerCallback):
    """Ends the process's life, as far as Trainer knows, after so many steps."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "more",
    [{}, {"max_steps": -1, "num_train_epochs": 2}, {"max_steps": -1, "num_train_epochs": 2, "ignore_data_skip": True}],
    ids=["steps", "epochs", "no skipping"],
)
def test_kill_and_resume_draw_as_if_nothing_had_happened(tmp_path, watched, more):
    """Saved at 3, 6, …, killed at 11, in the second epoch; resumed from 9, in its middle or at none."""
    settings = {"max_steps": 14, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 2} | more
    whole = made(tmp_path, args=arguments(tmp_path / "whole", 2, **settings))
    whole.train()
    draws, end = list(watched.ids), weights(whole.model)
    watched.clear()
    args = arguments(tmp_path / "killed", 2, **settings)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, args=args, callbacks=[Killed(11)]).train()
    assert sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-9"]
    watched.clear()
    resumed = made(tmp_path, args=args)
    resumed.train(resume_from_checkpoint=True)
    assert watched.ids == draws[9:]
    assert watched.steps == list(range(9, len(draws)))
    for name, column in whole.srt.state.columns.items():
        assert np.array_equal(column, resumed.srt.state.columns[name], equal_nan=column.dtype.kind == "f"), name
    assert all(torch.equal(p, end[name]) for name, p in weights(resumed.model).items())


def test_a_checkpoint_holds_the_review_state_of_its_step(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=4)
    made(tmp_path, args=args).train()
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    with load_scheduler(tmp_path / "checkpoint-4" / "srt_state") as saved:
        assert saved.state.step == state["global_step"] == 4
    resumed = made(tmp_path, args=args)
    resumed.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    assert resumed.srt.state.step == resumed.state.global_step == 6


def test_what_is_pushed_has_the_review_state(tmp_path):
    """A checkpoint is whole when Trainer hands it to the hub, which here is a list."""
    pushed = []

    class Mine(SRTTrainer):
        def init_hf_repo(self, token=None, **_):
            self.hub_model_id = "me/mine"

        def _push_from_checkpoint(self, checkpoint_folder):
            with load_scheduler(f"{checkpoint_folder}/srt_state") as saved:
                pushed.append(saved.state.step)

        def _finish_current_push(self):
            pass

    args = arguments(tmp_path, push_to_hub=True, save_strategy="steps", save_steps=3)
    made(tmp_path, args=args, kind=Mine).train()
    assert pushed == [3, 6]


def test_with_the_best_model_comes_the_review_state_that_it_had(tmp_path):
    """By a metric that grows worse the second checkpoint of three is the best; what is saved at the end agrees."""
    found = iter([2.0, 1.0, 3.0])
    args = arguments(
        tmp_path, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="eval_mine", greater_is_better=False,
    )  # fmt: skip
    trainer = made(tmp_path, args=args, eval_dataset=OLD, compute_metrics=lambda _: {"mine": next(found)})
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert trainer.srt.state.step == 4
    trainer.save_model(str(tmp_path / "final"))
    with load_scheduler(tmp_path / "final" / "srt_state") as saved:
        assert saved.state.step == 4


def test_a_checkpoint_without_review_state_is_refused_by_name(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=3)
    plain = transformers.Trainer(model=tiny("llama"), args=args, train_dataset=NEW, data_collator=padded)
    plain.train()
    with pytest.raises(StateError, match=r"checkpoint-6 has no srt_state/: it was not made by this trainer"):
        made(tmp_path, args=args).train(resume_from_checkpoint=True)


def test_a_resume_with_other_settings_or_examples_is_refused(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=3)
    made(tmp_path, args=args).train()
    with pytest.raises(OptionError, match=r"old_fraction is 0\.5 here and 0\.3 in the saved state"):
        made(tmp_path, args=args, review=REVIEW | {"old_fraction": 0.5}).train(resume_from_checkpoint=True)
    with pytest.raises(OptionError, match=r"\(old, new\) is \(24, 39\) here and \(24, 40\) in the saved state"):
        made(tmp_path, args=args, new_dataset=NEW[:-1]).train(resume_from_checkpoint=True)


def test_training_goes_on_where_a_second_call_finds_the_clock(tmp_path, watched):
    trainer = made(tmp_path, args=arguments(tmp_path, max_steps=3))
    trainer.train()
    trainer.train()
    assert watched.steps == list(range(6))


def test_a_run_that_broke_off_within_a_step_can_begin_again(tmp_path, watched):
    """What was drawn and not reviewed is void, and drawn again."""
    trainer = made(tmp_path, 4)
    trainer.example_nll = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    del trainer.example_nll
    trainer.train()
    assert watched.steps == list(range(6))


# --- what users have ------------------------------------------------------------------------------------------------


class Weighted(SRTTrainer):
    """A compute_loss of one's own, which takes the labels out and calls the model without them."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # noqa: FBT002 - Trainer's own
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        loss = 2 * loss / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


def test_a_compute_loss_of_ones_own_keeps_its_loss_and_the_signal_stays_the_nll(tmp_path, watched):
    plain = made(tmp_path, args=arguments(tmp_path, 2, max_steps=1))
    plain.train()
    own = made(tmp_path, args=arguments(tmp_path, 2, max_steps=1), kind=Weighted)
    own.train()
    assert losses(own)[0] == pytest.approx(2 * losses(plain)[0], rel=1e-5)
    assert watched.signals[1] == pytest.approx(watched.signals[0], rel=1e-5)


@pytest.mark.parametrize("how", ["compute_loss_func", "label_smoothing_factor"])
def test_other_losses_leave_the_signal_the_plain_nll(tmp_path, watched, how):
    made(tmp_path, args=arguments(tmp_path, 2, max_steps=1)).train()
    if how == "compute_loss_func":

        def mine(outputs, labels, num_items_in_batch):
            nll = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return nll**2

        made(tmp_path, args=arguments(tmp_path, 2, max_steps=1), compute_loss_func=mine).train()
    else:
        made(tmp_path, args=arguments(tmp_path, 2, max_steps=1, label_smoothing_factor=0.3)).train()
    assert watched.signals[1] == pytest.approx(watched.signals[0], rel=1e-5)


def test_callbacks_metrics_and_the_eval_loop_are_as_they_were(tmp_path):
    """The plain Trainer's evaluation of the same weights, to the last digit; a callback sees every step."""
    seen = []

    class Mine(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(state.global_step)

    def metrics(found):
        return {"top": float((found.predictions[:, :-1].argmax(-1) == found.label_ids[:, 1:]).mean())}

    evaluation = rows(5, 7, 6, 7)
    args = arguments(tmp_path, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=2)
    trainer = made(tmp_path, args=args, callbacks=[Mine()], compute_metrics=metrics, eval_dataset=evaluation)
    trainer.train()
    mine = trainer.evaluate()
    plain = transformers.Trainer(
        model=trainer.model, args=args, eval_dataset=evaluation, data_collator=padded, compute_metrics=metrics
    ).evaluate()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert sum("eval_top" in line for line in trainer.state.log_history) == 3
    assert [mine[key] for key in ("eval_loss", "eval_top")] == [plain[key] for key in ("eval_loss", "eval_top")]
    assert trainer.srt.state.step == 6


def test_logs_tell_what_was_drawn(tmp_path):
    trainer = made(tmp_path, args=arguments(tmp_path, logging_steps=3))
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["srt_step"] for line in lines] == [3, 6]
    assert all(line["srt_old"] == 2 / 8 for line in lines)
    assert all(0 < line["srt_lapses"] < 1 for line in lines)


@pytest.mark.parametrize("more", [{CHECKPOINTING: True}, {"bf16": True}], ids=["gradient checkpointing", "bf16"])
def test_precision_and_checkpointing_keep_the_schedule(tmp_path, watched, more):
    made(tmp_path, args=arguments(tmp_path, 2, max_steps=2)).train()
    made(tmp_path, args=arguments(tmp_path, 2, max_steps=2, **more)).train()
    assert watched.ids[2:] == watched.ids[:2]
    assert watched.signals[2] == pytest.approx(watched.signals[0], rel=1e-5 if "bf16" not in more else 0.05)


def test_an_adapter_is_trained_and_saved_with_the_state(tmp_path):
    import peft

    model = peft.get_peft_model(tiny("llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2))
    made(tmp_path, args=arguments(tmp_path, 2, save_strategy="steps", save_steps=6), model=model).train()
    there = {p.name for p in (tmp_path / "checkpoint-6").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "srt_state"} <= there


def test_a_column_that_the_model_does_not_know_is_removed_and_the_ids_are_not(tmp_path, watched):
    """remove_unused_columns, over a datasets.Dataset and over a list, with a collator that would fail on text."""
    import datasets

    def named(of):
        return [example | {"url": "https://example.org"} for example in of]

    def strict(examples):
        assert set(examples[0]) == {"input_ids"}
        return padded(examples)

    for wrap in (list, datasets.Dataset.from_list):
        made(tmp_path, old_dataset=wrap(named(OLD)), new_dataset=wrap(named(NEW)), data_collator=strict).train()
    assert watched.ids[:6] == watched.ids[6:]


def test_examples_flattened_into_one_row_are_told_apart(tmp_path, watched):
    """transformers' DataCollatorWithFlattening: the same signals and losses as a row an example."""
    plain = made(tmp_path, 2)
    plain.train()
    collator = transformers.DataCollatorWithFlattening()
    flat = made(tmp_path, 2, data_collator=collator)
    flat.train()
    assert watched.ids[:6] == watched.ids[6:]
    for mine, other in zip(watched.signals[6:], watched.signals[:6], strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
    assert losses(flat) == pytest.approx(losses(plain), rel=1e-5)


def test_a_draw_smaller_than_the_window_leaves_micro_batches_out(tmp_path, watched):
    """underfull: short; 5 examples due at a step, in windows of 8 micro-batches: the loss is their token mean."""
    review = {"preset": "paper", "stagger": 8, "old_fraction": 0.0}
    small = made(tmp_path, review=review, old_dataset=None, args=arguments(tmp_path, 8, max_steps=2))
    small.train()
    assert [len(ids) for ids in watched.ids] == [5, 8]
    whole = made(tmp_path, review=review, old_dataset=None, args=arguments(tmp_path, 1, max_steps=2))
    whole.train()
    assert watched.ids[2:] == watched.ids[:2]
    assert losses(small) == pytest.approx(losses(whole), rel=1e-5)


def test_an_empty_draw_takes_no_step(tmp_path, watched):
    """Six examples, all recalled by thresholds that none can miss: they return after 1, 6 and 17 steps."""
    review = {"preset": "paper", "stagger": 1, "old_fraction": 0.0, "alpha": 1e6}
    made(tmp_path, review=review, old_dataset=None, new_dataset=NEW[:6], args=arguments(tmp_path, max_steps=4)).train()
    assert [step for step, ids in zip(watched.steps, watched.ids, strict=True) if ids] == [0, 1, 7, 24]
    assert watched.steps == list(range(25))


# --- classification -------------------------------------------------------------------------------------------------


def test_a_classifier_is_scheduled_by_its_confidence(tmp_path, watched):
    """The signal is −log p of the class, and Trainer's own collator finds the labels, whatever they are called."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    examples = [{"input_ids": row["input_ids"], "label": i % 3} for i, row in enumerate(rows(40, 0, 8, 9))]
    trainer = SRTTrainer(
        model=model, args=arguments(tmp_path, 2), old_dataset=examples[:10], new_dataset=examples[10:],
        review={"preset": "paper", "stagger": 1, "recall": "confidence"},
    )  # fmt: skip
    trainer.train()
    model.load_state_dict(before)
    for i, signal in zip(watched.ids[0], watched.signals[0], strict=True):
        logits = model.eval()(input_ids=torch.tensor([examples[i]["input_ids"]])).logits[0]
        assert signal == pytest.approx(-logits.log_softmax(-1)[examples[i]["label"]].item(), rel=1e-4)


# --- refused, by name -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "args.train_sampling_strategy = 'group_by_length': expected"),
        ({"dataloader_num_workers": 2}, "args.dataloader_num_workers = 2: expected 0: a worker has a copy"),
        ({"auto_find_batch_size": True}, "args.auto_find_batch_size = True: expected False"),
        ({"enable_jit_checkpoint": True}, "args.enable_jit_checkpoint = True: expected False"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(tmp_path, more, told):
    if any(not hasattr(transformers.TrainingArguments, name) for name in more):
        pytest.skip("this version of transformers has no such argument")
    with pytest.raises(OptionError, match=told):
        made(tmp_path, args=arguments(tmp_path, **more))


@pytest.mark.parametrize(
    ("review", "told"),
    [
        (
            {"old": {"quiz": 4}},
            "review.old.quiz = 4 asks before it draws, a pass, which a Trainer's loop does not make",
        ),
        ({"scheduler": "ppl"}, "review.scheduler = 'ppl' begins with a pass over all examples"),
        ({"reference": "base", "recall": "relative"}, "review.reference = 'base' begins with a pass over old"),
        ({"decks": "equal"}, "review.decks = 'equal': expected 'off', since one dataset is one source"),
        ({"old_fracton": 0.2}, r"review.old_fracton: no such key \(did you mean 'old_fraction'\?\)"),
    ],
)
def test_review_options_that_need_more_than_a_trainer_has_are_refused(tmp_path, review, told):
    with pytest.raises(OptionError, match=told):
        made(tmp_path, review=review)


def test_a_stream_is_refused_by_name(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(NEW)

    with pytest.raises(OptionError, match="new_dataset is a Stream, which cannot be asked for an example again"):
        made(tmp_path, new_dataset=Stream())
    with pytest.raises(OptionError, match="old_dataset is a generator: expected a dataset with a length"):
        made(tmp_path, old_dataset=(row for row in OLD))


def test_train_dataset_is_refused_in_favour_of_two(tmp_path):
    with pytest.raises(OptionError, match=r"expected new_dataset \(what to learn\) and old_dataset"):
        made(tmp_path, train_dataset=NEW)


class Fused(torch.nn.Module):
    """A model that gives its loss and nothing else."""

    def __init__(self):
        super().__init__()
        self.inner = tiny("llama")

    def forward(self, input_ids, attention_mask, labels):
        return {"loss": self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss}


def test_a_model_that_gives_no_logits_is_told_what_to_do_and_can_do_it(tmp_path, watched):
    with pytest.raises(OptionError, match="returned neither logits nor log_probs, so no example's NLL can be read off"):
        made(tmp_path, model=Fused()).train()

    class Mine(SRTTrainer):
        def example_nll(self, outputs, inputs, k):
            return outputs["loss"].detach().expand(k)

    watched.clear()
    made(tmp_path, model=Fused(), kind=Mine).train()
    assert len(set(watched.signals[0])) == 1


def test_a_training_step_that_leaves_ours_out_is_told(tmp_path):
    class Mine(SRTTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            inputs.pop("srt_ids")
            loss = model(**inputs).loss
            loss.backward()
            return loss.detach()

    with pytest.raises(ProtocolError, match="step 0 was drawn, and training_step got 0 of its 2 micro-batches"):
        made(tmp_path, 2, kind=Mine).train()


def test_a_trainer_of_ones_own_takes_the_mixin(tmp_path, watched):
    class Theirs(transformers.Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
            return self.optimizer

    class Mine(SRTMixin, Theirs):
        pass

    made(tmp_path).train()
    made(tmp_path, kind=Mine).train()
    assert watched.ids[6:] == watched.ids[:6]
    assert watched.signals[11] == pytest.approx(watched.signals[5], rel=1e-6)
