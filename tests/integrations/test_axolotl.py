"""SRTPlugin: what Axolotl asks of a plugin, answered; and, where Axolotl is installed, a run of it from a config.

Without Axolotl a stand-in has its interface, as published in 0.19: a base class for plugins, a loader of datasets that
returns an object with train_dataset, eval_dataset and total_num_steps, and a Trainer with arguments of its own.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import datasets
import pytest
import transformers

from srt_peft import OptionError, load_scheduler
from tests.integrations.worlds import N_NEW, N_OLD, NEW, OLD, arguments, bystanders, losses, made, padded
from tests.training.families import tiny

ROOT = Path(__file__).parents[2]
INSTALLED = importlib.util.find_spec("axolotl") is not None
REVIEW = {"preset": "paper", "stagger": 2, "old_fraction": 0.3, "underfull": "ahead"}
pytestmark = bystanders


class Config(dict):
    """As Axolotl's: what is not there is None."""

    def __getattr__(self, name):
        return self.get(name)


class StandIn(transformers.Trainer):
    """What AxolotlTrainer takes beside what Trainer takes."""

    def __init__(self, *args, bench_data_collator=None, eval_data_collator=None, dataset_tags=None, **kwargs):
        self.eval_data_collator = eval_data_collator
        super().__init__(*args, **kwargs)


@pytest.fixture
def plugin(monkeypatch):
    """The plugin's module, over the stand-in; `loaded` are the configs that datasets were loaded by."""
    loaded = []

    def load_datasets(*, cfg):
        loaded.append(cfg)
        rows = [row | {"length": len(row["input_ids"])} for row in (OLD if cfg.datasets[0]["path"] == "old" else NEW)]
        return SimpleNamespace(train_dataset=datasets.Dataset.from_list(rows), eval_dataset=None, total_num_steps=0)

    for name, content in {
        "axolotl": {}, "axolotl.integrations": {}, "axolotl.common": {}, "axolotl.core": {},
        "axolotl.core.trainers": {},
        "axolotl.integrations.base": {"BasePlugin": type("BasePlugin", (), {})},
        "axolotl.common.datasets": {"load_datasets": load_datasets},
        "axolotl.core.trainers.base": {"AxolotlTrainer": StandIn},
    }.items():  # fmt: skip
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "srt_peft.integrations.axolotl", raising=False)
    found = importlib.import_module("srt_peft.integrations.axolotl")
    yield SimpleNamespace(module=found, loaded=loaded)
    del sys.modules["srt_peft.integrations.axolotl"]


def config(**more):
    return Config(
        datasets=[{"path": "new", "type": "completion"}], srt_old_datasets=[{"path": "old", "type": "completion"}],
        srt_review=REVIEW, val_set_size=0.1, micro_batch_size=2, gradient_accumulation_steps=4, num_epochs=2, **more,
    )  # fmt: skip


def test_both_corpora_are_loaded_and_scheduled(plugin, tmp_path, watched):
    """As Axolotl's builder does it: datasets, then the trainer's class. Draws and losses are those of SRTTrainer."""
    asked, cfg = plugin.module.SRTPlugin(), config()
    asked.register(cfg)
    meta = asked.load_datasets(cfg, preprocess=False)
    assert [c.datasets[0]["path"] for c in plugin.loaded] == ["new", "old"]
    assert [c.val_set_size for c in plugin.loaded] == [0.1, 0]
    assert meta.total_num_steps == 2 * 8  # ⌈40 / (0.7 · 8)⌉ an epoch
    args = arguments(tmp_path, 4, **{**asked.get_training_args(cfg), "dataloader_num_workers": 0})
    kind = asked.get_trainer_cls(cfg)
    assert issubclass(kind, StandIn)
    trainer = kind(
        model=tiny("llama"), train_dataset=meta.train_dataset, eval_dataset=None, args=args, data_collator=padded,
        eval_data_collator=padded, bench_data_collator=padded, dataset_tags=[], callbacks=[],
    )  # fmt: skip
    assert (trainer.srt.state.n_old, trainer.srt.state.n_new) == (N_OLD, N_NEW)
    trainer.train()
    plain = made(tmp_path, 4, REVIEW)
    plain.train()
    assert watched.ids[6:] == watched.ids[:6]
    assert losses(trainer) == pytest.approx(losses(plain), rel=1e-6)


def test_a_config_may_say_what_the_plugin_reads(plugin):
    """By the name that Axolotl imports its schema by; there, a key that is in no schema is lost."""
    room, _, name = plugin.module.SRTPlugin().get_input_args().rpartition(".")
    schema = getattr(importlib.import_module(room), name)
    assert schema(srt_review=REVIEW, srt_old_datasets=None).srt_review == REVIEW


@pytest.mark.parametrize("name", ["sample_packing", "curriculum_sampling", "pretraining_dataset", "rl", "streaming"])
def test_what_cannot_be_kept_is_refused_when_the_plugin_is_registered(plugin, name):
    with pytest.raises(OptionError, match=f"{name}: 'anything' "):
        plugin.module.SRTPlugin().register(config(**{name: "anything"}))


RUN = """
import sys
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
do_train(load_cfg("config.yaml", **dict(pair.split("=", 1) for pair in sys.argv[1:])), TrainerCliArgs())
"""


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="axolotl is not installed")
def test_axolotl_itself_trains_and_resumes_by_a_config(tmp_path):
    """LoRA, from two JSONL files; six steps, and a run that is resumed from the second of them, end in one state."""
    sys.path.insert(0, str(ROOT / "examples"))
    import tiny as example

    example.model().save_pretrained(tmp_path / "base")
    example.tokenizer().save_pretrained(tmp_path / "base")
    for name, texts in (("old", example.OLD), ("new", example.NEW)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "config.yaml").write_text((ROOT / "examples/axolotl.yaml").read_text())

    def run(*more):
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1", "WANDB_MODE": "disabled",
        }  # fmt: skip
        command = [sys.executable, "-c", RUN, *more]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stderr[-3000:]

    run("output_dir=whole")
    run("output_dir=resumed", "resume_from_checkpoint=whole/checkpoint-2")
    ends = [load_scheduler(tmp_path / name / "checkpoint-6" / "srt_state") for name in ("whole", "resumed")]
    assert [end.state.step for end in ends] == [6, 6]
    for name, column in ends[0].state.columns.items():
        assert column.tobytes() == ends[1].state.columns[name].tobytes(), name
