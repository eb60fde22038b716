"""One thread a model, and nothing told to anybody."""

import gc
import os

import pytest

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL counts its users; read when huggingface_hub is imported

import torch

from tests.integrations.worlds import watched  # noqa: F401 - a fixture for the whole folder


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()  # Trainer collects garbage as it begins, which takes long where pytest and torch have so much
    yield
    gc.unfreeze()
    torch.set_num_threads(before)
