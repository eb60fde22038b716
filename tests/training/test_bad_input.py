"""Whatever is wrong with texts, base, adapter, folder or disk: `srt-peft train` tells it, and nothing is lost.

Every case is a process of its own that runs the command line. Most are forked from one that has imported torch
already (by multiprocessing's fork server), as the import takes longer than all that is tested; some are begun anew.
"""

import gzip
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from srt_peft.errors import DamagedError
from srt_peft.review.log import RECORD
from srt_peft.training import checkpoint
from tests.data.helpers import TURNS, byte_bpe, prose

ROOT = Path(__file__).parents[2]
PRELOAD = ["srt_peft.training.loop", "peft", "transformers.models.llama.modeling_llama", __name__]
RECIPE = """
model: {base: base, tuning: lora, dtype: float32, gradient_checkpointing: false, lora: {r: 2, alpha: 4}}
data: {old: old.jsonl, new: new.jsonl, max_length: 48, holdout: 0.1}
training: {steps: 3, batch_size: 6, micro_batch_tokens: 200, learning_rate: 0.01, warmup_steps: 1}
checkpoints: {every: 1, keep: 9}
output: run
"""
LAST = "run/checkpoints/step-00000003"


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """No hub, one thread; before the fork server starts, which hands it down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("SRT_PEFT_HOME", raising=False)
        yield


def config(**changes):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    marks = {"bos_token_id": None, "eos_token_id": byte_bpe().eos_token_id, "num_key_value_heads": 1}
    return transformers.LlamaConfig(
        **{"vocab_size": len(byte_bpe()), "max_position_embeddings": 64, **sizes, **marks, **changes}
    )


def save(config, folder):
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder as a person has it: a base, two texts, a recipe."""
    folder = tmp_path_factory.mktemp("world")
    save(config(), folder / "base")
    byte_bpe().save_pretrained(folder / "base")
    for name, seed in (("old", 0), ("new", 100)):
        texts = [prose(2, seed=seed + i) for i in range(25)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "r.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def whole(world):
    """The same, after a run that nothing went wrong with."""
    assert train(world)[0] == 0
    return world


@pytest.fixture
def here(world, tmp_path):
    """A copy of the world before its run, to be harmed."""
    return shutil.copytree(world, tmp_path / "w", ignore=shutil.ignore_patterns("run", "home", "out", "err"))


@pytest.fixture
def after(whole, tmp_path):
    """A copy of the world after its run."""
    return shutil.copytree(whole, tmp_path / "w")


def train(folder, *words, limit=None, home="home"):
    """`srt-peft train r.yaml …` in a process forked from a warm one: (exit code, stdout, stderr)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=_command, args=(["train", "r.yaml", *words], folder, limit, home))
    process.start()
    process.join(120)
    code = process.exitcode
    process.close()
    return code, (folder / "out").read_text(), (folder / "err").read_text()


def _command(words, folder, limit, home):
    os.chdir(folder)
    os.environ["SRT_PEFT_HOME"] = str(folder / home)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if limit is not None:  # a disk that is full for whoever writes more than that into one file
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    from srt_peft.cli import main

    sys.exit(main(words))


def contents(folder):
    """All files and their bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- what is wrong before anything is trained ---------------------------------------------------------------------


def new(name, content):
    """The new text is this file."""

    def harm(folder):
        raw = content(folder) if callable(content) else content
        (folder / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
        return [f"data.new={name}"]

    return harm


def good(folder):
    return (folder / "new.jsonl").read_bytes()


def asking(*words):
    return lambda folder: [*words]


def parquet(harm):
    def content(folder):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": [f"w {i}" for i in range(2000)]}), folder / "p")
        return harm(bytearray((folder / "p").read_bytes()))

    return content


def flipped(raw, at):
    raw[at] ^= 0xFF
    return bytes(raw)


def many(folder, files):
    (folder / "d").mkdir()
    for name, content in files.items():
        (folder / "d" / name).write_bytes(content)
    return ["data.new=d"]


def edited(name, **changes):
    """A JSON file of the base with other values."""

    def harm(folder):
        path = folder / "base" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return []

    return harm


def torn(name, size=100):
    return lambda folder: os.truncate(folder / name, size) or []


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names][:0]


def only_bin(folder):
    (folder / "base/model.safetensors").unlink()
    torch.save({}, folder / "base/pytorch_model.bin")
    return []


def a_shard_less(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    (folder / "base/model.safetensors").unlink()
    model.save_pretrained(folder / "base", max_shard_size="5KB")
    next((folder / "base").glob("model-00002*")).unlink()
    return []


def other_base(**changes):
    return lambda folder: save(config(**changes), folder / "base") or []


def gpt2(folder):
    (folder / "base/model.safetensors").unlink()
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": len(byte_bpe())}
    save(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0), folder / "base")
    return []


def adapter(**changes):
    """An adapter made for a base with these changes, said to be for ours."""

    def harm(folder):
        import peft

        model = transformers.AutoModelForCausalLM.from_config(config(**changes))
        shape = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
        peft.get_peft_model(model, shape).save_pretrained(folder / "ad")
        said = json.loads((folder / "ad/adapter_config.json").read_text()) | {"base_model_name_or_path": "base"}
        (folder / "ad/adapter_config.json").write_text(json.dumps(said))
        return ["model.adapter=ad"]

    return harm


def then(harm, *more):
    return lambda folder: [word for one in (harm, *more) for word in one(folder)]


def blocked(name, *words):
    """A file stands where a folder is wanted."""
    return lambda folder: (folder / name).write_text("mine") and [*words]


def thesis(folder):
    (folder / "o/review").mkdir(parents=True)
    (folder / "o/review/thesis.tex").write_text("ten years")
    return ["output=o"]


def my_metrics(folder):
    (folder / "o").mkdir()
    (folder / "o/metrics.jsonl").write_text("mine")
    return ["output=o"]


def dangling(folder):
    (folder / "d").mkdir()
    (folder / "d/b.txt").symlink_to("nowhere")
    return ["data.new=d"]


def pipe(folder):
    os.mkfifo(folder / "p.jsonl")
    return ["data.new=p.jsonl"]


def templated(folder):
    (folder / "base/chat_template.jinja").write_text(TURNS)
    return ["data.old=null", "data.format=chat"]


REMOTE = {"auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M", "AutoTokenizer": ["t.T", None]}}

# Each: what is done to the folder and given to the command; the exit code; what must stand in the message.
MISTAKES = {
    # the texts
    "two files that are missing": (
        asking("data.old=odl.jsonl", "data.new=no/such.txt"),
        2,
        ["2 faults", "odl.jsonl does not exist (did you mean 'old.jsonl'?): expected", "no/such.txt does not exist"],
    ),
    "an empty file": (new("n.jsonl", ""), 2, ["there is no text in n.jsonl: no documents. Check the paths"]),
    "empty documents": (new("n.jsonl", '{"text": null}\n' * 9), 2, ["no text in n.jsonl: 9 documents, all of them"]),
    "Latin-1": (
        new("n.txt", "café".encode("latin1")),
        2,
        ["n.txt is not UTF-8: byte 0xe9 at offset 3. Convert it, such as with iconv -f LATIN1 -t UTF-8"],
    ),
    "UTF-16": (
        new("n.jsonl", lambda f: good(f).decode().encode("utf-16")),
        2,
        ["n.jsonl is not UTF-8: byte 0xff at offset 0. Convert it, such as with iconv -f UTF-16 -t UTF-8"],
    ),
    "nothing but zeros": (new("n.txt", b"\0" * 999), 2, ["n.txt is no text: byte 0x00 at offset 0. Bring it again"]),
    "zeros at the end": (
        new("n.jsonl", lambda f: good(f)[:2000].rpartition(b"\n")[0] + b"\n" + b"\0" * 99),
        2,
        ["n.jsonl is no text: byte 0x00 at offset "],
    ),
    "no text column": (
        asking("data.text_column=txt"),
        2,
        ["old.jsonl, line 1 has no column 'txt' (did you mean 'text'?): it has text. Name the column with text_column"],
    ),
    "no column of sources": (
        asking("data.source_column=topic"),
        2,
        ["old.jsonl, line 1 has no column 'topic': it has text. Name the column with source_column"],
    ),
    "a map that is not there": (asking("data.supersedes=maps/m.jsonl"), 2, ["maps/m.jsonl does not exist: expected a"]),
    "numbers for text": (new("n.jsonl", '{"text": 3}\n'), 2, ["n.jsonl, line 1: 'text' is 3, a int: expected text"]),
    "a broken line": (
        new("n.jsonl", lambda f: good(f) + b'{"text": "x\n'),
        2,
        ["n.jsonl, line 26 is not JSON (", "expected a JSON object on each line"],
    ),
    "Parquet cut short": (new("n.parquet", parquet(lambda raw: raw[:500])), 2, ["n.parquet is not a whole Parquet"]),
    "Parquet with a flipped byte": (new("n.parquet", parquet(lambda raw: flipped(raw, 500))), 2, ["n.parquet ", "("]),
    "CSV with a cell too few": (new("n.csv", "n,text\n1,a\n2\n"), 2, ["n.csv, line 3 has 1 cells, and the header 2"]),
    "CSV with an open quote": (new("n.csv", 'n,text\n1,"a\n2'), 2, ["n.csv, line 3 is not CSV", "quote what needs it"]),
    "gzip cut short": (
        new("n.jsonl.gz", lambda f: gzip.compress(good(f))[:-20]),
        2,
        ["n.jsonl.gz cannot be read (Compressed file ended", "expected a whole file that you may read"],
    ),
    "no gzip": (new("n.jsonl.gz", good), 2, ["n.jsonl.gz cannot be read (Not a gzipped file"]),
    "an empty folder": (lambda f: many(f, {}), 2, ["d holds nothing: expected a folder with files in it"]),
    "a folder without texts": (lambda f: many(f, {"a.pdf": b"x"}), 2, ["d holds only a.pdf and the like: expected"]),
    "a folder with a link to nowhere": (dangling, 2, ["d/b.txt cannot be read (No such file or directory): expected"]),
    "a pipe": (pipe, 2, ["p.jsonl is neither a file nor a folder: expected one of them. Write what it gives"]),
    "a limit of 0": (
        asking("data.new=[{path: new.jsonl, limit: 0}]"),
        2,
        ["data.new[0].limit = 0: expected the most documents to take, a whole number, 1 or more, or null"],
    ),
    "a hold-out of all": (
        asking("data.holdout=0.99999"),
        2,
        ["holdout = 0.99999 leaves nothing of old.jsonl to train on: lower it, or bring more text"],
    ),
    "max_length 3": (asking("data.max_length=3"), 2, ["data.max_length = 3: expected the most tokens of an example"]),
    # chats
    "chats without a template": (
        asking("data.format=chat"),
        2,
        ["format = 'chat': this", "has no chat template. Take"],
    ),
    "chats in a column of another name": (templated, 2, ["new.jsonl, line 1 has no column 'messages'", "text_column"]),
    "chats as ShareGPT has them": (
        then(templated, new("n.jsonl", '{"messages": [{"from": "human", "value": "x"}]}\n')),
        2,
        ["n.jsonl, line 1: 'messages' is [{'from': 'human'", "expected a list of {role: …, content: …}"],
    ),
    "chats without content": (
        then(templated, new("n.jsonl", '{"messages": [{"role": "user", "value": "x"}]}\n')),
        2,
        ["n.jsonl, line 1: 'messages' is [{'role': 'user'", "expected a list of {role: …, content: …}"],
    ),
    # the base
    "a base's path that does not exist": (
        asking("model.base=./bsae"),
        2,
        ["'./bsae' does not exist (did you mean 'base'?)"],
    ),
    "a base's name that nobody has": (
        asking("model.base=bsae"),
        2,
        ["model.base = 'bsae' is neither a folder here nor a model that the hub gives", "hf download bsae"],
    ),
    "a file for a base": (
        asking("model.base=base/model.safetensors"),
        2,
        ["'base/model.safetensors' is a file: expected the folder that it lies in, 'base'"],
    ),
    "no weights": (
        without("base/model.safetensors"),
        2,
        ["model.base = 'base' has no weights in safetensors: expected"],
    ),
    "only pytorch_model.bin": (only_bin, 2, ["can hold code and are never read; load it where you trust it"]),
    "torn weights": (torn("base/model.safetensors"), 2, ["'base' is damaged (", "): fetch its weights again"]),
    "a shard that is missing": (
        a_shard_less,
        2,
        ["'base' lacks model-00002-of-", "which its model.safetensors.index.json names: fetch the base again"],
    ),
    "weights of fewer layers": (
        edited("config.json", num_hidden_layers=2),
        2,
        ["'base' is not what its config.json says: 9 weights are missing or of another shape, the first is "],
    ),
    "weights of another shape": (
        edited("config.json", intermediate_size=20),
        2,
        ["3 weights are missing or of another"],
    ),
    "a torn config": (torn("base/config.json"), 2, ["'base' has a config.json that transformers cannot read", "Save"]),
    "a config that cannot be": (
        edited("config.json", num_attention_heads=3),
        2,
        ["not a multiple of", "Save the base"],
    ),
    "a base that brings code": (
        edited("config.json", model_type="mine", **REMOTE),
        2,
        ["model.base = 'base' needs code of its own from the hub, and srt-peft never runs such code. Choose another"],
    ),
    "a tokenizer that brings code": (
        edited("tokenizer_config.json", tokenizer_class="Mine", **REMOTE),
        2,
        ["model.base = 'base': its tokenizer needs code of its own"],
    ),
    "no tokenizer": (
        without("base/tokenizer.json", "base/tokenizer_config.json"),
        2,
        ["model.base = 'base' has no tokenizer that can be read", "Save them there with tokenizer.save_pretrained"],
    ),
    "neither pad nor eos": (
        edited("tokenizer_config.json", eos_token=None, pad_token=None),
        2,
        [
            "its tokenizer has neither a padding nor an end-of-sequence token",
            "Set eos_token in its tokenizer_config.json",
        ],
    ),
    "an eos that the base never saw": (
        edited("tokenizer_config.json", eos_token="<nowhere>"),
        2,
        ["the tokenizer gives the id ", "('<nowhere>'), and the base has embeddings for ids 0 to ", "Put that beside"],
    ),
    "ids beyond the embedding": (
        other_base(vocab_size=300),
        2,
        ["and the base has embeddings for ids 0 to 299: expected the base's own tokenizer"],
    ),
    "more positions than GPT-2 has": (
        gpt2,
        2,
        ["data.max_length = 48: model.base = 'base' has positions for 32 tokens", "Set data.max_length to 32 or less"],
    ),
    "modules that are not there": (
        asking("model.lora.target_modules=[nope]"),
        2,
        ["model.lora: Target modules", "nope"],
    ),
    # adapters
    "no adapter": (asking("model.adapter=./ad"), 2, ["model.adapter = './ad'", "Check the spelling, or leave it out"]),
    "a file for an adapter": (asking("model.adapter=new.jsonl"), 2, ["is a file: expected the folder that PEFT's"]),
    "an empty adapter": (
        lambda f: (f / "ad").mkdir() or ["model.adapter=ad"],
        2,
        ["'ad' has no adapter_config.json and no adapter_model.safetensors: expected what PEFT's"],
    ),
    "a torn adapter": (
        then(adapter(), torn("ad/adapter_model.safetensors")),
        2,
        ["'ad' is damaged: ", "Fetch it again"],
    ),
    "another base's adapter": (
        adapter(hidden_size=32),
        2,
        [
            "model.adapter = 'ad' does not fit model.base = 'base' (size mismatch",
            "Set model.base to that base, or leave",
        ],
    ),
    # where it goes
    "a file for an output": (
        blocked("o", "output=o"),
        2,
        ["output = o: File exists: expected a folder, or a path where one can be made; name another output"],
    ),
    "an output under a file": (blocked("o", "output=o/run"), 2, ["output = o/run: Not a directory: expected a folder"]),
    "an output that cannot be made": (asking("output=/proc/run"), 2, ["output = /proc/run: ", "name another output"]),
    "an output with a person's own review": (thesis, 2, ["output = o: review there was not made by a run"]),
    "an output with a person's own metrics": (my_metrics, 2, ["output = o: metrics.jsonl there was not made by a run"]),
    "a cache that cannot be written": (
        blocked("home"),
        1,
        ["The pools could not be written in ", "set SRT_PEFT_HOME to"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_and_nothing_is_lost(case, here):
    """Exit code, name, value, expectation and remedy; no traceback; not a byte of the person's own is changed."""
    harm, code, told = MISTAKES[case]
    words = harm(here)
    before = contents(here)
    found, out, err = train(here, *words)
    assert found == code, err
    assert out == ""
    message = err[err.rindex("error: ") :]
    assert [part for part in told if part not in message] == [], message
    assert "Traceback" not in err
    assert "not foreseen" not in err
    after = contents(here)
    assert {name: after.get(name) for name in before} == before
    made = {Path(name).parts[0] for name in after.keys() - before.keys()}
    assert made <= {"out", "err", "home"}
    assert not list(here.glob("home/pools/.staged-*"))


@pytest.mark.parametrize("case", ["two files that are missing", "only pytorch_model.bin", "a file for an output"])
def test_the_same_in_a_process_begun_anew(case, here):
    """As a person runs it, every import included."""
    harm, code, told = MISTAKES[case]
    words = ["-m", "srt_peft", "train", "r.yaml", *harm(here)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SRT_PEFT_HOME": str(here / "home")}
    done = subprocess.run([sys.executable, *words], cwd=here, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert all(part in done.stderr for part in told)
    assert "Traceback" not in done.stderr


ODD = {
    "the same text on both sides": (
        asking("data.new=old.jsonl"),
        "new examples are in data.old, too, word for word: each is reviewed in both pools, as two examples",
    ),
    "a batch larger than the corpus": (
        asking("training.batch_size=500"),
        "training.batch_size = 500 is more than the 45 examples there are: draws are smaller",
    ),
    "more positions than Llama was made for": (
        asking("data.max_length=65"),
        "has positions for 64 tokens: longer examples are beyond what it was trained on",
    ),
    "a folder of all sorts": (
        lambda f: many(f, {"a.pdf": b"x", "b.txt": b"some words", "c.jsonl.gz": gzip.compress(good(f))}),
        "1 files in d are of unknown kinds, and left out",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_legal_and_seldom_meant_is_told(case, here):
    harm, told = ODD[case]
    code, _, err = train(here, *harm(here), "training.steps=1")
    assert code == 0, err
    assert told in err


# --- a damaged checkpoint -----------------------------------------------------------------------------------------


def manifest(**changes):
    """A MANIFEST.json that says something else; `files` are put beside those that it names."""

    def harm(folder):
        path = folder / checkpoint.MANIFEST
        said = json.loads(path.read_text())
        files = changes.get("files", {})
        said |= changes | {"files": {**said["files"], **files} if isinstance(files, dict) else files}
        path.write_text(json.dumps(said))

    return harm


def bytes_of(name, change):
    return lambda folder: (folder / name).write_bytes(change(bytearray((folder / name).read_bytes())))


DAMAGES = {
    "a missing file": (lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is missing"),
    "a truncated file": (
        bytes_of("srt_state/columns-0.safetensors", lambda b: b[:99]),
        "columns-0.safetensors is not as",
    ),
    "a flipped byte": (
        bytes_of("trainer/optimizer.safetensors", lambda b: flipped(b, -9)),
        "optimizer.safetensors is not",
    ),
    "no manifest": (lambda f: (f / checkpoint.MANIFEST).unlink(), "MANIFEST.json is missing or cannot be read"),
    "a manifest that is no JSON": (bytes_of("MANIFEST.json", lambda b: b[:-9]), "MANIFEST.json is missing or cannot"),
    "a binary manifest": (bytes_of("MANIFEST.json", lambda b: b"\xff\xfe\0"), "MANIFEST.json is missing or cannot"),
    "a manifest of brackets": (bytes_of("MANIFEST.json", lambda b: b"[" * 99999), "MANIFEST.json is missing or cannot"),
    "a manifest with a list": (manifest(files=["x"]), "MANIFEST.json is missing or cannot be read"),
    "a manifest of nothing": (manifest(files=[]), "its MANIFEST.json names no "),
    "a manifest of another step": (manifest(step=1), "is not what its name says: its MANIFEST.json is of step 1"),
    "a manifest of a later day": (manifest(version=9), "is not a checkpoint that this version reads"),
    "a manifest that leads outside": (manifest(files={"../../r": {}}), "names ../../r, which lies outside of it"),
    "a manifest that leads to the root": (manifest(files={"/etc/hosts": {}}), "/etc/hosts, which lies outside of it"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_by_name(case, after):
    """The newest whole one is found, and what is wrong with the newer is told."""
    harm, told = DAMAGES[case]
    harm(after / LAST)
    with pytest.raises(DamagedError):
        checkpoint.check(after / LAST)
    found, faults = checkpoint.newest(after / "run")
    assert found == after / "run/checkpoints/step-00000002"
    assert len(faults) == 1
    assert "step-00000003" in faults[0]
    assert told in faults[0]


def test_what_is_no_checkpoint_of_ours_is_neither_taken_nor_told(after):
    """A person's own folder or file beside them, and a file of theirs within."""
    (after / "run/checkpoints/step-latest").mkdir()
    (after / "run/checkpoints/step-00000009").write_text("mine")
    (after / LAST / "notes.txt").write_text("mine")
    assert checkpoint.newest(after / "run") == (after / LAST, [])


def test_a_damaged_one_never_pushes_out_a_whole_one(tmp_path):
    """Keep one: of those up to the one just saved; a later one is there because it was passed over."""
    parts = {
        "srt_state": lambda f: (f / "state.json").write_text("{}"),
        "trainer": lambda f: (f / "trainer.json").write_text("{}"),
    }
    for step in (4, 6):
        checkpoint.save(tmp_path, step, parts)
    (tmp_path / "checkpoints/step-00000006/MANIFEST.json").unlink()
    checkpoint.save(tmp_path, 5, parts, keep=1)
    assert checkpoint.newest(tmp_path)[0] == tmp_path / "checkpoints/step-00000005"
    assert not (tmp_path / "checkpoints/step-00000004").exists()


SAME = (
    "adapter_model.safetensors",
    "srt_state/columns-0.safetensors",
    "srt_state/state.json",
    "trainer/optimizer.safetensors",
)


def assert_ends_like(folder, whole, *, log=True):
    """Weights, moments, review state, metrics, and the log where it was not lost: the bytes of a run never stopped."""
    for name in SAME:
        assert (folder / LAST / name).read_bytes() == (whole / LAST / name).read_bytes(), name
    assert metrics(folder) == metrics(whole)
    if log:
        assert (folder / "run/review/log").read_bytes() == (whole / "run/review/log").read_bytes()
    assert not list(folder.glob("run/checkpoints/.*"))


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "note")} for line in lines]


def test_with_a_damaged_checkpoint_resume_ends_with_the_same_bytes(after, whole):
    manifest(files={"../../../r.yaml": {}})(after / LAST)
    code, _, err = train(after, "--resume")
    assert code == 0
    assert f"passed over: {LAST} is damaged: its MANIFEST.json names ../../../r.yaml" in err
    assert "Going on from run/checkpoints/step-00000002." in err
    assert_ends_like(after, whole)


@pytest.mark.parametrize("words", [[], ["--resume"]])
def test_with_no_whole_checkpoint_all_are_told_and_left(words, after):
    for path in (after / "run/checkpoints").iterdir():
        (path / "MANIFEST.json").unlink()
    before = contents(after / "run")
    code, _, err = train(after, *words)
    assert code == 1
    assert err.count("passed over: ") == 3
    assert (
        "error: output = run: none of the 3 checkpoints there is whole. Restore one from a copy and go on with" in err
    )
    assert contents(after / "run") == before


# --- a power cut --------------------------------------------------------------------------------------------------


def cut(name, change):
    def harm(run):
        shutil.rmtree(run / "checkpoints/step-00000003")
        (run / name).write_bytes(change(bytearray((run / name).read_bytes())))

    return harm


SIZE = RECORD.itemsize
POWER_CUTS = {
    "the last line of metrics.jsonl is torn": (
        cut("metrics.jsonl", lambda b: b[:-30]),
        "1 torn lines are left out",
        True,
    ),
    "metrics.jsonl ends in zeros": (cut("metrics.jsonl", lambda b: b + b"\0" * 99), "1 torn lines are left out", True),
    "the log ends within a record": (cut("review/log", lambda b: b[:-5]), "", True),
    "the log ends in zeros": (cut("review/log", lambda b: b + bytes(4 * SIZE)), "", True),
    "the log lacks its end": (cut("review/log", lambda b: b[: 64 + SIZE]), "lacks the reviews of steps 1 to 1", False),
    "the log is damaged within": (
        cut("review/log", lambda b: flipped(b, 64 + SIZE + 1)),
        "It is set aside as run/review/log.damaged-2, and a new log goes on from step 2",
        False,
    ),
    "the log's head is damaged": (
        cut("review/log", lambda b: flipped(b, 3)),
        "It is set aside as run/review/log.damaged-2, and a new log goes on from step 2",
        False,
    ),
    "the live state is torn": (cut("review/state/state.json", lambda b: b[:9]), "", True),
}


@pytest.mark.parametrize("case", POWER_CUTS)
def test_after_a_power_cut_resume_goes_on(case, after, whole):
    """What was torn is told, and the run ends as if nothing had been; a log that cannot be read is kept aside."""
    harm, told, log = POWER_CUTS[case]
    harm(after / "run")
    code, _, err = train(after, "--resume")
    assert code == 0, err
    assert told in err
    assert_ends_like(after, whole, log=log)
    aside = after / "run/review/log.damaged-2"
    assert aside.exists() == ("set aside" in told)


# --- a full disk --------------------------------------------------------------------------------------------------

# By what is the first file too large for it: the tokenizer and the weights are written in Rust, which tells of a full
# disk in exceptions of its own.
FULL = {
    "a tokenizer": (
        20_000,
        [],
        "step-00000002 could not be written (",
        "lower checkpoints.keep, and go on with --resume",
    ),
    "weights": (24_000, ["model.lora.r=64"], "could not be written (", "and go on with --resume"),
    "a line of metrics": (
        30_100,
        [],
        "OSError: [Errno 27] File too large",
        "Make room on the disk, and try again; a run",
    ),
}


@pytest.mark.parametrize("case", FULL)
def test_a_full_disk_loses_nothing_and_resume_goes_on(case, here, whole):
    """The earlier checkpoint is whole, nothing half-written is left, and with room the run ends as if never stopped."""
    limit, words, *told = FULL[case]
    if words:  # another run than `whole`: its own twin
        whole = shutil.copytree(here, here.with_name("twin"))
        assert train(whole, *words)[0] == 0
    for name in ("run", "home"):
        shutil.copytree(whole / name, here / name)
    for step in (2, 3):
        shutil.rmtree(here / f"run/checkpoints/step-{step:08}")
    if case == "a line of metrics":  # the one large file
        path = here / "run/metrics.jsonl"
        first = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps(first | {"note": "x" * (30_000 - len(json.dumps(first)))}) + "\n")
    keep = contents(here / "run/checkpoints")
    code, out, err = train(here, *words, "--resume", limit=limit)
    assert code == 1, err
    assert out == ""
    assert all(part in err for part in told), err
    assert "not foreseen" not in err
    assert contents(here / "run/checkpoints") == keep
    assert train(here, *words, "--resume")[0] == 0
    assert_ends_like(here, whole)


def test_a_disk_that_is_full_while_text_is_tokenised_leaves_no_torn_pool(here):
    """The next attempt, with room, finds a cache that is whole."""
    code, _, err = train(here, limit=4000)
    assert code == 1
    assert "The pools could not be written in " in err
    assert "(File too large); nothing was left there. Free some space, or set SRT_PEFT_HOME" in err
    assert list(here.glob("home/pools/*")) == []
    assert list(here.glob("home/pools/.*")) == []
    assert train(here, "training.steps=1")[0] == 0
