"""Log-likelihoods against a naive twin and the harness's own tokens; and what cannot be scored is told."""

import copy
import random

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation import likelihood as module
from srt_peft.evaluation.likelihood import Asked, context_length, encode, log_likelihoods
from srt_peft.evaluation.questions import prompt_of
from tests.evaluation.asking import TOKENIZERS, made, marked_bpe, model_for


def asked(n=8, mode="text"):
    return [Asked(f"line {q.line}", *prompt_of(q, mode)) for q in made(n)]


def scores(model, encoded, **options):
    found = dict(log_likelihoods(model, encoded, **{"budget": 300, **options}))
    return [found[i] for i in range(len(encoded.asked)) if i in found]


def twin(model, tokenizer, asked):
    """Each context and continuation alone, its logits whole, in float64."""
    found = []
    for each in asked:
        begin = len(tokenizer(each.context.rstrip())["input_ids"])
        found.append([])
        for text in each.continuations:
            ids = torch.tensor(tokenizer(each.context + text)["input_ids"])
            with torch.no_grad():
                logits = model(input_ids=ids[None]).logits[0, :-1].double()
            nll = -logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            found[-1].append(-nll[begin - 1 :].sum().item())
    return found


def flat(nested):
    return [value for values in nested for value in values]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "cohere", "phi", "mamba"])
@pytest.mark.parametrize("mode", ["letter", "text-blind"])
def test_log_likelihoods_are_those_of_each_text_alone(family, mode):
    tokenizer = TOKENIZERS["marked"]()
    model, questions = model_for(family, tokenizer), asked(mode=mode)
    expected = flat(twin(model, tokenizer, questions))
    assert np.std(expected) > 0.1
    assert flat(scores(model, encode(model, tokenizer, questions))) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["marked", "byte"])
def test_tokens_are_the_harness_s(kind):
    """For any texts: spaces at the end of a context, more scripts, and texts that begin with the mark themselves."""
    pytest.importorskip("lm_eval", reason="the harness is in the extra [eval]")
    from lm_eval.models.huggingface import HFLM

    tokenizer = TOKENIZERS[kind]()
    model, rng = model_for("llama", tokenizer), random.Random(0)
    theirs = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer))
    pieces = ["the river", " ", "  ", "\n", "Anna", "é", "漢字", "🜁", ":", "7", "<s>", "<|end|>", "A."]
    checked = 0
    for _ in range(300):
        context, text = ("".join(rng.choices(pieces, k=rng.randint(1, 5))) for _ in range(2))
        if not context.strip():
            continue
        expected = theirs._encode_pair(context, text)
        try:
            encoded = encode(model, tokenizer, [Asked("here", context, (text,))])
        except OptionError:  # where the harness would score other tokens than those of the continuation
            head, tail = context.rstrip(), context[len(context.rstrip()) :] + text
            assert not expected[1] or theirs.tok_encode(head + tail)[: len(expected[0])] != expected[0]
            continue
        ((target,),) = encoded.asked
        assert target.tokens == expected[1]
        assert [*encoded.rows[target.row], target.tokens[-1]] == expected[0] + expected[1]
        checked += 1
    assert checked > 150


def test_what_is_shown_alike_is_shown_once():
    """Choices of one token are one row, as four letters are, and so are the prompts of two questions."""
    tokenizer = TOKENIZERS["marked"]()
    model = model_for("llama", tokenizer)
    one = Asked("line 1", "the", (" river", " bridge", " river and the town", " river and the lamps"))
    questions = [one, Asked("line 2", "the", (" old",))]
    encoded = encode(model, tokenizer, questions)
    assert [[target.row for target in targets] for targets in encoded.asked] == [[0, 0, 1, 1], [0]]
    assert flat(scores(model, encoded)) == pytest.approx(flat(twin(model, tokenizer, questions)), abs=1e-4)


# --- batches ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    tokenizer = marked_bpe()
    model = model_for("llama", tokenizer)
    questions = asked(12)
    return model, tokenizer, encode(model, tokenizer, questions), flat(twin(model, tokenizer, questions))


@pytest.fixture
def watched(monkeypatch):
    """The shapes that the model was shown, and how many logits were asked of it."""
    seen = []

    def logits_at(model, batch, where, *, real=module.logits_at):
        seen.append((*batch.input_ids.shape, len(where)))
        return real(model, batch, where)

    monkeypatch.setattr(module, "logits_at", logits_at)
    return seen


@pytest.mark.parametrize("budget", [1, 60, 300, 10**6])
def test_batches_keep_to_their_budget(llama, watched, budget):
    model, _, encoded, expected = llama
    assert flat(scores(model, encoded, budget=budget)) == pytest.approx(expected, abs=1e-4)
    assert all(rows * width <= budget or rows == 1 for rows, width, _ in watched)
    assert sum(rows for rows, _, _ in watched) == len(encoded.rows)
    widths = [width for _, width, _ in watched]
    assert widths == sorted(widths, reverse=True)


def test_logits_keep_to_theirs(llama, watched):
    """No more at one time than may exist, and none but those that predict an answer."""
    model, tokenizer, encoded, expected = llama
    found = scores(model, encoded, budget=10**6, logits=20 * len(tokenizer))
    assert flat(found) == pytest.approx(expected, abs=1e-4)
    assert len(watched) > 1
    assert all(n <= 20 or rows == 1 for rows, _, n in watched)
    assert sum(n for _, _, n in watched) == sum(
        max(len(t.tokens) for targets in encoded.asked for t in targets if t.row == row)
        for row in range(len(encoded.rows))
    )


def test_memory_that_does_not_suffice(llama, monkeypatch):
    """Batches are halved until they fit, those after them too; one prompt that does not fit is told."""
    model, _, encoded, expected = llama
    tried = []

    real = module.logits_at

    def short_of(memory):
        def logits_at(model, batch, where):
            tried.append(batch.input_ids.numel())
            if batch.input_ids.numel() > memory:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return real(model, batch, where)

        monkeypatch.setattr(module, "logits_at", logits_at)

    short_of(130)
    assert flat(scores(model, encoded, budget=1000)) == pytest.approx(expected, abs=1e-4)
    assert sum(size > 130 for size in tried) <= 4
    short_of(3)
    with pytest.raises(
        SRTError, match=r"Memory does not suffice for a single prompt of \d+ tokens\. Load the model in"
    ):
        scores(model, encoded, budget=1000)


@pytest.mark.parametrize("n", range(0, 13, 3))
def test_what_is_skipped_changes_no_digit_of_the_others(llama, n):
    model, _, encoded, _ = llama
    order = list(log_likelihoods(model, encoded, budget=300))
    assert list(log_likelihoods(model, encoded, budget=300, skip={i for i, _ in order[:n]})) == order[n:]


def test_a_model_in_training_is_asked_without_dropout_and_left_as_it_was(llama):
    """Between two scores too, whoever takes them is in their own gradient mode; a model in evaluation stays there."""
    _, tokenizer, encoded, _ = llama
    model = model_for("gpt2", tokenizer)
    for dropout in (m for m in model.modules() if isinstance(m, torch.nn.Dropout)):
        dropout.p = 0.5
    calm = scores(model, encoded)
    assert not model.training
    model.train()
    for _, _ in log_likelihoods(model, encoded, budget=300):
        assert torch.is_grad_enabled()
        assert model.training
    assert scores(model, encoded) == calm
    assert all(parameter.grad is None for parameter in model.parameters())


def test_scores_of_a_model_in_bfloat16_are_float32(llama):
    """Not rounded to its 8 bits, and near."""
    model, _, encoded, expected = llama
    found = flat(scores(copy.deepcopy(model).bfloat16(), encoded))
    assert any(value != float(torch.tensor(value).bfloat16()) for value in found)
    assert np.abs(np.subtract(found, expected)).max() < 0.05 * np.abs(expected).max()


# --- what cannot be scored ----------------------------------------------------------------------------------------


def fast(inner, **marks):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **marks)


def letters(*merges, normalizer=None):
    """A token a character, but for what is merged; a character that is not in the table is left out."""
    table = [chr(i) for i in range(32, 127)] + ["\n"]
    for a, b in merges:
        table.append(a + b)
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(table)}, list(merges)))
    if normalizer:
        inner.normalizer = normalizer
    return fast(inner)


def faults(tokenizer, questions, **options):
    model = model_for("llama", tokenizer, **options)
    with pytest.raises(OptionError) as caught:
        encode(model, tokenizer, questions)
    return str(caught.value).split("\n  ")


def test_a_tokenizer_that_merges_the_letter_with_the_prompt():
    """`Answer:` and ` A` make one token, which no token of the prompt alone begins."""
    one = Asked("line 7", "Q\nAnswer:", (" A", " B"))
    title, fault = faults(letters((":", " "), (": ", "A")), [one])
    assert title == "1 fault in what this model is asked:"
    assert fault == (
        "line 7: the tokenizer does not keep ' A' apart from the prompt before it: [':'] of the prompt alone "
        "become [': A'], so that no token begins the answer. Ask in another mode, or another model"
    )
    spaced = letters((" ", "A"), (" ", "B"))
    encoded = encode(model_for("llama", spaced), spaced, [one])
    assert [spaced.convert_ids_to_tokens(t.tokens) for t in encoded.asked[0]] == [[" A"], [" B"]]


def test_a_tokenizer_that_ends_texts():
    """With EOS behind the prompt, the harness would score the wrong tokens."""
    _, fault = faults(marked_bpe(ending=True), [Asked("line 2", "the old", (" bridge", " town"))])
    assert fault.startswith(
        "line 2: the tokenizer does not keep ' bridge' apart from the prompt before it: ['</s>'] of the prompt alone "
        "become ['▁bridge', '</s>']"
    )


def test_a_tokenizer_that_knows_no_difference():
    plain = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    _, fault = faults(letters(normalizer=plain), [Asked("line 3", "who:", (" Rene", " René"))])
    assert fault == "line 3: the tokenizer makes the same tokens of ' Rene' and ' René': expected others"


def test_a_tokenizer_that_leaves_text_out():
    stripping = normalizers.Replace(" ", "")
    _, fault = faults(letters(normalizer=stripping), [Asked("line 3", "who:", (" 漢", " A"))])
    assert fault == "line 3: the tokenizer has no token for ' 漢', and leaves it out: expected one or more"
    _, fault = faults(letters(normalizer=stripping), [Asked("line 4", "漢", (" A", " B"))])
    assert fault == "line 4: the prompt '漢' has no token: expected one or more"


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_prompt_fits_or_is_told(family):
    """To the token: the last is predicted, and never shown."""
    tokenizer = letters()
    fits, over = Asked("line 1", "x" * 30, ("yz",)), Asked("line 2", "x" * 30, ("yz", "yyz"))
    model = model_for(family, tokenizer, positions=31)
    assert context_length(model, tokenizer) == 31
    assert len(scores(model, encode(model, tokenizer, [fits]))) == 1
    with pytest.raises(OptionError) as caught:
        encode(model, tokenizer, [fits, over])
    assert caught.value.faults == (
        "line 2: 32 tokens with 'yyz', and the model reads 31: shorten it, or take it out of the file",
    )


def test_the_tokenizer_s_word_counts_where_the_model_has_none():
    """Mamba reads on for ever; transformers' 10³⁰ says nothing."""
    tokenizer = letters()
    assert context_length(model_for("mamba", tokenizer), tokenizer) is None
    tokenizer.model_max_length = 77
    assert context_length(model_for("mamba", tokenizer), tokenizer) == 77
    assert context_length(model_for("llama", tokenizer), tokenizer) == 256


def test_twenty_faults_are_told_and_the_others_counted():
    title, *lines = faults(letters(), [Asked(f"line {i}", "x" * 99, ("y", "z")) for i in range(1, 524)], positions=64)
    assert title == "523 faults in what this model is asked:"
    assert (lines[19].split(":")[0], lines[20], len(lines)) == ("line 20", "and 503 more", 21)


def test_a_word_tokenizer_that_splits_at_spaces_is_right():
    """Words that carry no space of their own: the space makes no token, and each answer still has one."""
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "who": 1, "A": 2, "B": 3, ":": 4}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = fast(inner, unk_token="<unk>")
    model = model_for("llama", tokenizer)
    assert [t.tokens for t in encode(model, tokenizer, [Asked("line 1", "who:", (" A", " B"))]).asked[0]] == [[2], [3]]
    _, fault = faults(tokenizer, [Asked("line 1", "who:", (" C", " D"))])
    assert fault == "line 1: the tokenizer makes the same tokens of ' C' and ' D': expected others"
