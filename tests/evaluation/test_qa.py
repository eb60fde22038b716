"""The qa suite scores what the harness scores, example by example, and goes on where it was."""

import copy
import dataclasses
import json
from collections import defaultdict
from pathlib import Path

import peft
import pytest
import torch

from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.qa import score
from srt_peft.evaluation.questions import LETTERS, MODES, TRIVIAL, load_questions, prompt_of, trivial
from srt_peft.training.model import load_to_score, spare
from tests.evaluation.asking import TOKENIZERS, made, model_for

TASKS = Path(__file__).parents[2] / "eval" / "tasks"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Answers by letter and by index, a blank line, spaces around texts: the task folder reads all of it as we do."""
    path = tmp_path_factory.mktemp("qa") / "qa.jsonl"
    lines = []
    for question in made(24):
        answer = LETTERS[question.answer] if question.line % 2 else question.answer
        row = {"question": f" {question.question} ", "choices": [f"{choice} " for choice in question.choices]}
        lines.append(json.dumps({**row, "answer": answer, "split": question.split, "source": question.source}))
    path.write_text("\n\n".join(lines) + "\n")
    return path


def harness(model, tokenizer, file, tmp_path):
    """What `lm_eval` makes of our task folder: {task: (figures, {line: sample})}."""
    pytest.importorskip("lm_eval", reason="the harness is in the extra [eval]")
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    asked = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=3)
    # It calls eval(), upon which bitsandbytes would compute in bfloat16 from then on, where the processor has it.
    spare(model)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HOME", "HF_DATASETS_CACHE"):
            patch.setenv(name, str(tmp_path))
        patch.setenv("HF_HUB_OFFLINE", "1")
        manager = TaskManager(include_path=TASKS, include_defaults=False, metadata={"questions": str(file)})
        found = lm_eval.simple_evaluate(
            model=asked, tasks=["srt_qa"], task_manager=manager, bootstrap_iters=0, log_samples=True,
        )  # fmt: skip
    return {
        task: (found["results"][task], {sample["doc"]["line"]: sample for sample in samples})
        for task, samples in found["samples"].items()
    }


def agrees(model, tokenizer, file, tmp_path):
    questions = load_questions(file)
    mine = defaultdict(dict)
    for record in score(model, tokenizer, questions, modes=["letter", "text"], budget=300):
        mine[f"srt_qa_{record['mode']}_{record['split']}"][record["line"]] = record
    theirs = harness(model, tokenizer, file, tmp_path)
    assert theirs.keys() == mine.keys()
    for task, (figures, samples) in theirs.items():
        assert samples.keys() == mine[task].keys()
        metric = "acc_norm" if "text" in task else "acc"
        for line, sample in samples.items():
            record = mine[task][line]
            # (log-likelihood, whether it is what the model would say)
            found = [float(answer[0][0]) for answer in sample["resps"]]
            assert record["log_likelihoods"] == pytest.approx(found, abs=1e-4, rel=0)
            assert record["value"] == sample[metric]
            assert record.get("acc", record["value"]) == sample["acc"]
            assert record["answer"] == sample["target"]
        values = [record["value"] for record in mine[task].values()]
        assert sum(values) / len(values) == pytest.approx(figures[f"{metric},none"])
    spread = [max(r["log_likelihoods"]) - min(r["log_likelihoods"]) for r in mine["srt_qa_letter_old"].values()]
    assert min(spread) > 1e-3  # else any answer would do


@pytest.mark.parametrize(
    ("family", "tokens"),
    [
        ("llama", "marked"),
        ("llama", "byte"),
        ("gpt2", "byte"),
        ("qwen3", "byte"),
        ("qwen3", "marked"),
        ("gemma2", "marked"),
    ],
)
def test_scores_are_the_harness_s(family, tokens, file, tmp_path):
    """Through our task folder, on the same file: log-likelihoods to 1e-4, and every figure."""
    tokenizer = TOKENIZERS[tokens]()
    agrees(model_for(family, tokenizer), tokenizer, file, tmp_path)


def test_scores_of_an_adapter_on_a_base_in_4_bits_are_the_harness_s(file, tmp_path):
    tokenizer = TOKENIZERS["marked"]()
    model_for("llama", tokenizer, hidden=64).save_pretrained(tmp_path / "base")
    base = load_to_score(tmp_path / "base", precision="float32")
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM", r=4)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    model = load_to_score(tmp_path / "base", adapter=tmp_path / "adapter", precision="4bit")
    assert any(type(module).__name__ == "Linear4bit" for module in model.modules())
    agrees(model, tokenizer, file, tmp_path)
    questions = load_questions(file)
    adapted = [record["log_likelihoods"] for record in score(model, tokenizer, questions, modes=["letter"])]
    with model.disable_adapter():
        bare = [record["log_likelihoods"] for record in score(model, tokenizer, questions, modes=["letter"])]
    assert adapted != bare


# --- records ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    tokenizer = TOKENIZERS["marked"]()
    return model_for("llama", tokenizer), tokenizer


def test_a_record_says_what_was_asked_and_what_came_of_it(llama):
    """Mode by mode, each question once; an answer is the likeliest, in text a character."""
    questions = made(12)
    records = list(score(*llama, questions))
    assert [record["mode"] for record in records] == [mode for mode in MODES for _ in questions]
    by_line = {question.line: question for question in questions}
    for record in records:
        question = by_line[record["line"]]
        assert record["key"] == question.key(record["mode"])
        assert (record["split"], record["source"], record["weight"]) == (question.split, question.source, 1.0)
        likely = record["log_likelihoods"]
        assert len(likely) == len(question.choices)
        best = max(range(len(likely)), key=likely.__getitem__)
        if record["mode"].startswith("text"):
            assert record["acc"] == (best == question.answer)
            best = max(range(len(likely)), key=lambda i: likely[i] / len(question.choices[i]))
        assert record["choice"] == best
        assert record["value"] == (best == question.answer)
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    keys = {record["key"] for record in [*records, *trivial(questions)]}
    assert len(keys) == len(questions) * (len(MODES) + len(TRIVIAL))


def test_the_blind_modes_do_not_see_the_question(llama):
    """Two questions that differ in nothing else score the same there, and not where it is read."""
    one = made(1)[0]
    other = dataclasses.replace(one, question="What did Anna say of the lamps?", line=2)
    found = {}
    for record in score(*llama, [one, other]):
        found.setdefault(record["mode"], []).append(record["log_likelihoods"])
    for mode, (mine, theirs) in found.items():
        assert (mine == theirs) == mode.endswith("-blind")


def test_it_goes_on_where_it_was(llama):
    """Killed after any number of records, what is left comes in the same order with the same digits."""
    questions = made(9)
    whole = list(score(*llama, questions, budget=400))
    for n in (0, 1, 4, 9, 11, 20, 35, 36):
        done = {record["key"] for record in whole[:n]}
        assert list(score(*llama, questions, budget=400, done=done)) == whole[n:]


def test_nothing_is_tokenised_when_all_is_done(llama):
    questions = made(3)
    done = {question.key(mode) for question in questions for mode in MODES}
    assert list(score(None, None, questions, done=done)) == []


def test_all_faults_are_told_before_anything_is_scored():
    """By line, over all modes; here the prompts that are longer than the context."""
    tokenizer = TOKENIZERS["marked"]()
    model = model_for("llama", tokenizer, positions=40)
    model.forward = None
    questions = made(6)
    with pytest.raises(OptionError) as caught:
        next(score(model, tokenizer, questions))
    told = [int(fault.split(":")[0].removeprefix("line ")) for fault in caught.value.faults]
    assert str(caught.value).startswith(f"{len(told)} faults in the questions for this model:\n  line ")
    long = {
        question.line
        for question in questions
        for mode in MODES
        for text in prompt_of(question, mode).continuations
        if len(tokenizer(prompt_of(question, mode).context + text)["input_ids"]) - 1 > 40
    }
    assert set(told) == long
    assert len(long) >= 4


def test_a_mode_that_is_none_is_refused(llama):
    with pytest.raises(OptionError, match=r"'leter': expected letter, text, .* \(did you mean 'letter'\?\)"):
        next(score(*llama, made(1), modes=["leter"]))


def test_scores_that_are_not_finite_are_refused(llama):
    model, tokenizer = copy.deepcopy(llama[0]), llama[1]
    with torch.no_grad():
        model.lm_head.weight[0] = torch.nan
    with pytest.raises(SRTError, match=r"no finite score for the question in line \d"):
        next(score(model, tokenizer, made(2)))


def test_what_a_model_was_taught_is_seen():
    """A model that was trained to say the right letters answers all, and one that was trained otherwise none."""
    tokenizer, questions = TOKENIZERS["marked"](), made(6)
    for shift, expected in ((0, 1.0), (1, 0.0)):
        model = model_for("llama", tokenizer).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        texts = []
        for question in questions:
            prompt = prompt_of(question, "letter")
            texts.append(prompt.context + prompt.continuations[(question.answer + shift) % len(question.choices)])
        rows = [torch.tensor(ids) for ids in tokenizer(texts)["input_ids"]]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        last = torch.tensor([len(row) - 1 for row in rows])
        for _ in range(60):
            logits = model(input_ids=batch).logits[torch.arange(len(rows)), last - 1]
            loss = torch.nn.functional.cross_entropy(logits, batch[torch.arange(len(rows)), last])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss < 0.1
        assert {record["value"] for record in score(model, tokenizer, questions, modes=["letter"])} == {expected}
