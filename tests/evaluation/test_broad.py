"""Broad benchmarks: their data found in each published shape, and scores that are the harness's own."""

import csv
import gzip
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import lm_eval
import peft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from srt_peft.errors import DamagedError, OptionError, SRTError
from srt_peft.evaluation import broad
from srt_peft.evaluation.broad_data import LocalData, settled
from srt_peft.evaluation.broad_tasks import BROAD
from srt_peft.training.model import spare
from tests.data.helpers import byte_bpe, prose
from tests.training import families

ROOT = Path(__file__).parents[2]
BUILTIN = Path(lm_eval.__file__).parent / "tasks"
MMLU = {"dataset_path": "cais/mmlu", "dataset_name": "anatomy", "task": "mmlu_anatomy"}
GSM8K = {"dataset_path": "openai/gsm8k", "dataset_name": "main", "task": "gsm8k"}
PIQA = {"dataset_path": "baber/piqa", "task": "piqa"}
BBH = {"dataset_path": "SaylorTwift/bbh", "dataset_name": "snarks", "task": "bbh_cot_fewshot_snarks"}


def questions(n, seed=0, subject="anatomy"):
    texts = prose(5 * n, seed).replace("\n", " ").split(" ")
    return [
        {"subject": subject, "question": " ".join(texts[9 * i : 9 * i + 5]) + "?",
         "choices": [f"{word} {i}" for word in texts[9 * i + 5 : 9 * i + 9]], "answer": i % 4}
        for i in range(n)
    ]  # fmt: skip


def sums(n, first=0):
    return [{"question": f"What is {i} and {i}?", "answer": f"Twice {i} is {2 * i}.\n#### {2 * i}"}
            for i in range(first, first + n)]  # fmt: skip


def choices(n):
    return [{"goal": f"carry lamp {i}", "sol1": "over the old bridge", "sol2": f"in the river {i}", "label": i % 2}
            for i in range(n)]  # fmt: skip


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """All four, each in one of its published shapes."""
    root = tmp_path_factory.mktemp("data")
    lines(root / "mmlu_test.jsonl.gz", [*questions(12), *questions(2, 5, "astronomy")])
    lines(root / "mmlu_dev.jsonl", [*questions(5, 1), *questions(5, 6, "astronomy")])
    lines(root / "gsm8k" / "train.jsonl", sums(9, first=50))
    lines(root / "gsm8k" / "test.jsonl.gz", sums(3))
    piqa = choices(6)
    lines(root / "piqa" / "valid.jsonl", [{k: row[k] for k in ("goal", "sol1", "sol2")} for row in piqa])
    (root / "piqa" / "valid-labels.lst").write_text("".join(f"{row['label']}\n" for row in piqa))
    examples = [{"input": f"Is {i} sarcastic?\nOptions:\n(A) yes\n(B) no", "target": "(A)"} for i in range(2)]
    (root / "bbh").mkdir()
    (root / "bbh" / "snarks.json").write_text(json.dumps({"canary": "none", "examples": examples}))
    return root


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """Whatever is kept is kept there; and nothing else may be asked for it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("SRT_PEFT_HOME", str(folder))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        yield folder


def tiny(context=1024):
    torch.manual_seed(0)
    sizes = families.SIZE | families.HEADS | {"vocab_size": len(byte_bpe()), "max_position_embeddings": context}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **families.PLAIN))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return tiny()


def run(model, path, tasks, **options):
    return list(broad.score(model, byte_bpe(), answers=path / "answers.jsonl", tasks=tasks, **options))


def directly(model, tmp_path, file, shots, **options):
    """The harness by itself, on the same rows, read by `datasets` from files of their own."""
    config = load_yaml(BUILTIN / file)
    splits = options.pop("splits")
    for split, rows in splits.items():
        lines(tmp_path / f"{split}.jsonl", rows)
    files = {split: str(tmp_path / f"{split}.jsonl") for split in splits}
    config |= {"dataset_path": "json", "dataset_name": None, **options.pop("config", {})}
    config["dataset_kwargs"] = {"data_files": files, "cache_dir": str(tmp_path / "cache")}
    harness = HFLM(pretrained=model, tokenizer=byte_bpe(), batch_size=3)
    spare(model)  # on some processors bitsandbytes computes in bfloat16 from here on otherwise
    return lm_eval.simple_evaluate(
        harness,
        tasks=[ConfigurableTask(config=config)],
        num_fewshot=shots,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
        **options,
    )


def agree(records, results, name, metrics):
    """Each question's figures and log-likelihoods, and the means of all metrics."""
    samples = results["samples"][name]
    filters = {sample["filter"] for sample in samples}
    assert len(records) * len(filters) == len(samples)
    for sample in samples:
        record = records[sample["doc_id"]]
        for metric in sample["metrics"]:
            assert record["metrics"][f"{metric},{sample['filter']}"] == sample[metric]
        theirs = [response[0] for response in sample["resps"]]
        ours = [response[0] for response in record["responses"]]
        if isinstance(theirs[0], str):
            assert ours == theirs
        else:
            assert [r[0] for r in ours] == pytest.approx([r[0] for r in theirs], abs=1e-4)
    for metric in metrics:
        mean = sum(record["metrics"][metric] for record in records) / len(records)
        assert mean == pytest.approx(results["results"][name][metric])
    figure = results["results"][name][records[0]["metric"]]
    assert sum(record["value"] for record in records) / len(records) == pytest.approx(figure)


# --- the harness's own figures --------------------------------------------------------------------------------


def test_mmlu_is_what_the_harness_says(model, data, tmp_path):
    """Log-likelihoods, correctness and their mean, with five examples in the prompt."""
    records = run(model, tmp_path, ["mmlu_anatomy"], data_root=data, num_fewshot=5)
    file, splits = "mmlu/default/mmlu_anatomy.yaml", {"test": questions(12), "dev": questions(5, 1)}
    agree(records, directly(model, tmp_path, file, 5, splits=splits), "mmlu_anatomy", ["acc,none"])
    assert {record["num_fewshot"] for record in records} == {5}
    assert {record["value"] for record in records} == {0.0, 1.0}
    assert not any("note" in record or "cut" in record for record in records)


def test_piqa_is_what_the_harness_says(model, data, tmp_path):
    records = run(model, tmp_path, ["piqa"], data_root=data)
    results = directly(
        model, tmp_path, "piqa/piqa.yaml", 0, splits={"validation": choices(6)}, config={"training_split": None}
    )
    agree(records, results, "piqa", ["acc,none", "acc_norm,none"])
    assert {(record["split"], record["num_fewshot"]) for record in records} == {("piqa", 0)}


def test_gsm8k_is_what_the_harness_says(data, tmp_path):
    """Its five examples are drawn one prompt after another: the third prompt's depend on the first two."""
    model = tiny(512)
    records = run(model, tmp_path, ["gsm8k"], data_root=data)
    results = directly(model, tmp_path, "gsm8k/gsm8k.yaml", 5, splits={"train": sums(9, first=50), "test": sums(3)})
    agree(records, results, "gsm8k", ["exact_match,strict-match", "exact_match,flexible-extract"])


def test_bbh_is_what_the_harness_says_within_half_a_short_context(data, tmp_path, caplog):
    """Its answers may have 1,024 tokens, which the harness refuses a model of 128: ours get half of the context."""
    model = tiny(128)
    records = run(model, tmp_path, ["bbh_cot_fewshot_snarks"], data_root=data)
    rows = [{"input": f"Is {i} sarcastic?\nOptions:\n(A) yes\n(B) no", "target": "(A)"} for i in range(2)]
    file, gen = "bbh/cot_fewshot/snarks.yaml", {"max_gen_toks": 64}
    results = directly(model, tmp_path, file, None, splits={"test": rows}, gen_kwargs=gen)
    agree(records, results, "bbh_cot_fewshot_snarks", ["exact_match,get-answer"])
    assert {record["num_fewshot"] for record in records} == {3}
    assert all(record["cut"] > 500 for record in records)
    assert "answers end after 64 tokens" in caplog.text
    assert "2 prompts are longer than the model's context of 128 tokens" in caplog.text


def test_an_adapter_on_four_bits(data, tmp_path):
    """The adapter is asked, not the base beneath it; and the model is given back as it came, in training."""
    torch.manual_seed(0)
    sizes = families.SIZE | families.HEADS | {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 64}
    config = transformers.LlamaConfig(**sizes | {"head_dim": 16, "max_position_embeddings": 1024}, **families.PLAIN)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", quantization_config=bits)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    model.train()
    records = run(model, tmp_path, ["piqa"], data_root=data)
    assert model.training
    results = directly(
        model, tmp_path, "piqa/piqa.yaml", 0, splits={"validation": choices(6)}, config={"training_split": None}
    )
    agree(records, results, "piqa", ["acc,none", "acc_norm,none"])
    with model.disable_adapter():
        others = run(model, tmp_path / "base", ["piqa"], data_root=data)
    assert [record["key"] for record in others] == [record["key"] for record in records]
    assert [record["responses"] for record in others] != [record["responses"] for record in records]


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True` and a tied layer is part:UserWarning")
@pytest.mark.parametrize("trained", [{"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}])
def test_a_tied_head_that_was_trained(data, tmp_path, trained):
    """The harness would tie it to the embeddings again, and fail. Its log-likelihoods are those of the model alone."""
    model = tiny()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    torch.manual_seed(1)
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False, **trained})
    model = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    found = run(model, tmp_path, ["piqa"], data_root=data, limit=1)
    prompt = byte_bpe().encode("Question: carry lamp 0\nAnswer:")
    texts = " over the old bridge", " in the river 0"
    for [(theirs, _)], text in zip(found[0]["responses"], texts, strict=True):
        ids = torch.tensor([prompt + byte_bpe().encode(text)])
        with torch.no_grad():
            scores = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        assert theirs == pytest.approx(float(scores[len(prompt) - 1 :].sum()), abs=1e-4)


# --- limits, memory, resuming ---------------------------------------------------------------------------------


def test_nothing_is_asked_twice(model, data, tmp_path):
    """Fewer first, then all: the first are not asked again, and none that is done comes again."""
    some = run(model, tmp_path, ["mmlu_anatomy"], data_root=data, limit=4)
    asked = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert (len(some), len(asked)) == (4, 16)
    done = {record["key"] for record in some}
    rest = run(model, tmp_path, ["mmlu_anatomy"], data_root=data, done=done)
    assert len({record["key"] for record in [*some, *rest]}) == len(some) + len(rest) == 12
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 48

    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('["torn')
    state = torch.random.get_rng_state()
    assert run(model, tmp_path, ["mmlu_anatomy"], data_root=data) == [*some, *rest]
    assert torch.equal(state, torch.random.get_rng_state())
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 48

    (tmp_path / "answers.jsonl").write_text("{}\n")
    with pytest.raises(DamagedError, match="Delete it to ask again"):
        run(model, tmp_path, ["mmlu_anatomy"], data_root=data)


def test_memory_that_does_not_suffice_makes_batches_smaller(data, tmp_path):
    """Halved until they fit, with the same answers; where even one question does not, it is said."""
    model = tiny()
    room, sizes = 7, []

    def full(module, args):
        sizes.append(len(args[0]))
        if len(args[0]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = model.register_forward_pre_hook(full)
    expected = run(model, tmp_path, ["mmlu_anatomy"], data_root=data, limit=7)
    assert max(sizes) == 7
    room, rows = 3, sum(sizes)
    sizes.clear()
    found = run(model, tmp_path / "small", ["mmlu_anatomy"], data_root=data, limit=7)
    assert max(sizes) == 7
    assert sum(size for size in sizes if size <= room) == rows
    assert [record["value"] for record in found] == [record["value"] for record in expected]
    room = 0
    with pytest.raises(SRTError, match="Memory does not suffice for a single question of mmlu_anatomy"):
        run(model, tmp_path / "none", ["mmlu_anatomy"], data_root=data, limit=1)
    hook.remove()


def test_a_damaged_model_has_no_score(data, tmp_path):
    model = tiny()
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(SRTError, match="no finite score in piqa"):
        run(model, tmp_path, ["piqa"], data_root=data)


SLOW = """
import sys, time
from pathlib import Path
from tests.evaluation.test_broad import byte_bpe, tiny
from srt_peft.evaluation import broad
model = tiny()
model.register_forward_pre_hook(lambda *_: time.sleep(0.25))
list(broad.score(model, byte_bpe(), answers=Path(sys.argv[1]), tasks=["mmlu_anatomy"], data_root=sys.argv[2], budget=1))
"""


@pytest.mark.slow
def test_a_kill_costs_the_question_under_way(model, data, tmp_path):
    """kill -9 as soon as a terminal shows how long it will take; then only what was not answered is asked."""
    answers = tmp_path / "answers.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SLOW, str(answers), str(data)]
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (30, 100))
    told = ""
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=terminal) as process:
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until and "answer" not in told:
            if select.select([ours], [], [], 0.1)[0]:
                told += os.read(ours, 4096).decode(errors="replace")
        process.send_signal(signal.SIGKILL)
    os.close(ours)
    os.close(terminal)
    assert re.search(r"mmlu_anatomy: +\d+%.* \d+/48 \[00:0\d<00:0\d,", told), told
    assert process.returncode == -signal.SIGKILL, told
    before = answers.read_bytes().count(b"\n")
    assert 4 <= before < 48, told
    asked = []
    hook = model.register_forward_pre_hook(lambda _, args: asked.append(len(args[0])))
    records = run(model, tmp_path, ["mmlu_anatomy"], data_root=data)
    again = sum(asked)
    unbroken = run(model, tmp_path / "unbroken", ["mmlu_anatomy"], data_root=data)
    hook.remove()
    assert again / (sum(asked) - again) == (48 - before) / 48
    assert [(r["key"], r["value"]) for r in records] == [(r["key"], r["value"]) for r in unbroken]


# --- which tasks ----------------------------------------------------------------------------------------------


def test_a_folder_of_ones_own(model, tmp_path, home, capfd, caplog):
    """A group of two tasks; their names are the splits, their first mean is the figure, and no bar or log is seen."""
    folder = tmp_path / "mine"
    lines(folder / "rows.jsonl", [{"q": f"lamp {i}", "a": "over"} for i in range(3)])
    common = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / "rows.jsonl"}}}}}
test_split: test
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
"""
    metrics = (
        "metric_list:\n- {metric: perplexity, aggregation: perplexity, higher_is_better: false}\n- {metric: acc}\n"
    )
    (folder / "one.yaml").write_text(f"task: one\noutput_type: loglikelihood\n{common}{metrics}")
    generate = "output_type: generate_until\ngeneration_kwargs: {max_gen_toks: 4, until: ['\\n']}\n"
    (folder / "two.yaml").write_text(f"task: two\n{generate}{common}metric_list:\n- {{metric: exact_match}}\n")
    (folder / "both.yaml").write_text("group: both\ntask: [one, two]\n")
    records = run(model, tmp_path, [str(folder)])
    assert [(r["split"], r["metric"], r["num_fewshot"]) for r in records] == [
        *[("one", "acc,none", 0)] * 3, *[("two", "exact_match,none", 0)] * 3,
    ]  # fmt: skip
    assert (capfd.readouterr(), caplog.text) == (("", ""), "")
    assert (home / "datasets" / "json").is_dir()
    (folder / "one.yaml").write_text(f"task: one\noutput_type: loglikelihood_rolling\n{common}")
    with pytest.raises(OptionError, match="one has no metric that is a mean over questions"):
        run(model, tmp_path, [str(folder)])
    (folder / "one.yaml").write_text("task: [one\n")
    with pytest.raises(OptionError, match=r"one\.yaml is no task .*mend it"):
        run(model, tmp_path, [str(folder)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="has no task in it"):
        run(model, tmp_path, [str(tmp_path / "empty")])


def test_a_group_comes_apart_into_its_tasks():
    """BROAD's are groups of 57 and 27; each names a metric and a filter that its tasks have."""
    from srt_peft.evaluation import broad_tasks

    manager = broad_tasks._manager({name: each.task for name, each in BROAD.items()}, [])
    leaves = {name: broad_tasks._leaves(each.task, manager.task_index) for name, each in BROAD.items()}
    assert {name: len(mine) for name, mine in leaves.items()} == {"mmlu": 57, "bbh": 27, "gsm8k": 1, "piqa": 1}
    for name, each in BROAD.items():
        for leaf in leaves[name]:
            config = manager.task_index[leaf].cfg
            assert each.metric in [metric["metric"] for metric in config["metric_list"]]
            assert each.filter in [f["name"] for f in config.get("filter_list", [{"name": "none"}])]
            assert config.get("num_fewshot") in {None, each.num_fewshot}


def test_a_task_that_nobody_knows(model, data, tmp_path):
    with pytest.raises(OptionError) as told:
        run(model, tmp_path, ["gsmk8", "mmlu_anatomi"], data_root=data)
    told = [fault.partition(": `lm-eval ls tasks` lists what there is") for fault in told.value.faults]
    assert [(what, rest) for what, listed, rest in told if listed] == [
        ("gsmk8 is no task, group or tag of the harness, and no folder (did you mean 'gsm8k'?)", ""),
        ("mmlu_anatomi is no task, group or tag of the harness, and no folder (did you mean 'mmlu_anatomy'?)", ""),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit": 0}, "limit = 0: expected a whole number, 1 or more"),
        ({"num_fewshot": -1}, "num_fewshot = -1: expected a whole number, 0 or more"),
        ({"limit": True}, "limit = True"),
        ({"tasks": []}, "expected one or more names, such as mmlu, bbh, gsm8k, piqa"),
    ],
)
def test_options_that_cannot_be(model, tmp_path, options, told):
    with pytest.raises(OptionError, match=told):
        run(model, tmp_path, **{"tasks": ["piqa"], **options})


def test_more_examples_than_there_are(model, data, tmp_path):
    with pytest.raises(SRTError, match=r"mmlu_anatomy: the harness refused to go on .*5 that are available"):
        run(model, tmp_path, ["mmlu_anatomy"], data_root=data, num_fewshot=6)


# --- local copies ---------------------------------------------------------------------------------------------


def test_mmlu_in_every_shape(tmp_path):
    """One table; the original's CSV files without a header; the hub's folders, a file a shard."""
    rows = {split: questions(4, seed) for seed, split in enumerate(["dev", "test", "validation"])}
    for split, mine in rows.items():
        lines(tmp_path / "a" / "mmlu" / f"mmlu_{split}.jsonl.gz", [*mine, *questions(1, 9, "virology")])
        short = "val" if split == "validation" else split
        folder = tmp_path / "b" / "mmlu" / "data" / short
        folder.mkdir(parents=True)
        with (folder / f"anatomy_{short}.csv").open("w", newline="") as file:
            for row in mine:
                csv.writer(file).writerow([row["question"], *row["choices"], "ABCD"[row["answer"]]])
        folder = tmp_path / "c" / "cais___mmlu" / "anatomy"
        folder.mkdir(parents=True, exist_ok=True)
        for shard in range(2):
            half = pa.Table.from_pylist(mine[2 * shard : 2 * shard + 2])
            pq.write_table(half, folder / f"{split}-0000{shard}-of-00002.parquet")
    plain = {split: [{k: v for k, v in r.items() if k != "subject"} for r in mine] for split, mine in rows.items()}
    for shape in "abc":
        found = LocalData(tmp_path / shape).splits(MMLU)
        assert {s: [{k: v for k, v in r.items() if k != "subject"} for r in mine] for s, mine in found.items()} == plain
        assert "mmlu_virologi" in LocalData(tmp_path / shape).splits(
            MMLU | {"dataset_name": "x", "task": "mmlu_virologi"}
        )
    assert LocalData(tmp_path / "a" / "mmlu").splits(MMLU).keys() == rows.keys()


@pytest.mark.parametrize(
    ("config", "name", "rows", "split"),
    [
        (GSM8K, "gsm8k/test.jsonl", sums(2), "test"),
        (GSM8K, "gsm8k/main/train-00000-of-00001.parquet", sums(2), "train"),
        (GSM8K, "gsm8k_test.csv", sums(2), "test"),
        (GSM8K, "grade_school_math/data/train.jsonl.gz", sums(2), "train"),
        (PIQA, "piqa/dev.jsonl", choices(2), "validation"),
        (PIQA, "data/piqa_validation.json", choices(2), "validation"),
        (BBH, "BIG-Bench-Hard/bbh/snarks.json", [{"input": "a", "target": "b"}], "test"),
        (BBH, "bbh/snarks/test-00000-of-00001.parquet", [{"input": "a", "target": "b"}], "test"),
        ({"dataset_path": "allenai/arc", "task": "arc_x"}, "arc/validation.csv", [{"q": "a", "a": "b"}], "validation"),
        ({"dataset_path": "allenai/arc", "task": "arc_x"}, "arc_x_test.jsonl", [{"q": "a"}], "test"),
    ],
)
def test_a_file_is_found_by_its_name(tmp_path, config, name, rows, split):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".parquet" in name:
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ".csv" in name:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows if config is PIQA else {"examples": rows}))
    else:
        lines(path, rows)
    assert LocalData(tmp_path).splits(config) == {split: rows}


def test_another_benchmarks_files_are_not_taken(tmp_path):
    for name in ("kmmlu/test.jsonl", "mmlu_pro/test.jsonl", "gsm8k/test_socratic.jsonl", "gsm8k/socratic/test.jsonl"):
        lines(tmp_path / name, [{"x": 1}])
    data = LocalData(tmp_path)
    assert "nothing under" in data.splits(MMLU)
    assert "nothing under" in data.splits(GSM8K)


@pytest.mark.parametrize(
    ("name", "content", "config", "told"),
    [
        ("mmlu_test.jsonl", json.dumps(questions(1)[0] | {"answer": 4}), MMLU, "line 1: expected a question, choices"),
        ("mmlu_test.jsonl", json.dumps(questions(1)[0] | {"choices": "ab"}), MMLU, "a list of four"),
        ("gsm8k_test.jsonl", '{"question": "a", "answer": "4"}', GSM8K, "its number after ####"),
        ("gsm8k_test.jsonl", "\n{", GSM8K, "cannot be read .line 2"),
        ("gsm8k_test.jsonl.gz", "no gzip", GSM8K, "cannot be read"),
        ("gsm8k_test.parquet", "no parquet", GSM8K, "cannot be read"),
        ("piqa/valid.jsonl", '{"goal": "a", "sol1": "b", "sol2": "c"}', PIQA, "on the same line of the -labels.lst"),
        ("bbh/snarks.json", '{"examples": ["a"]}', BBH, "item 1: expected an object"),
    ],
)
def test_rows_that_cannot_be_scored(tmp_path, name, content, config, told):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(OptionError, match=told):
        LocalData(tmp_path).splits(config)


def test_labels_are_as_many_as_rows(tmp_path):
    lines(tmp_path / "piqa" / "valid.jsonl", [{"goal": "a", "sol1": "b", "sol2": "c"}] * 2)
    (tmp_path / "piqa" / "valid-labels.lst").write_text("1\n")
    with pytest.raises(OptionError, match=r"has 1 labels, and valid\.jsonl 2 rows"):
        LocalData(tmp_path).splits(PIQA)


def test_a_hub_that_cannot_be_reached(model, tmp_path):
    with pytest.raises(SRTError, match=r"gsm8k: its data or its configuration could not be loaded .*data-root"):
        run(model, tmp_path, ["gsm8k"])


def test_data_that_is_not_there(model, data, tmp_path):
    with pytest.raises(OptionError, match=r"bbh_cot_fewshot_navigate: nothing under .* is called bbh/TASK.json"):
        run(model, tmp_path, ["bbh_cot_fewshot_navigate", "gsm8k"], data_root=data)
    with pytest.raises(OptionError, match="expected a folder that exists"):
        run(model, tmp_path, ["gsm8k"], data_root=tmp_path / "nowhere")
    assert not (tmp_path / "answers.jsonl").exists()


@pytest.mark.parametrize(
    ("file", "rows", "split", "shots", "note"),
    [
        (
            "mmlu/default/mmlu_anatomy.yaml",
            ["dev"],
            "dev",
            0,
            "there is no test split, so it is scored on dev, zero-shot",
        ),
        ("mmlu/default/mmlu_anatomy.yaml", ["dev", "validation"], "validation", 5, "scored on validation"),
        ("mmlu/default/mmlu_anatomy.yaml", ["test"], "test", 0, "zero-shot, since there is no dev split"),
        ("gsm8k/gsm8k.yaml", ["train"], "train", 0, "scored on train, zero-shot, since the examples would be among"),
        ("gsm8k/gsm8k.yaml", ["train", "test"], "test", 5, None),
        ("piqa/piqa.yaml", ["train"], "train", 0, "there is no validation split, so it is scored on train"),
        ("bbh/cot_fewshot/snarks.yaml", ["test"], "test", 3, None),
    ],
)
def test_what_stands_in_for_a_split_that_is_not_there(file, rows, split, shots, note):
    """No prompt may have the scored questions among its examples; and whatever differs is said."""
    config = load_yaml(BUILTIN / file, resolve_func=False)
    wanted = {"mmlu_anatomy": 5, "piqa": 0}.get(config["task"])
    changed, told = settled({"num_fewshot": wanted, **config}, {split: [{}] for split in rows}, wanted)
    config = {"num_fewshot": wanted, **config, **changed}
    assert (config["test_split"] or config["validation_split"], config["num_fewshot"]) == (split, shots)
    assert note in told if note else told is None
    given = {config.get(name) for name in ("training_split", "validation_split", "test_split", "fewshot_split")}
    assert given <= {None, *rows}


def test_a_substitute_is_scored_and_told(model, tmp_path, caplog):
    lines(tmp_path / "gsm8k" / "train.jsonl", sums(2))
    records = run(model, tmp_path, ["gsm8k"], data_root=tmp_path, limit=1)
    assert [(r["num_fewshot"], "scored on train" in r["note"]) for r in records] == [(0, True)]
    assert "gsm8k: there is no test split, so it is scored on train, zero-shot" in caplog.text


# --- real data ------------------------------------------------------------------------------------------------


@pytest.fixture
def real():
    found = os.environ.get("SRT_PEFT_DATA")
    if not found:
        pytest.skip("SRT_PEFT_DATA does not name a folder with mmlu, bbh and gsm8k")
    return Path(found)


def test_real_files_are_read_as_they_are(real):
    """MMLU's dev, BBH, GSM8K's train: by their own folders, and by the folder of all."""
    tasks = BUILTIN / "mmlu" / "default", BUILTIN / "bbh" / "cot_fewshot"
    mmlu, bbh = ([load_yaml(p, resolve_func=False) for p in t.glob("[!_]*.yaml")] for t in tasks)
    for root in (real, real / "mmlu"):
        found = [LocalData(root).splits(config) for config in mmlu[:3]]
        assert [{split: len(rows) for split, rows in mine.items()} for mine in found] == [{"dev": 5}] * 3
    data = LocalData(real)
    assert sum(len(data.splits(config)["dev"]) for config in mmlu) == 285
    assert sum(len(data.splits(config)["test"]) for config in bbh) == 6511
    assert len(LocalData(real / "bbh").splits(BBH)["test"]) == 178
    assert [{k: len(v) for k, v in LocalData(r).splits(GSM8K).items()} for r in (real, real / "gsm8k")] == [
        {"train": 7473}
    ] * 2


def test_real_questions_are_asked(real, tmp_path):
    tasks = ["mmlu_anatomy", "bbh_cot_fewshot_snarks", "gsm8k"]
    records = run(tiny(64), tmp_path, tasks, data_root=real, limit=2)
    assert [(record["split"], record["num_fewshot"]) for record in records] == [
        *[("mmlu_anatomy", 0)] * 2, *[("bbh_cot_fewshot_snarks", 3)] * 2, *[("gsm8k", 0)] * 2,
    ]  # fmt: skip
